// What a check along a table walks of each request, and how its cells are judged, by the same
// functions as on the CPU.
#pragma once

#include <cstdint>

#include "canary/cuda/serinus/bytes.cuh"
#include "canary/cuda/serinus/cells.cuh"

namespace serinus::canary::cuda {

// ---------------------------------------------------------------- plan

/// Cells of a request that a check walks.
struct Range {
  std::int64_t begin = 0, end = 0;
};
/// Some of them, one after another; the walk that they are of begins with `from`.
struct Tile {
  std::int64_t begin = 0, end = 0, from = 0;
};
/// What is due, and the rolling part before and after its end.
constexpr int kRanges = 3;

struct Plan {
  Range ranges[kRanges];
  bool rolls = false;
  RowCursor next;  ///< where the rolling part goes on
};

/// Cells of the request that attention reads.
__device__ inline Range prefix_range(const PoolParams& p, const BatchParams& b, std::int64_t r) {
  if (b.rows[r] == 0) return {};
  const std::int64_t end = prefix_of(b, r);
  return {first_cell(p, end), end};
}

/// Where the rolling part of a row stands.
__device__ __forceinline__ RowCursor cursor_of(const PoolParams& p, std::int64_t row) {
  return row >= 0 && row < p.num_rows ? p.cursors[row] : RowCursor{};
}

/// What a plan needs to know of a request.
struct Reader {
  std::int64_t row = 0;
  Owner owner = 0;
  Range all;         ///< cells that attention reads
  RowCursor cursor;  ///< of a rolling check
};
__device__ __forceinline__ Reader reader_of(const PoolParams& p, const BatchParams& b,
                                            std::int64_t r, bool rolls) {
  Reader reader{b.rows[r], b.owners[r], {}, {}};
  reader.all = prefix_range(p, b, r);
  if (rolls) reader.cursor = cursor_of(p, reader.row);
  return reader;
}

/// n * wanted / total, rounded up; wanted < total.
__device__ __forceinline__ std::int64_t share_of_budget(std::int64_t n, std::uint64_t wanted,
                                                        std::uint64_t total) {
  const auto l = static_cast<std::uint64_t>(n);
  if (l == total) return static_cast<std::int64_t>(wanted);
  const std::uint64_t most = l * wanted + (total - 1);
  if (l >> 32 == 0 && most >> 32 == 0) {
    return static_cast<std::uint32_t>(most) / static_cast<std::uint32_t>(total);
  }
  if (__umul64hi(l, wanted) == 0) return static_cast<std::int64_t>(most / total);
  return static_cast<std::int64_t>(static_cast<double>(l) *
                                   (static_cast<double>(wanted) / static_cast<double>(total)));
}

/// What is to be checked of request r: all (`records` 0); or what is due, and of `records` cells
/// its share by length, at least one, from where it stopped the last time, in up to two pieces.
/// `total` cells have all requests together.
__device__ __forceinline__ Plan plan_of(const PoolParams& p, const BatchParams& b, std::int64_t r,
                                        const Reader& reader, std::int64_t records,
                                        std::uint64_t total) {
  Plan plan;
  const auto& [row, owner, all, cursor] = reader;
  if (row == 0 || !has_row(b.table, row)) return plan;
  if (records == 0) {
    plan.ranges[0] = all;
    return plan;
  }
  if (b.due != nullptr) {
    Range due{b.due[2 * r], b.due[2 * r + 1]};
    // A window leaves the last cells only.
    const std::int64_t first = p.window > 0 ? first_cell(p, b.prefix_lens[r]) : 0;
    if (due.begin < first) due.begin = first;
    if (due.end > b.table.width) due.end = b.table.width;
    if (due.begin < due.end) plan.ranges[0] = due;
  }
  if (all.begin >= all.end) return plan;
  std::int64_t n = all.end - all.begin;
  const auto wanted = static_cast<std::uint64_t>(records);
  if (wanted < total) n = share_of_budget(n, wanted, total);
  if (n < 1) n = 1;
  const bool goes_on = cursor.owner == owner && cursor.cell >= all.begin && cursor.cell < all.end;
  const std::int64_t begin = goes_on ? cursor.cell : all.begin;
  const std::int64_t here = n < all.end - begin ? n : all.end - begin;
  plan.ranges[1] = {begin, begin + here};
  plan.next = {owner, 0, begin + here};
  if (here < n) {
    plan.ranges[2] = {all.begin, all.begin + n - here};
    plan.next.cell = plan.ranges[2].end;
  }
  plan.rolls = row < p.num_rows;
  return plan;
}
__device__ inline Plan plan_of(const PoolParams& p, const BatchParams& b, std::int64_t r,
                               std::int64_t records, std::uint64_t total) {
  return plan_of(p, b, r, reader_of(p, b, r, records != 0), records, total);
}

/// Rows, lengths and due cells that leave the table: reported once, by one CTA.
__device__ inline void report_ranges(const PoolParams& p, const RingParams& ring,
                                     const BatchParams& b, Moment moment) {
  for (std::int64_t r = threadIdx.x; r < b.num_requests; r += kThreads) {
    const std::int64_t row = b.rows[r];
    if (row == 0) continue;
    std::int64_t cell = 0;
    bool outside = false;
    if (!has_row(b.table, row)) {
      outside = prefix_of(b, r) > 0;
      cell = -1;
    } else if (b.prefix_lens[r] != prefix_of(b, r)) {
      outside = true;
      cell = b.prefix_lens[r];
    } else if (b.due != nullptr && b.due[2 * r + 1] > b.table.width) {
      outside = true;
      cell = b.table.width;
    }
    if (outside) report_out_of_range(ring, p, -1, moment, b.owners[r], row, cell);
  }
}

// ---------------------------------------------------------------- what is plainly sound

/// Lanes load records in pairs, half of one each, so that a sector is asked for once: the cell of a
/// group that lane l looks at, and the lane that looks at the cell before.
__device__ __forceinline__ int cell_of(int lane) {
  return lane / 2 + lane % 2 * (kWarp / 2);
}
__device__ __forceinline__ int lane_before(int lane) {
  return lane < 2 ? kWarp - 1 - lane : lane - 2;
}

/// Slot of a table's number; -1 where there is none to look at.
__device__ __forceinline__ std::int32_t slot_of(const PoolParams& p, std::int32_t location) {
  if (!p.swa) return static_cast<std::uint32_t>(location) < p.num_slots ? location : -1;
  const Place at = place(p, location);
  return at.kind == Place::Kind::slot ? static_cast<std::int32_t>(at.slot) : -1;
}

/// The reader may read the record without asking the ledger: it is marked as the slot's own, and he
/// wrote it, or attached the cell later.
__device__ __forceinline__ bool is_readers(const Walk& walk, std::int64_t cell, const Record& r,
                                           std::uint32_t mark) {
  if (mark != hash::mark(r)) return false;
  if (r.owner == walk.owner) return true;
  const Right by = walk.right(cell);
  return by.attached && !newer(r.generation, by.epoch);
}

/// A cell that no record can lie about without being found: the CPU's fast path asks the same.
/// `cell` < 2^31; `token` < 0 is not known.
__device__ __forceinline__ bool is_plainly_sound(const Walk& walk, std::int64_t cell,
                                                 const Record& r, std::uint32_t mark,
                                                 std::uint64_t chain_before, std::int64_t token) {
  bool sound = r.position == static_cast<std::uint32_t>(cell) && r.chain != 0;
  // chain_value() but for its last step, which changes five of 2^61 values: those are judged.
  sound &=
      hash::fold(hash::chain_step(chain_before, hash::token_term(r.token, r.position))) == r.chain;
  sound &= token < 0 || r.token == static_cast<std::uint32_t>(token);
  return sound && is_readers(walk, cell, r, mark);
}

/// Looks at the cells [begin, end), kGroups * 32 at most, and returns the groups (a bit each) that
/// are to be judged: those in which a cell is not plainly sound, and their successors. Everything
/// is asked for before anything is looked at. All lanes call it.
template <Depth kDepth, int kGroups>
__device__ __forceinline__ unsigned doubtful_groups(const PoolParams& p, const Walk& walk,
                                                    std::int32_t begin, std::int32_t end,
                                                    ScratchOf<kDepth>& scratch) {
  const int lane = lane_id();
  const bool odd = lane % 2 != 0;
  const std::int32_t* const cells = walk.cells + begin;
  const int n = end - begin;
  std::int32_t slot[kGroups];
  uint4 first[kGroups], second[kGroups];
  std::uint32_t mark[kGroups];
  // All lanes load, the null slot where there is none: what is loaded only perhaps is waited for at
  // once, to be merged with what would be there otherwise. The last lane looks at the cell before
  // the first one, too.
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int i = g * kWarp + cell_of(lane);
    slot[g] = __ldg(cells + (i < n ? i : n - 1));
  }
  std::int32_t slot_before = __ldg(cells - (begin > 0 ? 1 : 0));
#pragma unroll
  for (int g = 0; g < kGroups; ++g) slot[g] = slot_of(p, slot[g]);
  slot_before = slot_of(p, slot_before);
  const auto* const records = reinterpret_cast<const uint4*>(p.records);
  const uint4* const halves = records + (odd ? 1 : 0);
  const auto existing = [](std::int32_t s) { return s < 0 ? 0 : s; };
  const uint4* const record_before = records + 2 * std::int64_t{existing(slot_before)};
  const uint4 what_before = __ldcg(record_before);
  const uint2 chain_of_before = __ldcg(reinterpret_cast<const uint2*>(record_before + 1));
  const std::uint32_t mark_before = __ldcg(p.marks + existing(slot_before));
  unsigned has_slot = 0;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const std::int32_t of_first = __shfl_sync(kAllLanes, slot[g], lane & ~1);
    const std::int32_t of_second = __shfl_sync(kAllLanes, slot[g], lane | 1);
    first[g] = __ldcg(halves + 2 * std::int64_t{existing(of_first)});
    second[g] = __ldcg(halves + 2 * std::int64_t{existing(of_second)});
    mark[g] = __ldcg(p.marks + existing(slot[g]));
    // What is needed of them later, in one register.
    has_slot |= static_cast<unsigned>(slot[g] >= 0) << g;
  }
  bool before_sound = true;
  std::uint64_t chain_before = kChainAnchor;  // the last lane's is the one before its group
  if (lane == kWarp - 1 && begin > 0) {
    const Record r{what_before.x, what_before.y, what_before.z, what_before.w,
                   static_cast<std::uint64_t>(chain_of_before.y) << 32 | chain_of_before.x};
    before_sound =
        slot_before >= 0 && r.position == begin - 1 && is_readers(walk, begin - 1, r, mark_before);
    chain_before = r.chain;
  }
  unsigned doubtful = __all_sync(kAllLanes, before_sound) ? 0 : 1;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int i = g * kWarp + cell_of(lane);
    // Each lane of a pair has half of what the other wants.
    const uint4 sent = odd ? first[g] : second[g];
    uint4 got;
    got.x = __shfl_xor_sync(kAllLanes, sent.x, 1);
    got.y = __shfl_xor_sync(kAllLanes, sent.y, 1);
    got.z = __shfl_xor_sync(kAllLanes, sent.z, 1);
    got.w = __shfl_xor_sync(kAllLanes, sent.w, 1);
    const uint4 what = odd ? got : first[g];
    const uint4 sums = odd ? second[g] : got;
    const Record r{what.x,
                   what.y,
                   what.z,
                   what.w,
                   static_cast<std::uint64_t>(sums.y) << 32 | sums.x,
                   static_cast<std::uint64_t>(sums.w) << 32 | sums.z};
    const std::uint64_t before =
        shuffle(lane == kWarp - 1 ? chain_before : r.chain, lane_before(lane));
    chain_before = r.chain;
    const bool inside = i < n;
    const std::int64_t token = inside ? walk.token(begin + i) : -1;
    const bool sound =
        (has_slot >> g & 1) != 0 && is_plainly_sound(walk, begin + i, r, mark[g], before, token);
    if constexpr (kDepth != Depth::none) {
      note_bytes(scratch, i, inside ? slot[g] : -1, r.kv_digest);
    }
    if (!__all_sync(kAllLanes, sound || !inside)) doubtful |= 3u << g;
  }
  return doubtful & ((1u << kGroups) - 1);
}

