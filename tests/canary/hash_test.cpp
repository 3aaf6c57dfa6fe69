// The chain and the digest: vectors, algebra, and that no byte is ever overlooked.
#include "canary/serinus/hash.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <limits>
#include <random>

#include "canary/serinus/digest.h"
#include "canary/serinus/digest_keys.h"
#include "rig.h"

namespace serinus::canary {
namespace {

using Bytes = std::vector<std::uint8_t>;

Source dense(const Bytes& b, std::int64_t bytes, std::int64_t key_offset = 0) {
  return {b.data(), std::ssize(b), bytes, 0, bytes, bytes, key_offset};
}
std::uint64_t digest_of(const Bytes& b, Depth depth = Depth::all, std::int64_t key_offset = 0) {
  const Source s = dense(b, std::ssize(b), key_offset);
  return *kv_digest({&s, 1}, 1, 0, depth);
}
Bytes random_bytes(std::size_t n, std::uint32_t seed) {
  std::mt19937 rng(seed);
  Bytes b(n);
  for (auto& x : b) x = static_cast<std::uint8_t>(rng());
  return b;
}

/// The digest as docs/design/canary.md writes it down, without any of the code under test but
/// mix64.
std::uint64_t digest_by_definition(const std::vector<Bytes>& sources, Depth depth) {
  using u128 = hash::u128;
  const std::uint64_t p = (std::uint64_t{1} << 61) - 1;
  const auto stream = [](std::uint64_t seed, std::uint64_t i) {
    return hash::mix64(seed + (i + 1) * 0x9E3779B97F4A7C15u);
  };
  std::uint64_t sum = 0, key_offset = 0;
  for (const Bytes& all : sources) {
    Bytes m = all;
    if (depth == Depth::partial && m.size() > 32) {
      m.assign(all.begin(), all.begin() + 16);
      m.insert(m.end(), all.end() - 16, all.end());
    }
    std::uint64_t t =
        static_cast<std::uint64_t>(static_cast<u128>(all.size() % p) * 0x0B7E151628AED2A7u % p);
    for (std::size_t j = 0; j * 1024 < m.size(); ++j) {
      std::uint64_t nh = 0;
      for (std::size_t i = 0; i < 128 && j * 1024 + i * 8 < m.size(); ++i) {
        std::uint64_t w = 0;
        for (std::size_t k = 0; k < 8 && j * 1024 + i * 8 + k < m.size(); ++k) {
          w |= std::uint64_t{m[j * 1024 + i * 8 + k]} << (8 * k);
        }
        const std::uint64_t key = stream(0x5345524E4E480001u, i);
        nh += std::uint64_t{static_cast<std::uint32_t>(w + (key & 0xFFFFFFFF))} *
              static_cast<std::uint32_t>((w >> 32) + (key >> 32));
      }
      const std::uint64_t g1 = stream(0x5345524E424C0002u, 2 * j) % p;
      const std::uint64_t g2 = stream(0x5345524E424C0002u, 2 * j + 1) % p;
      t = static_cast<std::uint64_t>(
          (t + static_cast<u128>(nh & 0xFFFFFFFF) * g1 + static_cast<u128>(nh >> 32) * g2) % p);
    }
    const std::uint64_t s = stream(0x5345524E53520003u, key_offset) % p;
    sum = static_cast<std::uint64_t>((sum + static_cast<u128>(t) * s) % p);
    key_offset += all.size();
  }
  return hash::mix64(sum ^ stream(0x5345524E464E0004u, depth == Depth::all ? 2 : 1));
}

// ---------------------------------------------------------------- chain

TEST(Chain, Vectors) {
  std::uint64_t h = kChainAnchor;
  std::vector<std::uint64_t> got;
  std::uint32_t position = 0;
  for (const std::uint32_t token : {15339u, 374u, 264u, 0u, 0xFFFFFFFFu}) {
    h = chain_next(h, token, position++);
    got.push_back(h);
  }
  EXPECT_EQ(got, (std::vector<std::uint64_t>{0x1953443a929444a2u, 0x1c24560391e40976u,
                                             0x02ca38215b214570u, 0x1fa308ea0ec1ffb4u,
                                             0x00e9933fced58ab0u}));
}

TEST(Chain, ByDefinition) {
  using u128 = hash::u128;
  const std::uint64_t p = (std::uint64_t{1} << 61) - 1, r = 0x0d1b54a32d192ed3u;
  std::mt19937_64 rng(1);
  u128 h = kChainAnchor % p;
  std::uint64_t got = kChainAnchor;
  for (std::uint32_t i = 0; i < 2000; ++i) {
    const auto token = static_cast<std::uint32_t>(rng());
    const std::uint64_t f = hash::mix64((std::uint64_t{i} << 32 | token) + 0x9E3779B97F4A7C15u) % p;
    h = (h * r + f) % p;
    got = chain_next(got, token, i);
    ASSERT_EQ(got % p, static_cast<std::uint64_t>(h));
    ASSERT_GE(got, 1u);
    ASSERT_LE(got, p);
  }
}

TEST(Chain, ZeroIsStoredAsThePrime) {
  // The step before which the chain becomes 0: h = -f / R.
  const std::uint64_t p = hash::kP;
  std::uint64_t inverse = 1, base = hash::kR, e = p - 2;
  for (; e != 0; e >>= 1, base = hash::multiply(base, base)) {
    if (e & 1) inverse = hash::multiply(inverse, base);
  }
  const std::uint64_t f = hash::canonical(hash::token_term(5, 6));
  const std::uint64_t h = hash::multiply(p - f, inverse);
  EXPECT_EQ(chain_next(h, 5, 6), p);
  EXPECT_EQ(chain_next(chain_next(h, 5, 6), 1, 7), chain_next(0, 1, 7));
}

TEST(Chain, ScanEqualsSteps) {
  std::mt19937_64 rng(2);
  for (const std::size_t n : {0u, 1u, 63u, 64u, 255u, 256u, 257u, 1000u, 5000u}) {
    std::vector<std::uint32_t> tokens(n);
    for (auto& t : tokens) t = static_cast<std::uint32_t>(rng());
    std::vector<std::uint64_t> out(n);
    const std::uint64_t start = chain_next(kChainAnchor, 9, 6);
    chain_scan(start, tokens, 7, out);
    std::uint64_t h = start;
    for (std::size_t i = 0; i < n; ++i) {
      h = chain_next(h, tokens[i], static_cast<std::uint32_t>(7 + i));
      ASSERT_EQ(out[i], h) << n << ' ' << i;
    }
  }
}

TEST(Chain, OrderAndPositionMatter) {
  const std::uint64_t ab = chain_next(chain_next(kChainAnchor, 1, 0), 2, 1);
  const std::uint64_t ba = chain_next(chain_next(kChainAnchor, 2, 0), 1, 1);
  EXPECT_NE(ab, ba);
  EXPECT_NE(chain_next(kChainAnchor, 1, 0), chain_next(kChainAnchor, 1, 1));
  EXPECT_NE(chain_next(0, 0, 0), 0u);
}

// ---------------------------------------------------------------- digest

TEST(Digest, Vectors) {
  Bytes count(32), down(32), zeros(32), kilo(1500);
  for (std::size_t i = 0; i < 32; ++i) count[i] = static_cast<std::uint8_t>(i);
  for (std::size_t i = 0; i < 32; ++i) down[i] = static_cast<std::uint8_t>(255 - i);
  for (std::size_t i = 0; i < 1500; ++i) kilo[i] = static_cast<std::uint8_t>(i * 7);
  const std::vector<std::uint64_t> got = {
      digest_of(count), digest_of(zeros), digest_of(kilo), digest_of(kilo, Depth::partial), [&] {
        const Source two[] = {dense(count, 32), dense(down, 32, 32)};
        return *kv_digest(two, 1, 0, Depth::all);
      }()};
  EXPECT_EQ(got, (std::vector<std::uint64_t>{0xee97252708c1283fu, 0xf9684b40b88f7bd5u,
                                             0x4e875ebbbc02f541u, 0x1e31ad2c77534fb5u,
                                             0xdee4139e84e05a22u}));
}

TEST(Digest, ByDefinitionForEveryLengthAndAlignment) {
  const Bytes pool = random_bytes(8192, 3);
  for (std::int64_t n = 1; n <= 2200; n += n < 300 ? 1 : 97) {
    for (const std::int64_t shift : {0, 1, 7}) {
      const Bytes m(pool.begin() + shift, pool.begin() + shift + n);
      const Source s{pool.data(), std::ssize(pool), 4096, shift, n, n, 0};
      for (const Depth depth : {Depth::partial, Depth::all}) {
        ASSERT_EQ(kv_digest({&s, 1}, 1, 0, depth), digest_by_definition({m}, depth))
            << n << ' ' << shift;
      }
    }
  }
}

TEST(Digest, ManySourcesByDefinition) {
  for (const std::vector<std::int64_t>& sizes :
       {std::vector<std::int64_t>{512, 16, 128, 512, 16, 128}, {4, 132, 1, 2049, 64}}) {
    const std::int64_t page = 3, slots = 10;
    std::vector<Bytes> buffers;
    std::vector<Source> sources;
    std::int64_t key = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const std::int64_t stride = sizes[i] + 5;
      buffers.push_back(random_bytes(static_cast<std::size_t>(4 * (page * stride + 9)),
                                     static_cast<std::uint32_t>(i)));
      sources.push_back(
          {nullptr, std::ssize(buffers.back()), page * stride + 9, 2, stride, sizes[i], key});
      key += sizes[i];
    }
    for (std::size_t i = 0; i < sizes.size(); ++i) sources[i].base = buffers[i].data();
    std::vector<std::int64_t> order;
    for (std::int64_t s = 0; s < 7 * slots; ++s) order.push_back(s * 3 % slots);
    const auto prepared = prepare(sources);
    for (const Depth depth : {Depth::partial, Depth::all}) {
      for (std::size_t n = 0; n <= order.size(); n += n < 12 ? 1 : 29) {
        std::vector<std::uint64_t> out(n), parts(n * sizes.size());
        digest_slots(prepared, page, depth, {order.data(), n}, out.data(), parts.data());
        std::vector<std::uint64_t> again(n);
        digest_slots(prepared, page, depth, {order.data(), n}, again.data());
        ASSERT_EQ(out, again);
        for (std::size_t i = 0; i < n; ++i) {
          std::vector<Bytes> m;
          std::uint64_t sum = 0;
          for (std::size_t k = 0; k < sources.size(); ++k) {
            const Source& s = sources[k];
            const std::uint8_t* p = s.base + order[i] / page * s.page_stride + s.offset +
                                    order[i] % page * s.token_stride;
            m.emplace_back(p, p + s.bytes);
            const std::uint64_t c = *digest_contribution(s, page, order[i], depth);
            ASSERT_EQ(parts[i * sizes.size() + k], c);
            sum = digest_add(sum, c);
          }
          ASSERT_EQ(out[i], digest_by_definition(m, depth));
          ASSERT_EQ(out[i], digest_finish(sum, depth)) << "contributions add";
          ASSERT_EQ(out[i], *kv_digest(sources, page, order[i], depth));
        }
      }
    }
  }
}

TEST(Digest, DoesNotDependOnThePlace) {
  testing::PoolBytes p(40, 2);
  p.fill(3, 77, 5);
  p.fill(38, 77, 5);
  const auto sources = sources_of(p.spec.layout, 2, p.spec.buffers);
  EXPECT_EQ(kv_digest(sources, 4, 3, Depth::all), kv_digest(sources, 4, 38, Depth::all));
}

TEST(Digest, EverySingleBitFlipIsSeen) {
  for (const std::size_t n : {1u, 4u, 7u, 8u, 36u, 132u, 584u, 1100u}) {
    for (const bool zeros : {false, true}) {
      Bytes b = zeros ? Bytes(n) : random_bytes(n, 5);
      const std::uint64_t before = digest_of(b);
      for (std::size_t i = 0; i < n * 8; ++i) {
        b[i / 8] = static_cast<std::uint8_t>(b[i / 8] ^ 1u << (i % 8));
        ASSERT_NE(digest_of(b), before) << n << " bit " << i;
        b[i / 8] = static_cast<std::uint8_t>(b[i / 8] ^ 1u << (i % 8));
      }
    }
  }
}

TEST(Digest, PartialSeesBothEndsAndTheLength) {
  Bytes b = random_bytes(400, 6);
  const std::uint64_t before = digest_of(b, Depth::partial);
  for (std::size_t i = 0; i < 400; ++i) {
    b[i] ^= 1;
    ASSERT_EQ(digest_of(b, Depth::partial) != before, i < 16 || i >= 384) << i;
    b[i] ^= 1;
  }
  Bytes longer = b;
  longer.insert(longer.begin() + 100, 8, 0);
  EXPECT_NE(digest_of(longer, Depth::partial), before);
}

TEST(Digest, OrderMatters) {
  Bytes b = random_bytes(2048 + 64, 7);
  const std::uint64_t before = digest_of(b);
  for (std::size_t i = 0; i + 8 <= 1024; i += 4) {  // neighbouring words
    Bytes c = b;
    std::swap_ranges(c.begin() + static_cast<std::ptrdiff_t>(i),
                     c.begin() + static_cast<std::ptrdiff_t>(i + 4),
                     c.begin() + static_cast<std::ptrdiff_t>(i + 4));
    ASSERT_NE(digest_of(c), before) << i;
  }
  Bytes blocks = b;
  std::swap_ranges(blocks.begin(), blocks.begin() + 1024, blocks.begin() + 1024);
  EXPECT_NE(digest_of(blocks), before);
  const Bytes x = random_bytes(32, 8), y = random_bytes(32, 9);
  const Source xy[] = {dense(x, 32), dense(y, 32, 32)}, yx[] = {dense(y, 32), dense(x, 32, 32)};
  EXPECT_NE(kv_digest(xy, 1, 0, Depth::all), kv_digest(yx, 1, 0, Depth::all));
}

TEST(Digest, LengthsAreBound) {
  Bytes b;
  std::vector<std::uint64_t> seen;
  for (int n = 1; n <= 64; ++n) {
    b.push_back(0);
    for (const std::uint64_t s : seen) ASSERT_NE(digest_of(b), s) << n;
    seen.push_back(digest_of(b));
  }
  // The same bytes, cut elsewhere.
  const Bytes all = random_bytes(64, 10);
  const Bytes a(all.begin(), all.begin() + 24), c(all.begin() + 24, all.end());
  const Bytes d(all.begin(), all.begin() + 40), e(all.begin() + 40, all.end());
  const Source one[] = {dense(a, 24), dense(c, 40, 24)}, other[] = {dense(d, 40), dense(e, 24, 40)};
  EXPECT_NE(kv_digest(one, 1, 0, Depth::all), kv_digest(other, 1, 0, Depth::all));
}

TEST(Digest, BytesBetweenTheSegmentsDoNotCount) {
  testing::PoolBytes p(8, 1);
  p.fill(2, 1, 1);
  const auto sources = sources_of(p.spec.layout, 1, p.spec.buffers);
  const auto before = kv_digest(sources, 4, 2, Depth::all);
  *(p.byte(2, 0, 23) + 1) ^= 0xFF;  // padding of the stride
  EXPECT_EQ(kv_digest(sources, 4, 2, Depth::all), before);
}

TEST(Digest, NothingOutsideABufferIsRead) {
  const Bytes b(100);
  const Source s{b.data(), 100, 30, 5, 10, 7, 0};  // pages of 3 tokens
  for (std::int64_t slot = 0; slot < 12; ++slot) {
    const bool inside = slot / 3 * 30 + 5 + slot % 3 * 10 + 7 <= 100;
    EXPECT_EQ(kv_digest({&s, 1}, 3, slot, Depth::all).has_value(), inside) << slot;
  }
  for (const std::int64_t slot : {std::int64_t{-1}, std::numeric_limits<std::int64_t>::min(),
                                  std::numeric_limits<std::int64_t>::max()}) {
    EXPECT_FALSE(kv_digest({&s, 1}, 3, slot, Depth::all).has_value());
  }
  EXPECT_EQ(kv_digest({&s, 1}, 3, 99, Depth::none), 0u);
}

// ---------------------------------------------------------------- seal

TEST(Seal, EverySingleBitOfARecordButItsDigestCounts) {
  std::mt19937_64 rng(4);
  for (int round = 0; round < 200; ++round) {
    const Record r{static_cast<std::uint32_t>(rng()),
                   static_cast<std::uint32_t>(rng() % 4096),
                   static_cast<Owner>(rng() % 100),
                   static_cast<std::uint32_t>(rng() % 9999),
                   rng() >> 3,
                   rng()};
    ASSERT_NE(hash::seal(r), 0u);
    for (std::size_t bit = 0; bit < 192; ++bit) {
      auto bytes = std::bit_cast<std::array<std::uint8_t, 32>>(r);
      bytes[bit / 8] = static_cast<std::uint8_t>(bytes[bit / 8] ^ 1u << (bit % 8));
      ASSERT_NE(hash::seal(std::bit_cast<Record>(bytes)), hash::seal(r)) << bit;
    }
  }
}

}  // namespace
}  // namespace serinus::canary
