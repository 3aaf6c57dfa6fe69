// What is asked of memory before it is needed, on the CPU.
#pragma once

#include <algorithm>
#include <cstdint>

#include "canary/sglang/entry.h"

namespace serinus::canary::sglang {

/// Where the slots' records lie, for any slot: the address need not exist.
struct Addresses {
  explicit Addresses(const ContextParams& c) noexcept
      : base(reinterpret_cast<std::uintptr_t>(c.records)), stride(u64(c.stride)) {}
  std::uintptr_t operator()(std::int64_t slot) const noexcept { return base + u64(slot) * stride; }

  std::uintptr_t base;
  std::uint64_t stride;
};

/// Asks for a cache line. Asking for an address that does not exist does nothing.
template <int kForWrite>
inline void prefetch(std::uintptr_t at) noexcept {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): arithmetic on a pointer may not leave its array
  __builtin_prefetch(reinterpret_cast<const void*>(at), kForWrite, 3);
}

/// Has the CPU look up memory pages long before their records are touched, many at once. The first
/// touch of a page waits for a walk of the page tables, a prefetch's no less than a load's, and
/// what stands behind it soon waits, too. But the walks of prefetches in a row overlap.
class PagesAhead {
 public:
  /// Looks along entries [begin, end) of `slots`.
  PagesAhead(const ContextParams& c, const std::int64_t* slots, std::int64_t begin,
             std::int64_t end) noexcept
      : address_of_(c), slots_(slots), end_(end) {
    for (std::int64_t i = begin; i < std::min(begin + kDistance, end); ++i) note(i);
  }

  /// Before entry i is touched, for every one of them in turn.
  void at(std::int64_t i) noexcept { note(i + kDistance); }

  static constexpr std::int64_t kDistance = 1024;  ///< entries: kAtOnce pages of 64 slots

 private:
  static constexpr int kAtOnce = 16;
  static constexpr int kPageBits = 12;
  // Looking at every entry costs more than it brings.
  static constexpr std::int64_t kEvery = 8;

  void note(std::int64_t i) noexcept {
    if (i % kEvery != 0 || i + 1 >= end_) return;
    const std::uintptr_t record = address_of_(slots_[i]);
    const std::uintptr_t page = record >> kPageBits;
    // Where the next entry lies elsewhere, as many walks as can be are under way already.
    if (page == last_page_ || page != address_of_(slots_[i + 1]) >> kPageBits) return;
    last_page_ = page;
    noted_[count_++] = record;
    if (count_ < kAtOnce) return;
    count_ = 0;
    for (const std::uintptr_t noted : noted_) prefetch<0>(noted);
  }

  Addresses address_of_;
  const std::int64_t* slots_;
  std::int64_t end_;
  std::uintptr_t last_page_ = 0;
  int count_ = 0;
  std::uintptr_t noted_[kAtOnce];
};

/// For a walk along the entries of a plan that is verified, kStep at a time.
class VerifyAhead {
 public:
  static constexpr std::int64_t kStep = 8;

  VerifyAhead(const VerifyParams& p, std::int64_t begin, std::int64_t end) noexcept
      : pages_(p.context, p.slots, begin, end),
        address_of_(p.context),
        slots_(p.slots),
        prev_slots_(p.prev_slots),
        tokens_(p.tokens),
        positions_(p.positions),
        end_(end) {}

  /// Before entries i, i + 1, ... are verified. An address out of the buffer is not dereferenced,
  /// so none is refused here.
  void at(std::int64_t i) noexcept {
    pages_.at(i);
    __builtin_prefetch(slots_ + i + PagesAhead::kDistance + kInputs);
    for (const std::int64_t* const array : {prev_slots_, tokens_, positions_})
      __builtin_prefetch(array + i + kInputs);
    const std::int64_t next = i + kLines;
    if (next + kStep > end_) return;
    const std::int64_t* const slots = slots_ + next;
    const std::int64_t* const prev_slots = prev_slots_ + next;
    for (int k = 0; k < kStep; ++k) prefetch<0>(address_of_(slots[k]));
    std::int64_t elsewhere = 0;
    for (int k = 0; k < kStep; ++k) elsewhere |= prev_slots[k] ^ slots[k - 1];
    if (elsewhere == 0) return;  // predecessors are the records just asked for
    for (int k = 0; k < kStep; ++k) prefetch<0>(address_of_(prev_slots[k]));
  }

 private:
  static constexpr std::int64_t kLines = 32;
  // The CPU's own look-ahead along the inputs stops at the end of each memory page.
  static constexpr std::int64_t kInputs = 512;
  PagesAhead pages_;
  Addresses address_of_;
  const std::int64_t *slots_, *prev_slots_, *tokens_, *positions_;
  std::int64_t end_;
};

/// For a walk along entries [begin, end) of a write. Holds all that it needs: the compiler must
/// assume that the walk's stores change everything else.
class WriteAhead {
 public:
  WriteAhead(const WriteParams& p, std::int64_t begin, std::int64_t end) noexcept
      : pages_(p.context, p.slots, begin, end),
        address_of_(p.context),
        slots_(p.slots),
        end_(end) {}

  /// Before entry i is stamped.
  void at(std::int64_t i) noexcept {
    pages_.at(i);
    if (i + kLines < end_) prefetch<1>(address_of_(slots_[i + kLines]));
  }

 private:
  static constexpr std::int64_t kLines = 32;
  PagesAhead pages_;
  Addresses address_of_;
  const std::int64_t* slots_;
  std::int64_t end_;
};

}  // namespace serinus::canary::sglang
