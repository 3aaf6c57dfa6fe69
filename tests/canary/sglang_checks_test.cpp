// What bad arguments get in the sglang format: the exact messages, and which comes first.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <serinus/canary_sglang.h>
#include <serinus/error.h>

#include "tests/canary/sglang_endpoint.h"

namespace serinus::canary::sglang {
namespace {

// "ValueError: message", or "" when nothing was thrown.
std::string thrown(const std::function<void()>& call) {
  try {
    call();
  } catch (const ValueError& e) {
    return std::string("ValueError: ") + e.what();
  } catch (const TypeError& e) {
    return std::string("TypeError: ") + e.what();
  } catch (const RuntimeError& e) {
    return std::string("RuntimeError: ") + e.what();
  }
  return "";
}

// Every other element: a view that is not dense.
TensorView strided(TensorView t) {
  for (int d = 0; d < t.rank; ++d) t.strides[static_cast<std::size_t>(d)] *= 2;
  t.shape[0] = std::max<std::int64_t>(t.shape[0], 2);
  return t;
}

TensorView on_cuda(TensorView t) {
  t.device = {DeviceType::cuda, 1};
  return t;
}

class SglangChecks : public ::testing::Test {
 protected:
  SglangChecks() {
    e.sources = {source};
    e.mode = RealKvHashMode::all;
    context = e.context();
    verify_plan = host_verify_plan.view();
    write_plan = host_write_plan.view();
    write_input = {
        .input_ids = view(ids), .positions = view(positions), .out_cache_loc = view(slots)};
    plan_input = {.req_pool_indices = view(rows),
                  .prefix_lens = view(prefix),
                  .extend_seq_lens = view(extend),
                  .req_to_token = view(cells, 3, 4),
                  .verify_capacity = 6};
  }

  std::string verify_error() {
    return thrown([&] { verify(context, verify_plan, true); });
  }
  std::string write_error() {
    return thrown([&] { write(context, write_plan, write_input); });
  }
  std::string plan_error() {
    return thrown([&] { plan(verify_plan, write_plan, plan_input); });
  }