// ---------------------------------------------------------------- what is judged

/// What a cell's record says by itself, and whether the reader may read it.
struct Look {
  Place at;
  Record r;
  std::int64_t token = -1;  ///< what the scheduler says
  bool sealed = false;
  bool content = false;  ///< not EMPTY, not stale
  bool clean = false;    ///< but for the chain

  __device__ bool is_slot() const { return at.kind == Place::Kind::slot; }
  /// Whether it is not what follows `chain`.
  __device__ bool breaks(std::int64_t cell, std::uint64_t chain) const {
    const auto expected = static_cast<std::uint32_t>(token >= 0 ? token : r.token);
    return hash::chain_value(hash::chain_step(
               chain, hash::token_term(expected, static_cast<std::uint32_t>(cell)))) != r.chain;
  }
};
__device__ __forceinline__ Look look_at(const PoolParams& p, const Walk& walk, std::int64_t cell) {
  Look l;
  l.at = walk.at(cell);
  l.token = walk.token(cell);
  if (!l.is_slot()) return l;
  l.r = load_record(p, l.at.slot);
  l.sealed = __ldcg(p.seals + l.at.slot) == hash::seal(l.r);
  const LedgerEntry e = p.ledger[l.at.slot];
  const Verdict v = judge_right(l.r, e, l.sealed, walk.right(cell, e, l.at.slot));
  l.content = v.has_content;
  l.clean = l.content && !any(v.reasons) &&
            !any(judge_content(l.r, e, l.sealed, cell, l.token, {}).reasons);
  return l;
}

