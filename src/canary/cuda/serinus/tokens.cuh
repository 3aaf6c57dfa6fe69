// A new token: what the forward says of it, where it lies and after which token, and what is
// stored.
#pragma once

#include <cstdint>

#include "canary/cuda/serinus/cells.cuh"

namespace serinus::canary::cuda {

inline constexpr std::int64_t kMostCells = std::int64_t{1} << 62;  // prefixes are cut to this

__device__ inline std::int64_t extend_of(const BatchParams& b, std::int64_t request) {
  const std::int64_t n = b.extend_lens[request];
  return n < 0 ? 0 : n > b.num_tokens ? b.num_tokens : n;
}

/// Slot of a location in this pool: > 0 where a token can lie, 0 the null slot, -1 not written
/// here, -2 out of range.
__device__ inline std::int64_t stamped_slot(const PoolParams& p, std::int64_t location) {
  if (location < 0) return -1;
  const bool mapped = p.swa && p.full_to_swa != nullptr;
  std::int64_t slot = location;
  if (mapped) {
    if (location >= p.full_to_swa_size) return -2;
    slot = p.full_to_swa[location];
    if (slot == 0) return -1;
  }
  return has(p, slot) ? slot : -2;
}

__device__ inline bool is_position(std::int64_t position) {
  return position >= 0 && position <= kLastPosition;
}

__device__ inline void report_token(const PoolParams& p, const RingParams& ring, std::int64_t slot,
                                    Reason reason, Owner owner, std::int64_t row,
                                    std::int64_t stored_position = -1) {
  const LedgerEntry e = p.ledger[slot];
  const Sighting to = sight(ring, p, slot, e.generation, reason, Moment::tail);
  if (!to) return;
  describe_slot(load_record(p, slot), e, *to);
  to->request = owner;
  to->row = row;
  if (any(reason & Reason::position)) to->stored_position = stored_position;
}

/// A token before its tile is composed: its part of the chain, and whether it begins one.
struct NewToken {
  StampedToken token;
  std::uint64_t term = 0;
  bool starts = false;
};

/// What the forward says of a token, and of the one before it in the flat arrays.
struct Told {
  std::int64_t location = -1, position = -1, id = 0;
  std::int64_t location_before = -1, position_before = -1;

  __device__ void load(const BatchParams& b, std::int64_t j) {
    load_alone(b, j);
    if (j >= b.num_tokens || j == 0) return;
    location_before = b.locations[j - 1];
    position_before = b.positions[j - 1];
  }
  /// Where the one before is known.
  __device__ void load_after(const Told& before, const BatchParams& b, std::int64_t j) {
    load_alone(b, j);
    location_before = before.location;
    position_before = before.position;
  }

