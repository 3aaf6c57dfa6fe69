#include "engine/request_table.h"

namespace serinus::engine {

RequestTable::RequestTable(std::int64_t num_rows, std::int64_t max_length)
    : num_rows_(num_rows),
      max_length_(max_length),
      slots_(static_cast<std::size_t>(num_rows * max_length) * sizeof(std::int32_t)),
      tokens_(static_cast<std::size_t>(num_rows * max_length) * sizeof(std::int32_t)) {
  for (std::int64_t r = num_rows - 1; r >= 1; --r) free_.push_back(r);
}

std::int64_t RequestTable::take_row() {
  const std::int64_t row = free_.back();
  free_.pop_back();
  return row;
}

}  // namespace serinus::engine