/// Whether a walk that began with `from` may rely on `cell` for its successor: nothing is wrong
/// with it. A break of the chain counts where the cell before may be relied on, and so on.
__device__ inline bool is_reliable(const PoolParams& p, const Walk& walk, std::int64_t from,
                                   std::int64_t cell) {
  for (bool otherwise = false;; otherwise = !otherwise, --cell) {
    const Look l = look_at(p, walk, cell);
    if (!l.clean) return otherwise;
    if (cell == from) {
      const ChainBefore before = walk.before(cell);
      const bool broken =
          before.usable && l.breaks(cell, before.chain) && walk.is_first_break(cell);
      return broken == otherwise;
    }
    const Place at = walk.at(cell - 1);
    const std::uint64_t chain =
        at.kind == Place::Kind::slot ? load_record(p, at.slot).chain : std::uint64_t{0};
    if (!l.breaks(cell, chain)) return !otherwise;
  }
}

/// The chain before a tile, as a walk from its beginning brings it along.
__device__ inline ChainBefore before_tile(const PoolParams& p, const Walk& walk, const Tile& tile) {
  if (tile.begin == tile.from) return walk.before(tile.begin);
  if (!is_reliable(p, walk, tile.from, tile.begin - 1)) return {};
  const std::int64_t slot = walk.at(tile.begin - 1).slot;
  return {true, load_record(p, slot).chain, slot};
}

