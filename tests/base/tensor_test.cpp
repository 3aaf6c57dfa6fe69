#include <gtest/gtest.h>

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

}  // namespace
}  // namespace serinus
