// The door: every check by its id, argument and value, in the contract's order; nothing is written
// where it throws.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include <serinus/error.h>

#include "tests/sparse_mla/problem.h"

namespace serinus {
namespace {

using testing::Problem;
using Args = SparseMlaPrefill;

constexpr Device kGpu{DeviceType::cuda, 0};
constexpr Device kOtherGpu{DeviceType::cuda, 1};

struct Case {
  const char* what;
  std::function<void(SparseMlaPrefill&)> spoil;
  const char* id;
  const char* message;
  const char* argument;
  const char* value;
};

TensorView as(TensorView t, DType dtype) {
  t.dtype = dtype;
  return t;
}

TensorView on(TensorView t, Device device) {
  t.device = device;
  return t;
}

// The same data as a view with another shape, dense.
TensorView shaped(const TensorView& t, std::initializer_list<std::int64_t> shape) {
  return TensorView(t.data, t.dtype, shape, t.device);
}

void expect_error(const Case& c, const std::function<void()>& call) {
  SCOPED_TRACE(c.what);
  try {
    call();
    FAIL() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.id(), c.id);
    EXPECT_STREQ(e.what(), c.message);
    EXPECT_EQ(e.argument(), c.argument);
    EXPECT_EQ(e.value(), c.value);
  }
}

TEST(NativeContract, EveryCheck) {
  Problem p({.s_q = 4, .s_kv = 10, .h_q = 3, .d_qk = 576, .topk = 5});
  p.sink.assign(3, 0.0f);
  p.lengths.assign(4, 5);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Case cases[] = {
      {"rank of q", [](Args& a) { a.q = shaped(a.q, {4, 576}); }, "SRN1002",
       "q must have shape (s_q, h_q, d_qk), got (4, 576)", "q", "(4, 576)"},
      {"dtype of q", [](Args& a) { a.q = as(a.q, DType::u8); }, "SRN1004",
       "q must have dtype float8_e4m3fn, got uint8", "q", "uint8"},
      {"no data", [](Args& a) { a.q.data = nullptr; }, "SRN1011",
       "q must have data, got a null pointer for shape (4, 3, 576)", "q", "(4, 3, 576)"},
      {"no heads", [](Args& a) { a.q = shaped(a.q, {4, 0, 576}); }, "SRN2012",
       "sparse_mla_prefill needs h_q to be at least 1, got 0", "h_q", "0"},
      {"d_qk", [](Args& a) { a.q = shaped(a.q, {4, 3, 500}); }, "SRN2012",
       "sparse_mla_prefill needs d_qk to be 512 or 576, got 500", "d_qk", "500"},
      {"strided columns of q", [](Args& a) { a.q.strides[2] = 2; }, "SRN1008",
       "q must have a contiguous last dimension, got stride 2", "q", "2"},
      {"d_qk of kv", [](Args& a) { a.kv = shaped(a.kv, {10, 1, 512}); }, "SRN1003",
       "kv d_qk must match q d_qk=576, got 512", "kv", "512"},
      {"two KV heads", [](Args& a) { a.kv = shaped(a.kv, {5, 2, 576}); }, "SRN1002",
       "kv must have shape (5, 1, 576), got (5, 2, 576)", "kv", "(5, 2, 576)"},
      {"device of kv", [](Args& a) { a.kv = on(a.kv, kGpu); }, "SRN1006",
       "kv must be on q's device cpu, got cuda:0", "kv", "cuda:0"},
      {"row stride of kv", [](Args& a) { a.kv.strides[0] = 584; }, "SRN1009",
       "kv stride of dimension 0 must be a multiple of 16 bytes, got 584", "kv", "584"},
      {"dtype of indices", [](Args& a) { a.indices = as(a.indices, DType::i64); }, "SRN1004",
       "indices must have dtype int32, got int64", "indices", "int64"},
      {"tokens of indices", [](Args& a) { a.indices = shaped(a.indices, {3, 1, 5}); }, "SRN1003",
       "indices s_q must match q s_q=4, got 3", "indices", "3"},
      {"no topk", [](Args& a) { a.indices = shaped(a.indices, {4, 1, 0}); }, "SRN2012",
       "sparse_mla_prefill needs topk to be at least 1, got 0", "topk", "0"},
      {"sm_scale", [nan](Args& a) { a.sm_scale = nan; }, "SRN2013",
       "sm_scale must be finite, got nan", "sm_scale", "nan"},
      {"shape of a scale", [](Args& a) { a.q_scale = shaped(a.q_scale, {3}); }, "SRN1012",
       "q_scale must be a scalar tensor, got shape (3,)", "q_scale", "(3,)"},
      {"no scale",
       [](Args& a) {
         a.kv_scale = {};
         a.kv_scale.dtype = DType::f32;
       },
       "SRN1011", "kv_scale must have data, got a null pointer for shape ()", "kv_scale", "()"},
      {"d_v", [](Args& a) { a.d_v = 256; }, "SRN2012",
       "sparse_mla_prefill needs d_v to be 512, got 256", "d_v", "256"},
      {"size of the sink", [](Args& a) { a.attn_sink = shaped(*a.attn_sink, {2}); }, "SRN1002",
       "attn_sink must have shape (3,), got (2,)", "attn_sink", "(2,)"},
      {"dtype of the sink", [](Args& a) { a.attn_sink = as(*a.attn_sink, DType::bf16); }, "SRN1004",
       "attn_sink must have dtype float32, got bfloat16", "attn_sink", "bfloat16"},
      {"size of topk_length", [](Args& a) { a.topk_length = shaped(*a.topk_length, {5}); },
       "SRN1002", "topk_length must have shape (4,), got (5,)", "topk_length", "(5,)"},
      {"shape of out", [](Args& a) { a.out = shaped(a.out, {4, 3, 256}); }, "SRN1002",
       "out must have shape (4, 3, 512), got (4, 3, 256)", "out", "(4, 3, 256)"},
      {"gaps in out", [](Args& a) { a.out.strides[1] = 1024; }, "SRN1001", "out must be contiguous",
       "out", ""},
      {"dtype of lse", [](Args& a) { a.lse = as(a.lse, DType::i32); }, "SRN1004",
       "lse must have dtype float32, got int32", "lse", "int32"},
      {"aliases", [](Args& a) { a.lse.data = a.max_logits.as<float>() + 11; }, "SRN2011",
       "out, max_logits and lse must not alias each other", "out, max_logits, lse", ""},
  };
  for (const Case& c : cases) {
    SparseMlaPrefill args = p.args();
    c.spoil(args);
    expect_error(c, [&] { sparse_mla_prefill(args); });
    const CanRun answer = can_run(args);
    EXPECT_FALSE(answer) << c.what;
    EXPECT_EQ(answer.error_id, c.id);
    EXPECT_EQ(answer.message, c.message);
  }
  for (const std::uint16_t x : p.out) ASSERT_EQ(x, Problem::kPoisonBf16);
  for (const float x : p.max_logits) ASSERT_EQ(x, Problem::kPoison);
  for (const float x : p.lse) ASSERT_EQ(x, Problem::kPoison);

  EXPECT_TRUE(can_run(p.args()));
  EXPECT_EQ(sparse_mla_workspace_bytes(p.args()), 0u);
  sparse_mla_prefill(p.args());
  EXPECT_NE(p.lse[0], Problem::kPoison);
}

TEST(NativeContract, MisalignedKv) {
  Problem p({.s_q = 1, .s_kv = 10, .h_q = 3, .d_qk = 576, .topk = 5});
  SparseMlaPrefill args = p.args();
  args.kv.data = args.kv.as<char>() + 8;
  args.kv.shape[0] = 9;
  try {
    sparse_mla_prefill(args);
    FAIL();
  } catch (const ValueError& e) {
    EXPECT_EQ(e.id(), "SRN1010");
    EXPECT_EQ(e.argument(), "kv");
  }
}

// What is not restricted: the compatible contract would refuse each of these.
TEST(NativeContract, TakesWhatTheCompatibleOneRefuses) {
  Problem p({.s_q = 2, .s_kv = 10, .h_q = 3, .d_qk = 576, .topk = 5});
  p.sink.assign(3, 0.0f);  // without topk_length
  EXPECT_TRUE(can_run(p.args()));
  p.lengths = {-1, 6};
  EXPECT_TRUE(can_run(p.args()));
}

TEST(NativeContract, CudaTensorsGoToTheGpuOrSayWhyNot) {
  Problem p({.s_q = 2, .s_kv = 10, .h_q = 3, .d_qk = 576, .topk = 5});
  SparseMlaPrefill args = p.args();
  for (TensorView* t : {&args.q, &args.kv, &args.indices, &args.q_scale, &args.kv_scale, &args.out,
                        &args.max_logits, &args.lse}) {
    t->device = {DeviceType::cuda, 1000};  // no machine has it
  }
  EXPECT_FALSE(can_run(args));
  EXPECT_THROW(sparse_mla_prefill(args), RuntimeError);
}

class CompatibleContract : public ::testing::Test {
 protected:
  CompatibleContract() : p({.s_q = 4, .s_kv = 10, .h_q = 64, .d_qk = 576, .topk = 128}) {
    p.sink.assign(64, 0.0f);
    p.lengths.assign(4, 128);
  }

