// What follows from a layout, whichever it is.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include <serinus/kv_layout.h>

#include "base/raise.h"

namespace serinus {

namespace {

constexpr std::int64_t kMaxRuns = std::int64_t{1} << 22;
// Offsets stay far from the end of 64 bits, so that sums of a few of them cannot overflow.
constexpr std::int64_t kMaxPageBytes = std::int64_t{1} << 56;

[[noreturn]] void raise_impossible(const KvLayout& layout, std::string problem) {
  raise(errors::Page::impossible_layout,
        {{"name", "layout"}, {"layout", layout.name}, {"problem", std::move(problem)}});
}

// One token's run of one segment.
struct Run {
  std::int64_t begin;
  std::int64_t end;
  std::size_t segment;
};

std::int64_t saturated_product(std::int64_t a, std::int64_t b) noexcept {
  std::int64_t out = 0;
  return __builtin_mul_overflow(a, b, &out) ? std::numeric_limits<std::int64_t>::max() : out;
}

// Slots, counted from 0, of which every segment in buffer `b` lies below `bytes`.
std::int64_t slots_in_buffer(const KvLayout& layout, int b, std::int64_t bytes,
                             std::int64_t page_stride) noexcept {
  if (bytes <= 0 || page_stride <= 0) return 0;
  std::int64_t page_end = 0;  // of the last run in a page; padding behind it need not be there
  for (const KvSegment& s : layout.segments) {
    if (s.buffer != b) continue;
    page_end = std::max(page_end, s.offset + (layout.page_size - 1) * s.token_stride + s.bytes);
  }
  const std::int64_t pages = bytes < page_end ? 0 : (bytes - page_end) / page_stride + 1;
  std::int64_t rest = 0;
  if (__builtin_mul_overflow(pages, page_stride, &rest)) rest = bytes;
  rest = bytes - rest;
  std::int64_t more = layout.page_size;
  for (const KvSegment& s : layout.segments) {
    if (s.buffer != b) continue;
    const std::int64_t room = rest - s.offset - s.bytes;
    const std::int64_t fit = room < 0             ? 0
                             : s.token_stride > 0 ? room / s.token_stride + 1
                                                  : layout.page_size;
    more = std::min(more, fit);
  }
  const std::int64_t whole = saturated_product(pages, layout.page_size);
  return whole > std::numeric_limits<std::int64_t>::max() - more ? whole : whole + more;
}

}  // namespace

const char* name_of(SegmentRole r) noexcept {
  switch (r) {
    case SegmentRole::key:
      return "key";
    case SegmentRole::value:
      return "value";
    case SegmentRole::latent:
      return "latent";
    case SegmentRole::rope:
      return "rope";
    case SegmentRole::scale:
      return "scale";
    case SegmentRole::index_key:
      return "index_key";
    case SegmentRole::index_scale:
      return "index_scale";
  }
  return "unknown";
}

std::int64_t KvLayout::token_bytes() const noexcept {
  std::int64_t sum = 0;
  for (const KvSegment& s : segments) sum += s.bytes;
  return sum;
}

void KvLayout::validate() const {
  if (page_size < 1) raise_impossible(*this, fmt::format("a page of {} tokens", page_size));
  if (segments.empty()) raise_impossible(*this, "it has no segment");
  if (page_size > kMaxRuns / static_cast<std::int64_t>(segments.size())) {
    raise_impossible(*this, fmt::format("{} segments in pages of {} tokens are too many",
                                        segments.size(), page_size));
  }
  for (std::size_t b = 0; b < page_bytes.size(); ++b) {
    if (page_bytes[b] < 1 || page_bytes[b] > kMaxPageBytes) {
      raise_impossible(*this, fmt::format("buffer {} has pages of {} bytes", b, page_bytes[b]));
    }
  }
  std::vector<std::vector<Run>> runs(page_bytes.size());
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const KvSegment& s = segments[i];
    if (s.buffer < 0 || s.buffer >= num_buffers()) {
      raise_impossible(*this, fmt::format("segment {} lies in buffer {} of {}", s.name, s.buffer,
                                          num_buffers()));
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (segments[j].name == s.name) {
        raise_impossible(*this, fmt::format("two segments are named {}", s.name));
      }
    }
    const std::int64_t page = page_bytes[static_cast<std::size_t>(s.buffer)];
    if (s.bytes < 1 || s.bytes > page) {
      raise_impossible(
          *this, fmt::format("segment {} is {} bytes long in a page of {}", s.name, s.bytes, page));
    }
    // Stride by division first: the product below then stays within the page's 2^56.
    const std::int64_t last = page_size - 1;
    const bool inside = s.offset >= 0 && s.offset <= page - s.bytes && s.token_stride >= 0 &&
                        (last == 0 || s.token_stride <= (page - s.bytes - s.offset) / last);
    if (!inside) {
      raise_impossible(*this, fmt::format("segment {} leaves its page of {} bytes (offset {}, {} "
                                          "bytes a token, {} bytes from token to token)",
                                          s.name, page, s.offset, s.bytes, s.token_stride));
    }
    for (std::int64_t t = 0; t < page_size; ++t) {
      const std::int64_t begin = s.offset + t * s.token_stride;
      runs[static_cast<std::size_t>(s.buffer)].push_back({begin, begin + s.bytes, i});
    }
  }
  for (std::size_t b = 0; b < runs.size(); ++b) {
    std::ranges::sort(runs[b], {}, &Run::begin);
    for (std::size_t r = 1; r < runs[b].size(); ++r) {
      const Run& before = runs[b][r - 1];
      const Run& run = runs[b][r];
      if (before.end > run.begin) {
        raise_impossible(*this, fmt::format("segments {} and {} share byte {} of a page of buffer "
                                            "{}",
                                            segments[before.segment].name,
                                            segments[run.segment].name, run.begin, b));
      }
    }
  }
}

std::int64_t slots_in(const KvLayout& layout, std::span<const KvBuffer> buffers) noexcept {
  if (buffers.empty() || layout.page_bytes.empty()) return 0;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const std::size_t b = i % layout.page_bytes.size();
    const std::int64_t stride =
        buffers[i].page_stride != 0 ? buffers[i].page_stride : layout.page_bytes[b];
    least = std::min(least, slots_in_buffer(layout, static_cast<int>(b), buffers[i].bytes, stride));
  }
  return least;
}

}  // namespace serinus
