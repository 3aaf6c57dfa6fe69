#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include <serinus/tensor.h>

namespace serinus {
namespace {

TEST(TensorView, DenseStridesAreRowMajor) {
  float x[24];
  const TensorView v(x, DType::f32, {2, 3, 4});
  EXPECT_EQ(v.strides[0], 12);
  EXPECT_EQ(v.strides[1], 4);
  EXPECT_EQ(v.strides[2], 1);
  EXPECT_EQ(v.numel(), 24);
  EXPECT_TRUE(v.is_contiguous());
}

TEST(TensorView, SizeOneDimensionsMayCarryAnyStride) {
  float x[8];
  EXPECT_TRUE(TensorView(x, DType::f32, {2, 1, 4}, {4, 999, 1}).is_contiguous());
  EXPECT_FALSE(TensorView(x, DType::f32, {2, 2, 2}, {4, 1, 2}).is_contiguous());
}

TEST(TensorView, RankZeroEmptyAndTooDeep) {
  float x = 0;
  const TensorView scalar(&x, DType::f32, std::span<const std::int64_t>{});
  EXPECT_EQ(scalar.numel(), 1);
  EXPECT_TRUE(scalar.is_contiguous());
  const TensorView empty(nullptr, DType::f32, {3, 0, 2}, {7, 7, 7});
  EXPECT_EQ(empty.numel(), 0);
  EXPECT_TRUE(empty.is_contiguous());
  const TensorView deep(&x, DType::f32,
                        {1, 2, 3, 4, 5, 6, 7});  // kept as a rank that checks refuse
  EXPECT_EQ(deep.rank, 7);
}

TEST(TensorView, SizesThatNoMemoryHoldsDoNotOverflow) {
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  const TensorView v(nullptr, DType::f64, {huge, huge, 4});
  EXPECT_NE(v.numel(), 0);
  v.is_contiguous();
  const TensorView negative(nullptr, DType::f64, {-1, std::numeric_limits<std::int64_t>::min()});
  negative.numel();
  negative.is_contiguous();
}

TEST(TensorView, Expanded) {
  float x[4];
  EXPECT_FALSE(TensorView(x, DType::f32, {3, 4}, {0, 1}).is_contiguous());
  EXPECT_TRUE(TensorView(x, DType::f32, {1, 4}, {0, 1}).is_contiguous());
}

// Shaped like dlpack.h's DLTensor, whichever version.
struct DLDevice {
  int device_type;
  int device_id;
};
struct DLTensor {
  void* data;
  DLDevice device;
  std::int32_t ndim;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

TEST(TensorView, FromDlpack) {
  std::uint8_t bytes[64];
  std::int64_t shape[] = {2, 3};
  std::int64_t strides[] = {8, 2};
  DLTensor t{bytes, {2, 1}, 2, shape, strides, 16};
  const TensorView v = TensorView::from_dlpack(t, DType::bf16);
  EXPECT_EQ(v.data, bytes + 16);
  EXPECT_EQ(v.dtype, DType::bf16);
  EXPECT_EQ(v.device, (Device{DeviceType::cuda, 1}));
  EXPECT_EQ(v.shape[1], 3);
  EXPECT_EQ(v.strides[0], 8);
  t.strides = nullptr;  // dense
  EXPECT_EQ(TensorView::from_dlpack(t, DType::bf16).strides[0], 3);
  t.ndim = 100;  // hostile: nothing past the arrays is touched
  EXPECT_EQ(TensorView::from_dlpack(t, DType::bf16).rank, 100);
}

TEST(DTypes, SizesAndNames) {
  const std::pair<DType, std::pair<std::int64_t, std::string>> all[] = {
      {DType::u8, {1, "uint8"}},
      {DType::i32, {4, "int32"}},
      {DType::i64, {8, "int64"}},
      {DType::u32, {4, "uint32"}},
      {DType::u64, {8, "uint64"}},
      {DType::f32, {4, "float32"}},
      {DType::f64, {8, "float64"}},
      {DType::bf16, {2, "bfloat16"}},
      {DType::e4m3, {1, "float8_e4m3fn"}},
      {DType::boolean, {1, "bool"}},
      {DType::i8, {1, "int8"}},
      {DType::i16, {2, "int16"}},
      {DType::u16, {2, "uint16"}},
      {DType::f16, {2, "float16"}},
      {DType::e5m2, {1, "float8_e5m2"}},
      {DType::c64, {8, "complex64"}}};
  for (const auto& [dtype, want] : all) {
    EXPECT_EQ(size_of(dtype), want.first);
    EXPECT_EQ(name_of(dtype), want.second);
  }
  EXPECT_EQ(size_of(static_cast<DType>(200)), 0);
  EXPECT_STREQ(name_of(static_cast<DType>(200)), "unknown");
}

}  // namespace
}  // namespace serinus
