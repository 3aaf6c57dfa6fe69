// The digest's key tables, and its block hash by definition, one pair at a time.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>

#include "canary/serinus/hash.h"

namespace serinus::canary::detail {

inline constexpr auto kNhKeys = [] {
  std::array<std::uint64_t, hash::kBlock / 8> keys{};
  for (std::size_t i = 0; i < keys.size(); ++i) {
    keys[i] = hash::nh_key(static_cast<std::int64_t>(i));
  }
  return keys;
}();

/// Up to 8 bytes, little-endian, zero-extended.
inline std::uint64_t load_word(const std::uint8_t* p, std::int64_t n) noexcept {
  std::uint64_t word = 0;
  std::memcpy(&word, p, static_cast<std::size_t>(std::min<std::int64_t>(n, 8)));
  return word;
}

/// NH of n bytes, 1 <= n <= kBlock.
inline std::uint64_t nh_portable(const std::uint8_t* p, std::int64_t n) noexcept {
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < n; i += 8) {
    sum += hash::nh_pair(load_word(p + i, n - i), kNhKeys[static_cast<std::size_t>(i / 8)]);
  }
  return sum;
}

}  // namespace serinus::canary::detail
