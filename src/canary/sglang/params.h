// The calls as backends see them: checked, plain, no TensorView left. check.cpp makes them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <serinus/canary_sglang.h>

namespace serinus::canary::sglang {

/// A source of KV bytes, cut to what the mode reads.
struct SourceParams {
  const std::uint8_t* base = nullptr;
  std::int64_t extent = 0;  ///< bytes; nothing at or beyond is read
  std::int64_t row_stride = 0;
  std::int64_t page_size = 1;
  std::int64_t token_stride = 0;
  std::int64_t words = 0;       ///< 8-byte words of a slot
  std::int64_t safe_slots = 0;  ///< slots below lie within the extent: nothing to check
};

struct ContextParams {
  std::uint8_t* records = nullptr;
  std::int64_t num_slots = 0;
  std::int64_t stride = 0;  ///< bytes from record to record
  std::int64_t kernel_kind = 0;
  ViolationRow* ring = nullptr;
  std::int64_t ring_capacity = 0;
  std::int32_t* violation_write_index = nullptr;
  std::int64_t* slot_run_counter = nullptr;
  std::int64_t* kernel_run_counter = nullptr;
  std::int64_t* out_of_range_counter = nullptr;  ///< may be null
  std::int64_t* violation_entries = nullptr;     ///< of each row of the ring; may be null
  const std::int32_t* enable_chain_position_assert = nullptr;
  std::array<SourceParams, kMaxRealKvSources> sources{};
  int num_sources = 0;  ///< 0 with mode none
};

struct VerifyParams {
  ContextParams context;
  const std::int64_t* slots = nullptr;
  const std::int64_t* tokens = nullptr;
  const std::int64_t* positions = nullptr;
  const std::int64_t* prev_slots = nullptr;
  std::int64_t capacity = 0;
  const std::int32_t* num_valid = nullptr;
  const std::int32_t* enable = nullptr;
  bool check_tokens = false;
};

struct WriteParams {
  ContextParams context;
  const std::int64_t* offsets = nullptr;
  const std::int64_t* seeds = nullptr;
  const std::int32_t* num_valid_reqs = nullptr;
  std::int64_t req_capacity = 0;
  const std::int64_t* tokens = nullptr;
  const std::int64_t* positions = nullptr;
  const std::int64_t* slots = nullptr;
  std::int64_t num_tokens = 0;
  const std::int64_t* expected_tokens = nullptr;  ///< null: inputs are not compared
  const std::int64_t* expected_positions = nullptr;
  const std::int64_t* chain_hashes = nullptr;  ///< null: to be found out
};

/// An int32 table [rows, width].
struct TableParams {
  const std::int32_t* cells = nullptr;
  std::int64_t rows = 0, width = 0;
};

struct PlanParams {
  std::int64_t* slots = nullptr;
  std::int64_t* tokens = nullptr;
  std::int64_t* positions = nullptr;
  std::int64_t* prev_slots = nullptr;
  std::int32_t* num_valid = nullptr;
  std::int32_t* enable = nullptr;
  std::int64_t verify_capacity = 0;
  std::int64_t* write_offsets = nullptr;
  std::int64_t* write_seeds = nullptr;
  std::int32_t* write_num_valid_reqs = nullptr;
  std::int64_t write_req_capacity = 0;
  const std::int64_t* rows = nullptr;
  const std::int64_t* prefix_lens = nullptr;
  const std::int64_t* extend_lens = nullptr;
  std::int64_t num_requests = 0;
  TableParams req_to_token;
  std::int64_t window = 0;
  const std::int64_t* full_to_swa = nullptr;  ///< null: no translation
  std::int64_t full_to_swa_size = 0;
  TableParams expected_tokens;  ///< cells null: none
  const std::int64_t* valid_lens = nullptr;
  std::int64_t token_offset = 0;
};

/// Token histories on their way into the pool of expected tokens. Strides count elements.
struct ScatterParams {
  const std::int64_t* flat = nullptr;
  std::int64_t flat_size = 0, flat_stride = 0;
  const std::int64_t* offsets = nullptr;
  std::int64_t offsets_stride = 0;
  const std::int64_t* rows = nullptr;
  std::int64_t num_requests = 0, rows_stride = 0;
  std::int32_t* pool = nullptr;  ///< [pool_rows, pool_width]
  std::int64_t pool_rows = 0, pool_width = 0, pool_row_stride = 0, pool_column_stride = 0;
};

// check.cpp
VerifyParams check_verify(const VerifyOrWriteContext& context, const VerifyPlan& plan,
                          bool check_verify_expected_token);
WriteParams check_write(const VerifyOrWriteContext& context, const WritePlan& plan,
                        const WriteInput& input);
PlanParams check_plan(const VerifyPlan& verify_plan, const WritePlan& write_plan,
                      const PlanInput& input);
void check_translate(const TensorView& slots, const TensorView& mapping, const TensorView& out);
ScatterParams check_scatter(const TensorView& flat_in, const TensorView& offsets,
                            const TensorView& req_pool_indices, const TensorView& pool_out);

// real_kv.cpp
SourceParams source_params(const RealKvSource& source, RealKvHashMode mode);

}  // namespace serinus::canary::sglang