/// Judges the cells of a tile, 32 at most, a cell a lane, as the CPU does, and reports. Returns
/// how many hold what the reader was given. All lanes call it; only a warp that `tells` reports.
template <Depth kDepth>
__device__ __forceinline__ int judge_group(const PoolParams& p, const RingParams& ring,
                                           const Walk& walk, Moment moment, const Tile& tile,
                                           bool tells, int first_row, ScratchOf<kDepth>& scratch) {
  const int lane = lane_id();
  const std::int64_t cell = tile.begin + lane;
  const bool inside = cell < tile.end;
  ChainBefore before;
  bool first_break = true;
  if (lane == 0) {
    before = before_tile(p, walk, tile);
    // A walk that starts here cannot see that a break is its predecessor's.
    if (tile.begin == tile.from) first_break = walk.is_first_break(cell);
  }
  Look l;
  if (inside) l = look_at(p, walk, cell);
  const Place& at = l.at;
  const Record& r = l.r;
  const bool is_slot = l.is_slot();
  const std::uint64_t chain = shuffle_up(r.chain);
  const std::uint64_t slot = shuffle_up(static_cast<std::uint64_t>(is_slot ? at.slot : -1));
  if (lane > 0) before = {true, chain, static_cast<std::int64_t>(slot)};
  const bool breaks = is_slot && before.usable && l.breaks(cell, before.chain);
  const bool is_anothers = breaks && l.sealed && !first_break;

  // Whether a cell may be relied on depends on the one before: bit by bit, where anything is wrong.
  unsigned good = __ballot_sync(kAllLanes, l.clean);
  const unsigned broken = __ballot_sync(kAllLanes, l.clean && breaks && !is_anothers);
  if (broken != 0) {
    good &= ~(broken & 1u);
    for (int i = 1; i < kWarp; ++i) {
      if ((broken & good << 1) >> i & 1u) good &= ~(1u << i);
    }
  }
  if (lane > 0) {
    before.usable = (good >> (lane - 1) & 1u) != 0;
    if (!before.usable) before.slot = -1;
  }
  if (inside && tells && (good >> lane & 1u) == 0) {
    if (at.kind == Place::Kind::outside) {
      report_out_of_range(ring, p, at.slot, moment, walk.owner, walk.row, cell);
    } else if (is_slot) {
      const LedgerEntry e = p.ledger[at.slot];
      Verdict v = judge_right(r, e, l.sealed, walk.right(cell, e, at.slot));
      if (v.has_content) {
        const Verdict c = judge_content(r, e, l.sealed, cell, l.token, before);
        v.reasons |= is_anothers ? without(c.reasons, Reason::chain) : c.reasons;
        v.expected_chain = c.expected_chain;
      }
      if (any(v.reasons)) {
        const Sighting to =
            sight(ring, p, at.slot,
                  at.slot == 0 ? life_of_cell(walk.row, cell) : std::uint64_t{e.generation},
                  v.reasons, moment);
        if (to) {
          describe_slot(r, e, *to);
          to->request = walk.owner;
          to->row = walk.row;
          to->expected_position = cell;
          to->expected_token = l.token;
          to->expected_chain = v.expected_chain;
          to->prev_slot = before.slot;
          if (any(v.reasons & Reason::stale)) to->expected_owner = walk.owner;
        }
      }
    }
  }
  if constexpr (kDepth != Depth::none) {
    note_bytes(scratch, first_row + lane, l.content ? static_cast<std::int32_t>(at.slot) : -1,
               r.kv_digest);
  }
  return __popc(__ballot_sync(kAllLanes, l.content));
}

}  // namespace serinus::canary::cuda