  std::vector<std::uint8_t> kv = std::vector<std::uint8_t>(8 * 32);
  RealKvSource source{TensorView(kv.data(), DType::u8, {8, 32}), 1, 32, 32};
  Endpoint e{8};
  HostVerifyPlan host_verify_plan{6};
  HostWritePlan host_write_plan{4};
  std::vector<std::int64_t> ids = {1, 2}, positions = {0, 1}, slots = {1, 2};
  std::vector<std::int64_t> rows = {1, 2}, prefix = {1, 1}, extend = {1, 1}, mapping = {0, 1};
  std::vector<std::int32_t> cells = std::vector<std::int32_t>(12);
  VerifyOrWriteContext context;
  VerifyPlan verify_plan;
  WritePlan write_plan;
  WriteInput write_input;
  PlanInput plan_input;
};

TEST_F(SglangChecks, SoundArgumentsPass) {
  EXPECT_EQ(verify_error(), "");
  EXPECT_EQ(write_error(), "");
  EXPECT_EQ(plan_error(), "");
}

// Everything is broken, then mended from the front: each message must appear in its turn.
TEST_F(SglangChecks, OrderOfVerify) {
  struct Step {
    TensorView* tensor;
    const char* name;
  };
  const std::vector<Step> steps = {
      {&context.canary_buf, "canary_buf"},
      {&verify_plan.verify_slot_indices, "plan.verify_slot_indices"},
      {&verify_plan.verify_expected_tokens, "plan.verify_expected_tokens"},
      {&verify_plan.verify_expected_positions, "plan.verify_expected_positions"},
      {&verify_plan.verify_prev_slot_indices, "plan.verify_prev_slot_indices"},
      {&verify_plan.verify_num_valid, "plan.verify_num_valid"},
      {&verify_plan.enable, "plan.enable"},
      {&context.violation_ring, "violation_ring"},
      {&context.violation_write_index, "violation_write_index"},
      {&context.slot_run_counter, "slot_run_counter"},
      {&context.kernel_run_counter, "kernel_run_counter"},
      {&context.enable_chain_position_assert, "enable_chain_position_assert"},
  };
  std::vector<TensorView> sound;
  for (const Step& s : steps) {
    sound.push_back(*s.tensor);
    *s.tensor = strided(*s.tensor);
  }
  context.real_kv_sources[0].tensor.strides = {64, 2};
  context.real_kv_sources.resize(5, context.real_kv_sources[0]);
  EXPECT_EQ(
      verify_error(),
      "ValueError: kv-canary: at most 4 RealKvSource entries supported by the CUDA ABI, got 5");
  context.real_kv_sources.resize(1);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(verify_error(),
              "ValueError: kv-canary: " + std::string(steps[i].name) + " must be contiguous");
    *steps[i].tensor = sound[i];
  }
  EXPECT_EQ(verify_error(), "ValueError: kv-canary: real_kv_sources[0].tensor must be contiguous");
  EXPECT_EQ(e.kernel_runs, 0) << "nothing ran";
}

TEST_F(SglangChecks, OrderOfWrite) {
  struct Step {
    TensorView* tensor;
    const char* name;
  };
  TensorView expected_tokens = view(ids);
  TensorView expected_positions = view(positions);
  const std::vector<Step> first = {
      {&context.canary_buf, "canary_buf"},
      {&write_plan.write_offsets, "plan.write_offsets"},
      {&write_plan.write_seed_slot_indices, "plan.write_seed_slot_indices"},
      {&write_plan.write_num_valid_reqs, "plan.write_num_valid_reqs"},
      {&write_input.input_ids, "input_ids"},
      {&write_input.positions, "positions"},
      {&write_input.out_cache_loc, "out_cache_loc"},
  };
  const std::vector<Step> last = {
      {&context.violation_ring, "violation_ring"},
      {&context.violation_write_index, "violation_write_index"},
      {&context.slot_run_counter, "slot_run_counter"},
      {&context.kernel_run_counter, "kernel_run_counter"},
      {&context.enable_chain_position_assert, "enable_chain_position_assert"},
  };
  const auto message = [](const char* name) {
    return std::string("ValueError: kv-canary: ") + name + " must be contiguous";
  };
  std::vector<TensorView> sound;
  for (const auto* const steps : {&first, &last}) {
    for (const Step& s : *steps) {
      sound.push_back(*s.tensor);
      *s.tensor = strided(*s.tensor);
    }
  }
  write_input.enable_write_input_assert = true;
  write_input.expected_input_tokens = strided(expected_tokens);
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(write_error(), message(first[i].name));
    *first[i].tensor = sound[i];
  }
  EXPECT_EQ(write_error(),
            "ValueError: kv-canary: expected input tensors are required when "
            "enable_write_input_assert=True");
  write_input.enable_write_input_assert = false;
  EXPECT_EQ(write_error(),
            "ValueError: kv-canary: expected input tensors must be None when "
            "enable_write_input_assert=False");
  write_input.enable_write_input_assert = true;
  write_input.expected_input_positions = strided(expected_positions);
  EXPECT_EQ(write_error(), message("expected_input_tokens"));
  write_input.expected_input_tokens = expected_tokens;
  EXPECT_EQ(write_error(), message("expected_input_positions"));
  write_input.expected_input_positions = expected_positions;
  for (std::size_t i = 0; i < last.size(); ++i) {
    EXPECT_EQ(write_error(), message(last[i].name));
    *last[i].tensor = sound[first.size() + i];
  }
  EXPECT_EQ(write_error(), "");
}

TEST_F(SglangChecks, RowStridedSourcesAreTaken) {
  context.real_kv_sources[0].tensor = TensorView(kv.data(), DType::u8, {4, 32}, {64, 1});
  EXPECT_EQ(verify_error(), "");
}

TEST_F(SglangChecks, NativeChecks) {
  const VerifyOrWriteContext sound = context;
  context.canary_buf = TensorView(e.bytes.data(), DType::u8, {8, 16});
  EXPECT_EQ(verify_error(),
            "RuntimeError: canary_verify: slot_stride_bytes must hold at least 32 bytes per slot, "
            "got 16");
  EXPECT_EQ(write_error(),
            "RuntimeError: canary_write: slot_stride_bytes must hold at least 32 bytes per slot, "
            "got 16");
  context = sound;
  write_plan.write_offsets.shape[0] = 4;
  EXPECT_EQ(write_error(),
            "RuntimeError: canary_write: write_offsets.size(0) must equal write_req_capacity + 1 "
            "(5), got 4");
  write_plan = host_write_plan.view();

  const auto mismatch = [](const std::string& message, const std::string& cause) {
    return message.starts_with("RuntimeError: Tensor match failed for Tensor<") &&
           message.ends_with("\n- Root cause: " + cause);
  };
  write_input.positions.shape[0] = 1;
  EXPECT_TRUE(mismatch(write_error(), "size mismatch in dimension 0: expected 2, got 1"))
      << write_error();
  write_input.positions = view(positions);
  write_input.input_ids.dtype = DType::i32;
  EXPECT_TRUE(mismatch(write_error(), "dtype mismatch: expected int64, got int32"))
      << write_error();
  EXPECT_NE(write_error().find(" at input_ids\n"), std::string::npos);
  write_input.input_ids = view(ids);
  verify_plan.enable.rank = 0;
  EXPECT_TRUE(mismatch(verify_error(), "dimension mismatch: expected 1, got 0")) << verify_error();
  verify_plan = host_verify_plan.view();
  verify_plan.verify_num_valid = on_cuda(verify_plan.verify_num_valid);
  EXPECT_TRUE(mismatch(verify_error(), "device mismatch: expected cpu, got cuda:1"))
      << verify_error();
}

