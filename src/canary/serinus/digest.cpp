// The digest's fast paths. With Highway this file is compiled once a target and the best one is
// chosen at run time; without it the definition itself runs. All give the same bits.
#ifdef SERINUS_HIGHWAY
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "canary/serinus/digest.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#endif

#include <algorithm>
#include <bit>

#include "canary/serinus/digest.h"
#include "canary/serinus/digest_keys.h"

#ifdef SERINUS_HIGHWAY
HWY_BEFORE_NAMESPACE();
namespace serinus::canary::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;  // NOLINT(misc-unused-alias-decls): used in the templates
#else
namespace serinus::canary::portable {
#define HWY_INLINE inline
#endif

/// Four rows of one source are hashed side by side: they share the loads of the key, and their
/// cache misses overlap. Written out, since arrays would go through memory.
constexpr std::int64_t kRows = 4;

struct Rows {
  const std::uint8_t *a, *b, *c, *d;
  Rows operator+(std::int64_t n) const { return {a + n, b + n, c + n, d + n}; }
};
struct Sums {
  std::uint64_t a, b, c, d;
};

HWY_INLINE void prefetch(const Rows& rows, std::int64_t i) {
  __builtin_prefetch(rows.a + i);
  __builtin_prefetch(rows.b + i);
  __builtin_prefetch(rows.c + i);
  __builtin_prefetch(rows.d + i);
}

#if !defined(SERINUS_HIGHWAY) || HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

/// NH of n bytes of each row, 1 <= n <= kBlock; the lines of `ahead` are asked for meanwhile.
inline Sums nh_rows(const Rows& rows, const Rows& ahead, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += 64) prefetch(ahead, i);
  return {detail::nh_portable(rows.a, n), detail::nh_portable(rows.b, n),
          detail::nh_portable(rows.c, n), detail::nh_portable(rows.d, n)};
}

#else

#if HWY_HAVE_SCALABLE
template <class D, class V>
HWY_INLINE void add_sums(D d, V a, V b, std::uint64_t& to_a, std::uint64_t& to_b) {
  to_a += hn::GetLane(hn::SumOfLanes(d, a));
  to_b += hn::GetLane(hn::SumOfLanes(d, b));
}
#else
/// v's 128-bit blocks, added up.
template <class D, class V>
HWY_INLINE hn::Vec128<std::uint64_t> sum_of_blocks(D, V v) {
  if constexpr (hn::MaxLanes(D()) <= 2) {
    return v;
  } else {
    const hn::Half<D> half;
    return sum_of_blocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}
/// to_a += the lanes of a, to_b += those of b.
template <class D, class V>
HWY_INLINE void add_sums(D d, V a, V b, std::uint64_t& to_a, std::uint64_t& to_b) {
  const auto pairs = hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  const auto both = sum_of_blocks(d, pairs);
  to_a += hn::GetLane(both);
  to_b += hn::ExtractLane(both, 1);
}
#endif

/// The pairs that fill no vector, and the last bytes that fill no pair.
HWY_NOINLINE std::uint64_t nh_rest(const std::uint8_t* p, std::int64_t from, std::int64_t n) {
  std::uint64_t sum = 0;
  for (std::int64_t i = from; i < n; i += 8) {
    sum += hash::nh_pair(detail::load_word(p + i, n - i),
                         detail::kNhKeys[static_cast<std::size_t>(i / 8)]);
  }
  return sum;
}

HWY_INLINE Sums nh_rows(const Rows& rows, const Rows& ahead, std::int64_t n) {
  const hn::ScalableTag<std::uint64_t> d64;
  const hn::Repartition<std::uint32_t, decltype(d64)> d32;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d64));
  const std::uint64_t* HWY_RESTRICT key = detail::kNhKeys.data();
  const auto load = [&](const std::uint8_t* p, std::int64_t pair) HWY_ATTR {
    return hn::LoadU(d64, reinterpret_cast<const std::uint64_t*>(p) + pair);
  };
  const auto term = [&](auto data, auto keys) HWY_ATTR {
    const auto sum = hn::Add(hn::BitCast(d32, data), hn::BitCast(d32, keys));
    const auto high = hn::ShiftRight<32>(hn::BitCast(d64, sum));
    return hn::MulEven(sum, hn::BitCast(d32, high));
  };
  auto a = hn::Zero(d64), b = a, c = a, d = a;
  const std::int64_t pairs = n / 8;
  std::int64_t i = 0;
  for (; i + lanes <= pairs; i += lanes) {
    if (lanes >= 8 || i % 8 == 0) prefetch(ahead, i * 8);
    const auto keys = hn::LoadU(d64, key + i);
    a = hn::Add(a, term(load(rows.a, i), keys));
    b = hn::Add(b, term(load(rows.b, i), keys));
    c = hn::Add(c, term(load(rows.c, i), keys));
    d = hn::Add(d, term(load(rows.d, i), keys));
  }
  Sums sums = {};
  if (i < pairs) {
    prefetch(ahead, i * 8);
#if !HWY_MEM_OPS_MIGHT_FAULT
    const auto mask = hn::FirstN(d64, static_cast<std::size_t>(pairs - i));
    const auto keys = hn::LoadU(d64, key + i);
    const auto part = [&](const std::uint8_t* p) HWY_ATTR {
      const auto* words = reinterpret_cast<const std::uint64_t*>(p) + i;
      return hn::IfThenElseZero(mask, term(hn::MaskedLoad(mask, d64, words), keys));
    };
    a = hn::Add(a, part(rows.a));
    b = hn::Add(b, part(rows.b));
    c = hn::Add(c, part(rows.c));
    d = hn::Add(d, part(rows.d));
    i = pairs;
#endif
  }
  add_sums(d64, a, b, sums.a, sums.b);
  add_sums(d64, c, d, sums.c, sums.d);
  if (HWY_UNLIKELY(i * 8 < n)) {
    sums.a += nh_rest(rows.a, i * 8, n);
    sums.b += nh_rest(rows.b, i * 8, n);
    sums.c += nh_rest(rows.c, i * 8, n);
    sums.d += nh_rest(rows.d, i * 8, n);
  }
  return sums;
}

