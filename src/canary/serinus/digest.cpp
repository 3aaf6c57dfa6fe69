// The digest's fast paths. With Highway this file is compiled once a target and the best one is
// chosen at run time; without it the definition itself runs. All give the same bits.
#ifdef SERINUS_HIGHWAY
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "canary/serinus/digest.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#endif

#include "canary/serinus/digest.h"
#include "canary/serinus/digest_keys.h"

#ifdef SERINUS_HIGHWAY
HWY_BEFORE_NAMESPACE();
namespace serinus::canary::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
#else
namespace serinus::canary::portable {
#endif

#if !defined(SERINUS_HIGHWAY) || HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
std::uint64_t nh_block(const std::uint8_t* p, std::int64_t n) noexcept {
  return detail::nh_portable(p, n);
}
#else
/// NH of n bytes, 1 <= n <= kBlock.
HWY_INLINE std::uint64_t nh_block(const std::uint8_t* HWY_RESTRICT p, std::int64_t n) noexcept {
  const hn::ScalableTag<std::uint64_t> d64;
  const hn::Repartition<std::uint32_t, decltype(d64)> d32;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d64));
  const std::uint64_t* HWY_RESTRICT key = detail::kNhKeys.data();
  const auto term = [&](auto data, std::int64_t pair) HWY_ATTR {
    const auto keys = hn::LoadU(d64, key + pair);
    const auto sum = hn::Add(hn::BitCast(d32, data), hn::BitCast(d32, keys));
    const auto high = hn::ShiftRight<32>(hn::BitCast(d64, sum));
    return hn::MulEven(sum, hn::BitCast(d32, high));
  };
  const auto load = [&](std::int64_t pair) HWY_ATTR {
    return hn::LoadU(d64, reinterpret_cast<const std::uint64_t*>(p) + pair);
  };
  auto a = hn::Zero(d64), b = hn::Zero(d64);
  const std::int64_t pairs = n / 8;
  std::int64_t i = 0;
  for (; i + 2 * lanes <= pairs; i += 2 * lanes) {
    a = hn::Add(a, term(load(i), i));
    b = hn::Add(b, term(load(i + lanes), i + lanes));
  }
  if (i + lanes <= pairs) {
    a = hn::Add(a, term(load(i), i));
    i += lanes;
  }
  std::uint64_t rest = 0;
#if HWY_MEM_OPS_MIGHT_FAULT
  for (; i < pairs; ++i) rest += hash::nh_pair(detail::load_word(p + i * 8, 8), key[i]);
#else
  if (i < pairs) {
    const auto mask = hn::FirstN(d64, static_cast<std::size_t>(pairs - i));
    const auto data = hn::MaskedLoad(mask, d64, reinterpret_cast<const std::uint64_t*>(p) + i);
    b = hn::Add(b, hn::IfThenElseZero(mask, term(data, i)));
  }
#endif
  if (n % 8 != 0) {
    rest += hash::nh_pair(detail::load_word(p + pairs * 8, n % 8), key[pairs]);
  }
  return rest + hn::GetLane(hn::SumOfLanes(d64, hn::Add(a, b)));
}
#endif

/// Walks the lines that will be hashed, `kAhead` bytes before they are.
class Prefetcher {
 public:
  Prefetcher(std::span<const PreparedSource> sources, std::int64_t page_size,
             std::span<const std::int64_t> slots) noexcept
      : sources_(sources), page_size_(page_size), slots_(slots) {
    enter();
    advance(kAhead);
  }
  void advance(std::int64_t bytes) noexcept {
    while (bytes > 0 && slot_ < slots_.size()) {
      __builtin_prefetch(line_);
      line_ += kLine;
      bytes -= kLine;
      if (line_ >= end_) {
        if (++source_ == sources_.size()) {
          source_ = 0;
          ++slot_;
        }
        enter();
      }
    }
  }

 private:
  static constexpr std::int64_t kLine = 64, kAhead = 4096;
  void enter() noexcept {
    if (slot_ >= slots_.size()) return;
    if (source_ == 0) {
      page_ = slots_[slot_] / page_size_;
      token_ = slots_[slot_] % page_size_;
    }
    const PreparedSource& s = sources_[source_];
    line_ = s.at(page_, token_);
    end_ = line_ + s.bytes;
  }
  std::span<const PreparedSource> sources_;
  std::int64_t page_size_;
  std::span<const std::int64_t> slots_;
  std::size_t slot_ = 0, source_ = 0;
  std::int64_t page_ = 0, token_ = 0;
  const std::uint8_t *line_ = nullptr, *end_ = nullptr;
};

/// What one source of one slot adds, before `finish`.
std::uint64_t contribution(const std::uint8_t* p, std::int64_t bytes, std::uint64_t key,
                           Depth depth) noexcept {
  using namespace hash;
  u128 terms = 0;
  if (depth == Depth::partial && bytes > 32) {
    std::uint8_t ends[32];
    std::memcpy(ends, p, 16);
    std::memcpy(ends + 16, p + bytes - 16, 16);
    terms = block_term(nh_block(ends, 32), detail::kBlockKeys[0]);
  } else {
    std::uint64_t j = 0;
    for (std::int64_t i = 0; i < bytes; i += kBlock, ++j) {
      const std::uint64_t nh = nh_block(p + i, std::min(kBlock, bytes - i));
      terms +=
          block_term(nh, j < detail::kBlockKeys.size() ? detail::kBlockKeys[j] : block_keys(j));
    }
  }
  return source_sum(terms, bytes, key);
}

