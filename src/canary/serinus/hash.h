// The hashes of the `serinus` record, by definition: plain integer arithmetic, the same on a host
// and in a .cu file. Formulas and bounds: docs/design/canary.md. digest.cpp holds the fast paths,
// which must equal these bit for bit.
#pragma once

#include <cstdint>

#include <serinus/canary.h>

#include "gpu/host_device.h"

namespace serinus::canary::hash {

__extension__ typedef unsigned __int128 u128;

inline constexpr std::uint64_t kP = (std::uint64_t{1} << 61) - 1;  ///< a Mersenne prime

/// SplitMix64's finaliser.
SERINUS_HOST_DEVICE constexpr std::uint64_t mix64(std::uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

/// The i-th word of the key stream `seed`: SplitMix64's i-th output.
SERINUS_HOST_DEVICE constexpr std::uint64_t stream(std::uint64_t seed, std::uint64_t i) noexcept {
  return mix64(seed + (i + 1) * 0x9E3779B97F4A7C15u);
}

/// x mod p, in [0, p]: p and 0 are the same class. Exact in [0, p) after canonical().
SERINUS_HOST_DEVICE constexpr std::uint64_t fold(std::uint64_t x) noexcept {
  return (x & kP) + (x >> 61);  // <= p + 7
}
/// The representative in [0, p).
SERINUS_HOST_DEVICE constexpr std::uint64_t canonical(std::uint64_t x) noexcept {
  x = fold(fold(x));
  return x == kP ? 0 : x;
}
/// The class of x, below 2^62 + 2^6.
SERINUS_HOST_DEVICE constexpr std::uint64_t fold(u128 x) noexcept {
  const u128 rest = x >> 61;
  return (static_cast<std::uint64_t>(x) & kP) + (static_cast<std::uint64_t>(rest) & kP) +
         static_cast<std::uint64_t>(rest >> 61);
}
SERINUS_HOST_DEVICE constexpr std::uint64_t canonical(u128 x) noexcept {
  return canonical(fold(x));
}
/// The same for x < 2^120, in five instructions: what a slot of less than 2^26 blocks adds up to.
SERINUS_HOST_DEVICE constexpr std::uint64_t reduce(u128 x) noexcept {
  const std::uint64_t sum =
      (static_cast<std::uint64_t>(x) & kP) + static_cast<std::uint64_t>(x >> 61);
  return sum >= kP ? sum - kP : sum;
}
SERINUS_HOST_DEVICE constexpr std::uint64_t multiply(std::uint64_t a, std::uint64_t b) noexcept {
  return canonical(static_cast<u128>(a) * b);
}

// ---------------------------------------------------------------- chain

/// Below 2^60, so that the lazy step below never overflows.
inline constexpr std::uint64_t kR = 0x0d1b54a32d192ed3u;

/// f(token, position): a 64-bit mixer, reduced.
SERINUS_HOST_DEVICE constexpr std::uint64_t token_term(std::uint32_t token,
                                                       std::uint32_t position) noexcept {
  return fold(mix64((std::uint64_t{position} << 32 | token) + 0x9E3779B97F4A7C15u));
}

/// One step of the chain, not reduced: takes h < 2^63, gives h' < 2^63 of the right class. Six
/// cycles of latency: R is scaled by 8, so that the product's halves are its quotient and
/// remainder.
SERINUS_HOST_DEVICE constexpr std::uint64_t chain_step(std::uint64_t h,
                                                       std::uint64_t term) noexcept {
  const u128 product = static_cast<u128>(h) * (kR << 3);
  return static_cast<std::uint64_t>(product >> 64) +
         ((static_cast<std::uint64_t>(product) >> 3) + term);
}

/// The stored form: in [1, p], p standing for 0.
SERINUS_HOST_DEVICE constexpr std::uint64_t chain_value(std::uint64_t h) noexcept {
  h = fold(h);  // <= p + 3
  h = h > kP ? h - kP : h;
  return h == 0 ? kP : h;
}

// ---------------------------------------------------------------- digest

inline constexpr std::int64_t kBlock = 1024;  ///< bytes that share the NH key
inline constexpr std::uint64_t kNhSeed = 0x5345524E4E480001u;
inline constexpr std::uint64_t kBlockSeed = 0x5345524E424C0002u;
inline constexpr std::uint64_t kSourceSeed = 0x5345524E53520003u;
inline constexpr std::uint64_t kFinishSeed = 0x5345524E464E0004u;
inline constexpr std::uint64_t kLengthKey = 0x0B7E151628AED2A7u;  ///< < p

/// The NH key of the 8 bytes at `pair` * 8 of a block: low word for the low half.
SERINUS_HOST_DEVICE constexpr std::uint64_t nh_key(std::int64_t pair) noexcept {
  return stream(kNhSeed, static_cast<std::uint64_t>(pair));
}

/// NH of one pair of 32-bit words: what it adds to the block's sum mod 2^64.
SERINUS_HOST_DEVICE constexpr std::uint64_t nh_pair(std::uint64_t word,
                                                    std::uint64_t key) noexcept {
  const auto a = static_cast<std::uint32_t>(word) + static_cast<std::uint32_t>(key);
  const auto b = static_cast<std::uint32_t>(word >> 32) + static_cast<std::uint32_t>(key >> 32);
  return std::uint64_t{a} * b;
}

/// Multipliers of block j of a source, one a half of the block's NH.
struct BlockKeys {
  std::uint64_t low = 0, high = 0;
};
SERINUS_HOST_DEVICE constexpr BlockKeys block_keys(std::uint64_t j) noexcept {
  return {canonical(stream(kBlockSeed, 2 * j)), canonical(stream(kBlockSeed, 2 * j + 1))};
}
SERINUS_HOST_DEVICE constexpr u128 block_term(std::uint64_t nh, BlockKeys keys) noexcept {
  return static_cast<u128>(static_cast<std::uint32_t>(nh)) * keys.low +
         static_cast<u128>(nh >> 32) * keys.high;
}

/// Multiplier of the source that begins at `key_offset` in the token's bytes.
SERINUS_HOST_DEVICE constexpr std::uint64_t source_key(std::int64_t key_offset) noexcept {
  return canonical(stream(kSourceSeed, static_cast<std::uint64_t>(key_offset)));
}

/// The length, as one more word of the source.
SERINUS_HOST_DEVICE constexpr std::uint64_t length_term(std::int64_t bytes) noexcept {
  return multiply(canonical(static_cast<std::uint64_t>(bytes)), kLengthKey);
}
/// What a source adds: its length and the terms of its blocks, under the source's key.
SERINUS_HOST_DEVICE constexpr std::uint64_t source_sum(u128 block_terms, std::int64_t bytes,
                                                       std::uint64_t key) noexcept {
  return multiply(canonical(block_terms + length_term(bytes)), key);
}

/// What the table of source digests keeps of a contribution; 0 = not known.
SERINUS_HOST_DEVICE constexpr std::uint32_t source_word(std::uint64_t contribution) noexcept {
  const auto w = static_cast<std::uint32_t>(contribution ^ contribution >> 32);
  return w == 0 ? 1 : w;
}

SERINUS_HOST_DEVICE constexpr std::uint64_t finish(std::uint64_t sum, Depth depth) noexcept {
  return mix64(sum ^ stream(kFinishSeed, static_cast<std::uint64_t>(depth)));
}

// ---------------------------------------------------------------- ranks

inline constexpr std::uint64_t kRankSeed = 0x5345524E524B0005u;

/// What a cell adds to a RequestDigest. The terms of a request's cells add up in any order, and yet
/// no two cells can change places: each has a key of its own.
SERINUS_HOST_DEVICE constexpr std::uint64_t rank_term(std::uint64_t stored,
                                                      std::int64_t cell) noexcept {
  return mix64(stored ^ stream(kRankSeed, static_cast<std::uint64_t>(cell)));
}

// ---------------------------------------------------------------- seal

/// 32 bits over everything in a record but its digest, kept beside the ledger: a record that
/// somebody else wrote does not match it. Never 0: that is EMPTY.
SERINUS_HOST_DEVICE constexpr std::uint32_t seal(const Record& r) noexcept {
  const std::uint64_t where = std::uint64_t{r.position} << 32 | r.token;
  const std::uint64_t who = std::uint64_t{r.generation} << 32 | r.owner;
  const std::uint64_t sum =
      where * 0x9FB21C651E98DF25u + who * 0xC2B2AE3D27D4EB4Fu + r.chain * 0xD6E8FEB86659FD93u;
  const auto s = static_cast<std::uint32_t>((sum ^ (sum >> 29)) >> 32);
  return s == 0 ? 1 : s;
}

/// Eight bits over who wrote a record, and when: small enough that the marks of a pool stay in the
/// cache. A walk along a table compares these, since the chain vouches for the rest; a sweep
/// compares the seal. Every single bit of owner and generation counts. Never 0: that is EMPTY.
SERINUS_HOST_DEVICE constexpr std::uint8_t mark(const Record& r) noexcept {
  std::uint32_t x = r.owner ^ (r.generation << 3 | r.generation >> 29);
  x ^= x >> 16;
  x ^= x >> 8;
  x &= 0xFF;
  return static_cast<std::uint8_t>(((x ^ x >> 7) & 0x7F) | 0x80);
}

}  // namespace serinus::canary::hash