 private:
  __device__ void load_alone(const BatchParams& b, std::int64_t j) {
    if (j >= b.num_tokens) return;
    location = b.locations[j];
    position = b.positions[j];
    id = b.tokens[j];
  }
};

/// Whether token j of request r (of nobody, or in row 0: padding) is to be stamped. Where it cannot
/// be, that is reported here.
__device__ inline bool is_stamped(const PoolParams& p, const RingParams& ring, const BatchParams& b,
                                  std::int64_t j, std::int64_t location, std::int64_t position,
                                  std::int64_t r, std::int64_t row) {
  const bool padding = r < 0 || row == 0;
  const Owner owner = r >= 0 ? b.owners[r] : 0;
  const std::int64_t slot = stamped_slot(p, location);
  if (slot == -2) {
    report_out_of_range(ring, p, location, Moment::tail, owner, row, padding ? j : position);
  }
  if (slot == 0 && p.clean_null) {
    report_token(p, ring, 0, Reason::null_slot_dirty, owner, row);
  }
  if (slot <= 0) return false;
  if (padding) {
    report_token(p, ring, slot, Reason::foreign_write, owner, row);
    return false;
  }
  if (is_position(position)) return true;
  report_token(p, ring, slot, Reason::position, owner, row, position);
  return false;
}

/// The cells before a forward's first.
__device__ inline std::int64_t cells_before(std::int64_t prefix) {
  return prefix < 0 ? 0 : prefix > kMostCells ? kMostCells : prefix;
}

struct Before {
  std::uint64_t chain = kChainAnchor;
  std::int32_t prev = -2;
};
/// What a token continues whose predecessor was written before this forward: the row says where.
__device__ inline Before before_in_row(const PoolParams& p, const RingParams& ring,
                                       const BatchParams& b, std::int64_t position, std::int64_t r,
                                       std::int64_t row) {
  Before before;
  if (position == 0) {
    before.prev = -1;
  } else if (has_row(b.table, row) && position - 1 < b.table.width) {
    const std::int64_t cell = b.table.cells[row * b.table.stride + position - 1];
    const std::int64_t prev = stamped_slot(p, cell);
    if (prev == -2) {
      report_out_of_range(ring, p, cell, Moment::tail, b.owners[r], row, position - 1);
    }
    if (prev > 0) {
      before.prev = static_cast<std::int32_t>(prev);
      const std::uint64_t chain = load_record(p, prev).chain;
      if (chain != 0) before.chain = chain;
    }
  }
  return before;
}

/// What token j of request r (or of nobody: padding) is to become. `begin` of the request's run.
__device__ inline NewToken token_at(const PoolParams& p, const RingParams& ring,
                                    const BatchParams& b, std::int64_t j, const Told& told,
                                    std::int64_t r, std::int64_t begin, std::int64_t row,
                                    std::int64_t prefix) {
  NewToken made;
  StampedToken& t = made.token;
  const std::int64_t position = told.position;
  if (!is_stamped(p, ring, b, j, told.location, position, r, row)) return made;
  t.request = static_cast<std::int32_t>(r);
  t.cell = cells_before(prefix) + (j - begin);
  const std::uint64_t term =
      hash::token_term(static_cast<std::uint32_t>(told.id), static_cast<std::uint32_t>(position));
  // The token stamped before this one, if it comes right before.
  std::int64_t position_before = -2;
  std::int64_t slot_before = -1;
  if (j > begin) {
    position_before = told.position_before;
    slot_before = stamped_slot(p, told.location_before);
    for (std::int64_t i = j - 1; slot_before <= 0 || !is_position(position_before);) {
      if (--i < begin) {
        position_before = -2;
        break;
      }
      position_before = b.positions[i];
      slot_before = stamped_slot(p, b.locations[i]);
    }
  }
  if (position != 0 && position_before + 1 == position) {
    t.prev = static_cast<std::int32_t>(slot_before);
    made.term = term;
    return made;
  }
  made.starts = true;
  const Before before = before_in_row(p, ring, b, position, r, row);
  t.prev = before.prev;
  made.term = hash::chain_step(before.chain, term);
  return made;
}

/// A token's record but for chain and digest, and what was at its slot before.
struct NewRecord {
  Record record;
  LedgerEntry before;
  std::int64_t slot = -1, row = 0, cell = 0, told = -1;
  std::int32_t prev = -2;
  bool owned = false, claimed = false;
};
__device__ __forceinline__ NewRecord new_record(const PoolParams& p, const BatchParams& b,
                                                std::int64_t j, const StampedToken& token,
                                                std::int64_t slot) {
  NewRecord n;
  n.slot = slot;
  n.cell = token.cell;
  n.prev = token.prev;
  n.row = b.rows[token.request];
  const Owner owner = b.owners[token.request];
  n.before = p.ledger[slot];
  n.owned = n.before.owner == owner && owner != 0;
  n.claimed = !n.owned && claims(p, n.before, slot, owner);
  n.record = {static_cast<std::uint32_t>(b.tokens[j]),
              static_cast<std::uint32_t>(b.positions[j]),
              owner,
              n.owned || n.claimed ? n.before.generation : 0,
              0,
              0};
  n.told = Walk(p, b, token.request, n.row, owner).token(n.cell);
  return n;
}

/// Stores a token's record and what belongs to it, and reports what was wrong with it.
__device__ __forceinline__ void store_record(const PoolParams& p, const RingParams& ring,
                                             const NewRecord& n) {
  const Record& record = n.record;
  store_record(p, n.slot, record);
  if (n.owned || n.claimed) {
    seal(p, n.slot, record);
    p.ledger[n.slot].written = record.position + 1;
    p.ledger[n.slot].prev = n.prev;
  }
  // A wrong input is stamped as it is, so that the chain goes on; but it is seen here first.
  Reason reasons = Reason::none;
  if (std::int64_t{record.position} != n.cell) reasons |= Reason::position;
  if (n.told >= 0 && record.token != static_cast<std::uint32_t>(n.told)) reasons |= Reason::token;
  if (!n.owned) reasons |= n.claimed ? Reason::double_owner : Reason::foreign_write;
  if (!any(reasons)) return;
  if (const Sighting to = sight(ring, p, n.slot, n.before.generation, reasons, Moment::tail)) {
    describe_slot(record, n.before, *to);
    to->request = record.owner;
    to->row = n.row;
    to->expected_position = n.cell;
    to->expected_token = n.told;
  }
}

__device__ __forceinline__ void store_token(const PoolParams& p, const RingParams& ring,
                                            const BatchParams& b, std::int64_t j,
                                            const StampedToken& token, std::int64_t slot,
                                            std::uint64_t chain, std::uint64_t digest) {
  NewRecord n = new_record(p, b, j, token, slot);
  n.record.chain = chain == 0 ? hash::kP : chain;
  n.record.kv_digest = digest;
  store_record(p, ring, n);
}

}  // namespace serinus::canary::cuda
