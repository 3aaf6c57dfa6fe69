// The device's table of slots, req_to_token, and beside it the truth: which token each cell holds.
#pragma once

#include <cstdint>
#include <vector>

#include <serinus/tensor.h>

#include "engine/zeroed_memory.h"

namespace serinus::engine {

class RequestTable {
 public:
  /// Row 0 is the padding row and never handed out.
  RequestTable(std::int64_t num_rows, std::int64_t max_length);

  std::int64_t num_rows() const noexcept { return num_rows_; }
  std::int64_t max_length() const noexcept { return max_length_; }
  std::int64_t free_rows() const noexcept { return static_cast<std::int64_t>(free_.size()); }

  std::int64_t take_row();  ///< the row freed last; needs free_rows() > 0
  void give_row(std::int64_t row) { free_.push_back(row); }

  /// The cells of a row: slots in the full pool. Faults may damage them.
  std::int32_t* slots(std::int64_t row) const noexcept { return cells(slots_, row); }
  /// The tokens of a row. Nobody but the scheduler writes them.
  std::int32_t* tokens(std::int64_t row) const noexcept { return cells(tokens_, row); }

  TensorView slots_view() const { return view(slots_); }
  TensorView tokens_view() const { return view(tokens_); }

 private:
  std::int32_t* cells(const ZeroedMemory& m, std::int64_t row) const noexcept {
    return m.as<std::int32_t>() + row * max_length_;
  }
  TensorView view(const ZeroedMemory& m) const {
    return TensorView(m.as<std::int32_t>(), DType::i32, {num_rows_, max_length_});
  }

  std::int64_t num_rows_, max_length_;
  ZeroedMemory slots_, tokens_;
  std::vector<std::int64_t> free_;
};

}  // namespace serinus::engine
