// What records and ledger say about one slot: the same functions on the host and on the device.
#pragma once

#include <cstdint>

#include <serinus/canary.h>

#include "canary/serinus/hash.h"
#include "gpu/host_device.h"

namespace serinus::canary {

/// Positions are int32 to the engine; `written` is one more.
inline constexpr std::uint32_t kLastPosition = 0x7FFFFFFF;

/// a is newer than b, modulo 2^32.
SERINUS_HOST_DEVICE constexpr bool newer(std::uint32_t a, std::uint32_t b) noexcept {
  return static_cast<std::int32_t>(a - b) > 0;
}

SERINUS_HOST_DEVICE constexpr bool is_blank(const Record& r) noexcept {
  return (r.token | r.position | r.owner | r.generation) == 0 && (r.chain | r.kv_digest) == 0;
}

/// What is stored at a slot and whose it is, for a report.
template <class Report>
SERINUS_HOST_DEVICE constexpr void describe_slot(const Record& r, const LedgerEntry& e,
                                                 Report& report) noexcept {
  if (!is_blank(r)) {
    report.stored_position = r.position;
    report.stored_token = r.token;
  }
  report.stored_chain = r.chain;
  report.stored_digest = r.kv_digest;
  report.stored_owner = r.owner;
  report.stored_generation = r.generation;
  report.expected_owner = e.owner;
  report.expected_generation = e.generation;
}

constexpr SlotState state_of(const LedgerEntry& e) noexcept {
  if (e.owner == 0) return SlotState::free;
  return e.written == 0 ? SlotState::empty : SlotState::written;
}

SERINUS_HOST_DEVICE constexpr Reason without(Reason set, Reason r) noexcept {
  return static_cast<Reason>(static_cast<std::uint32_t>(set) & ~static_cast<std::uint32_t>(r));
}

/// The chain of the token before, where it can be relied on.
struct ChainBefore {
  bool usable = false;
  std::uint64_t chain = 0;
  std::int64_t slot = -1;
};

struct Verdict {
  Reason reasons = Reason::none;
  bool has_content = true;  ///< false: EMPTY or stale, so nothing else is said about it
  std::uint64_t expected_chain = 0;
};

/// What a written slot holds, against what it must hold. `token` < 0 is not known.
SERINUS_HOST_DEVICE inline Verdict judge_content(const Record& r, const LedgerEntry& e, bool sealed,
                                                 std::int64_t position, std::int64_t token,
                                                 const ChainBefore& before) noexcept {
  Verdict v;
  if (!sealed) {
    if (r.generation != e.generation) {
      v.reasons |= Reason::foreign_write;
    } else if (r.position + 1 != e.written) {
      v.reasons |= Reason::position;
    }
  }
  if (r.position != position) v.reasons |= Reason::position;
  if (token >= 0 && r.token != token) v.reasons |= Reason::token;
  if (before.usable) {
    const auto t = token >= 0 ? static_cast<std::uint32_t>(token) : r.token;
    v.expected_chain = hash::chain_value(
        hash::chain_step(before.chain, hash::token_term(t, static_cast<std::uint32_t>(position))));
    if (v.expected_chain != r.chain) v.reasons |= Reason::chain;
  }
  // Nothing else differs, so it is the owner, or a field that no neighbour vouches for.
  if (!sealed && !any(v.reasons)) {
    v.reasons |= before.usable ? Reason::foreign_write : Reason::chain;
  }
  return v;
}

/// How a reader came to a slot.
struct Right {
  Owner owner = 0;
  bool claims = false;    ///< the slot was handed out twice, to this reader among others
  bool attached = false;  ///< the cell is attached, at `epoch`
  std::uint32_t epoch = 0;
};

/// The reader's right to the slot: none = it holds what the reader was given.
SERINUS_HOST_DEVICE inline Verdict judge_right(const Record& r, const LedgerEntry& e, bool sealed,
                                               const Right& by) noexcept {
  Verdict v;
  bool recycled = e.owner == 0;
  if (!recycled && !by.claims) {
    const bool mine = e.owner == by.owner || (r.owner == by.owner && sealed);
    recycled = by.attached ? newer(e.generation, by.epoch) : !mine && e.previous_owner == by.owner;
  }
  if (recycled || e.written == 0) v = {Reason::stale, false, 0};
  if (by.claims || (recycled && e.owner != 0 && e.owner != by.owner)) {
    v.reasons |= Reason::double_owner;
  }
  return v;
}

/// Tells faults apart that are at no slot, or at the null slot.
SERINUS_HOST_DEVICE constexpr std::uint64_t life_of_cell(std::int64_t row,
                                                         std::int64_t cell) noexcept {
  return hash::mix64(static_cast<std::uint64_t>(row) * 0x9E3779B97F4A7C15u ^
                     static_cast<std::uint64_t>(cell)) |
         std::uint64_t{1} << 63;
}

}  // namespace serinus::canary
