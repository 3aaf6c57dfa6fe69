// The fingerprint of a slot's KV bytes.
#include <algorithm>
#include <limits>
#include <optional>

#include "canary/sglang/records.h"

namespace serinus::canary::sglang {

namespace {

std::uint64_t word_at(const std::uint8_t* p) noexcept {
  std::uint64_t w = 0;
  std::memcpy(&w, p, sizeof w);
  return w;
}

// Independent folds that keep the multiplier busy; more spill registers.
constexpr int kLanes = 4;
constexpr std::int64_t kWordsPerLine = 8;

// Folds kLanes slots, and asks for the lines of the next ones as it goes.
void fold_lanes(const SourceParams& s, const std::uint8_t* const* bytes,
                const std::uint8_t* const* next, std::uint64_t* out) noexcept {
  std::uint64_t f[kLanes] = {};
  for (std::int64_t w = 0; w < s.words; ++w) {
    if (next != nullptr && w % kWordsPerLine == 0) {
      for (int lane = 0; lane < kLanes; ++lane) __builtin_prefetch(next[lane] + w * 8, 0, 3);
    }
    for (int lane = 0; lane < kLanes; ++lane)
      f[lane] = hash::splitmix64(f[lane] ^ word_at(bytes[lane] + w * 8));
  }
  for (int lane = 0; lane < kLanes; ++lane) out[lane] = hash::splitmix64(out[lane] ^ f[lane]);
}

std::uint64_t fold_one(const SourceParams& s, const std::uint8_t* bytes) noexcept {
  std::uint64_t f = 0;
  for (std::int64_t w = 0; w < s.words; ++w) f = hash::splitmix64(f ^ word_at(bytes + w * 8));
  return f;
}

}  // namespace

SourceParams source_params(const RealKvSource& source, RealKvHashMode mode) {
  const std::int64_t element = size_of(source.tensor.dtype);
  const std::int64_t rows = source.tensor.shape[0];
  SourceParams s;
  s.base = source.tensor.as<const std::uint8_t>();
  s.row_stride = source.tensor.strides[0] * element;
  if (rows > 0 && source.tensor.numel() > 0)
    s.extent = (rows - 1) * s.row_stride + source.tensor.shape[1] * element;
  s.page_size = source.page_size;
  s.token_stride = source.num_bytes_per_token;
  s.words = (mode == RealKvHashMode::all ? source.read_bytes : kPartialBytes) / 8;
  // Whole pages whose last token still fits.
  __extension__ typedef __int128 Wide;
  const Wide page = static_cast<Wide>(s.page_size - 1) * s.token_stride + s.words * 8;
  if (s.row_stride > 0 && page <= s.extent) {
    const Wide slots = ((s.extent - page) / s.row_stride + 1) * s.page_size;
    s.safe_slots =
        static_cast<std::int64_t>(std::min<Wide>(slots, std::numeric_limits<std::int64_t>::max()));
  }
  return s;
}

void fold(const ContextParams& c, const std::int64_t* slots, std::int64_t count,
          std::uint64_t* hashes, bool* ok) noexcept {
  for (std::int64_t i = 0; i < count; ++i) {
    hashes[i] = 0;
    ok[i] = within(slots[i], c.num_slots);
  }
  if (c.num_sources == 0) return;
  // The slots whose bytes exist, packed.
  std::int64_t entries[kGroup];
  const std::uint8_t* bytes[kMaxRealKvSources][kGroup];
  std::int64_t n = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    for (int k = 0; ok[i] && k < c.num_sources; ++k) {
      const SourceParams& s = c.sources[static_cast<std::size_t>(k)];
      const std::int64_t at = offset_of(s, slots[i], s.words * 8);
      ok[i] = at >= 0;
      if (ok[i]) bytes[k][n] = s.base + at;
    }
    if (ok[i]) entries[n++] = i;
  }
  std::uint64_t packed[kGroup] = {};
  for (int k = 0; k < c.num_sources; ++k) {
    const SourceParams& s = c.sources[static_cast<std::size_t>(k)];
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      const bool more = i + 2 * kLanes <= n;
      fold_lanes(s, bytes[k] + i, more ? bytes[k] + i + kLanes : nullptr, packed + i);
    }
    for (; i < n; ++i) packed[i] = hash::splitmix64(packed[i] ^ fold_one(s, bytes[k][i]));
  }
  for (std::int64_t i = 0; i < n; ++i) hashes[entries[i]] = packed[i];
}

std::optional<std::uint64_t> source_hash(const RealKvSource& source, RealKvHashMode mode,
                                         std::int64_t slot) {
  check(source);
  if (mode == RealKvHashMode::none) return 0;
  const SourceParams s = source_params(source, mode);
  const std::int64_t at = offset_of(s, slot, s.words * 8);
  if (at < 0) return std::nullopt;
  return fold_one(s, s.base + at);
}

std::optional<std::uint64_t> real_kv_hash(std::span<const RealKvSource> sources,
                                          RealKvHashMode mode, std::int64_t slot) {
  std::uint64_t hash = 0;
  if (mode == RealKvHashMode::none) return hash;
  for (const RealKvSource& source : sources) {
    const std::optional<std::uint64_t> f = source_hash(source, mode, slot);
    if (!f) return std::nullopt;
    hash = hash::splitmix64(hash ^ *f);
  }
  return hash;
}

std::optional<FlippedByte> flip_first_byte(const RealKvSource& source, std::int64_t slot) {
  check(source);
  const SourceParams s = source_params(source, RealKvHashMode::partial);
  const std::int64_t at = offset_of(s, slot, 1);
  if (at < 0) return std::nullopt;
  std::uint8_t& byte = source.tensor.as<std::uint8_t>()[at];
  FlippedByte flipped{slot / s.page_size, (slot % s.page_size) * s.token_stride, byte, 0};
  byte ^= 0xFFu;
  flipped.new_byte = byte;
  return flipped;
}

std::uint64_t splitmix64(std::uint64_t x) noexcept {
  return hash::splitmix64(x);
}

std::uint64_t splitmix64_mix3(std::uint64_t a, std::uint64_t b, std::uint64_t c) noexcept {
  return hash::mix3(a, b, c);
}

std::uint64_t chain_hash(const Record& record) noexcept {
  return hash_of(record);
}

}  // namespace serinus::canary::sglang