TEST_F(SglangChecks, CudaTensorsNeedABuildThatHasThem) {
  plan_input.req_pool_indices = on_cuda(plan_input.req_pool_indices);
  EXPECT_EQ(
      plan_error(),
      "ValueError: kv-canary: req_pool_indices must be on out_verify_offsets_scratch's device "
      "cpu, got cuda:1");
}

TEST_F(SglangChecks, Sources) {
  const auto error = [&](const std::function<void(RealKvSource&)>& spoil) {
    RealKvSource s = source;
    spoil(s);
    return thrown([&] { check(s); });
  };
  const std::string v = "ValueError: kv-canary: RealKvSource.";
  EXPECT_EQ(error([](RealKvSource& s) { s.page_size = 0; }), v + "page_size must be >= 1, got 0");
  for (const std::int64_t n : {0, -16, 24}) {
    EXPECT_EQ(
        error([&](RealKvSource& s) { s.num_bytes_per_token = n; }),
        v + "num_bytes_per_token must be a positive multiple of 16, got " + std::to_string(n));
  }
  for (const std::int64_t n : {0, -16, 8, 48}) {
    EXPECT_EQ(error([&](RealKvSource& s) { s.read_bytes = n; }),
              v +
                  "read_bytes must be a positive multiple of 16 in (0, num_bytes_per_token=32], "
                  "got " +
                  std::to_string(n));
  }
  EXPECT_EQ(error([&](RealKvSource& s) { s.tensor = TensorView(kv.data(), DType::u8, {256}); }),
            v + "tensor must be at least 2-D, got shape (256,)");
  EXPECT_EQ(error([&](RealKvSource& s) { s.tensor = TensorView(kv.data(), DType::bf16, {4, 9}); }),
            v + "tensor dim-1 byte width must be a multiple of 16, got 18 bytes (shape=(4, 9), "
                "dtype=torch.bfloat16)");
  // In the order of the fields, however much is wrong.
  EXPECT_EQ(error([](RealKvSource& s) { s = {TensorView(), -1, 7, 7}; }),
            v + "page_size must be >= 1, got -1");

  context.real_kv_sources[0].tensor = TensorView(kv.data(), DType::u8, {2, 16, 8});
  EXPECT_EQ(verify_error(),
            "ValueError: kv-canary: real_kv_sources[0].tensor (viewed as uint8) must be 2-D, got "
            "3-D");
}

