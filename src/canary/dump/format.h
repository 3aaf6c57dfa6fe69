// The bytes of a dump file. docs/design/dump.md describes them; the version is in version.h.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include <serinus/canary_dump.h>

#include "canary/serinus/hash.h"

namespace serinus::canary::dump {

static_assert(std::endian::native == std::endian::little, "the file is little-endian");

inline constexpr char kMagic[8] = {'S', 'R', 'N', 'D', 'U', 'M', 'P', '\0'};
inline constexpr std::int64_t kHeaderBytes = 64;
inline constexpr std::int64_t kTrailerBytes = 8;

// No real dump comes near these; they keep a hostile one from being expensive.
inline constexpr std::uint32_t kMaxPools = 256;
inline constexpr std::uint32_t kMaxName = 4096;
inline constexpr std::uint32_t kMaxSegments = 4096;
inline constexpr std::int32_t kMaxLayers = 1 << 20;
inline constexpr std::int64_t kMaxBuffers = 1 << 20;  ///< of a pool, over all layers
inline constexpr std::int64_t kMaxRuns = 1 << 22;     ///< page_size * segments, over all pools

struct Header {
  char magic[8];
  std::uint32_t version, record_version;
  std::uint8_t format, depth, source_digests, reserved0;
  std::uint32_t num_pools;
  std::uint64_t step;
  std::uint32_t num_rows;
  std::uint32_t reserved[7];
};
static_assert(sizeof(Header) == kHeaderBytes);

/// Of everything before the trailer: h = mix64(h ^ word) over little-endian 64-bit words, the last
/// one padded with zeros, from h = 0; then h = mix64(h ^ number of bytes).
class Checksum {
 public:
  void add(const void* data, std::size_t n) noexcept {
    const auto* p = static_cast<const std::uint8_t*>(data);
    bytes_ += n;
    while (n > 0) {
      if (held_ == 0 && n >= 8) {
        std::uint64_t word = 0;
        std::memcpy(&word, p, 8);
        h_ = hash::mix64(h_ ^ word);
        p += 8;
        n -= 8;
        continue;
      }
      const std::size_t take = n < 8 - held_ ? n : 8 - held_;
      std::memcpy(partial_ + held_, p, take);
      held_ += take;
      p += take;
      n -= take;
      if (held_ == 8) flush();
    }
  }
  std::uint64_t finish() noexcept {
    if (held_ > 0) {
      std::memset(partial_ + held_, 0, 8 - held_);
      flush();
    }
    return hash::mix64(h_ ^ bytes_);
  }

 private:
  void flush() noexcept {
    std::uint64_t word = 0;
    std::memcpy(&word, partial_, 8);
    h_ = hash::mix64(h_ ^ word);
    held_ = 0;
  }
  std::uint64_t h_ = 0, bytes_ = 0;
  std::uint8_t partial_[8] = {};
  std::size_t held_ = 0;
};

}  // namespace serinus::canary::dump
