// Which cells of a row a request attached, and when.
#pragma once

#include <cstdint>
#include <vector>

namespace serinus::canary {

struct Attached {
  struct Segment {
    std::int64_t begin = 0, end = 0;
    std::uint32_t epoch = 0;
  };
  std::vector<Segment> segments;  ///< disjoint, ordered

  void attach(std::int64_t begin, std::int64_t end, std::uint32_t epoch);
  const Segment* covering(std::int64_t cell) const noexcept;
  /// The first cell after `cell` that another segment covers, or none.
  std::int64_t next_border(std::int64_t cell) const noexcept;
};

}  // namespace serinus::canary
