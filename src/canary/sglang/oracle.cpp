// The token oracle: a "model" whose next token is a function of request and position alone, so that
// the truth about every input is known.
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>

#include "base/raise.h"
#include "canary/sglang/records.h"

namespace serinus::canary::sglang {

namespace {

// BLAKE2b (RFC 7693), unkeyed, cut to its first 8 bytes.
constexpr std::array<std::uint64_t, 8> kIv = {
    0x6A09E667F3BCC908u, 0xBB67AE8584CAA73Bu, 0x3C6EF372FE94F82Bu, 0xA54FF53A5F1D36F1u,
    0x510E527FADE682D1u, 0x9B05688C2B3E6C1Fu, 0x1F83D9ABFB41BD6Bu, 0x5BE0CD19137E2179u};
constexpr std::uint8_t kSigma[10][16] = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                                         {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
                                         {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
                                         {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
                                         {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
                                         {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
                                         {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
                                         {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
                                         {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
                                         {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};
constexpr int kRounds = 12;
constexpr std::size_t kBlock = 128;
constexpr std::uint64_t kDigestBytes = 8;

void compress(std::array<std::uint64_t, 8>& h, const std::uint8_t* block,
              std::uint64_t bytes_so_far, bool last) {
  std::array<std::uint64_t, 16> m{};
  std::memcpy(m.data(), block, kBlock);
  std::array<std::uint64_t, 16> v{};
  std::copy(h.begin(), h.end(), v.begin());
  std::copy(kIv.begin(), kIv.end(), v.begin() + 8);
  v[12] ^= bytes_so_far;
  if (last) v[14] = ~v[14];
  const auto g = [&v](std::size_t a, std::size_t b, std::size_t c, std::size_t d, std::uint64_t x,
                      std::uint64_t y) {
    v[a] += v[b] + x;
    v[d] = std::rotr(v[d] ^ v[a], 32);
    v[c] += v[d];
    v[b] = std::rotr(v[b] ^ v[c], 24);
    v[a] += v[b] + y;
    v[d] = std::rotr(v[d] ^ v[a], 16);
    v[c] += v[d];
    v[b] = std::rotr(v[b] ^ v[c], 63);
  };
  for (int round = 0; round < kRounds; ++round) {
    const std::uint8_t* const s = kSigma[round % 10];
    for (std::size_t i = 0; i < 4; ++i) g(i, i + 4, i + 8, i + 12, m[s[2 * i]], m[s[2 * i + 1]]);
    for (std::size_t i = 0; i < 4; ++i) {
      g(i, (i + 1) % 4 + 4, (i + 2) % 4 + 8, (i + 3) % 4 + 12, m[s[2 * i + 8]], m[s[2 * i + 9]]);
    }
  }
  for (std::size_t i = 0; i < 8; ++i) h[i] ^= v[i] ^ v[i + 8];
}

}  // namespace

std::int64_t request_id_hash(std::string_view request_id) {
  std::array<std::uint64_t, 8> h = kIv;
  h[0] ^= 0x01010000u ^ kDigestBytes;  // fan-out 1, depth 1, no key
  std::uint64_t done = 0;
  std::string_view rest = request_id;
  do {
    std::uint8_t block[kBlock] = {};
    const std::size_t n = std::min(rest.size(), kBlock);
    std::copy_n(rest.data(), n, reinterpret_cast<char*>(block));
    rest.remove_prefix(n);
    done += n;
    compress(h, block, done, rest.empty());
  } while (!rest.empty());
  return i64(h[0]);
}

std::int64_t oracle_token(std::int64_t request_id_hash, std::int64_t position,
                          std::int64_t vocab_size) {
  if (vocab_size <= 0) {
    raise(errors::Page::canary_vocab_size_not_positive,
          {{"argument", "vocab_size"}, {"got", std::to_string(vocab_size)}});
  }
  return i64(hash::splitmix64(u64(request_id_hash) ^ u64(position)) % u64(vocab_size));
}

}  // namespace serinus::canary::sglang
