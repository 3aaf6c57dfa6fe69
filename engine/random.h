// Random numbers that are the same on every machine and with every standard library.
#pragma once

#include <cstdint>

#include "engine/mix.h"

namespace serinus::engine {

/// SplitMix64.
class Random {
 public:
  explicit Random(std::uint64_t seed) noexcept : state_(seed) {}

  std::uint64_t next() noexcept {
    const std::uint64_t value = mix(state_);
    state_ += 0x9e3779b97f4a7c15ull;
    return value;
  }
  /// In [0, n); n > 0. The bias of the remainder is below 2^-32 for n < 2^32.
  std::uint64_t below(std::uint64_t n) noexcept { return next() % n; }

 private:
  std::uint64_t state_;
};

}  // namespace serinus::engine
