// The door of the format: SGLang's checks, in its order and with its messages (which spell dtypes
// and shapes as torch does).
#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "base/checks.h"
#include "base/raise.h"
#include "canary/sglang/params.h"

namespace serinus::canary::sglang {

namespace {

using errors::Page;

std::string torch_name(DType dtype) {
  return dtype_string(dtype, DTypeNames::torch);
}

void check_dense(std::string_view name, const TensorView& t) {
  if (!t.is_contiguous())
    raise(Page::canary_tensor_must_be_contiguous, {{"name", std::string(name)}});
}

// ---------------------------------------------------------------- sources

void check_num_sources(const VerifyOrWriteContext& context) {
  const std::size_t n = context.real_kv_sources.size();
  if (n > kMaxRealKvSources) {
    raise(Page::canary_too_many_sources,
          {{"argument", "real_kv_sources"}, {"got", std::to_string(n)}});
  }
  for (const RealKvSource& source : context.real_kv_sources) check(source);
}

// Rows may be strided; each is dense.
bool rows_are_dense(const TensorView& t) {
  if (t.is_contiguous()) return true;
  return t.rank == 2 && (t.shape[1] == 1 || t.strides[1] == 1) && t.strides[0] >= t.shape[1];
}

void check_source_tensor(std::size_t i, const TensorView& t) {
  const std::string name = fmt::format("real_kv_sources[{}].tensor", i);
  if (!rows_are_dense(t)) raise(Page::canary_tensor_must_be_contiguous, {{"name", name}});
  if (t.rank != 2)
    raise(Page::canary_source_not_2d,
          {{"argument", name}, {"index", std::to_string(i)}, {"got", std::to_string(t.rank)}});
}

// ---------------------------------------------------------------- native run-time checks

// What the compiled kernels expect of a tensor; -1 is any size.
struct Expected {
  DType dtype;
  std::initializer_list<std::int64_t> shape;
};

std::string sizes_string(std::span<const std::int64_t> sizes) {
  return fmt::format("{}", fmt::join(sizes, ", "));
}

void check_match(std::string_view name, const TensorView& t, const Expected& want, Device device) {
  const auto fail = [&](const std::string& cause) {
    const auto rank = static_cast<std::size_t>(std::clamp(t.rank, 0, TensorView::kMaxRank));
    raise(Page::canary_tensor_mismatch,
          {{"got", fmt::format("Tensor<{}>[strides=<{}>, dtype={}, device={}]",
                               sizes_string(std::span(t.shape).first(rank)),
                               sizes_string(std::span(t.strides).first(rank)), name_of(t.dtype),
                               device_string(t.device))},
           {"name", std::string(name)},
           {"cause", "\n- Root cause: " + cause}});
  };
  if (t.rank != static_cast<int>(want.shape.size())) {
    fail(fmt::format("dimension mismatch: expected {}, got {}", want.shape.size(), t.rank));
  }
  std::size_t d = 0;
  for (const std::int64_t size : want.shape) {
    if (t.shape[d] < 0 || (size >= 0 && t.shape[d] != size)) {
      fail(fmt::format("size mismatch in dimension {}: expected {}, got {}", d,
                       size >= 0 ? std::to_string(size) : ">= 0", t.shape[d]));
    }
    ++d;
  }
  if (t.dtype != want.dtype)
    fail(fmt::format("dtype mismatch: expected {}, got {}", name_of(want.dtype), name_of(t.dtype)));
  if (t.device != device) {
    fail(fmt::format("device mismatch: expected {}, got {}", device_string(device),
                     device_string(t.device)));
  }
  check_data(name, t);
  check_aligned(name, t, size_of(t.dtype));
}

void check_stride(const char* kernel, const TensorView& canary_buf) {
  if (canary_buf.shape[1] < kSlotBytes) {
    raise(Page::canary_slot_stride, {{"argument", "canary_buf"},
                                     {"kernel", kernel},
                                     {"got", std::to_string(canary_buf.shape[1])}});
  }
}

// Contiguity of the context's tensors but canary_buf, which comes first of all.
void check_context_dense(const VerifyOrWriteContext& c) {
  check_dense("violation_ring", c.violation_ring);
  check_dense("violation_write_index", c.violation_write_index);
  check_dense("slot_run_counter", c.slot_run_counter);
  check_dense("kernel_run_counter", c.kernel_run_counter);
  check_dense("enable_chain_position_assert", c.enable_chain_position_assert);
  if (c.out_of_range_counter) check_dense("out_of_range_counter", *c.out_of_range_counter);
  if (c.violation_entries) check_dense("violation_entries", *c.violation_entries);
  for (std::size_t i = 0; i < c.real_kv_sources.size(); ++i)
    check_source_tensor(i, c.real_kv_sources[i].tensor);
}

ContextParams match_context(const char* kernel, const VerifyOrWriteContext& c) {
  const Device device = c.canary_buf.device;
  check_match("canary_buf", c.canary_buf, {DType::u8, {-1, -1}}, device);
  check_stride(kernel, c.canary_buf);
  check_match("violation_ring", c.violation_ring, {DType::i64, {-1, kViolationFields}}, device);
  check_match("violation_write_index", c.violation_write_index, {DType::i32, {1}}, device);
  check_match("slot_run_counter", c.slot_run_counter, {DType::i64, {1}}, device);
  check_match("kernel_run_counter", c.kernel_run_counter, {DType::i64, {1}}, device);
  check_match("enable_chain_position_assert", c.enable_chain_position_assert, {DType::i32, {1}},
              device);
  if (c.out_of_range_counter)
    check_match("out_of_range_counter", *c.out_of_range_counter, {DType::i64, {1}}, device);
  if (c.violation_entries) {
    check_match("violation_entries", *c.violation_entries,
                {DType::i64, {c.violation_ring.shape[0]}}, device);
  }

  ContextParams p;
  p.records = c.canary_buf.as<std::uint8_t>();
  p.num_slots = c.canary_buf.shape[0];
  p.stride = c.canary_buf.shape[1];
  p.kernel_kind = static_cast<std::int64_t>(c.kernel_kind);
  p.ring = c.violation_ring.as<ViolationRow>();
  p.ring_capacity = c.violation_ring.shape[0];
  p.violation_write_index = c.violation_write_index.as<std::int32_t>();
  p.slot_run_counter = c.slot_run_counter.as<std::int64_t>();
  p.kernel_run_counter = c.kernel_run_counter.as<std::int64_t>();
  if (c.out_of_range_counter) p.out_of_range_counter = c.out_of_range_counter->as<std::int64_t>();
  if (c.violation_entries) p.violation_entries = c.violation_entries->as<std::int64_t>();
  p.enable_chain_position_assert = c.enable_chain_position_assert.as<const std::int32_t>();
  for (const RealKvSource& source : c.real_kv_sources) {
    const std::string name = fmt::format("real_kv_sources[{}].tensor", p.num_sources);
    check_match(name, source.tensor, {source.tensor.dtype, {-1, -1}}, device);
    p.sources[static_cast<std::size_t>(p.num_sources++)] =
        source_params(source, c.real_kv_hash_mode);
  }
  if (c.real_kv_hash_mode == RealKvHashMode::none) p.num_sources = 0;
  return p;
}

// ---------------------------------------------------------------- plan

void check_dtype_of(std::string_view name, const TensorView& t, DType dtype) {
  if (t.dtype != dtype) {
    raise(Page::canary_wrong_dtype,
          {{"name", std::string(name)}, {"want", torch_name(dtype)}, {"got", torch_name(t.dtype)}});
  }
}

void check_rank_of(std::string_view name, const TensorView& t, int rank) {
  if (t.rank != rank) {
    raise(rank == 1 ? Page::canary_not_1d : Page::canary_not_2d,
          {{"name", std::string(name)}, {"got", shape_string(t)}});
  }
}

void check_length(std::string_view name, const TensorView& t, std::int64_t want) {
  if (t.shape[0] != want) {
    raise(Page::canary_wrong_length, {{"name", std::string(name)},
                                      {"want", std::to_string(want)},
                                      {"got", std::to_string(t.shape[0])}});
  }
}

void check_at_least(std::string_view name, const TensorView& t, std::int64_t want) {
  if (t.shape[0] < want) {
    raise(Page::canary_too_short, {{"name", std::string(name)},
                                   {"want", std::to_string(want)},
                                   {"got", std::to_string(t.shape[0])}});
  }
}

void check_on_device_of(std::string_view reference, const TensorView& t_ref, std::string_view name,
                        const TensorView& t) {
  if (t.device != t_ref.device) {
    raise(Page::canary_wrong_device, {{"name", std::string(name)},
                                      {"other", std::string(reference)},
                                      {"want", device_string(t_ref.device)},
                                      {"got", device_string(t.device)}});
  }
}

// A tensor of the plan call: what it must be, in the order in which it is checked.
struct PlanTensor {
  std::string_view name;
  const TensorView* tensor;  ///< null: not given
  DType dtype;
  int rank;
};

}  // namespace

void check(const RealKvSource& source) {
  if (source.page_size < 1) {
    raise(Page::canary_source_page_size,
          {{"argument", "page_size"}, {"got", std::to_string(source.page_size)}});
  }
  if (source.num_bytes_per_token <= 0 || source.num_bytes_per_token % 16 != 0) {
    raise(Page::canary_source_token_bytes, {{"argument", "num_bytes_per_token"},
                                            {"got", std::to_string(source.num_bytes_per_token)}});
  }
  if (source.read_bytes <= 0 || source.read_bytes > source.num_bytes_per_token ||
      source.read_bytes % 16 != 0) {
    raise(Page::canary_source_read_bytes, {{"argument", "read_bytes"},
                                           {"limit", std::to_string(source.num_bytes_per_token)},
                                           {"got", std::to_string(source.read_bytes)}});
  }
  const TensorView& t = source.tensor;
  if (t.rank < 2)
    raise(Page::canary_source_rank, {{"argument", "tensor"}, {"got", shape_string(t)}});
  const std::int64_t width = t.shape[1] * size_of(t.dtype);
  if (width % 16 != 0) {
    raise(Page::canary_source_row_width, {{"argument", "tensor"},
                                          {"got", std::to_string(width)},
                                          {"shape", shape_string(t)},
                                          {"dtype", torch_name(t.dtype)}});
  }
}

void check_verify_capacity(std::int64_t verify_capacity) {
  if (verify_capacity <= 0) {
    raise(Page::canary_verify_capacity_not_positive,
          {{"argument", "verify_capacity"}, {"got", std::to_string(verify_capacity)}});
  }
}

void check_write_req_capacity(std::int64_t write_req_capacity) {
  if (write_req_capacity <= 0) {
    raise(Page::canary_write_capacity_not_positive,
          {{"argument", "write_req_capacity"}, {"got", std::to_string(write_req_capacity)}});
  }
}

VerifyParams check_verify(const VerifyOrWriteContext& context, const VerifyPlan& plan,
                          bool check_verify_expected_token) {
  check_num_sources(context);
  check_dense("canary_buf", context.canary_buf);
  check_dense("plan.verify_slot_indices", plan.verify_slot_indices);
  check_dense("plan.verify_expected_tokens", plan.verify_expected_tokens);
  check_dense("plan.verify_expected_positions", plan.verify_expected_positions);
  check_dense("plan.verify_prev_slot_indices", plan.verify_prev_slot_indices);
  check_dense("plan.verify_num_valid", plan.verify_num_valid);
  check_dense("plan.enable", plan.enable);
  check_context_dense(context);

  VerifyParams p;
  p.context = match_context("canary_verify", context);
  const Device device = context.canary_buf.device;
  check_match("plan.verify_slot_indices", plan.verify_slot_indices, {DType::i64, {-1}}, device);
  p.capacity = plan.verify_slot_indices.shape[0];
  const Expected entries{DType::i64, {p.capacity}};
  check_match("plan.verify_expected_tokens", plan.verify_expected_tokens, entries, device);
  check_match("plan.verify_expected_positions", plan.verify_expected_positions, entries, device);
  check_match("plan.verify_prev_slot_indices", plan.verify_prev_slot_indices, entries, device);
  check_match("plan.verify_num_valid", plan.verify_num_valid, {DType::i32, {1}}, device);
  check_match("plan.enable", plan.enable, {DType::i32, {1}}, device);
  p.slots = plan.verify_slot_indices.as<const std::int64_t>();
  p.tokens = plan.verify_expected_tokens.as<const std::int64_t>();
  p.positions = plan.verify_expected_positions.as<const std::int64_t>();
  p.prev_slots = plan.verify_prev_slot_indices.as<const std::int64_t>();
  p.num_valid = plan.verify_num_valid.as<const std::int32_t>();
  p.enable = plan.enable.as<const std::int32_t>();
  p.check_tokens = check_verify_expected_token;
  return p;
}

WriteParams check_write(const VerifyOrWriteContext& context, const WritePlan& plan,
                        const WriteInput& input) {
  check_num_sources(context);
  check_dense("canary_buf", context.canary_buf);
  check_dense("plan.write_offsets", plan.write_offsets);
  check_dense("plan.write_seed_slot_indices", plan.write_seed_slot_indices);
  check_dense("plan.write_num_valid_reqs", plan.write_num_valid_reqs);
  check_dense("input_ids", input.input_ids);
  check_dense("positions", input.positions);
  check_dense("out_cache_loc", input.out_cache_loc);
  if (input.enable_write_input_assert) {
    if (!input.expected_input_tokens || !input.expected_input_positions)
      raise(Page::canary_expected_inputs_missing, {{"argument", "expected_input_tokens"}});
    check_dense("expected_input_tokens", *input.expected_input_tokens);
    check_dense("expected_input_positions", *input.expected_input_positions);
  } else if (input.expected_input_tokens || input.expected_input_positions) {
    raise(Page::canary_expected_inputs_unwanted, {{"argument", "expected_input_tokens"}});
  }
  if (input.chain_hashes) check_dense("chain_hashes", *input.chain_hashes);
  check_context_dense(context);

  WriteParams p;
  p.context = match_context("canary_write", context);
  const Device device = context.canary_buf.device;
  check_match("plan.write_seed_slot_indices", plan.write_seed_slot_indices, {DType::i64, {-1}},
              device);
  p.req_capacity = plan.write_seed_slot_indices.shape[0];
  check_match("plan.write_offsets", plan.write_offsets, {DType::i64, {-1}}, device);
  if (plan.write_offsets.shape[0] != p.req_capacity + 1) {
    raise(Page::canary_write_offsets_size, {{"argument", "plan.write_offsets"},
                                            {"want", std::to_string(p.req_capacity + 1)},
                                            {"got", std::to_string(plan.write_offsets.shape[0])}});
  }
  check_match("plan.write_num_valid_reqs", plan.write_num_valid_reqs, {DType::i32, {1}}, device);
  check_match("input_ids", input.input_ids, {DType::i64, {-1}}, device);
  p.num_tokens = input.input_ids.shape[0];
  const Expected tokens{DType::i64, {p.num_tokens}};
  check_match("positions", input.positions, tokens, device);
  check_match("out_cache_loc", input.out_cache_loc, tokens, device);
  if (input.enable_write_input_assert) {
    check_match("expected_input_tokens", *input.expected_input_tokens, tokens, device);
    check_match("expected_input_positions", *input.expected_input_positions, tokens, device);
    p.expected_tokens = input.expected_input_tokens->as<const std::int64_t>();
    p.expected_positions = input.expected_input_positions->as<const std::int64_t>();
  }
  if (input.chain_hashes) {
    check_match("chain_hashes", *input.chain_hashes, tokens, device);
    p.chain_hashes = input.chain_hashes->as<const std::int64_t>();
  }
  p.offsets = plan.write_offsets.as<const std::int64_t>();
  p.seeds = plan.write_seed_slot_indices.as<const std::int64_t>();
  p.num_valid_reqs = plan.write_num_valid_reqs.as<const std::int32_t>();
  p.tokens = input.input_ids.as<const std::int64_t>();
  p.positions = input.positions.as<const std::int64_t>();
  p.slots = input.out_cache_loc.as<const std::int64_t>();
  return p;
}

PlanParams check_plan(const VerifyPlan& verify_plan, const WritePlan& write_plan,
                      const PlanInput& input) {
  const std::int64_t bs = input.req_pool_indices.shape[0];
  const auto optional = [](const std::optional<TensorView>& t) { return t ? &*t : nullptr; };
  if (bs > kMaxPlanRequests) {
    raise(Page::canary_plan_too_many_requests,
          {{"argument", "req_pool_indices"}, {"got", std::to_string(bs)}});
  }
  if (input.swa_window_size > 0 && !input.full_to_swa_index_mapping)
    raise(Page::canary_window_without_mapping, {{"argument", "full_to_swa_index_mapping"}});
  if (input.verify_capacity != verify_plan.verify_slot_indices.shape[0]) {
    raise(Page::canary_verify_capacity_mismatch,
          {{"argument", "verify_capacity"},
           {"got", std::to_string(input.verify_capacity)},
           {"have", std::to_string(verify_plan.verify_slot_indices.shape[0])}});
  }
  if (input.req_to_verify_expected_tokens && !input.req_to_verify_expected_tokens_valid_lens) {
    raise(Page::canary_valid_lens_missing,
          {{"argument", "req_to_verify_expected_tokens_valid_lens"}});
  }

  // SGLang's own names, also where they are those of its kernels' arguments.
  const PlanTensor tensors[] = {
      {"req_pool_indices", &input.req_pool_indices, DType::i64, 1},
      {"prefix_lens", &input.prefix_lens, DType::i64, 1},
      {"extend_seq_lens", &input.extend_seq_lens, DType::i64, 1},
      {"req_to_token", &input.req_to_token, DType::i32, 2},
      {"lut_tensor", optional(input.full_to_swa_index_mapping), DType::i64, 1},
      {"out_write_offsets", &write_plan.write_offsets, DType::i64, 1},
      {"out_write_seed_slot_indices", &write_plan.write_seed_slot_indices, DType::i64, 1},
      {"out_verify_num_valid", &verify_plan.verify_num_valid, DType::i32, 1},
      {"out_verify_enable", &verify_plan.enable, DType::i32, 1},
      {"out_write_num_valid_reqs", &write_plan.write_num_valid_reqs, DType::i32, 1},
      {"req_to_verify_expected_tokens", optional(input.req_to_verify_expected_tokens), DType::i32,
       2},
      {"req_to_verify_expected_tokens_valid_lens",
       optional(input.req_to_verify_expected_tokens_valid_lens), DType::i64, 1},
      {"out_verify_slot_indices", &verify_plan.verify_slot_indices, DType::i64, 1},
      {"out_verify_expected_tokens", &verify_plan.verify_expected_tokens, DType::i64, 1},
      {"out_verify_expected_positions", &verify_plan.verify_expected_positions, DType::i64, 1},
      {"out_verify_prev_slot_indices", &verify_plan.verify_prev_slot_indices, DType::i64, 1},
  };
  for (const PlanTensor& t : tensors) {
    if (t.tensor != nullptr) check_dense(t.name, *t.tensor);
  }
  for (const PlanTensor& t : tensors) {
    if (t.tensor != nullptr) check_dtype_of(t.name, *t.tensor, t.dtype);
  }
  for (const PlanTensor& t : tensors) {
    if (t.tensor != nullptr) check_rank_of(t.name, *t.tensor, t.rank);
  }
  const std::int64_t offsets = write_plan.write_offsets.shape[0];
  const std::int64_t capacity = write_plan.write_seed_slot_indices.shape[0];
  if (offsets <= 0) {
    raise(Page::canary_write_offsets_empty,
          {{"argument", "out_write_offsets"}, {"got", std::to_string(offsets)}});
  }
  if (input.req_to_token.strides[0] <= 0) {
    raise(Page::canary_table_stride,
          {{"argument", "req_to_token"}, {"got", std::to_string(input.req_to_token.strides[0])}});
  }
  if (input.full_to_swa_index_mapping && input.full_to_swa_index_mapping->shape[0] <= 0)
    raise(Page::canary_mapping_empty, {{"argument", "full_to_swa_index_mapping"}});
  check_length("prefix_lens", input.prefix_lens, bs);
  check_length("extend_seq_lens", input.extend_seq_lens, bs);
  check_length("out_verify_num_valid", verify_plan.verify_num_valid, 1);
  check_length("out_verify_enable", verify_plan.enable, 1);
  check_length("out_write_num_valid_reqs", write_plan.write_num_valid_reqs, 1);
  if (offsets != capacity + 1) {
    raise(Page::canary_write_offsets_length, {{"argument", "out_write_offsets"},
                                              {"got", std::to_string(offsets)},
                                              {"capacity", std::to_string(capacity)}});
  }
  if (bs > capacity) {
    raise(Page::canary_plan_over_write_capacity, {{"argument", "req_pool_indices"},
                                                  {"got", std::to_string(bs)},
                                                  {"capacity", std::to_string(capacity)}});
  }
  if (input.req_to_verify_expected_tokens_valid_lens) {
    check_at_least("req_to_verify_expected_tokens_valid_lens",
                   *input.req_to_verify_expected_tokens_valid_lens, bs);
  }
  check_length("out_verify_expected_tokens", verify_plan.verify_expected_tokens,
               input.verify_capacity);
  check_length("out_verify_expected_positions", verify_plan.verify_expected_positions,
               input.verify_capacity);
  check_length("out_verify_prev_slot_indices", verify_plan.verify_prev_slot_indices,
               input.verify_capacity);
  for (const PlanTensor& t : tensors) {
    if (t.tensor != nullptr) {
      check_on_device_of("out_verify_offsets_scratch", verify_plan.verify_slot_indices, t.name,
                         *t.tensor);
    }
  }
  for (const PlanTensor& t : tensors) {
    if (t.tensor == nullptr) continue;
    check_data(t.name, *t.tensor);
    check_aligned(t.name, *t.tensor, size_of(t.dtype));
  }

  const auto table = [](const TensorView& t) {
    return TableParams{t.as<const std::int32_t>(), t.shape[0], t.shape[1]};
  };
  PlanParams p;
  p.slots = verify_plan.verify_slot_indices.as<std::int64_t>();
  p.tokens = verify_plan.verify_expected_tokens.as<std::int64_t>();
  p.positions = verify_plan.verify_expected_positions.as<std::int64_t>();
  p.prev_slots = verify_plan.verify_prev_slot_indices.as<std::int64_t>();
  p.num_valid = verify_plan.verify_num_valid.as<std::int32_t>();
  p.enable = verify_plan.enable.as<std::int32_t>();
  p.verify_capacity = input.verify_capacity;
  p.write_offsets = write_plan.write_offsets.as<std::int64_t>();
  p.write_seeds = write_plan.write_seed_slot_indices.as<std::int64_t>();
  p.write_num_valid_reqs = write_plan.write_num_valid_reqs.as<std::int32_t>();
  p.write_req_capacity = capacity;
  p.rows = input.req_pool_indices.as<const std::int64_t>();
  p.prefix_lens = input.prefix_lens.as<const std::int64_t>();
  p.extend_lens = input.extend_seq_lens.as<const std::int64_t>();
  p.num_requests = bs;
  p.req_to_token = table(input.req_to_token);
  p.window = input.swa_window_size;
  if (input.full_to_swa_index_mapping) {
    p.full_to_swa = input.full_to_swa_index_mapping->as<const std::int64_t>();
    p.full_to_swa_size = input.full_to_swa_index_mapping->shape[0];
  }
  if (input.req_to_verify_expected_tokens) {
    p.expected_tokens = table(*input.req_to_verify_expected_tokens);
    p.valid_lens = input.req_to_verify_expected_tokens_valid_lens->as<const std::int64_t>();
  }
  p.token_offset = input.kv_token_id_vs_position_offset;
  return p;
}

void check_translate(const TensorView& slots, const TensorView& mapping, const TensorView& out) {
  const PlanTensor tensors[] = {{"slots", &slots, DType::i64, 1},
                                {"full_to_swa_index_mapping", &mapping, DType::i64, 1},
                                {"out", &out, DType::i64, 1}};
  for (const PlanTensor& t : tensors) check_dense(t.name, *t.tensor);
  for (const PlanTensor& t : tensors) {
    check_dtype_of(t.name, *t.tensor, t.dtype);
    check_rank_of(t.name, *t.tensor, t.rank);
  }
  check_length("out", out, slots.shape[0]);
  for (const PlanTensor& t : tensors) check_on_device_of("slots", slots, t.name, *t.tensor);
  if (mapping.shape[0] <= 0)
    raise(Page::canary_mapping_empty, {{"argument", "full_to_swa_index_mapping"}});
}

ScatterParams check_scatter(const TensorView& flat_in, const TensorView& offsets,
                            const TensorView& req_pool_indices, const TensorView& pool_out) {
  const PlanTensor tensors[] = {
      {"scatter_req_token_ids flat_in", &flat_in, DType::i64, 1},
      {"scatter_req_token_ids offsets", &offsets, DType::i64, 1},
      {"scatter_req_token_ids req_pool_indices", &req_pool_indices, DType::i64, 1},
      {"scatter_req_token_ids pool_out", &pool_out, DType::i32, 2}};
  for (const PlanTensor& t : tensors) check_rank_of(t.name, *t.tensor, t.rank);
  for (const PlanTensor& t : tensors) {
    if (t.tensor->dtype != t.dtype) {
      raise(Page::canary_scatter_dtype, {{"name", std::string(t.name)},
                                         {"want", name_of(t.dtype)},
                                         {"got", torch_name(t.tensor->dtype)}});
    }
  }
  const std::int64_t bs = req_pool_indices.shape[0];
  if (offsets.shape[0] != bs + 1) {
    raise(Page::canary_scatter_offsets_length, {{"argument", "offsets"},
                                                {"got", std::to_string(offsets.shape[0])},
                                                {"want", std::to_string(bs + 1)}});
  }
  if (bs + 1 > kScatterBatchBlock) {
    raise(Page::canary_scatter_too_many_requests,
          {{"argument", "req_pool_indices"}, {"got", std::to_string(bs + 1)}});
  }
  for (const PlanTensor& t : tensors) {
    check_on_device_of("scatter_req_token_ids flat_in", flat_in, t.name, *t.tensor);
    check_data(t.name, *t.tensor);
    check_aligned(t.name, *t.tensor, size_of(t.dtype));
  }
  return {.flat = flat_in.as<const std::int64_t>(),
          .flat_size = flat_in.shape[0],
          .flat_stride = flat_in.strides[0],
          .offsets = offsets.as<const std::int64_t>(),
          .offsets_stride = offsets.strides[0],
          .rows = req_pool_indices.as<const std::int64_t>(),
          .num_requests = bs,
          .rows_stride = req_pool_indices.strides[0],
          .pool = pool_out.as<std::int32_t>(),
          .pool_rows = pool_out.shape[0],
          .pool_width = pool_out.shape[1],
          .pool_row_stride = pool_out.strides[0],
          .pool_column_stride = pool_out.strides[1]};
}

}  // namespace serinus::canary::sglang
