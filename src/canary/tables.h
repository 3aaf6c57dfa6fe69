// What a batch hands over, as it is read: every number in it may be anything.
#pragma once

#include <cstdint>

#include <serinus/canary.h>

namespace serinus::canary {

/// A [rows, columns] int32 table that somebody else may be writing wrongly.
struct Table {
  const std::int32_t* data = nullptr;
  std::int64_t rows = 0, columns = 0, row_stride = 0, column_stride = 0;

  bool has_row(std::int64_t row) const noexcept { return row >= 0 && row < rows; }
  /// Row and column must be inside.
  std::int32_t at(std::int64_t row, std::int64_t column) const noexcept {
    return data[row * row_stride + column * column_stride];
  }
};

/// Throws ValueError where `view` is no int32 matrix on the CPU. An empty view is an empty table.
Table table_of(const TensorView& view, const char* name);

/// How many of request i's expected tokens are known; not bounded by the table.
inline std::int64_t valid_len(const Batch& batch, std::size_t i, const Table& expected) noexcept {
  return batch.valid_lens.empty() ? expected.columns : batch.valid_lens[i];
}

/// Throws ValueError where arrays that belong together differ in length, a pool does not exist, or
/// a table is none or not on `device`.
void check_batch(const Batch& batch, std::size_t num_pools, Device device);

}  // namespace serinus::canary
