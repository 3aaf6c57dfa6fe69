// The checks at the door: what passes, and the exact words where it does not.
#include "base/checks.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include <serinus/error.h>

namespace serinus {
namespace {

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
alignas(64) std::uint8_t memory[4096];

TensorView view(std::initializer_list<std::int64_t> shape, DType t = DType::e4m3) {
  return TensorView(memory, t, shape);
}

// Runs f, which must throw E; checks id, message, argument and value.
template <class E = ValueError, class F>
void expect_error(F f, const std::string& id, const std::string& message,
                  const std::string& argument, const std::string& value) {
  try {
    f();
    ADD_FAILURE() << "nothing was raised; expected: " << message;
  } catch (const E& e) {
    EXPECT_EQ(e.id(), id);
    EXPECT_EQ(std::string(e.what()), message);
    EXPECT_EQ(e.argument(), argument);
    EXPECT_EQ(e.value(), value);
  }
}

TEST(Strings, ShapesPrintLikePythonTuples) {
  EXPECT_EQ(shape_string(view({2, 3})), "(2, 3)");
  EXPECT_EQ(shape_string(view({5})), "(5,)");
  EXPECT_EQ(shape_string(TensorView(memory, DType::f32, std::span<const std::int64_t>{})), "()");
  TensorView v = view({1});
  v.rank = 9;
  EXPECT_EQ(shape_string(v), "9 dimensions, at most 6 are possible");
  v.rank = -1;
  EXPECT_EQ(shape_string(v), "-1 dimensions, at most 6 are possible");
}

TEST(Strings, DevicesAndDtypes) {
  EXPECT_EQ(device_string({}), "cpu");
  EXPECT_EQ(device_string({DeviceType::cuda, 3}), "cuda:3");
  EXPECT_EQ(device_string({static_cast<DeviceType>(7), 0}), "device type 7");
  EXPECT_EQ(dtype_string(DType::e4m3), "float8_e4m3fn");
  EXPECT_EQ(dtype_string(DType::bf16, DTypeNames::torch), "torch.bfloat16");
}

TEST(ShapesTest, BindsNamesAndCompares) {
  Shapes s;
  s.bind("q", view({4, 64, 2}), {"s_q", "h_q", "d_qk"});
  s.bind("kv", view({100, 1, 2}), {"s_kv", 1, "d_qk"});
  s.expect("out", view({4, 64, 8}), {"s_q", "h_q", 8});
  EXPECT_EQ(s["s_q"], 4);
  EXPECT_EQ(s["h_q"], 64);
  EXPECT_EQ(s["d_qk"], 2);
  EXPECT_EQ(s["s_kv"], 100);
}

TEST(ShapesTest, WrongRankAndFixedSizes) {
  Shapes s;
  expect_error([&] { s.bind("q", view({2, 3}), {"s_q", "h_q", "d_qk"}); }, "SRN1002",
               "q must have shape (s_q, h_q, d_qk), got (2, 3)", "q", "(2, 3)");
  s.bind("q", view({4, 64, 2}), {"s_q", "h_q", "d_qk"});
  expect_error([&] { s.bind("kv", view({7, 2, 2}), {"s_kv", 1, "d_qk"}); }, "SRN1002",
               "kv must have shape (7, 1, 2), got (7, 2, 2)", "kv", "(7, 2, 2)");
  expect_error([&] { s.expect("lse", view({5}), {"s_q", "h_q"}); }, "SRN1002",
               "lse must have shape (4, 64), got (5,)", "lse", "(5,)");
}

TEST(ShapesTest, SaysWhichSizeDisagreesWithWhom) {
  Shapes s;
  s.bind("q", view({4, 64, 2}), {"s_q", "h_q", "d_qk"});
  expect_error([&] { s.bind("kv", view({100, 1, 3}), {"s_kv", 1, "d_qk"}); }, "SRN1003",
               "kv d_qk must match q d_qk=2, got 3", "kv", "3");
  // A tensor that contradicts itself has a wrong shape.
  expect_error([&] { s.bind("square", view({3, 4}), {"n", "n"}); }, "SRN1002",
               "square must have shape (3, 3), got (3, 4)", "square", "(3, 4)");
}

TEST(ShapesTest, ExpectPrintsTheWholeShapeWithWhatIsBound) {
  Shapes s;
  s.bind("q", view({4, 64, 2}), {"s_q", "h_q", "d_qk"});
  s.set("h_kv", 1, "kv");
  expect_error([&] { s.expect("indices", view({5, 1, 7}), {"s_q", "h_kv", "topk"}); }, "SRN1002",
               "indices must have shape (4, 1, topk), got (5, 1, 7)", "indices", "(5, 1, 7)");
  expect_error([&] { s.expect("out", view({4, 64, 9}), {"s_q", "h_q", 8}); }, "SRN1002",
               "out must have shape (4, 64, 8), got (4, 64, 9)", "out", "(4, 64, 9)");
}

TEST(ShapesTest, MisuseIsAnInternalError) {
  Shapes s;
  s.set("n", 1, "x");
  EXPECT_THROW(s.set("n", 2, "x"), InternalError);
  EXPECT_THROW(s["m"], InternalError);
}

TEST(Checks, HostileViewsAreRefusedBeforeAnybodyComputesWithThem) {
  Shapes s;
  expect_error([&] { s.bind("x", view({-1}), {"n"}); }, "SRN1013",
               "x must have sizes and strides that memory can hold, got (-1,)", "x", "(-1,)");
  TensorView deep = view({1});
  deep.rank = 1000;
  EXPECT_THROW(s.bind("x", deep, {"n"}), ValueError);
  EXPECT_THROW(check_rank("x", deep, 1000, "()"), ValueError);
  const TensorView wide(memory, DType::f32, {2, 2}, {kHuge / 2, 1});  // 2^62 elements of 4 bytes
  EXPECT_THROW(check_rank("x", wide, 2, "(a, b)"), ValueError);
  const TensorView many(memory, DType::u8, {kHuge, 3}, {0, 0});
  EXPECT_THROW(check_rank("x", many, 2, "(a, b)"), ValueError);
  // No bytes at all is fine, however large the other sizes are.
  EXPECT_NO_THROW(check_rank("x", TensorView(nullptr, DType::u8, {kHuge, 0}, {0, 1}), 2, "(a, b)"));
}

TEST(Checks, Rank) {
  EXPECT_NO_THROW(check_rank("q", view({1, 2, 3}), 3, "(s_q, h_q, d_qk)"));
  expect_error([] { check_rank("kv", view({2}), 3, "(s_kv, h_kv, d_qk)"); }, "SRN1002",
               "kv must have shape (s_kv, h_kv, d_qk), got (2,)", "kv", "(2,)");
}

TEST(Checks, Dtype) {
  EXPECT_NO_THROW(check_dtype("q", view({1}), DType::e4m3));
  expect_error([] { check_dtype("q", view({1}, DType::u8), DType::e4m3); }, "SRN1004",
               "q must have dtype float8_e4m3fn, got uint8", "q", "uint8");
  expect_error([] { check_dtype("out", view({1}, DType::f32), DType::bf16, DTypeNames::torch); },
               "SRN1004", "out must have dtype torch.bfloat16, got torch.float32", "out",
               "torch.float32");
}

TEST(Checks, Device) {
  const Device gpu{DeviceType::cuda, 1};
  EXPECT_NO_THROW(check_device("out", view({1}), {}));
  expect_error([&] { check_device("out", view({1}), gpu); }, "SRN1005",
               "out must be on device cuda:1, got cpu", "out", "cpu");
  expect_error([&] { check_same_device("kv", view({1}), "q", gpu); }, "SRN1006",
               "kv must be on q's device cuda:1, got cpu", "kv", "cpu");
  expect_error([] { check_cuda("q", view({1})); }, "SRN1007", "q must be a CUDA tensor", "q",
               "cpu");
  EXPECT_NO_THROW(check_cuda("q", TensorView(memory, DType::e4m3, {1}, gpu)));
}

TEST(Checks, Contiguity) {
  const TensorView gaps(memory, DType::e4m3, {2, 4}, {8, 1});
  const TensorView steps(memory, DType::e4m3, {2, 4}, {8, 2});
  EXPECT_NO_THROW(check_contiguous("kv", view({2, 4})));
  expect_error([&] { check_contiguous("kv", gaps); }, "SRN1001", "kv must be contiguous", "kv", "");
  EXPECT_NO_THROW(check_last_dim_contiguous("q", gaps));
  expect_error([&] { check_last_dim_contiguous("q", steps); }, "SRN1008",
               "q must have a contiguous last dimension, got stride 2", "q", "2");
  EXPECT_NO_THROW(check_last_dim_contiguous("q", TensorView(memory, DType::e4m3, {2, 1}, {8, 99})));
}

TEST(Checks, StrideMultipleAndAlignment) {
  const TensorView rows(memory, DType::bf16, {4, 2}, {12, 1});  // 24 bytes a row
  EXPECT_NO_THROW(check_stride_multiple("kv", rows, 0, 8));
  expect_error([&] { check_stride_multiple("kv", rows, 0, 16); }, "SRN1009",
               "kv stride of dimension 0 must be a multiple of 16 bytes, got 24", "kv", "24");
  EXPECT_NO_THROW(
      check_stride_multiple("kv", TensorView(memory, DType::bf16, {1, 2}, {3, 1}), 0, 16));

  EXPECT_NO_THROW(check_aligned("kv", view({2}), 64));
  EXPECT_THROW(check_aligned("kv", TensorView(memory + 8, DType::e4m3, {2}), 16), ValueError);
  EXPECT_NO_THROW(check_aligned("kv", TensorView(memory + 8, DType::e4m3, {2}), 8));
  EXPECT_NO_THROW(check_aligned("kv", TensorView(memory + 1, DType::e4m3, {0}), 16));
  void* const odd = reinterpret_cast<void*>(std::uintptr_t{0x1238});  // never read
  expect_error([&] { check_aligned("kv", TensorView(odd, DType::e4m3, {2}), 16); }, "SRN1010",
               "kv must be aligned to 16 bytes, got address 0x1238", "kv", "0x1238");
}

TEST(Checks, DataAndScalars) {
  EXPECT_NO_THROW(check_data("out", TensorView(nullptr, DType::u8, {0, 3})));
  expect_error([] { check_data("out", TensorView(nullptr, DType::u8, {2, 3})); }, "SRN1011",
               "out must have data, got a null pointer for shape (2, 3)", "out", "(2, 3)");
  EXPECT_NO_THROW(check_scalar("kv_scale", view({1, 1})));
  EXPECT_NO_THROW(
      check_scalar("kv_scale", TensorView(memory, DType::f32, std::span<const std::int64_t>{})));
  expect_error([] { check_scalar("kv_scale", view({2})); }, "SRN1012",
               "kv_scale must be a scalar tensor, got shape (2,)", "kv_scale", "(2,)");
  EXPECT_THROW(check_scalar("kv_scale", view({0})), ValueError);
}

TEST(MayAlias, ComparesExtents) {
  const TensorView a(memory, DType::f32, {4});
  EXPECT_TRUE(may_alias(a, a));
  EXPECT_FALSE(may_alias(a, TensorView(memory + 16, DType::f32, {4})));
  EXPECT_TRUE(may_alias(a, TensorView(memory + 15, DType::u8, {1})));
  EXPECT_FALSE(may_alias(a, TensorView(memory + 4, DType::f32, {0})));
  EXPECT_FALSE(may_alias(a, TensorView(memory, DType::f32, {4}, Device{DeviceType::cuda, 0})));
  // A negative stride reaches backwards.
  EXPECT_TRUE(may_alias(a, TensorView(memory + 32, DType::f32, {6}, {-1})));
  EXPECT_FALSE(may_alias(a, TensorView(memory + 32, DType::f32, {5}, {-1})));
}

}  // namespace
}  // namespace serinus