#endif

/// Slots that go through each of the small loops below together: addresses, NH, terms, digests.
/// Apart, each of them keeps its values in registers.
constexpr std::int64_t kBatch = 64;

/// NH of the same n bytes of many rows; `ahead[i]` is asked for while rows[i] is read.
void nh_batch(const std::uint8_t* const* rows, const std::uint8_t* const* ahead,
              std::int64_t num_rows, std::int64_t offset, std::int64_t ahead_offset, std::int64_t n,
              std::uint64_t* out) {
  for (std::int64_t i = 0; i < num_rows; i += kRows) {
    const Rows here{rows[i], rows[i + 1], rows[i + 2], rows[i + 3]};
    const Rows there{ahead[i], ahead[i + 1], ahead[i + 2], ahead[i + 3]};
    const Sums sums = nh_rows(here + offset, there + ahead_offset, n);
    out[i] = sums.a;
    out[i + 1] = sums.b;
    out[i + 2] = sums.c;
    out[i + 3] = sums.d;
  }
}

/// What slots add up to, of the right class and not reduced, in two halves: far below 2^120.
struct Terms {
  std::uint64_t low[kBatch], high[kBatch];
  bool fresh = true;  ///< nothing there yet

  void set(std::int64_t i, hash::u128 x) {
    low[i] = static_cast<std::uint64_t>(x);
    high[i] = static_cast<std::uint64_t>(x >> 64);
  }
  void clear(std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) set(i, 0);
    fresh = false;
  }
  /// Adds a block of each slot, and `more`.
  void add(const std::uint64_t* nh, std::int64_t n, hash::BlockKeys keys, std::uint64_t more) {
    if (fresh) {
      for (std::int64_t i = 0; i < n; ++i) set(i, more + hash::block_term(nh[i], keys));
    } else {
      for (std::int64_t i = 0; i < n; ++i) set(i, get(i) + more + hash::block_term(nh[i], keys));
    }
    fresh = false;
  }
  hash::u128 get(std::int64_t i) const { return hash::u128{high[i]} << 64 | low[i]; }
};

void add_source(const PreparedSource& s, const std::uint8_t* const* rows,
                const std::uint8_t* const* ahead, std::int64_t num_rows, Depth depth,
                Terms& terms) {
  std::uint64_t nh[kBatch];
  if (depth == Depth::partial && s.bytes > 32) {
    std::uint8_t ends[kBatch][32];
    const std::uint8_t* parts[kBatch] = {};
    for (std::int64_t i = 0; i < num_rows; ++i) {
      std::memcpy(ends[i], rows[i], 16);
      std::memcpy(ends[i] + 16, rows[i] + s.bytes - 16, 16);
      __builtin_prefetch(ahead[i]);
      __builtin_prefetch(ahead[i] + s.bytes - 16);
      parts[i] = ends[i];
    }
    nh_batch(parts, parts, num_rows, 0, 0, 32, nh);
    terms.add(nh, num_rows, s.keys[0], s.length_term);
    return;
  }
  std::uint64_t first = s.length_term;
  for (std::size_t j = 0; j < s.keys.size(); ++j) {
    const std::int64_t offset = static_cast<std::int64_t>(j) * hash::kBlock;
    const std::int64_t n = std::min(hash::kBlock, s.bytes - offset);
    // A long row is asked for a block ahead, the next one when it ends.
    const bool last = j + 1 == s.keys.size();
    nh_batch(rows, last ? ahead : rows, num_rows, offset, last ? 0 : offset + hash::kBlock, n, nh);
    terms.add(nh, num_rows, s.keys[j], first);
    first = 0;
  }
}

