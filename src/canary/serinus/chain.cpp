// The chain as a scan: a prefix's chain is h_n = h_0 R^n + sum of f_i R^(n-1-i), so that pieces are
// computed apart and joined by one multiplication each.
#include <algorithm>

#include "canary/serinus/hash.h"

namespace serinus::canary {

using namespace hash;

std::uint64_t chain_next(std::uint64_t h, std::uint32_t token, std::uint32_t position) noexcept {
  return chain_value(chain_step(canonical(h), token_term(token, position)));
}

void chain_scan(std::uint64_t h, std::span<const std::uint32_t> tokens,
                std::uint32_t first_position, std::span<std::uint64_t> out) {
  // Four pieces at once hide the latency of a step: each starts from 0, and what its predecessor
  // carries over is added to every element as carry * R^k.
  const std::size_t n = std::min(tokens.size(), out.size());
  const auto term = [&](std::size_t i) {
    return token_term(tokens[i], first_position + static_cast<std::uint32_t>(i));
  };
  h = canonical(h);
  std::size_t i = 0;
  constexpr std::size_t kPieces = 4, kLength = 64;
  constexpr auto powers = [] {
    std::array<std::uint64_t, kLength> p{};
    p[0] = kR;
    for (std::size_t k = 1; k < kLength; ++k) p[k] = multiply(p[k - 1], kR);
    return p;
  }();
  for (; i + kPieces * kLength <= n; i += kPieces * kLength) {
    std::uint64_t s[kPieces] = {};
    for (std::size_t k = 0; k < kLength; ++k) {
      for (std::size_t j = 0; j < kPieces; ++j) {
        s[j] = chain_step(s[j], term(i + j * kLength + k));
        out[i + j * kLength + k] = s[j];
      }
    }
    for (std::size_t j = 0; j < kPieces; ++j) {
      for (std::size_t k = 0; k < kLength; ++k) {
        std::uint64_t& o = out[i + j * kLength + k];
        o = chain_value(canonical(o) + multiply(h, powers[k]));
      }
      h = canonical(out[i + (j + 1) * kLength - 1]);
    }
  }
  for (; i < n; ++i) {
    h = chain_step(h, term(i));
    out[i] = chain_value(h);
  }
}

}  // namespace serinus::canary
