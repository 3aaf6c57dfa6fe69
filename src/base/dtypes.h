// float8_e4m3fn and bfloat16 as numbers. Host code, constexpr, without a library: a .cu file can
// include it beside the hardware's own conversions and must get the same bits.
#pragma once

#include <bit>
#include <cstdint>

namespace serinus {

/// The largest e4m3fn, 0x7e. The format has no infinity; 0x7f and 0xff are its only NaNs.
inline constexpr float kE4m3Max = 448.0f;
inline constexpr std::uint8_t kE4m3Nan = 0x7f;

/// What becomes of a value that rounds to more than 448, infinities included.
enum class Overflow : std::uint8_t {
  saturate,  ///< +-448, as PTX's cvt.rn.satfinite does
  nan,       ///< NaN with the value's sign, as torch's .to(torch.float8_e4m3fn) does
};

/// Exact. A NaN keeps its sign.
constexpr float e4m3_to_float(std::uint8_t code) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80u) << 24;
  const std::uint32_t magnitude = code & 0x7fu;
  if (magnitude == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (magnitude < 8) {  // subnormal: steps of 2^-9
    const float value = static_cast<float>(magnitude) * 0x1p-9f;
    return sign != 0 ? -value : value;
  }
  // The exponent's bias goes from 7 to 127, the mantissa from 3 to 23 bits.
  return std::bit_cast<float>(sign | ((magnitude + (120u << 3)) << 20));
}

/// Rounds to nearest, ties to even. The sign of zero is kept; a NaN becomes 0x7f.
/// 464, halfway from 448 to the code that would have been 480, still rounds to 448.
constexpr std::uint8_t e4m3_from_float(float value,
                                       Overflow overflow = Overflow::saturate) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 24) & 0x80u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return kE4m3Nan;
  const std::uint32_t exponent = magnitude >> 23;
  std::uint32_t code = 0;
  if (exponent >= 121) {  // 2^-6 and more: normal in e4m3
    const std::uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
    code = (rounded >> 20) - (120u << 3);
    if (code > 0x7e) code = overflow == Overflow::saturate ? 0x7eu : 0x7fu;
  } else if (exponent >= 117) {  // 2^-10 and more: a whole number of steps of 2^-9
    const std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    const std::uint32_t shift = 141u - exponent;
    const std::uint32_t even = (mantissa >> shift) & 1u;
    code = (mantissa + (1u << (shift - 1)) - 1u + even) >> shift;
  }
  return static_cast<std::uint8_t>(sign | code);
}

/// Exact.
constexpr float bf16_to_float(std::uint16_t code) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(code) << 16);
}

/// Rounds to nearest, ties to even; what rounds past the largest bfloat16 becomes infinity. A NaN
/// stays a NaN: quiet, with its sign and the upper bits of its payload.
constexpr std::uint16_t bf16_from_float(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  }
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace serinus
