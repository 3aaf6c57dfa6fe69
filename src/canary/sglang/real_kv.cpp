// The fingerprint of a slot's KV bytes.
#include <algorithm>
#include <optional>

#include "canary/sglang/records.h"

namespace serinus::canary::sglang {

namespace {

// Where a slot's bytes begin; nullopt where `bytes` of them do not lie within the extent. Any slot.
std::optional<std::int64_t> offset_of(const SourceParams& s, std::int64_t slot,
                                      std::int64_t bytes) noexcept {
  std::int64_t row = 0;
  std::int64_t column = 0;
  std::int64_t end = 0;
  if (slot < 0 || __builtin_mul_overflow(slot / s.page_size, s.row_stride, &row) ||
      __builtin_mul_overflow(slot % s.page_size, s.token_stride, &column) ||
      __builtin_add_overflow(row, column, &row) || __builtin_add_overflow(row, bytes, &end) ||
      end > s.extent)
    return std::nullopt;
  return row;
}

std::uint64_t word_at(const std::uint8_t* p) noexcept {
  std::uint64_t w = 0;
  std::memcpy(&w, p, sizeof w);
  return w;
}

// Four independent folds keep the multiplier busy; more spill registers.
constexpr int kLanes = 4;

void fold_lanes(const SourceParams& s, const std::uint8_t* const (&bytes)[kLanes],
                std::uint64_t (&out)[kLanes]) noexcept {
  std::uint64_t f[kLanes] = {};
  for (std::int64_t w = 0; w < s.words; ++w) {
    for (int lane = 0; lane < kLanes; ++lane)
      f[lane] = hash::splitmix64(f[lane] ^ word_at(bytes[lane] + w * 8));
  }
  std::copy(f, f + kLanes, out);
}

std::uint64_t fold_one(const SourceParams& s, const std::uint8_t* bytes) noexcept {
  std::uint64_t f = 0;
  for (std::int64_t w = 0; w < s.words; ++w) f = hash::splitmix64(f ^ word_at(bytes + w * 8));
  return f;
}

const std::uint8_t* bytes_of(const SourceParams& s, std::int64_t slot) noexcept {
  return s.base + (slot / s.page_size) * s.row_stride + (slot % s.page_size) * s.token_stride;
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
  return s;
}

bool has_bytes(const ContextParams& c, std::int64_t slot) noexcept {
  for (int i = 0; i < c.num_sources; ++i) {
    const SourceParams& s = c.sources[static_cast<std::size_t>(i)];
    if (!offset_of(s, slot, s.words * 8)) return false;
  }
  return true;
}

void fold(const ContextParams& c, const std::int64_t* slots, std::int64_t count,
          std::uint64_t* out) noexcept {
  std::fill(out, out + count, std::uint64_t{0});
  for (int k = 0; k < c.num_sources; ++k) {
    const SourceParams& s = c.sources[static_cast<std::size_t>(k)];
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      const std::uint8_t* bytes[kLanes];
      std::uint64_t f[kLanes];
      for (int lane = 0; lane < kLanes; ++lane) bytes[lane] = bytes_of(s, slots[i + lane]);
      fold_lanes(s, bytes, f);
      for (int lane = 0; lane < kLanes; ++lane)
        out[i + lane] = hash::splitmix64(out[i + lane] ^ f[lane]);
    }
    for (; i < count; ++i) out[i] = hash::splitmix64(out[i] ^ fold_one(s, bytes_of(s, slots[i])));
  }
}

std::optional<std::uint64_t> source_hash(const RealKvSource& source, RealKvHashMode mode,
                                         std::int64_t slot) {
  check(source);
  if (mode == RealKvHashMode::none) return 0;
  const SourceParams s = source_params(source, mode);
  if (!offset_of(s, slot, s.words * 8)) return std::nullopt;
  return fold_one(s, bytes_of(s, slot));
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
  const std::optional<std::int64_t> at = offset_of(s, slot, 1);
  if (!at) return std::nullopt;
  std::uint8_t& byte = source.tensor.as<std::uint8_t>()[*at];
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