  SparseMlaPrefill cuda_args() {
    SparseMlaPrefill a = p.args();
    for (TensorView* t : {&a.q, &a.kv, &a.indices, &a.q_scale, &a.kv_scale, &*a.attn_sink,
                          &*a.topk_length, &a.out, &a.max_logits, &a.lse}) {
      t->device = kGpu;
    }
    return a;
  }

  Problem p;
};

TEST_F(CompatibleContract, SoundCallsPass) {
  check_sglang_contract(cuda_args());
  check_sglang_contract(p.args(), false);
  SparseMlaPrefill a = cuda_args();
  a.attn_sink.reset();
  a.out = a.max_logits = a.lse = {};  // to be allocated by the caller
  check_sglang_contract(a);
}

TEST_F(CompatibleContract, EveryCheckInItsOrder) {
  // Each case keeps what the ones before it did, so that only the order decides which one speaks.
  const Case cases[] = {
      {"outputs alias", [](Args& a) { a.lse = a.max_logits; }, "SRN2011",
       "out, max_logits and lse must not alias each other", "out, max_logits, lse", ""},
      {"gaps in lse", [](Args& a) { a.lse.strides[0] = 128; }, "SRN1001", "lse must be contiguous",
       "lse", ""},
      {"device of max_logits", [](Args& a) { a.max_logits.device = kOtherGpu; }, "SRN1005",
       "max_logits must be on device cuda:0, got cuda:1", "max_logits", "cuda:1"},
      {"dtype of out", [](Args& a) { a.out.dtype = DType::f32; }, "SRN1004",
       "out must have dtype torch.bfloat16, got torch.float32", "out", "torch.float32"},
      {"shape of out", [](Args& a) { a.out = shaped(a.out, {4, 64, 256}); }, "SRN1002",
       "out must have shape (4, 64, 512), got (4, 64, 256)", "out", "(4, 64, 256)"},
      {"shape of kv_scale", [](Args& a) { a.kv_scale = shaped(a.kv_scale, {2}); }, "SRN1012",
       "kv_scale must be a scalar tensor, got shape (2,)", "kv_scale", "(2,)"},
      {"dtype of kv_scale", [](Args& a) { a.kv_scale.dtype = DType::f64; }, "SRN2001",
       "kv_scale must be float32, got torch.float64", "kv_scale", "torch.float64"},
      {"device of q_scale", [](Args& a) { a.q_scale.device = kOtherGpu; }, "SRN1006",
       "q_scale must be on q's device cuda:0, got cuda:1", "q_scale", "cuda:1"},
      {"q_scale on the host", [](Args& a) { a.q_scale.device = {}; }, "SRN1007",
       "q_scale must be a CUDA tensor", "q_scale", "cpu"},
      {"no q_scale", [](Args& a) { a.q_scale = {}; }, "SRN2010", "q_scale must be a torch.Tensor",
       "q_scale", ""},
      {"sink's device", [](Args& a) { a.attn_sink->device = kOtherGpu; }, "SRN1006",
       "attn_sink must be on q's device cuda:0, got cuda:1", "attn_sink", "cuda:1"},
      {"sink's dtype", [](Args& a) { a.attn_sink->dtype = DType::bf16; }, "SRN2006",
       "attn_sink must be float32 with shape (64,), got (64,)/torch.bfloat16", "attn_sink",
       "(64,)/torch.bfloat16"},
      {"d_v", [](Args& a) { a.d_v = 128; }, "SRN2008",
       "sparse_mla_q8kv8_prefill_fwd only supports d_v=512, got 128", "d_v", "128"},
      {"gaps in topk_length", [](Args& a) { a.topk_length->strides[0] = 2; }, "SRN1001",
       "topk_length must be contiguous", "topk_length", ""},
      {"size of topk_length", [](Args& a) { a.topk_length = shaped(*a.topk_length, {3}); },
       "SRN2006", "topk_length must be int32 with shape (4,), got (3,)/torch.int32", "topk_length",
       "(3,)/torch.int32"},
      {"topk", [](Args& a) { a.indices = shaped(a.indices, {4, 1, 100}); }, "SRN2005",
       "Q8KV8 sparse-prefill topk width must be a positive multiple of 128, got 100", "topk",
       "100"},
      {"dtype of indices", [](Args& a) { a.indices.dtype = DType::i64; }, "SRN2001",
       "indices must be int32, got torch.int64", "indices", "torch.int64"},
      {"tokens of indices", [](Args& a) { a.indices = shaped(a.indices, {3, 1, 128}); }, "SRN1002",
       "indices must have shape (4, 1, topk), got (3, 1, 128)", "indices", "(3, 1, 128)"},
      {"d_qk",
       [](Args& a) {
         a.q = shaped(a.q, {4, 64, 256});
         a.kv = shaped(a.kv, {10, 1, 256});
       },
       "SRN2004", "sparse_mla_q8kv8_prefill_fwd supports d_qk=512/576, got 256", "d_qk", "256"},
      {"h_kv", [](Args& a) { a.kv = shaped(a.kv, {5, 2, 256}); }, "SRN2003",
       "sparse_mla_q8kv8_prefill_fwd requires h_kv=1, got 2", "h_kv", "2"},
      {"h_q", [](Args& a) { a.q = shaped(a.q, {4, 63, 256}); }, "SRN2002",
       "sparse_mla_q8kv8_prefill_fwd requires h_q padded to a positive multiple of 64, got 63",
       "h_q", "63"},
      {"d_qk of kv", [](Args& a) { a.kv = shaped(a.kv, {5, 2, 512}); }, "SRN1003",
       "kv d_qk must match q d_qk=256, got 512", "kv", "512"},
      {"gaps in indices", [](Args& a) { a.indices.strides[0] = 999; }, "SRN1001",
       "indices must be contiguous", "indices", ""},
      {"gaps in kv", [](Args& a) { a.kv.strides[0] = 4096; }, "SRN2000", "kv must be contiguous",
       "kv", ""},
      {"gaps in q", [](Args& a) { a.q.strides[0] = 99999; }, "SRN1001", "q must be contiguous", "q",
       ""},
      {"dtype of kv", [](Args& a) { a.kv.dtype = DType::bf16; }, "SRN2001",
       "kv must be torch.float8_e4m3fn, got torch.bfloat16", "kv", "torch.bfloat16"},
      {"dtype of q", [](Args& a) { a.q.dtype = DType::u8; }, "SRN2001",
       "q must be torch.float8_e4m3fn, got torch.uint8", "q", "torch.uint8"},
      {"device of kv", [](Args& a) { a.kv.device = kOtherGpu; }, "SRN1006",
       "kv must be on q's device cuda:0, got cuda:1", "kv", "cuda:1"},
      {"indices on the host", [](Args& a) { a.indices.device = {}; }, "SRN1007",
       "indices must be a CUDA tensor", "indices", "cpu"},
      {"q on the host", [](Args& a) { a.q.device = {}; }, "SRN1007", "q must be a CUDA tensor", "q",
       "cpu"},
      {"rank of indices", [](Args& a) { a.indices.rank = 2; }, "SRN1002",
       "indices must have shape (s_q, h_kv, topk), got (3, 1)", "indices", "(3, 1)"},
      {"rank of kv", [](Args& a) { a.kv.rank = 2; }, "SRN1002",
       "kv must have shape (s_kv, h_kv, d_qk), got (5, 2)", "kv", "(5, 2)"},
      {"rank of q", [](Args& a) { a.q.rank = 1; }, "SRN1002",
       "q must have shape (s_q, h_q, d_qk), got (4,)", "q", "(4,)"},
  };
  SparseMlaPrefill args = cuda_args();
  for (const Case& c : cases) {
    c.spoil(args);
    expect_error(c, [&] { check_sglang_contract(args); });
  }
}

TEST_F(CompatibleContract, SinkAlone) {
  SparseMlaPrefill a = cuda_args();
  a.topk_length.reset();
  expect_error(
      {"", {}, "SRN2009", "attn_sink requires topk_length to be provided as well", "attn_sink", ""},
      [&] { check_sglang_contract(a); });
}

TEST_F(CompatibleContract, LengthsOnTheHostAreLookedAt) {
  for (const std::int32_t bad : {-1, 129}) {
    p.lengths[2] = bad;
    const std::string value = std::to_string(bad);
    expect_error({"",
                  {},
                  "SRN2007",
                  "topk_length values must satisfy 0 <= topk_length <= topk (128)",
                  "topk_length",
                  value.c_str()},
                 [&] { check_sglang_contract(p.args(), false); });
  }
}

}  // namespace
}  // namespace serinus
