#include "engine/model.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "engine/mix.h"

namespace serinus::engine {

namespace {

// The bytes are a window of fixed noise, begun at a place and xor-ed with a word that the state
// chooses: one load, one xor, one store, so that writing KV costs what memory costs.
constexpr std::size_t kWindow = 4096;
constexpr std::size_t kStarts = 512;  // places to begin at, in words

constexpr auto kNoise = [] {
  std::array<std::uint64_t, kStarts + kWindow / 8> noise{};
  for (std::size_t i = 0; i < noise.size(); ++i) noise[i] = mix(i);
  return noise;
}();

}  // namespace

void model_bytes(std::uint64_t prefix_state, int source, std::span<std::uint8_t> out) noexcept {
  for (std::size_t done = 0; done < out.size(); done += kWindow) {
    const std::uint64_t seed =
        mix(prefix_state, (static_cast<std::uint64_t>(source) << 32) | (done / kWindow));
    const std::uint64_t* from = kNoise.data() + seed % kStarts;
    const std::size_t n = std::min(kWindow, out.size() - done);
    std::uint8_t* to = out.data() + done;
    std::size_t i = 0;
    for (; i + 8 <= n; i += 8) {
      std::uint64_t word;
      std::memcpy(&word, from + i / 8, 8);
      word ^= seed;
      std::memcpy(to + i, &word, 8);
    }
    if (i < n) {
      const std::uint64_t word = from[i / 8] ^ seed;
      std::memcpy(to + i, &word, n - i);
    }
  }
}

void model_write(const KvPool& pool, std::int64_t slot, std::uint64_t prefix_state,
                 std::uint64_t junk) noexcept {
  if (!pool.has_bytes()) return;
  const KvLayout& layout = pool.layout();
  int source = 0;
  for (int l = 0; l < pool.num_layers(); ++l) {
    for (const KvSegment& s : layout.segments)
      model_bytes(prefix_state, source++, {pool.at(l, s, slot), static_cast<std::size_t>(s.bytes)});
  }
  if (slot % layout.page_size != 0) return;
  for (int l = 0; l < pool.num_layers(); ++l) {
    for (const KvPool::Gap& gap : pool.gaps()) {
      const KvBuffer& b = pool.buffer(l, gap.buffer);
      model_bytes(junk, ~l,
                  {b.data + (slot / layout.page_size) * b.page_stride + gap.offset,
                   static_cast<std::size_t>(gap.bytes)});
    }
  }
}

}  // namespace serinus::engine
