// The canary in the `serinus` format on the GPU: plain functions over device memory that the caller
// owns. They know what the Monitor's CPU backend knows about a slot (record, ledger, seal) and say
// the same about it; who attached what, and when to check what, stays with the caller.
//
// Every call is stream-ordered, allocates nothing, reads nothing on the host and can be captured in
// a graph: grids follow from the sizes of tensors, counts and contents are read on the device. What
// lies in the tensors may be anything: a number out of its table is reported, never dereferenced.
// Faults go to a ring on the device, one a slot and life, however often they are seen.
//
// Two claimants of a slot that was handed out twice are known here (its owner, and the one before);
// the CPU backend remembers all. What one call does to one slot twice happens in any order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <serinus/canary.h>
#include <serinus/tensor.h>

namespace serinus::canary::cuda {

// ---------------------------------------------------------------- memory

/// A pool: numbers that describe it, and its memory on the device.
struct DevicePool {
  int number = 0;              ///< as violations name it
  std::int64_t num_slots = 0;  ///< at most 2^31 - 1
  std::int64_t page_size = 1;
  std::int64_t num_sources = 0;  ///< 0 with Depth::none
  std::int64_t num_blocks = 0;   ///< 1024-byte blocks of all sources
  std::int64_t num_strips = 0;   ///< of blocks that are read as one
  std::int64_t slot_bytes = 0;   ///< that a digest reads
  std::int64_t num_rows = 0;     ///< of req_to_token: a rolling cursor each
  Depth depth = Depth::all;
  PoolKind kind = PoolKind::full;
  NullSlot null_slot = NullSlot::clean;
  std::int64_t window = 0;
  int token_offset = 0;

