// The hashes of SGLang's record format, one source for host and device.
#pragma once

#include <cstdint>

#include "gpu/host_device.h"

namespace serinus::canary::sglang::hash {

inline constexpr std::uint64_t kMul1 = 0xBF58476D1CE4E5B9u;
inline constexpr std::uint64_t kMul2 = 0x94D049BB133111EBu;

/// SplitMix64's finaliser without the increment: 0 stays 0.
SERINUS_HOST_DEVICE constexpr std::uint64_t splitmix64(std::uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * kMul1;
  x = (x ^ (x >> 27)) * kMul2;
  return x ^ (x >> 31);
}

SERINUS_HOST_DEVICE constexpr std::uint64_t mix3(std::uint64_t a, std::uint64_t b,
                                                 std::uint64_t c) noexcept {
  return splitmix64(splitmix64(splitmix64(a) ^ b) ^ c);
}

/// prev_hash of a first token: splitmix64(0xC0FFEE1234567890).
inline constexpr std::uint64_t kAnchorHash = splitmix64(0xC0FFEE1234567890u);
static_assert(kAnchorHash == 0xDE7FAE23A9A1B716u);

/// A chain kept one step short of its hash: the last xor-shift of one splitmix64 and the first of
/// the next are done together, which takes two cycles off each of the three that a token costs.
/// value() == the mix3 chain's hash, bit for bit.
class Chain {
 public:
  SERINUS_HOST_DEVICE constexpr explicit Chain(std::uint64_t hash) noexcept
      : open_(hash ^ (hash >> 31) ^ (hash >> 62)) {}  // the inverse of x ^ (x >> 31)

  SERINUS_HOST_DEVICE constexpr std::uint64_t value() const noexcept {
    return open_ ^ (open_ >> 31);
  }

  /// value() becomes mix3(value(), token, position).
  SERINUS_HOST_DEVICE constexpr void append(std::uint64_t token, std::uint64_t position) noexcept {
    open_ = half(half(half(open_, 0), token), position);
  }

 private:
  // From open a to open splitmix64(close(a) ^ b).
  SERINUS_HOST_DEVICE static constexpr std::uint64_t half(std::uint64_t a,
                                                          std::uint64_t b) noexcept {
    // w ^ (w >> 30) with w = a ^ (a >> 31) ^ b, its terms in parallel.
    const std::uint64_t shifted = (a >> 30) ^ (a >> 31);
    const std::uint64_t rest = (a ^ (b ^ (b >> 30))) ^ (a >> 61);
    std::uint64_t x = (shifted ^ rest) * kMul1;
    return (x ^ (x >> 27)) * kMul2;
  }

  std::uint64_t open_;
};

}  // namespace serinus::canary::sglang::hash
