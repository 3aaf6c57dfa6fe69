// What the format says about one entry, one cell, one row: the same functions on the host and on
// the device. Every number here may be anything.
#pragma once

#include <cstdint>
#include <limits>

#include "canary/sglang/hash.h"
#include "canary/sglang/params.h"
#include "gpu/host_device.h"

namespace serinus::canary::sglang {

SERINUS_HOST_DEVICE constexpr std::uint64_t u64(std::int64_t x) noexcept {
  return static_cast<std::uint64_t>(x);
}
SERINUS_HOST_DEVICE constexpr std::int64_t i64(std::uint64_t x) noexcept {
  return static_cast<std::int64_t>(x);
}

/// 0 <= i < n, for any i; n >= 0.
SERINUS_HOST_DEVICE constexpr bool within(std::int64_t i, std::int64_t n) noexcept {
  return u64(i) < u64(n);
}

/// A count of the device's: as on the GPU, a negative one is a huge unsigned one.
SERINUS_HOST_DEVICE constexpr std::int64_t count_of(std::int32_t n, std::int64_t most) noexcept {
  const auto count = static_cast<std::int64_t>(static_cast<std::uint32_t>(n));
  return count < most ? count : most;
}

/// A slot of the full pool in the SWA pool's numbering: negative stays, beyond the mapping takes
/// its last entry, as on the GPU. `size` > 0.
SERINUS_HOST_DEVICE constexpr std::int64_t translate(const std::int64_t* mapping, std::int64_t size,
                                                     std::int64_t slot) noexcept {
  return slot < 0 ? slot : mapping[slot < size ? slot : size - 1];
}

SERINUS_HOST_DEVICE inline std::uint64_t hash_of(const Record& r) noexcept {
  return hash::mix3(u64(r.prev_hash), u64(r.token), u64(r.position));
}

/// Where a slot's bytes begin in a source; -1 where `bytes` of them do not lie within its extent.
SERINUS_HOST_DEVICE inline std::int64_t offset_of(const SourceParams& s, std::int64_t slot,
                                                  std::int64_t bytes) noexcept {
  __extension__ typedef __int128 Wide;
  if (slot < 0) return -1;
  std::int64_t page = slot;
  std::int64_t token = 0;
  if (s.page_size != 1) {
    if ((slot | s.page_size) >> 32 == 0) {  // a short division, where that will do
      const auto slot32 = static_cast<std::uint32_t>(slot);
      const auto size32 = static_cast<std::uint32_t>(s.page_size);
      page = slot32 / size32;
      token = slot32 % size32;
    } else {
      page = slot / s.page_size;
      token = slot % s.page_size;
    }
  }
  if (slot < s.safe_slots) return page * s.row_stride + token * s.token_stride;
  const Wide begin =
      static_cast<Wide>(page) * s.row_stride + static_cast<Wide>(token) * s.token_stride;
  if (begin < 0 || begin + bytes > s.extent) return -1;
  return static_cast<std::int64_t>(begin);
}

/// Whether a record and all bytes of `slot` exist.
SERINUS_HOST_DEVICE inline bool exists(const ContextParams& c, std::int64_t slot) noexcept {
  if (!within(slot, c.num_slots)) return false;
  for (int k = 0; k < c.num_sources; ++k) {
    const SourceParams& s = c.sources[static_cast<std::size_t>(k)];
    if (slot >= s.safe_slots && offset_of(s, slot, s.words * 8) < 0) return false;
  }
  return true;
}

// ---------------------------------------------------------------- plan

/// Sums of lengths from outside saturate: "more than fits" stays that. Both >= 0.
SERINUS_HOST_DEVICE constexpr std::int64_t add_lengths(std::int64_t a, std::int64_t b) noexcept {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  return a > kMost - b ? kMost : a + b;
}

/// The translated slot at (row, column), kOutOfRangeSlot where the table has no such cell.
SERINUS_HOST_DEVICE inline std::int64_t slot_at(const PlanParams& p, std::int64_t row,
                                                std::int64_t column) noexcept {
  const TableParams& t = p.req_to_token;
  if (!within(row, t.rows) || !within(column, t.width)) return kOutOfRangeSlot;
  const std::int64_t slot = t.cells[row * t.width + column];
  return p.full_to_swa == nullptr ? slot : translate(p.full_to_swa, p.full_to_swa_size, slot);
}

/// What a request asks of a plan: its cells [start, prefix), and `extend` tokens to be written.
struct PlanRow {
  std::int64_t start = 0, prefix = 0, extend = 0;
  SERINUS_HOST_DEVICE std::int64_t entries() const noexcept { return prefix - start; }
};
SERINUS_HOST_DEVICE inline PlanRow plan_row(const PlanParams& p, std::int64_t request) noexcept {
  PlanRow row;
  if (p.rows[request] == kPaddingRow) return row;
  const std::int64_t prefix = p.prefix_lens[request];
  const std::int64_t extend = p.extend_lens[request];
  row.prefix = prefix > 0 ? prefix : 0;
  row.extend = extend > 0 ? extend : 0;
  row.start = p.window > 0 && row.prefix > p.window ? row.prefix - p.window : 0;
  return row;
}

/// Where the chain of a request's new tokens continues.
SERINUS_HOST_DEVICE inline std::int64_t seed_of(const PlanParams& p, std::int64_t request,
                                                const PlanRow& row) noexcept {
  return row.prefix > 0 && row.extend > 0 ? slot_at(p, p.rows[request], row.prefix - 1)
                                          : kChainHead;
}

SERINUS_HOST_DEVICE inline std::int64_t expected_token(const PlanParams& p, std::int64_t request,
                                                       std::int64_t position) noexcept {
  const TableParams& t = p.expected_tokens;
  if (t.cells == nullptr) return kNoToken;
  const std::int64_t column = i64(u64(position) + u64(p.token_offset));
  const bool wrapped = p.token_offset > 0 && column < position;
  const std::int64_t row = p.rows[request];
  if (wrapped || column < 0 || column >= p.valid_lens[request] || column >= t.width ||
      !within(row, t.rows))
    return kNoToken;
  return t.cells[row * t.width + column];
}

/// Entries that a plan holds at most: its counter is an int32.
SERINUS_HOST_DEVICE constexpr std::int64_t plan_capacity(const PlanParams& p) noexcept {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  return p.verify_capacity < kMost ? p.verify_capacity : kMost;
}

// ---------------------------------------------------------------- verify

/// The prev_hash that entry i's record must hold. `stored` is that of an unreachable predecessor.
SERINUS_HOST_DEVICE inline std::uint64_t expected_hash(std::int64_t prev_slot,
                                                       std::uint64_t predecessor,
                                                       std::uint64_t stored) noexcept {
  if (prev_slot < 0) return hash::kAnchorHash;
  return prev_slot == kPaddingSlot ? stored : predecessor;
}

/// Entry i against its record; fail_reason_bits 0 where nothing is wrong. `predecessor` is the hash
/// of the predecessor's record, where there is one.
SERINUS_HOST_DEVICE inline ViolationRow judge(const VerifyParams& p, std::int64_t i,
                                              const Record& stored, std::uint64_t predecessor,
                                              std::uint64_t real_kv_hash) noexcept {
  const std::int64_t expected =
      i64(expected_hash(p.prev_slots[i], predecessor, u64(stored.prev_hash)));
  const std::int64_t token = p.check_tokens ? p.tokens[i] : kNoToken;
  std::int64_t bits = 0;
  const auto fail = [&bits](bool wrong, FailReason reason) {
    if (wrong) bits |= static_cast<std::int64_t>(reason);
  };
  fail(stored.prev_hash != expected, FailReason::verify_chain_hash);
  fail(stored.position != p.positions[i], FailReason::verify_position);
  fail(stored.real_kv_hash != i64(real_kv_hash), FailReason::verify_real_kv_hash);
  fail(token != kNoToken && stored.token != token, FailReason::verify_token);
  return {.kernel_kind = p.context.kernel_kind,
          .slot = p.slots[i],
          .position = stored.position,
          .stored_token = stored.token,
          .expected_token = token,
          .stored_chain_hash = stored.prev_hash,
          .expected_aux = expected,
          .fail_reason_bits = bits};
}

// ---------------------------------------------------------------- write

/// A request's run of tokens [begin, end), cut to the tokens that exist.
struct WriteRow {
  std::int64_t begin = 0, end = 0;
  std::int64_t seed = kChainHead;
  bool was_cut = false;     ///< its offsets leave the token arrays
  bool seed_exists = true;  ///< false: none of the row's entries can be stamped
};
SERINUS_HOST_DEVICE inline WriteRow write_row(const WriteParams& p, std::int64_t r) noexcept {
  WriteRow row;
  row.begin = p.offsets[r];
  row.end = p.offsets[r + 1];
  row.seed = p.seeds[r];
  row.seed_exists = row.seed < p.context.num_slots;
  if (row.end <= row.begin) {
    row.end = row.begin;
    return row;
  }
  if (row.begin < 0 || row.end > p.num_tokens) {
    row.was_cut = true;
    if (row.begin < 0) row.begin = 0;
    if (row.end > p.num_tokens) row.end = p.num_tokens;
    if (row.end < row.begin) row.end = row.begin;
  }
  return row;
}

/// What write() reports of entry i.
SERINUS_HOST_DEVICE inline ViolationRow write_violation(const WriteParams& p, std::int64_t i,
                                                        std::uint64_t running_hash,
                                                        std::int64_t expected_token,
                                                        std::int64_t expected_position,
                                                        std::int64_t bits) noexcept {
  return {.kernel_kind = p.context.kernel_kind,
          .slot = p.slots[i],
          .position = p.positions[i],
          .stored_token = p.tokens[i],
          .expected_token = expected_token,
          .stored_chain_hash = i64(running_hash),
          .expected_aux = expected_position,
          .fail_reason_bits = bits};
}

/// FailReason bits of entry i against what was expected of it; expectations must be given.
SERINUS_HOST_DEVICE inline std::int64_t wrong_input(const WriteParams& p, std::int64_t i) noexcept {
  std::int64_t bits = 0;
  if (p.tokens[i] != p.expected_tokens[i])
    bits |= static_cast<std::int64_t>(FailReason::write_token);
  if (p.positions[i] != p.expected_positions[i])
    bits |= static_cast<std::int64_t>(FailReason::write_position);
  return bits;
}

// ---------------------------------------------------------------- token histories

/// A request's tokens, flat[begin, begin + count), and the pool row that they go to.
struct ScatterRow {
  std::int64_t row = 0, begin = 0, count = 0;
};
SERINUS_HOST_DEVICE inline ScatterRow scatter_row(const ScatterParams& p, std::int64_t r) noexcept {
  const std::int64_t row = p.rows[r * p.rows_stride];
  const std::int64_t begin = p.offsets[r * p.offsets_stride];
  std::int64_t end = p.offsets[(r + 1) * p.offsets_stride];
  if (end > p.flat_size) end = p.flat_size;
  if (!within(row, p.pool_rows) || begin < 0 || begin >= end) return {};
  const std::int64_t count = end - begin;
  return {row, begin, count < p.pool_width ? count : p.pool_width};
}
SERINUS_HOST_DEVICE inline void scatter_token(const ScatterParams& p, const ScatterRow& row,
                                              std::int64_t i) noexcept {
  p.pool[row.row * p.pool_row_stride + i * p.pool_column_stride] =
      static_cast<std::int32_t>(p.flat[(row.begin + i) * p.flat_stride]);
}

}  // namespace serinus::canary::sglang
