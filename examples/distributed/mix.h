// A 64-bit mixer: what token ids, KV bytes and fingerprints are made of here.
#pragma once

#include <cstdint>

namespace distributed {

/// Order-sensitive combination of a state with a value (SplitMix64's finalizer).
constexpr std::uint64_t mix(std::uint64_t state, std::uint64_t value) noexcept {
  std::uint64_t x = (state ^ value * 0xd6e8feb86659fd93ull) + 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

}  // namespace distributed
