// What canary_cuda.h says and computes without a GPU: descriptions, sizes, refusals, the algebra
// that lets a chain be composed in any grouping, and what a copied ring says.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <serinus/canary_cuda.h>
#include <serinus/error.h>

#include "canary/cuda/serinus/params.h"

namespace serinus::canary::cuda {
namespace {

PoolSpec spec_of(std::vector<std::uint8_t>& bytes, std::int64_t slots) {
  PoolSpec spec;
  spec.layout = kv_layout("fp8_656", {.page_size = 4});
  spec.num_layers = 1;
  spec.num_slots = slots;
  bytes.resize(static_cast<std::size_t>((slots + 3) / 4 * spec.layout.page_bytes[0]));
  spec.buffers = {{.data = bytes.data(), .bytes = static_cast<std::int64_t>(bytes.size())}};
  return spec;
}

template <class Call>
std::string id_of(const Call& call) {
  try {
    call();
  } catch (const Error& e) {
    EXPECT_NE(find_error(e.id()), nullptr);
    return e.id();
  }
  return "";
}

TEST(CanaryCuda, DescribesAPoolByItsSpec) {
  std::vector<std::uint8_t> bytes;
  const PoolSpec spec = spec_of(bytes, 10);
  const DevicePool p = describe_pool(spec, Depth::all, 3, 7);
  EXPECT_EQ(p.number, 3);
  EXPECT_EQ(p.num_slots, 10);
  EXPECT_EQ(p.page_size, 4);
  EXPECT_EQ(p.num_sources, static_cast<std::int64_t>(spec.layout.segments.size()));
  EXPECT_EQ(p.slot_bytes, spec.layout.token_bytes());
  EXPECT_EQ(describe_pool(spec, Depth::none, 0, 0).num_sources, 0);
  EXPECT_GT(pool_state_bytes(p), pool_state_bytes(describe_pool(spec, Depth::none, 0, 7)));
}

TEST(CanaryCuda, RefusesASlotOutsideItsBuffers) {
  std::vector<std::uint8_t> bytes;
  PoolSpec spec = spec_of(bytes, 12);
  spec.buffers[0].bytes -= 1;
  EXPECT_EQ(id_of([&] { describe_pool(spec, Depth::all, 0, 0); }), "SRN3002");
  // Short of the last page, which is only begun, the pages before it still count.
  spec = spec_of(bytes, 9);
  spec.buffers[0].bytes = spec.layout.page_bytes[0] * 2 - 1;
  EXPECT_EQ(id_of([&] { describe_pool(spec, Depth::all, 0, 0); }), "SRN3002");
  spec.num_slots = 0;
  EXPECT_EQ(id_of([&] { describe_pool(spec, Depth::none, 0, 0); }), "SRN3002");
}

TEST(CanaryCuda, RefusesToRunWhereThereIsNoGpu) {
  std::vector<std::uint8_t> bytes;
  DevicePool p = describe_pool(spec_of(bytes, 8), Depth::all, 0, 0);
  const Device nowhere{DeviceType::cuda, 1'000'000};
  p.records = TensorView(bytes.data(), DType::u8, {8, 32}, nowhere);
  const std::string id = id_of([&] { on_free(p, {}, {}, 1); });
  EXPECT_TRUE(id == "SRN7001" || id == "SRN7002") << id;
}

TEST(CanaryCuda, MapsOfTokensComposeToTheChain) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    const auto n = static_cast<std::uint32_t>(1 + random() % 40);
    const std::uint64_t before = chain_next(kChainAnchor, static_cast<std::uint32_t>(random()), 0);
    std::uint64_t chain = before;
    std::vector<ChainMap> maps;
    for (std::uint32_t i = 0; i < n; ++i) {
      const auto token = static_cast<std::uint32_t>(random());
      chain = chain_next(chain, token, i + 1);
      maps.push_back({hash::kR, hash::canonical(hash::token_term(token, i + 1))});
    }
    // Joined pairwise in a random order, as a scan may group them.
    while (maps.size() > 1) {
      const std::size_t at = random() % (maps.size() - 1);
      maps[at] = then(maps[at], maps[at + 1]);
      maps.erase(maps.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }
    const std::uint64_t h =
        hash::canonical(static_cast<hash::u128>(before) * maps[0].multiplier + maps[0].addend);
    ASSERT_EQ(h == 0 ? hash::kP : h, chain);
  }
}

TEST(CanaryCuda, ARingIsReadInTheOrderOfFirstSightings) {
  const std::int64_t capacity = 5;
  std::vector<std::byte> copy(ring_bytes(capacity));
  EXPECT_TRUE(read_ring(copy, capacity).violations.empty());
  RingHeader header;
  header.counts.sightings = 9;
  std::memcpy(copy.data(), &header, sizeof header);
  auto* const rows = reinterpret_cast<RingRow*>(copy.data() + (sizeof(RingHeader) + 15) / 16 * 16);
  rows[7].sequence = 2, rows[7].slot = 70, rows[7].count = 4;
  rows[7].reasons = static_cast<std::uint32_t>(Reason::token | Reason::chain);
  rows[3].sequence = 1, rows[3].slot = 30, rows[3].count = 5;
  rows[9].key = 1;  // one that found no room
  const RingContent c = read_ring(copy, capacity);
  EXPECT_EQ(c.counts.sightings, 9u);
  ASSERT_EQ(c.violations.size(), 2u);
  EXPECT_EQ(c.violations[0].slot, 30);
  EXPECT_EQ(c.violations[1].slot, 70);
  EXPECT_EQ(names_of(c.violations[1].reasons), "token+chain");
  EXPECT_EQ(c.violations[1].count, 4u);
  copy.pop_back();
  EXPECT_EQ(id_of([&] { read_ring(copy, capacity); }), "SRN3306");
}

}  // namespace
}  // namespace serinus::canary::cuda
