// Random numbers that are the same on every machine and with every standard library.
#pragma once

#include <cstdint>

namespace serinus::engine {

/// SplitMix64.
class Random {
 public:
  explicit Random(std::uint64_t seed) noexcept : state_(seed) {}

  std::uint64_t next() noexcept {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
  }
  /// In [0, n); n > 0. The bias of the remainder is below 2^-32 for n < 2^32.
  std::uint64_t below(std::uint64_t n) noexcept { return next() % n; }

 private:
  std::uint64_t state_;
};

}  // namespace serinus::engine
