// An endpoint of the sglang format with memory of its own, for tests and benchmarks.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include <serinus/canary_sglang.h>

namespace serinus::canary::sglang {

inline TensorView view(std::vector<std::int64_t>& v) {
  return {v.data(), DType::i64, {static_cast<std::int64_t>(v.size())}};
}
inline TensorView view(std::vector<std::int32_t>& v, std::int64_t rows, std::int64_t width) {
  return {v.data(), DType::i32, {rows, width}};
}

struct Endpoint {
  explicit Endpoint(std::int64_t num_slots, std::int64_t ring_capacity = 8,
                    std::int64_t slot_stride = kSlotBytes)
      : bytes(static_cast<std::size_t>(num_slots * slot_stride)),
        stride(slot_stride),
        ring(static_cast<std::size_t>(ring_capacity)),
        entries(ring.size(), -1) {}

  Record record(std::int64_t slot) const {
    Record r;
    std::memcpy(&r, bytes.data() + slot * stride, sizeof r);
    return r;
  }
  void set(std::int64_t slot, const Record& r) {
    std::memcpy(bytes.data() + slot * stride, &r, sizeof r);
  }
  std::int64_t num_slots() const { return static_cast<std::int64_t>(bytes.size()) / stride; }

  VerifyOrWriteContext context() {
    const auto counter = [](std::int64_t& c) { return TensorView(&c, DType::i64, {1}); };
    return {
        .canary_buf = TensorView(bytes.data(), DType::u8, {num_slots(), stride}),
        .kernel_kind = tag,
        .violation_ring = TensorView(ring.data(), DType::i64,
                                     {static_cast<std::int64_t>(ring.size()), kViolationFields}),
        .violation_write_index = TensorView(&violations, DType::i32, {1}),
        .slot_run_counter = counter(slot_runs),
        .kernel_run_counter = counter(kernel_runs),
        .real_kv_sources = sources,
        .real_kv_hash_mode = mode,
        .enable_chain_position_assert = TensorView(&chain_position_assert, DType::i32, {1}),
        .out_of_range_counter = counter(out_of_range),
        .violation_entries = view(entries)};
  }

  std::vector<std::uint8_t> bytes;
  std::int64_t stride;
  std::vector<ViolationRow> ring;
  std::vector<std::int64_t> entries;  // of the rows
  LaunchTag tag = LaunchTag::head_k_full;
  std::vector<RealKvSource> sources;
  RealKvHashMode mode = RealKvHashMode::none;
  std::int32_t violations = 0, chain_position_assert = 1;
  std::int64_t slot_runs = 0, kernel_runs = 0, out_of_range = 0;
};

}  // namespace serinus::canary::sglang
