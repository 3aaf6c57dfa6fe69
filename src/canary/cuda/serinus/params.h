// The calls of canary_cuda.h as kernels see them: checked, plain, no TensorView left. pool.cpp
// makes them.
#pragma once

#include <cstdint>

#include <serinus/canary_cuda.h>
#include <serinus/canary_ranks.h>

#include "canary/serinus/hash.h"
#include "canary/serinus/judge.h"

namespace serinus::canary::cuda {

/// A block of a source with its keys worked out (of Depth::partial: a source); a row of the table
/// in the pool's state.
struct alignas(16) Piece {
  const std::uint8_t* base = nullptr;  ///< of token 0 of page 0
  std::int64_t page_stride = 0, token_stride = 0;
  hash::BlockKeys keys;
  std::int32_t bytes = 0;
  std::int32_t alignment = 1;  ///< of every slot's first byte: 16, 8, 4 or 1
};
static_assert(sizeof(Piece) == 48);

/// Pieces of a slot that lie back to back, where a row of shared memory would end with each half
/// empty; and the one after them, which lies elsewhere, where it fits into what their last row
/// leaves.
struct alignas(16) Strip {
  std::int32_t first = 0;  ///< of its pieces, in the order of the sources
  std::int32_t bytes = 0;  ///< back to back
  std::int32_t more = -1;  ///< the piece that lies elsewhere; -1: none
  std::int16_t alignment = 1;
  std::int16_t by_line = 0;  ///< its rows are lines of memory: of slots that begin anywhere in one
};
static_assert(sizeof(Strip) == 16);
inline constexpr int kStripRow = 128;  ///< bytes of such a row

/// CTAs of whole steps that are done, by what they do. They only grow, modulo 2^32.
struct StepDone {
  std::uint32_t checks = 0, composed = 0, stamps = 0;
  std::uint32_t looked = 0;  ///< checks that have seen all that a stamp changes
};

/// Which pieces a source has.
struct SourceRange {
  std::int32_t first = 0, count = 0;
  std::uint64_t length_term = 0;
};

/// Words of a pool's state that the kernels of a stream hand on.
struct PoolWords {
  std::int64_t sweep_cursor = 0;
  std::int64_t next_cursor = 0;  ///< of the sweep after the present one
  std::uint64_t null_digest = 0;
  std::uint64_t length_sum = 0;   ///< of all sources: the same in every digest
  std::uint32_t plans_read = 0;   ///< CTAs of a launch that have read the cursors
  std::uint32_t sweeps_done = 0;  ///< CTAs of a sweep that are done
  std::uint32_t stamps_done = 0;  ///< likewise, of a stamp
  // Of step.cu.
  std::uint64_t arrivals = 0;  ///< CTAs of a launch that have read what the launch moves
  StepDone done;               ///< in all launches
  StepDone done_before;        ///< in those before the present one
};

/// Where the rolling verification of a request row stands.
struct RowCursor {
  Owner owner = 0;  ///< whose it is: another request starts over
  std::int32_t unused = 0;
  std::int64_t cell = 0;
};

inline constexpr std::int64_t kChunk = 1024;  ///< slots whose live ones are counted

struct PoolParams {
  Record* records = nullptr;
  LedgerEntry* ledger = nullptr;
  std::uint32_t* seals = nullptr;        ///< of the record last stamped; 0 = EMPTY or free
  std::uint8_t* marks = nullptr;         ///< likewise: what walks along a table compare
  std::uint32_t* live = nullptr;         ///< a bit a slot
  std::uint32_t* live_counts = nullptr;  ///< of every kChunk slots
  std::uint32_t* contested = nullptr;    ///< a bit a slot: handed out while somebody held it
  RowCursor* cursors = nullptr;
  PoolWords* words = nullptr;
  const Piece* pieces = nullptr;           ///< those that are alike side by side
  const Piece* pieces_in_order = nullptr;  ///< source by source
  const Strip* strips = nullptr;
  std::int64_t num_slots = 0, num_rows = 0, slot_bytes = 0;
  std::uint32_t page_size = 1;
  std::int32_t num_pieces = 0;
  std::int32_t num_strips = 0;
  std::int32_t number = 0;
  Depth depth = Depth::all;
  bool clean_null = true;
  bool swa = false;
  std::int64_t window = 0;  ///< 0: the whole prefix
  std::int32_t token_offset = 0;
  const std::int64_t* full_to_swa = nullptr;
  std::int64_t full_to_swa_size = 0;
};

/// Digests by source, of pools that keep them. Apart from PoolParams: kernels that need none of it
/// are short of registers.
struct SourceParams {
  const SourceRange* ranges = nullptr;
  std::int64_t count = 0;
  std::uint32_t* words = nullptr;  ///< [num_slots, count]
};

/// One fault. Rows lie where their key hashes to, so that a second sighting finds the first.
struct RingRow {
  std::uint64_t key = 0;       ///< 0 = free
  std::uint64_t sequence = 0;  ///< 1, 2, ... in the order of the first sightings; 0 = no room
  std::uint64_t count = 0;
  std::uint32_t reasons = 0, moment = 0;
  std::int64_t slot = 0, row = 0, prev_slot = 0;
  std::int64_t expected_position = 0, stored_position = 0;
  std::int64_t expected_token = 0, stored_token = 0;
  std::uint64_t expected_chain = 0, stored_chain = 0;
  std::uint64_t expected_digest = 0, stored_digest = 0;
  std::uint32_t expected_owner = 0, stored_owner = 0;
  std::uint32_t expected_generation = 0, stored_generation = 0;
  std::uint32_t request = 0, pool = 0;
  std::uint64_t first_step = 0, last_step = 0;
  std::int32_t source =
      0;  ///< of kv_bytes: 0 = not looked for yet, -1 = not known, else 1 + the first
  std::uint32_t unused = 0;
};
static_assert(sizeof(RingRow) == 168);

struct RingHeader {
  RingCounts counts;
  std::uint64_t next = 0;      ///< sequence numbers given, those without room among them
  std::uint64_t recycled = 0;  ///< of those, rows that were made free again
};

struct RingParams {
  RingHeader* header = nullptr;
  RingRow* rows = nullptr;
  std::uint64_t mask = 0;  ///< rows - 1: a power of two, twice the capacity or more
  std::uint64_t capacity = 0;
  const std::uint64_t* step = nullptr;  ///< that faults are reported in; null: the header's
};

/// An int32 table [rows, width], rows `stride` elements apart.
struct TableParams {
  const std::int32_t* cells = nullptr;
  std::int64_t rows = 0, width = 0, stride = 0;
};

struct BatchParams {
  const std::int64_t* rows = nullptr;
  const std::int64_t* prefix_lens = nullptr;
  const std::int64_t* extend_lens = nullptr;
  const std::uint32_t* owners = nullptr;
  std::int64_t num_requests = 0;
  TableParams table;
  const std::int64_t* tokens = nullptr;
  const std::int64_t* positions = nullptr;
  const std::int64_t* locations = nullptr;
  std::int64_t num_tokens = 0;
  TableParams expected;  ///< cells null: none
  const std::int64_t* valid_lens = nullptr;
  const AttachedCells* attached = nullptr;  ///< [attached_rows, attached_each]
  std::int64_t attached_rows = 0, attached_each = 0;
  const std::int64_t* due = nullptr;
  const std::int64_t* parents = nullptr;  ///< of a tree of drafts
};

/// An affine map mod 2^61 - 1, h' = h * multiplier + addend: what a run of tokens does to the chain
/// before it.
struct ChainMap {
  std::uint64_t multiplier = 1, addend = 0;
};
/// `first`, then `second`; of the right class, below 2^62 + 2^6 and so to be used again.
SERINUS_HOST_DEVICE inline ChainMap then(const ChainMap& first, const ChainMap& second) noexcept {
  return {hash::fold(static_cast<hash::u128>(first.multiplier) * second.multiplier),
          hash::fold(static_cast<hash::u128>(first.addend) * second.multiplier + second.addend)};
}

inline constexpr std::int64_t kStampTile = 1024;  ///< tokens that are composed to one map

/// A token between the two kernels of stamp().
struct alignas(16) StampedToken {
  std::uint64_t chain = 0;    ///< after it; where `power` > 0, with nothing before its tile
  std::int64_t cell = 0;      ///< of the request's row
  std::int32_t prev = -2;     ///< slot of the token before
  std::int32_t request = -1;  ///< -1: not to be stamped
  std::int32_t power = 0;     ///< of R, by which the chain before the tile counts; 0: not at all
};
static_assert(sizeof(StampedToken) == 32);

struct MovedSlot {
  Record record;
  LedgerEntry ledger;
  std::uint32_t sealed = 0;
  std::uint32_t valid = 0;
};

/// What lies where in the workspace; sizes by the same numbers.
struct Workspace {
  StampedToken* tokens = nullptr;    ///< [tokens]
  ChainMap* maps = nullptr;          ///< [tiles of tokens]
  std::uint64_t* digests = nullptr;  ///< [tokens of one tile]
};

// pool.cpp
RingParams params_of(const DeviceRing& ring);
/// Throws ValueError where the batch's tensors do not belong together, or are not on `device`.
BatchParams params_of(const DeviceBatch& batch, Device device);
void request_digests(const PoolParams& pool, Format format, const DeviceBatch& batch,
                     const TensorView& digests, Device device, Stream stream);

// ---------------------------------------------------------------- launches, by kernel family

// ledger.cu
struct SlotList {
  const std::int64_t* slots = nullptr;
  std::int64_t count = 0;
};
void launch_alloc(const PoolParams&, const RingParams&, SlotList, Owner, std::uint32_t epoch,
                  Device, Stream);
void launch_free(const PoolParams&, const RingParams&, SlotList, Owner, Device, Stream);
void launch_transfer(const PoolParams&, const RingParams&, SlotList, Owner from, Owner to, Device,
                     Stream);
void launch_announce(const PoolParams&, const RingParams&, const Announcement* list, std::int64_t n,
                     Device, Stream);
void launch_move(const PoolParams&, const RingParams&, SlotList from, SlotList to, MovedSlot*,
                 Device, Stream);
void launch_store(const PoolParams&, const RingParams&, SlotList, Record* to, Device, Stream);
void launch_load(const PoolParams&, const RingParams&, const Record* from, SlotList, Owner, Device,
                 Stream);

// verify.cu
/// `records` of a rolling check, 0 = all; `most_cells` are walked.
void launch_verify(const PoolParams&, const RingParams&, const BatchParams&, Moment,
                   std::int64_t records, std::int64_t most_cells, Device, Stream);

// sweep.cu
void launch_verify_slots(const PoolParams&, const RingParams&, SlotList, Moment, Device, Stream);
/// The next `most` live slots.
void launch_sweep(const PoolParams&, const RingParams&, std::int64_t most, Device, Stream);
void launch_null_digest(const PoolParams&, Device, Stream);

// sources.cu
void launch_stamp_sources(const PoolParams&, const SourceParams&, const BatchParams&, Device,
                          Stream);
void launch_name_sources(const PoolParams&, const SourceParams&, const RingParams&, Device, Stream);
/// To a list of slots or from it: words [n, num_sources].
void launch_take_sources(const PoolParams&, const SourceParams&, SlotList, std::uint32_t* to,
                         Device, Stream);
void launch_move_sources(const PoolParams&, const SourceParams&, SlotList from, SlotList to,
                         const std::uint32_t* taken, Device, Stream);
void launch_load_sources(const PoolParams&, const SourceParams&, const std::uint32_t* from,
                         SlotList, Device, Stream);

// ring.cu
void launch_clear_ring(const RingParams&, Device, Stream);
void launch_next_step(const RingParams&, Device, Stream);
void launch_recycle_ring(const RingParams&, std::uint64_t number, Device, Stream);

// stamp_tree.cu: the first half of launch_stamp() where the batch has parents, on the current
// device
void launch_compose_tree(const PoolParams&, const RingParams&, const BatchParams&, const Workspace&,
                         Stream);

// ranks.cu
/// Of the pool's records, which are of that format, and its table.
void launch_request_digests(const PoolParams&, Format, const BatchParams&, RequestDigest* to,
                            Device, Stream);

// step.cu
/// What one launch does of a step, for batches of which every CTA can find out at once what is due.
struct StepWork {
  Moment moment = Moment::head;
  std::int64_t records = 1;  ///< of the rolling check
  // After the tail:
  bool stamps = false;
  std::int64_t sweep_slots = 0;  ///< the next live ones; 0: none
  bool ends_step = false;
};
bool fits_step(const BatchParams&, const StepWork&);
/// As launch_verify(), launch_stamp(), launch_sweep() and launch_next_step(), one after another.
void launch_step(const PoolParams&, const RingParams&, const BatchParams&, const Workspace&,
                 const StepWork&, Device, Stream);

// stamp.cu
void launch_stamp(const PoolParams&, const RingParams&, const BatchParams&, const Workspace&,
                  Device, Stream);

}  // namespace serinus::canary::cuda