  TensorView records;         ///< u8 [num_slots, 32]: Record, 16-byte aligned
  TensorView ledger;          ///< i32 [num_slots, 5]: LedgerEntry
  TensorView state;           ///< u8 [pool_state_bytes()], 16-byte aligned
  TensorView full_to_swa;     ///< i64 [n], swa pools that are numbered apart; else empty
  TensorView source_digests;  ///< u32 [num_slots, num_sources], or empty: see stamp_sources()
};

/// The numbers of a pool whose buffers lie on the device. Throws ValueError for a description that
/// no kernel can follow: a slot outside a buffer among them.
DevicePool describe_pool(const PoolSpec& spec, Depth depth, int number, std::int64_t num_rows);
/// Seals, live slots, cursors, and the table of sources.
std::size_t pool_state_bytes(const DevicePool& pool);
/// Once, before anything else: clears the pool's memory, uploads the sources, takes the null slot's
/// digest. The one call that copies from the host; it cannot be captured.
void init_pool(const DevicePool& pool, const PoolSpec& spec, Stream stream = {});

/// Faults, and counters of all pools that share it.
struct DeviceRing {
  TensorView memory;          ///< u8 [ring_bytes(capacity)], 16-byte aligned
  std::int64_t capacity = 0;  ///< distinct faults kept; more are counted as dropped
};
std::size_t ring_bytes(std::int64_t capacity);
/// Forgets all faults and clears the counters.
void clear_ring(const DeviceRing& ring, Stream stream = {});
/// The step that faults are reported in from now on: one more.
void next_step(const DeviceRing& ring, Stream stream = {});
/// Makes room: forgets the faults numbered up to `number`, and those that found no room. What is
/// seen again afterwards is a row again, with a new number. Counters go on. To be called where no
/// other stream reports meanwhile; else a sighting at that moment may be counted wrongly.
void recycle_ring(const DeviceRing& ring, std::uint64_t number, Stream stream = {});

struct RingCounts {
  std::uint64_t steps = 0;
  std::uint64_t violations = 0;  ///< distinct, kept
  std::uint64_t sightings = 0;   ///< with repeats
  std::uint64_t dropped = 0;     ///< distinct, found no room
  std::uint64_t records_verified = 0, records_written = 0, bytes_digested = 0, skipped_empty = 0;
  std::uint64_t sweeps = 0;        ///< completed passes over all live slots
  std::uint64_t out_of_range = 0;  ///< Stats::out_of_range of a Monitor
};
/// name_sources() was not there yet; nobody knows, since the slot's words do not.
inline constexpr int kNotNamed = -2, kNotKnown = -1;
struct RingContent {
  RingCounts counts;
  std::vector<Violation> violations;   ///< in the order in which they were first seen
  std::vector<std::uint64_t> numbers;  ///< theirs: 1, 2, ... in that order; never given twice
  std::vector<int> sources;       ///< theirs, if the bytes differ: kNotNamed, kNotKnown, or which
  std::uint64_t last_number = 0;  ///< given so far, also to faults that found no room
};
/// What a copy of ring memory in host memory says.
RingContent read_ring(std::span<const std::byte> copy, std::int64_t capacity);

// ---------------------------------------------------------------- the life of a slot

// `slots` is i64 [n] on the device, in any order. Meaning and alarms: canary.h, Monitor.

/// `epoch`: a number of its own for every call, growing, never 0: the lives that begin.
void on_alloc(const DevicePool& pool, const DeviceRing& ring, const TensorView& slots, Owner owner,
              std::uint32_t epoch, Stream stream = {});
void on_free(const DevicePool& pool, const DeviceRing& ring, const TensorView& slots, Owner owner,
             Stream stream = {});
void on_transfer(const DevicePool& pool, const DeviceRing& ring, const TensorView& slots,
                 Owner from, Owner to, Stream stream = {});

/// One slot of an on_alloc, on_free or on_transfer.
struct Announcement {
  std::int64_t slot = 0;
  LedgerEventKind kind = LedgerEventKind::alloc;  ///< alloc, free or transfer
  Owner owner = 0;                                ///< transfer: from
  std::uint32_t other = 0;                        ///< alloc: epoch; transfer: to
};
static_assert(sizeof(Announcement) == 24);
/// Many of those calls as one launch. `list`: u8 [n, 24], Announcement, 8-byte aligned; a slot that
/// it names twice is taken in any order.
void announce(const DevicePool& pool, const DeviceRing& ring, const TensorView& list,
              Stream stream = {});

/// The two lists may overlap. `workspace`: u8 [move_workspace_bytes(n)].
std::size_t move_workspace_bytes(std::int64_t n);
void on_move(const DevicePool& pool, const DeviceRing& ring, const TensorView& from,
             const TensorView& to, const TensorView& workspace, Stream stream = {});
/// `records` is u8 [n, 32] on the device (or pinned host memory that it reaches).
void on_store(const DevicePool& pool, const DeviceRing& ring, const TensorView& slots,
              const TensorView& records, Stream stream = {});
/// Follow it with verify_slots(), which is what finds bytes that did not come with their records.
void on_load(const DevicePool& pool, const DeviceRing& ring, const TensorView& records,
             const TensorView& slots, Owner owner, Stream stream = {});

// ---------------------------------------------------------------- the moments

/// Cells that a request attached, as the table of them holds it. None where begin == end.
struct AttachedCells {
  std::int64_t begin = 0, end = 0;
  Owner owner = 0;  ///< the row's other users have not attached them
  std::uint32_t epoch = 0;
};
static_assert(sizeof(AttachedCells) == 24);

/// One forward, on the device: one entry a request, except where noted.
struct DeviceBatch {
  TensorView rows;                                 ///< i64 [bs]; 0 = padding
  TensorView prefix_lens;                          ///< i64 [bs]
  TensorView extend_lens;                          ///< i64 [bs]
  TensorView owners;                               ///< u32 or i32 [bs]
  TensorView req_to_token;                         ///< i32 [rows, max_len], dense rows
  TensorView input_ids, positions, out_cache_loc;  ///< i64 [tokens], flat
  std::optional<TensorView> expected_tokens{};     ///< i32 [rows, n], dense rows
  std::optional<TensorView> valid_lens{};          ///< i64 [bs]; absent: all of the row
  std::optional<TensorView> parents{};             ///< i64 [tokens]: a tree of drafts, as in Batch
  /// What was attached, by row of req_to_token: u8 [rows, n, 24], AttachedCells.
  std::optional<TensorView> attached{};
  /// Cells that are due in full at this check, (first, end) of each request; (0, 0) = none.
  std::optional<TensorView> due{};  ///< i64 [bs, 2]
};

struct VerifyOptions {
  Moment moment = Moment::head;
  VerifyPolicy policy = VerifyPolicy::rolling;
  std::int64_t records = 4096 / 4;  ///< rolling: cells of this check, shared by length; a request
                                    ///< gets at least one
};

/// For stamp() on `tokens` tokens. verify() and sweep() have room of their own by now: what they
/// are given is not touched, and the numbers of requests and slots count for nothing.
std::size_t workspace_bytes(std::int64_t requests, std::int64_t tokens, std::int64_t slots);

/// Verifies prefixes along the batch's table (all, or the next part of each, and what is due), and
/// the null slot. Plan and check are one launch. Rolling checks of one pool must not run side by
/// side, nor two sweeps of it: they move one cursor.
void verify(const DevicePool& pool, const DeviceRing& ring, const DeviceBatch& batch,
            const VerifyOptions& options, const TensorView& workspace, Stream stream = {});
/// Verifies `slots`, i64 [n], as a sweep does.
void verify_slots(const DevicePool& pool, const DeviceRing& ring, const TensorView& slots,
                  Moment moment, Stream stream = {});
/// Stamps the batch's tokens.
void stamp(const DevicePool& pool, const DeviceRing& ring, const DeviceBatch& batch,
           const TensorView& workspace, Stream stream = {});
/// What the pool holds of each request of the batch, its first prefix_lens cells: `digests` is
/// u8 [bs, 32], RequestDigest (canary_ranks.h), 8-byte aligned; for one all-gather of the ranks,
/// and compare_ranks() on what it gives. Reads records only.
void request_digests(const DevicePool& pool, const DeviceBatch& batch, const TensorView& digests,
                     Stream stream = {});
/// Verifies the next `slots` live slots of the ledger.
void sweep(const DevicePool& pool, const DeviceRing& ring, std::int64_t slots,
           const TensorView& workspace, Stream stream = {});
/// What follows a forward: verify(), stamp(), sweep() of `sweep_slots`, and next_step() where
/// `counts`, as if called one after another. One launch for a rolling check of at most 256 requests
/// and 256 tokens.
void end_step(const DevicePool& pool, const DeviceRing& ring, const DeviceBatch& batch,
              const VerifyOptions& options, std::int64_t sweep_slots, bool counts,
              const TensorView& workspace, Stream stream = {});

// ---------------------------------------------------------------- which source

// 4 bytes a slot and source beside a record, so that a fault of the bytes has a layer and a
// segment. Each of these calls reads the bytes that it is about once more. Source s is the (s mod
// segments)-th segment of layer s / segments. Throws ValueError where the pool has no
// DevicePool::source_digests.

/// Of the tokens that stamp() has just stamped.
void stamp_sources(const DevicePool& pool, const DeviceBatch& batch, Stream stream = {});
/// Looks for the first damaged source of every fault of this pool's bytes that has none yet. To be
/// called after checks, before the slots are stamped anew.
void name_sources(const DevicePool& pool, const DeviceRing& ring, Stream stream = {});
/// Words of `slots`, u32 [n, num_sources], out; and in again, after on_load(). Zeros are not known.
void store_sources(const DevicePool& pool, const TensorView& slots, const TensorView& words,
                   Stream stream = {});
void load_sources(const DevicePool& pool, const TensorView& words, const TensorView& slots,
                  Stream stream = {});
/// After on_move(). `workspace`: u32 [n, num_sources].
void move_sources(const DevicePool& pool, const TensorView& from, const TensorView& to,
                  const TensorView& workspace, Stream stream = {});

}  // namespace serinus::canary::cuda
