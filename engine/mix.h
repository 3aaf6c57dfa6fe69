// The engine's own 64-bit mixer: what token ids, prefix states and page keys are made of.
#pragma once

#include <cstdint>

namespace serinus::engine {

/// A bijection of 64 bits in which every input bit moves every output bit (splitmix64's finalizer).
constexpr std::uint64_t mix(std::uint64_t x) noexcept {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

/// Order-sensitive combination of a state with a value.
constexpr std::uint64_t mix(std::uint64_t state, std::uint64_t value) noexcept {
  return mix(state ^ (value * 0xd6e8feb86659fd93ull + 0xa0761d6478bd642full));
}

}  // namespace serinus::engine
