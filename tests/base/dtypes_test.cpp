// fp8 and bfloat16 against an oracle written from the formats' definitions in double arithmetic:
// a value is sign * 2^(E - bias) * (1 + M / 2^m), and rounding searches for the nearest value.
#include "base/dtypes.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace serinus {
namespace {

// OCP 8-bit floating point specification, E4M3: bias 7, S.1111.111 is NaN, no infinity.
double e4m3_value(unsigned code) {
  const int exponent = static_cast<int>((code >> 3) & 15u);
  const int mantissa = static_cast<int>(code & 7u);
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa / 8.0, -6) : std::ldexp(1 + mantissa / 8.0, exponent - 7);
  return (code & 0x80u) != 0 ? -magnitude : magnitude;
}

// Nearest of the 127 magnitudes plus the one that the next code would have (480); ties to the even
// code, since even codes have even mantissas.
unsigned e4m3_nearest(float value, Overflow overflow) {
  if (std::isnan(value)) return 0x7f;
  static const std::array<double, 128> values = [] {
    std::array<double, 128> v{};
    for (unsigned c = 0; c < 127; ++c) v[c] = e4m3_value(c);
    v[127] = 480;
    return v;
  }();
  const double x = std::fabs(static_cast<double>(value));
  unsigned low = 0;
  for (unsigned step = 64; step != 0; step /= 2) {
    if (values[low + step] <= x) low += step;
  }
  unsigned code = low;
  if (low < 127) {
    const double down = x - values[low];
    const double up = values[low + 1] - x;
    if (up < down || (up == down && low % 2 == 1)) code = low + 1;
  }
  if (code == 127) code = overflow == Overflow::saturate ? 126 : 127;
  return code | (std::signbit(value) ? 0x80u : 0u);
}

void expect_same(float value) {
  for (const Overflow o : {Overflow::saturate, Overflow::nan}) {
    const unsigned want = e4m3_nearest(value, o);
    const unsigned got = e4m3_from_float(value, o);
    if (got != want) {
      ADD_FAILURE() << std::hexfloat << value << " gave code " << got << ", wanted " << want;
    }
  }
}

TEST(E4m3, AllCodesHaveTheirValue) {
  for (unsigned c = 0; c < 256; ++c) {
    const float got = e4m3_to_float(static_cast<std::uint8_t>(c));
    const double want = e4m3_value(c);
    EXPECT_EQ(std::isnan(got), std::isnan(want)) << c;
    EXPECT_EQ(std::signbit(got), (c & 0x80u) != 0) << c;
    if (!std::isnan(want)) {
      EXPECT_EQ(static_cast<double>(got), want) << c;
      EXPECT_EQ(e4m3_from_float(got), c);
      EXPECT_EQ(e4m3_from_float(got, Overflow::nan), c);
    }
  }
}

TEST(E4m3, EveryMidpointAndItsNeighbours) {
  for (unsigned c = 0; c < 127; ++c) {
    const double next = c == 126 ? 480 : e4m3_value(c + 1);
    // Exact in float: both have at most four significant bits.
    for (const double centre : {e4m3_value(c), (e4m3_value(c) + next) / 2, next}) {
      const auto x = static_cast<float>(centre);
      ASSERT_EQ(static_cast<double>(x), centre);
      for (const float near : {std::nextafterf(x, -1e9f), x, std::nextafterf(x, 1e9f)}) {
        expect_same(near);
        expect_same(-near);
      }
    }
  }
}

TEST(E4m3, ADenseSampleOfAllFloats) {
  // 2^24 bit patterns, evenly spaced, with low bits that vary.
  for (std::uint32_t i = 0; i < (1u << 24); ++i) {
    expect_same(std::bit_cast<float>((i << 8) | ((i * 0x9e3779b1u) >> 24)));
    if (HasFailure()) return;
  }
}

TEST(E4m3, SaturationAndNan) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(e4m3_from_float(464.0f, Overflow::nan), 0x7e);  // a tie, to the even code
  EXPECT_EQ(e4m3_from_float(std::nextafterf(464.0f, inf), Overflow::nan), 0x7f);
  EXPECT_EQ(e4m3_from_float(-1e30f, Overflow::nan), 0xff);
  EXPECT_EQ(e4m3_from_float(1e30f), 0x7e);
  EXPECT_EQ(e4m3_from_float(-inf), 0xfe);
  EXPECT_EQ(e4m3_from_float(inf, Overflow::nan), 0x7f);
  EXPECT_EQ(e4m3_from_float(nan), 0x7f);
  EXPECT_EQ(e4m3_from_float(-nan), 0x7f);
  static_assert(e4m3_from_float(1.0f) == 0x38 && e4m3_to_float(0x38) == 1.0f);
  static_assert(e4m3_to_float(0x7e) == kE4m3Max);
}

// bfloat16: bias 127, 7 mantissa bits, infinities and NaNs as in IEEE 754.
double bf16_value(unsigned code) {
  const int exponent = static_cast<int>((code >> 7) & 255u);
  const int mantissa = static_cast<int>(code & 127u);
  double magnitude = 0;
  if (exponent == 255) {
    magnitude = mantissa == 0 ? std::numeric_limits<double>::infinity()
                              : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(mantissa / 128.0, -126);
  } else {
    magnitude = std::ldexp(1 + mantissa / 128.0, exponent - 127);
  }
  return (code & 0x8000u) != 0 ? -magnitude : magnitude;
}

TEST(Bf16, AllCodesHaveTheirValueAndComeBack) {
  for (unsigned c = 0; c < 65536; ++c) {
    const float got = bf16_to_float(static_cast<std::uint16_t>(c));
    const double want = bf16_value(c);
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(got)) << c;
      // Quiet, sign and payload kept.
      EXPECT_EQ(bf16_from_float(std::bit_cast<float>(c << 16)), c | 0x40u);
      continue;
    }
    EXPECT_EQ(static_cast<double>(got), want) << c;
    EXPECT_EQ(std::signbit(got), (c & 0x8000u) != 0) << c;
    EXPECT_EQ(bf16_from_float(got), c);
  }
}

TEST(Bf16, RoundsEveryIntervalToNearestEven) {
  for (unsigned c = 0; c < 0x7f80; ++c) {
    // The value after the largest is what the next exponent would give: 2^128.
    const double low = bf16_value(c);
    const double high = c == 0x7f7f ? std::ldexp(1.0, 128) : bf16_value(c + 1);
    const auto middle = static_cast<float>((low + high) / 2);
    ASSERT_EQ(static_cast<double>(middle), (low + high) / 2);
    const unsigned even = c % 2 == 0 ? c : c + 1;
    EXPECT_EQ(bf16_from_float(middle), even) << c;
    EXPECT_EQ(bf16_from_float(-middle), even | 0x8000u) << c;
    EXPECT_EQ(bf16_from_float(std::nextafterf(middle, 0.0f)), c) << c;
    EXPECT_EQ(bf16_from_float(std::nextafterf(middle, std::numeric_limits<float>::infinity())),
              c + 1)
        << c;
  }
}

TEST(Bf16, ANanNeverBecomesInfinity) {
  // The payload's only set bits are those that the conversion cuts off.
  EXPECT_TRUE(std::isnan(bf16_to_float(bf16_from_float(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_EQ(bf16_from_float(std::bit_cast<float>(0xff800001u)), 0xffc0);
}

}  // namespace
}  // namespace serinus
