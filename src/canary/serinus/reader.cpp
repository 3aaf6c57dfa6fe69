#include "canary/serinus/reader.h"

#include <algorithm>
#include <limits>

namespace serinus::canary {

void Attached::attach(std::int64_t begin, std::int64_t end, std::uint32_t epoch) {
  std::vector<Segment> next;
  for (const Segment& s : segments) {
    if (s.begin < begin) next.push_back({s.begin, std::min(s.end, begin), s.epoch});
    if (s.end > end) next.push_back({std::max(s.begin, end), s.end, s.epoch});
  }
  next.push_back({begin, end, epoch});
  std::sort(next.begin(), next.end(),
            [](const Segment& a, const Segment& b) { return a.begin < b.begin; });
  segments = std::move(next);
}

const Attached::Segment* Attached::covering(std::int64_t cell) const noexcept {
  for (const Segment& s : segments) {
    if (cell >= s.begin && cell < s.end) return &s;
  }
  return nullptr;
}

std::int64_t Attached::next_border(std::int64_t cell) const noexcept {
  std::int64_t next = std::numeric_limits<std::int64_t>::max();
  for (const Segment& s : segments) {
    if (s.begin > cell) next = std::min(next, s.begin);
    if (s.end > cell) next = std::min(next, s.end);
  }
  return next;
}

}  // namespace serinus::canary