void digest_slots(std::span<const PreparedSource> sources, std::int64_t page_size, Depth depth,
                  std::span<const std::int64_t> slots, std::uint64_t* digests,
                  std::uint64_t* contributions) {
  Prefetcher prefetcher(sources, page_size, slots);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const std::int64_t page = slots[i] / page_size, token = slots[i] % page_size;
    std::uint64_t sum = 0;
    for (const PreparedSource& s : sources) {
      prefetcher.advance(s.bytes);
      const std::uint64_t c = contribution(s.at(page, token), s.bytes, s.key, depth);
      if (contributions != nullptr) *contributions++ = c;
      sum += c;
      sum = sum >= hash::kP ? sum - hash::kP : sum;
    }
    digests[i] = hash::finish(sum, depth);
  }
}

#ifdef SERINUS_HIGHWAY
}  // namespace serinus::canary::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#else
}  // namespace serinus::canary::portable
#endif

#if !defined(SERINUS_HIGHWAY) || HWY_ONCE
namespace serinus::canary {

#ifdef SERINUS_HIGHWAY
HWY_EXPORT(digest_slots);
#endif

void digest_slots(std::span<const PreparedSource> sources, std::int64_t page_size, Depth depth,
                  std::span<const std::int64_t> slots, std::uint64_t* digests,
                  std::uint64_t* contributions) noexcept {
#ifdef SERINUS_HIGHWAY
  HWY_DYNAMIC_DISPATCH(digest_slots)(sources, page_size, depth, slots, digests, contributions);
#else
  portable::digest_slots(sources, page_size, depth, slots, digests, contributions);
#endif
}

std::vector<PreparedSource> prepare(std::span<const Source> sources) {
  std::vector<PreparedSource> out;
  for (const Source& s : sources) {
    out.push_back({s.base + s.offset, s.page_stride, s.token_stride, s.bytes,
                   hash::source_key(s.key_offset)});
  }
  return out;
}

bool holds(const Source& s, std::int64_t page_size, std::int64_t slot) noexcept {
  if (slot < 0 || page_size < 1 || s.bytes < 0 || s.offset < 0 || s.page_stride < 0 ||
      s.token_stride < 0) {
    return false;
  }
  const hash::u128 end =
      static_cast<hash::u128>(slot / page_size) * static_cast<hash::u128>(s.page_stride) +
      static_cast<hash::u128>(slot % page_size) * static_cast<hash::u128>(s.token_stride) +
      static_cast<hash::u128>(s.offset) + static_cast<hash::u128>(s.bytes);
  return end <= static_cast<hash::u128>(s.buffer_bytes < 0 ? 0 : s.buffer_bytes);
}

std::int64_t digested_bytes(std::span<const Source> sources, Depth depth) noexcept {
  std::int64_t bytes = 0;
  if (depth == Depth::none) return 0;
  for (const Source& s : sources) {
    bytes += depth == Depth::partial ? std::min<std::int64_t>(s.bytes, 32) : s.bytes;
  }
  return bytes;
}

std::vector<Source> sources_of(const KvLayout& layout, int num_layers,
                               std::span<const KvBuffer> buffers) {
  std::vector<Source> sources;
  std::int64_t key_offset = 0;
  for (int layer = 0; layer < num_layers; ++layer) {
    for (const KvSegment& segment : layout.segments) {
      const auto index = static_cast<std::size_t>(layer * layout.num_buffers() + segment.buffer);
      if (index >= buffers.size()) continue;
      const KvBuffer& b = buffers[index];
      const std::int64_t stride = b.page_stride != 0
                                      ? b.page_stride
                                      : layout.page_bytes[static_cast<std::size_t>(segment.buffer)];
      sources.push_back({b.data, b.bytes, stride, segment.offset, segment.token_stride,
                         segment.bytes, key_offset});
      key_offset += segment.bytes;
    }
  }
  return sources;
}

std::optional<std::uint64_t> digest_contribution(const Source& source, std::int64_t page_size,
                                                 std::int64_t slot, Depth depth) noexcept {
  if (depth == Depth::none) return 0;
  if (!holds(source, page_size, slot)) return std::nullopt;
  if (source.bytes == 0) return 0;
  const PreparedSource prepared{source.base + source.offset, source.page_stride,
                                source.token_stride, source.bytes,
                                hash::source_key(source.key_offset)};
  std::uint64_t digest = 0, contribution = 0;
  digest_slots({&prepared, 1}, page_size, depth, {&slot, 1}, &digest, &contribution);
  return contribution;
}

std::uint64_t digest_add(std::uint64_t a, std::uint64_t b) noexcept {
  return hash::canonical(hash::canonical(a) + hash::canonical(b));
}

std::uint64_t digest_finish(std::uint64_t sum, Depth depth) noexcept {
  return depth == Depth::none ? 0 : hash::finish(hash::canonical(sum), depth);
}

std::optional<std::uint64_t> kv_digest(std::span<const Source> sources, std::int64_t page_size,
                                       std::int64_t slot, Depth depth) noexcept {
  std::uint64_t sum = 0;
  for (const Source& source : sources) {
    const auto c = digest_contribution(source, page_size, slot, depth);
    if (!c) return std::nullopt;
    sum = digest_add(sum, *c);
  }
  return digest_finish(sum, depth);
}

}  // namespace serinus::canary
#endif
