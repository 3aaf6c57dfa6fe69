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

}  // namespace serinus::canary::sglang::hash