void digest_slots(std::span<const PreparedSource> sources, std::int64_t page_size, Depth depth,
                  std::span<const std::int64_t> slots, std::uint64_t* digests,
                  std::uint64_t* contributions) {
  constexpr std::int64_t kAhead = 4096;  // bytes between asking for a line and reading it
  const bool shifts = (page_size & (page_size - 1)) == 0;
  const int shift = std::countr_zero(static_cast<std::uint64_t>(page_size));
  const auto n = static_cast<std::int64_t>(slots.size());
  std::int64_t slot_bytes = 1;
  for (const PreparedSource& s : sources) slot_bytes += s.bytes;
  // Small slots in large batches, where each row is asked for a few rows before it is read. Large
  // ones eight at a time, where the next source is asked for, or the next eight.
  const bool small = slot_bytes <= kAhead;
  const std::int64_t batch = small ? kBatch : 2 * kRows;
  const std::int64_t ahead =
      std::clamp<std::int64_t>(kAhead / slot_bytes / kRows, 1, kBatch / kRows) * kRows;
  const std::uint8_t* rows[2 * kBatch];
  // Rows from slot i on; beyond the last slot, the last one again.
  const auto address = [&](const PreparedSource& s, std::int64_t i, std::int64_t count,
                           const std::uint8_t** out) {
    for (std::int64_t r = 0; r < count; ++r) {
      const std::int64_t slot = slots[static_cast<std::size_t>(std::min(i + r, n - 1))];
      const std::int64_t page = shifts ? slot >> shift : slot / page_size;
      out[r] = s.at(page, slot - page * page_size);
    }
  };
  for (std::int64_t i = 0; i < n; i += batch) {
    const std::int64_t count = std::min(batch, n - i);
    const std::int64_t num_rows = (count + kRows - 1) / kRows * kRows;
    Terms terms;
    if (contributions != nullptr) terms.clear(num_rows);
    for (std::size_t k = 0; k < sources.size(); ++k) {
      const PreparedSource& s = sources[k];
      if (small) {
        address(s, i, num_rows + ahead, rows);
      } else {
        address(s, i, num_rows, rows);
        const bool more = k + 1 < sources.size();
        address(sources[more ? k + 1 : 0], more ? i : i + batch, num_rows, rows + kBatch);
      }
      Terms before;
      if (contributions != nullptr) before = terms;
      add_source(s, rows, rows + (small ? ahead : kBatch), num_rows, depth, terms);
      for (std::int64_t r = 0; contributions != nullptr && r < count; ++r) {
        contributions[static_cast<std::size_t>(i + r) * sources.size() + k] =
            hash::canonical(terms.get(r) - before.get(r));
      }
    }
    if (terms.fresh) terms.clear(num_rows);  // no source, or only empty ones
    for (std::int64_t r = 0; r < count; ++r) {
      digests[i + r] = hash::finish(hash::reduce(terms.get(r)), depth);
    }
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

namespace {

/// The source's key is folded into the keys of its blocks.
PreparedSource prepare(const Source& s) {
  const std::uint64_t key = hash::source_key(s.key_offset);
  PreparedSource p{s.base + s.offset,
                   s.page_stride,
                   s.token_stride,
                   s.bytes,
                   hash::multiply(hash::length_term(s.bytes), key),
                   {}};
  for (std::int64_t i = 0; i < s.bytes; i += hash::kBlock) {
    const hash::BlockKeys k = hash::block_keys(static_cast<std::uint64_t>(i / hash::kBlock));
    p.keys.push_back({hash::multiply(k.low, key), hash::multiply(k.high, key)});
  }
  return p;
}

}  // namespace

std::vector<PreparedSource> prepare(std::span<const Source> sources) {
  std::vector<PreparedSource> out;
  for (const Source& s : sources) out.push_back(prepare(s));
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
  std::uint64_t key_offset = 0;  // wraps where no memory holds the buffers
  for (int layer = 0; layer < num_layers; ++layer) {
    for (const KvSegment& segment : layout.segments) {
      const auto index = static_cast<std::size_t>(layer * layout.num_buffers() + segment.buffer);
      if (index >= buffers.size()) continue;
      const KvBuffer& b = buffers[index];
      const std::int64_t stride = b.page_stride != 0
                                      ? b.page_stride
                                      : layout.page_bytes[static_cast<std::size_t>(segment.buffer)];
      sources.push_back({b.data, b.bytes, stride, segment.offset, segment.token_stride,
                         segment.bytes, static_cast<std::int64_t>(key_offset)});
      key_offset += static_cast<std::uint64_t>(segment.bytes);
    }
  }
  return sources;
}

std::optional<std::uint64_t> digest_contribution(const Source& source, std::int64_t page_size,
                                                 std::int64_t slot, Depth depth) noexcept {
  if (depth == Depth::none) return 0;
  if (!holds(source, page_size, slot)) return std::nullopt;
  const PreparedSource prepared = prepare(source);
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