TEST_F(SglangChecks, Plan) {
  std::vector<std::int64_t> many(4097);
  PlanInput sound = plan_input;
  const auto error = [&](const std::function<void(PlanInput&)>& spoil) {
    plan_input = sound;
    spoil(plan_input);
    return plan_error();
  };
  const std::string v = "ValueError: kv-canary: ";
  // The first four, each with all that come after it wrong too.
  const auto rest_wrong = [&](PlanInput& in) {
    in.swa_window_size = 5;
    in.verify_capacity = 7;
    in.req_to_verify_expected_tokens = view(cells, 3, 4);
    in.prefix_lens = strided(in.prefix_lens);
  };
  EXPECT_EQ(error([&](PlanInput& in) {
              rest_wrong(in);
              in.req_pool_indices = view(many);
            }),
            v + "launch_canary_plan_kernels supports at most bs=4096 reqs per launch, got bs=4097. "
                "Bump _PLAN_BS_BLOCK_SIZE if real workloads need this.");
  EXPECT_EQ(error(rest_wrong),
            v + "launch_canary_plan_kernels requires full_to_swa_index_mapping when "
                "swa_window_size > 0");
  EXPECT_EQ(error([&](PlanInput& in) {
              rest_wrong(in);
              in.full_to_swa_index_mapping = view(mapping);
            }),
            v + "launch_canary_plan_kernels verify_capacity=7 does not match "
                "verify_plan_out.verify_slot_indices.shape[0]=6");
  EXPECT_EQ(error([&](PlanInput& in) {
              rest_wrong(in);
              in.full_to_swa_index_mapping = view(mapping);
              in.verify_capacity = 6;
            }),
            v + "launch_plan_entries_kernel requires req_to_verify_expected_tokens_valid_lens when "
                "req_to_verify_expected_tokens is set");
  EXPECT_EQ(error([&](PlanInput& in) { in.prefix_lens = strided(in.prefix_lens); }),
            v + "prefix_lens must be contiguous");
  EXPECT_EQ(error([&](PlanInput& in) { in.req_to_token.dtype = DType::i64; }),
            v + "req_to_token must have dtype torch.int32, got torch.int64");
  EXPECT_EQ(
      error([&](PlanInput& in) { in.req_to_token = TensorView(cells.data(), DType::i32, {3}); }),
      v + "req_to_token must be 2-D, got shape (3,)");
  EXPECT_EQ(error([&](PlanInput& in) {
              in.extend_seq_lens = TensorView(extend.data(), DType::i64, {2, 1});
            }),
            v + "extend_seq_lens must be 1-D, got shape (2, 1)");
  EXPECT_EQ(error([&](PlanInput& in) { in.extend_seq_lens.shape[0] = 1; }),
            v + "extend_seq_lens length must be 2, got 1");
  EXPECT_EQ(error([&](PlanInput& in) {
              in.req_to_verify_expected_tokens = view(cells, 3, 4);
              in.req_to_verify_expected_tokens_valid_lens = view(prefix);
              in.req_to_verify_expected_tokens_valid_lens->shape[0] = 1;
            }),
            v + "req_to_verify_expected_tokens_valid_lens length must be >= 2, got 1");
  EXPECT_EQ(error([&](PlanInput& in) { in.req_to_token = on_cuda(in.req_to_token); }),
            v + "req_to_token must be on out_verify_offsets_scratch's device cpu, got cuda:1");
  EXPECT_EQ(error([&](PlanInput& in) { in.req_to_token = view(cells, 3, 0); }),
            v + "req_to_token_stride0 must be positive, got 0");
  EXPECT_EQ(error([&](PlanInput& in) {
              in.full_to_swa_index_mapping = view(mapping);
              in.full_to_swa_index_mapping->shape[0] = 0;
            }),
            v + "lut_len must be positive when has_swa_lut is True");
  std::vector<std::int64_t> five(5);
  EXPECT_EQ(error([&](PlanInput& in) {
              in.req_pool_indices = in.prefix_lens = in.extend_seq_lens = view(five);
            }),
            v + "bs=5 exceeds write_req_capacity=4");

  plan_input = sound;
  write_plan.write_offsets.shape[0] = 4;
  EXPECT_EQ(plan_error(), v + "write_offsets_len must equal write_req_capacity + 1, got 4 and 4");
  write_plan.write_offsets.shape[0] = 0;
  EXPECT_EQ(plan_error(), v + "write_offsets_len must be positive, got 0");
}

TEST_F(SglangChecks, Capacities) {
  EXPECT_EQ(thrown([] { HostVerifyPlan p(0); }),
            "ValueError: kv-canary: VerifyPlan verify_capacity must be positive, got 0");
  EXPECT_EQ(thrown([] { HostWritePlan p(-1); }),
            "ValueError: kv-canary: WritePlan write_req_capacity must be positive, got -1");
}

TEST_F(SglangChecks, Scatter) {
  std::vector<std::int64_t> offsets = {0, 1, 2};
  TensorView flat = view(ids);
  TensorView offs = view(offsets);
  TensorView reqs = view(rows);
  TensorView pool = view(cells, 3, 4);
  const auto error = [&] { return thrown([&] { scatter_req_token_ids(flat, offs, reqs, pool); }); };
  EXPECT_EQ(error(), "");
  const std::string type_error = "TypeError: kv-canary: scatter_req_token_ids ";
  const std::string value_error = "ValueError: kv-canary: scatter_req_token_ids ";
  flat.dtype = DType::i32;
  EXPECT_EQ(error(), type_error + "flat_in must be int64, got torch.int32");
  offs = TensorView(offsets.data(), DType::i64, {3, 1});  // the rank comes before any dtype
  EXPECT_EQ(error(), value_error + "offsets must be 1-D, got shape (3, 1)");
  flat = view(ids);
  offs = view(offsets);
  pool.rank = 1;
  EXPECT_EQ(error(), value_error + "pool_out must be 2-D, got shape (3,)");
  pool = view(cells, 3, 4);
  pool.dtype = DType::f32;
  EXPECT_EQ(error(), type_error + "pool_out must be int32, got torch.float32");
  pool = view(cells, 3, 4);
  offs.shape[0] = 2;
  EXPECT_EQ(error(), value_error + "offsets length 2 != bs+1 (3)");
  std::vector<std::int64_t> many(512);
  std::vector<std::int64_t> many_offsets(513);
  reqs = view(many);
  offs = view(many_offsets);
  EXPECT_EQ(error(),
            value_error +
                "bs+1=513 exceeds BATCH_BLOCK=512; bump _SCATTER_BATCH_BLOCK if real workloads "
                "need this");
}

}  // namespace
}  // namespace serinus::canary::sglang
