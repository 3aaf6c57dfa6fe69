// A step's half in one launch: the rolling check along the tables and the null slot; after a
// forward, the stamps, the sweep and the step's count besides. What such a batch costs is not bytes
// but loads that wait for each other, so there is a CTA for every few slots, all at once, and what
// a CTA can ask for early it asks for early:
//
//   checks | null slot | composer | stamps | sweep | who finds where the next sweep begins
//
// A CTA waits for those before it in this order only, which run first or at the same time: stamps
// for the checks and for the composer, so that nothing is stored before all that was there is read;
// a sweep for the stamps, where its slot is one of theirs or something is wrong. What a launch
// moves (cursors, the step's number) is moved by the CTA that read it last, while the bytes are
// under way.

// The kernel is over before code for faults would have been fetched.
#define SERINUS_FAULT_PATH __noinline__ inline

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "canary/cuda/serinus/check.cuh"
#include "canary/cuda/serinus/compose.cuh"
#include "canary/cuda/serinus/slots.cuh"
#include "canary/cuda/serinus/tile.h"
#include "gpu/launch_following.h"
#include "gpu/ptx/grid.cuh"
#include "gpu/ptx/mbarrier.cuh"

namespace serinus::canary::cuda {

namespace {

constexpr int kCtas = 2;  // on every multiprocessor
constexpr int kMostRequests = kThreads;

struct StepShape {
  Moment moment;
  bool ends_step;
  bool narrow;  ///< the lengths of all requests add up to less than 2^31
  std::int64_t records, sweep_slots;
  TileShape tile;
  int checks, stamps, sweeps;  ///< CTAs
  int stages;                  ///< under way of a slot: kFewStages or kMostStages
};

/// Where a CTA hashes one slot, all warps but the first do, an octet a block: the first has other
/// things to do. A stage is a block of every octet; two lie where all digests have what is under
/// way, the others behind Shared.
constexpr int kOctets = (kThreads - kWarp) / kOctet;
constexpr int kBlockVectors = hash::kBlock / kOctetBytes;  // of a lane
constexpr std::uint32_t kStageBytes = kOctets * hash::kBlock;
constexpr int kFewStages = 2, kMostStages = 4;
static_assert(kFewStages * kStageBytes <= sizeof(DigestScratch<Depth::all>::under_way));

/// Fields of PoolWords::arrivals: all CTAs, those that check, those that sweep.
constexpr int kField = 20;
constexpr std::uint64_t kOne = 1, kOneCheck = kOne | kOne << kField,
                        kOneSweep = kOne | kOne << 2 * kField;
__device__ __forceinline__ unsigned field(std::uint64_t arrivals, int i) {
  return static_cast<unsigned>(arrivals >> i * kField) & ((1u << kField) - 1);
}

template <Depth kDepth>
struct Shared {
  ScratchOf<kDepth> bytes;
  PoolParams pool;  ///< as the launch has them, for functions that are called
  BatchParams batch;
  RingParams ring;  ///< that reports in `step`
  std::uint64_t landed[kMostStages * kOctets];
  std::uint64_t step, length_sum;
  TileCounts counts, uncounted;
  StepDone before;
  // A check's:
  std::uint64_t lengths[kWarps];
  int tiles[kWarps];
  RowCursor next[kMostRequests];  ///< `unused`: whether it moves
  Tile tile;
  std::int64_t request, row;
  Owner owner;
  // A sweep's:
  Finder finder;
  std::int64_t list[kWarp];
  SlotView views[kWarp];
};

/// Brings near what the launch will read first, a thread each: while the launch before still works,
/// or else all at once instead of one after another. Nothing is read yet.
__device__ __forceinline__ void prefetch_first(const PoolParams& p, const RingParams& ring,
                                               const BatchParams& b) {
  int i = static_cast<int>(threadIdx.x) - kWarp;
  const auto next = [&](const void* at) {
    if (i-- == 0 && at != nullptr) gpu::ptx::prefetch(at);
  };
  next(b.rows);
  next(b.prefix_lens);
  next(b.owners);
  next(b.locations);
  next(b.table.cells);
  next(b.expected.cells);
  next(p.words);
  next(p.cursors);
  next(p.records);
  next(p.marks);
  next(p.live);
  next(p.ledger);
  next(p.seals);
  next(ring.header);
}

/// Brings the table of pieces near: it is never written.
__device__ __forceinline__ void touch_pieces(const PoolParams& p) {
  constexpr int kLine = 128;
  const auto* const at = reinterpret_cast<const std::uint8_t*>(p.pieces);
  const int bytes = p.num_pieces * static_cast<int>(sizeof(Piece));
  for (int i = static_cast<int>(threadIdx.x) * kLine; i < bytes; i += kThreads * kLine) {
    gpu::ptx::touch(at + i);
  }
}

/// Copies a kernel's parameter, by all threads.
template <class T>
__device__ __forceinline__ void copy_parameter(const T& from, T& to) {
  static_assert(sizeof(T) % 4 == 0 && sizeof(T) <= 4 * kThreads);
  const int i = static_cast<int>(threadIdx.x);
  if (i >= static_cast<int>(sizeof(T) / 4)) return;
  reinterpret_cast<std::uint32_t*>(&to)[i] = reinterpret_cast<const std::uint32_t*>(&from)[i];
}

/// What the launch needs of PoolWords and of the ring, before anybody moves it.
template <Depth kDepth>
__device__ __forceinline__ void read_words(const PoolParams& p, const RingParams& ring,
                                           Shared<kDepth>& shared) {
  if (threadIdx.x != kThreads - kWarp) return;  // the first warp has enough to wait for
  shared.counts = {};
  shared.ring = ring;
  shared.ring.step = &shared.step;
  shared.step = __ldcg(&ring.header->counts.steps);
  shared.length_sum = __ldcg(&p.words->length_sum);
  shared.before.checks = __ldcg(&p.words->done_before.checks);
  shared.before.composed = __ldcg(&p.words->done_before.composed);
  shared.before.stamps = __ldcg(&p.words->done_before.stamps);
  shared.before.looked = __ldcg(&p.words->done_before.looked);
}

/// This CTA has read all that the launch moves; what the arrivals were before is known when it is
/// asked for. By thread 0, after a barrier.
__device__ __forceinline__ std::uint64_t arrive(const PoolParams& p, std::uint64_t fields) {
  return atomicAdd(counter(p.words->arrivals), static_cast<unsigned long long>(fields)) + fields;
}

/// Moves what the launch moves, where this CTA arrived last of those that read it. By the first
/// warp; `arrivals` is its first lane's.
template <Depth kDepth>
__device__ __forceinline__ void move_on(const PoolParams& p, const RingParams& ring,
                                        const BatchParams& b, const StepShape& s,
                                        std::uint64_t fields, std::uint64_t arrivals,
                                        const Shared<kDepth>& shared) {
  const int lane = lane_id();
  arrivals = shuffle(arrivals, 0);
  if (fields == kOneCheck && field(arrivals, 1) == static_cast<unsigned>(s.checks)) {
    for (std::int64_t r = lane; r < b.num_requests; r += kWarp) {
      const RowCursor& next = shared.next[r];
      if (next.unused != 0) p.cursors[b.rows[r]] = {next.owner, 0, next.cell};
    }
  }
  if (lane != 0) return;
  if (fields == kOneSweep && field(arrivals, 2) == static_cast<unsigned>(s.sweeps)) {
    __threadfence();
    p.words->sweep_cursor = __ldcg(&p.words->next_cursor);
  }
  if (field(arrivals, 0) != gridDim.x) return;
  p.words->arrivals = 0;
  if (s.stamps + s.sweeps > 0) {
    const StepDone& before = shared.before;
    p.words->done_before = {before.checks + s.checks + 1, before.composed + (s.stamps > 0 ? 1 : 0),
                            before.stamps + s.stamps, before.looked + s.checks};
  }
  if (s.ends_step) ring.header->counts.steps = shared.step + 1;
}

/// Waits until `count` of all launches has come to `target`: of CTAs that come before this one.
__device__ __forceinline__ void wait_for(const std::uint32_t& count, std::uint32_t target) {
  while (newer(target, gpu::ptx::load_acquire(&count))) {
  }
}
/// What must be done before this CTA may go on.
struct Wait {
  const StepDone* done = nullptr;
  std::uint32_t checks = 0, stamps = 0;
  __device__ __forceinline__ void operator()() const {
    if (done == nullptr) return;
    wait_for(done->checks, checks);
    wait_for(done->stamps, stamps);
  }
};

__device__ __forceinline__ Wait after_stamps(const PoolParams& p, const StepShape& s,
                                             const StepDone& before) {
  return {&p.words->done, before.checks + static_cast<std::uint32_t>(s.checks) + 1,
          before.stamps + static_cast<std::uint32_t>(s.stamps)};
}

/// The first warp has done its part; what it stored is seen by who waits.
__device__ __forceinline__ void done(std::uint32_t& count) {
  __syncwarp();
  if (threadIdx.x == 0) gpu::ptx::add_release(&count, 1);
}

// ---------------------------------------------------------------- checks

/// Finds this CTA's tile among those of all requests, a thread a request. False: there is none.
template <Depth kDepth>
__device__ __forceinline__ bool find_tile(const PoolParams& p, const BatchParams& b,
                                          const StepShape& s, Shared<kDepth>& shared) {
  const int t = static_cast<int>(threadIdx.x);
  const int warp = t / kWarp;
  const bool by_warps = b.num_requests > kWarp;  // else the first plans alone
  if (t == 0) shared.request = -1;
  if (by_warps || warp == 0) {
    if (by_warps) {
      __syncthreads();
    } else {
      __syncwarp();
    }
    const bool mine = t < b.num_requests;
    Reader reader;
    if (mine) reader = reader_of(p, b, t, true);
    const std::int64_t length = reader.all.end - reader.all.begin;
    std::uint64_t total = 0;
    if (s.narrow) {
      total = static_cast<std::uint32_t>(__reduce_add_sync(kAllLanes, static_cast<int>(length)));
    } else {
      total = static_cast<std::uint64_t>(length);
      for (int d = 1; d < kWarp; d *= 2) {
        total += __shfl_xor_sync(kAllLanes, static_cast<unsigned long long>(total), d);
      }
    }
    if (by_warps) {
      if (lane_id() == 0) shared.lengths[warp] = total;
      __syncthreads();
      total = 0;
      for (const std::uint64_t n : shared.lengths) total += n;
    }
    Plan plan;
    int tiles = 0;
    if (mine) {
      plan = plan_of(p, b, t, reader, s.records, total);
      for (const Range& r : plan.ranges) tiles += static_cast<int>(s.tile.tiles(r.end - r.begin));
      shared.next[t] = {plan.next.owner, plan.rolls ? 1 : 0, plan.next.cell};
    }
    int up_to = sum_up_to(tiles);
    if (by_warps) {
      if (lane_id() == kWarp - 1) shared.tiles[warp] = up_to;
      __syncthreads();
      for (int w = 0; w < warp; ++w) up_to += shared.tiles[w];
    }
    int tile = static_cast<int>(blockIdx.x) - (up_to - tiles);
    if (tile >= 0 && tile < tiles) {
      Range range = plan.ranges[0];
#pragma unroll
      for (int i = 1; i < kRanges; ++i) {
        const auto before = static_cast<int>(s.tile.tiles(range.end - range.begin));
        if (tile >= before) {
          tile -= before;
          range = plan.ranges[i];
        }
      }
      const std::int64_t begin = range.begin + std::int64_t{tile} * s.tile.rows;
      shared.tile = {begin, begin + s.tile.rows < range.end ? begin + s.tile.rows : range.end,
                     range.begin};
      shared.request = t;
      shared.row = reader.row;
      shared.owner = reader.owner;
    }
    __syncwarp();
  }
  __syncthreads();
  return shared.request >= 0;
}

/// A cell's record, and what vouches for it.
struct CellView {
  std::int32_t slot = -1;
  std::uint32_t mark = 0;
  Record record;
};
__device__ __forceinline__ void view_cell(const PoolParams& p, std::int32_t location,
                                          CellView& view) {
  view.slot = slot_of(p, location);
  if (view.slot < 0) return;
  view.record = load_record(p, view.slot);
  view.mark = __ldcg(p.marks + view.slot);
}

/// A lane's cell and, of the first lane, the one before: all that a check looks at.
struct CheckView {
  CellView cell, before;
  std::int64_t token = -1;
};

/// Asks for the cells of the CTA's tile; the first warp for all that belongs to them.
template <Depth kDepth>
__device__ __forceinline__ void view_tile(const PoolParams& p, const BatchParams& b,
                                          const Shared<kDepth>& shared, CheckView& view) {
  const int lane = lane_id();
  const Tile tile = shared.tile;
  if (tile.begin + lane >= tile.end) return;
  const Walk walk(p, b, shared.request, shared.row, shared.owner);
  const std::int32_t location = __ldg(walk.cells + tile.begin + lane);
  if (threadIdx.x >= kWarp) {
    view.cell.slot = slot_of(p, location);
    return;
  }
  const bool asks_before = lane == 0 && tile.begin > 0;
  std::int32_t location_before = 0;
  if (asks_before) location_before = __ldg(walk.cells + tile.begin - 1);
  view_cell(p, location, view.cell);
  if (asks_before) view_cell(p, location_before, view.before);
  view.token = walk.token(tile.begin + lane);
}

/// Whether this lane's cell is plainly sound. The first warp calls it.
__device__ __forceinline__ bool is_sound(const Walk& walk, const Tile& tile,
                                         const CheckView& view) {
  const std::int64_t cell = tile.begin + lane_id();
  std::uint64_t chain = shuffle_up(view.cell.record.chain);
  bool sound = cell < std::int64_t{1} << 31;  // no record has a later position
  if (lane_id() == 0) {
    chain = kChainAnchor;
    if (cell > 0) {
      const CellView& before = view.before;
      chain = before.record.chain;
      sound &= before.record.position == cell - 1 &&
               is_readers(walk, cell - 1, before.record, before.mark);
    }
  }
  if (cell >= tile.end) return true;
  return sound && is_plainly_sound(walk, cell, view.cell.record, view.cell.mark, chain, view.token);
}

/// What follows where a cell is not.
template <Depth kDepth>
__device__ __noinline__ int judge_tile(Moment moment, Shared<kDepth>& shared) {
  const PoolParams& p = shared.pool;
  const Walk walk(p, shared.batch, shared.request, shared.row, shared.owner);
  return judge_group<kDepth>(p, shared.ring, walk, moment, shared.tile, true, 0, shared.bytes);
}

// ---------------------------------------------------------------- bytes

/// A single slot's bytes on their way, all of them. All warps but the first call what it does.
class SlotBytes {
 public:
  /// A barrier must follow before anything is asked for.
  template <class Shared>
  __device__ SlotBytes(const PoolParams& p, int stages, Shared& shared)
      : p_(p), scratch_(shared.bytes.digest), stages_(stages) {
    ring_ = gpu::ptx::shared_address(&scratch_.under_way[0][0]);
    more_ = gpu::ptx::shared_address(&shared + 1) - kFewStages * kStageBytes;
    landed_ = gpu::ptx::shared_address(&shared.landed[0]);
    if (!gpu::ptx::copies_in_bulk()) return;
    const int t = static_cast<int>(threadIdx.x);
    if (t < kMostStages * kOctets) gpu::ptx::mbarrier_init(landed(0, t), 1);
    gpu::ptx::mbarrier_fence_init();
  }

  /// Asks for the first stages.
  __device__ __forceinline__ void ask_for(std::int32_t slot) {
    address_ = address_of(p_, slot);
    // A lane a block.
    constexpr int kOfWarp = kWarp / kOctet;
    const int lane = lane_id();
    const int octet = first() / kOfWarp * kOfWarp + lane % kOfWarp;
    const int i = lane / kOfWarp;
    const int piece = octet + i * kOctets;
    bool slow = false;
    if (i < stages_ && piece < p_.num_pieces) {
      const OpenPiece open = open_piece(p_, piece, address_);
      slow = !in_bulk(open.bytes, open.alignment);
      if (!slow) gpu::ptx::cp_async_bulk(block(i, octet), open.at, open.bytes, landed(i, octet));
    }
    if (__ballot_sync(kAllLanes, slow) == 0) return;
#pragma unroll 1
    for (int k = 0; k < stages_; ++k) ask_slowly(first() + k * kOctets, k);
  }

  /// Hashes all of them; `scratch.sums` has a warp's sum each. A barrier must follow.
  __device__ __forceinline__ void hash() {
    const unsigned octet = 0xFFu << (lane_id() - in_octet());
    const std::uint32_t keys = gpu::ptx::shared_address(&scratch_.nh_keys[in_octet()]);
    hash::u128 terms = 0;
    int i = 0;
#pragma unroll 1
    for (int piece = first(); piece < p_.num_pieces; piece += kOctets) {
      const hash::BlockKeys block_keys = keys_of(p_, piece);
      const int bytes = wait_for(piece, i);
      const std::uint32_t at = block(i, first()) + in_octet() * kVector;
      std::uint64_t nh = 0;
      if (bytes == hash::kBlock) {
        std::uint64_t other = 0;
#pragma unroll
        for (int v = 0; v < kBlockVectors; ++v) {
          const uint4 word = gpu::ptx::load_shared_u32x4(at + v * kOctetBytes);
          const ulonglong2 key = gpu::ptx::load_shared_u64x2(keys + v * kOctetBytes);
          nh += hash::nh_pair(static_cast<std::uint64_t>(word.y) << 32 | word.x, key.x);
          other += hash::nh_pair(static_cast<std::uint64_t>(word.w) << 32 | word.z, key.y);
        }
        nh += other;
      } else {
        const int n = bytes - in_octet() * kVector;
#pragma unroll 1
        for (int v = 0; n > v * kOctetBytes; ++v) {
          nh += nh_vector(gpu::ptx::load_shared_u32x4(at + v * kOctetBytes),
                          gpu::ptx::load_shared_u64x2(keys + v * kOctetBytes), n - v * kOctetBytes);
        }
      }
#pragma unroll
      for (int d = 1; d < kOctet; d *= 2) {
        nh += __shfl_xor_sync(octet, static_cast<unsigned long long>(nh), d);
      }
      terms += hash::block_term(nh, block_keys);
      ask_slowly(piece + stages_ * kOctets, i);
      i = i + 1 == stages_ ? 0 : i + 1;
    }
    std::uint64_t sum = hash::reduce(terms);
    __syncwarp();
#pragma unroll
    for (int d = kOctet; d < kWarp; d *= 2) {
      sum += __shfl_xor_sync(kAllLanes, static_cast<unsigned long long>(sum), d);
    }
    if (lane_id() == 0) scratch_.sums[threadIdx.x / kWarp] = hash::canonical(sum);
  }

 private:
  __device__ static int first() { return static_cast<int>(threadIdx.x - kWarp) / kOctet; }
  __device__ static int in_octet() { return lane_id() % kOctet; }
  __device__ static bool in_bulk(int bytes, int alignment) {
    return gpu::ptx::copies_in_bulk() && alignment == kVector && bytes % kVector == 0;
  }
  __device__ std::uint32_t block(int i, int octet) const {
    return (i < kFewStages ? ring_ : more_) + static_cast<std::uint32_t>(i) * kStageBytes +
           static_cast<std::uint32_t>(octet) * hash::kBlock;
  }
  __device__ std::uint32_t landed(int i, int octet) const {
    return landed_ + static_cast<std::uint32_t>(i * kOctets + octet) * sizeof(std::uint64_t);
  }

  /// A block by its octet; what is in bulk already at the first, none is asked for twice.
  __device__ __forceinline__ void ask_slowly(int piece, int i) {
    if (piece < p_.num_pieces) {
      const OpenPiece open = open_piece(p_, piece, address_);
      const std::uint32_t to = block(i, first());
      if (!in_bulk(open.bytes, open.alignment)) {
        const int n = open.bytes - in_octet() * kVector;
#pragma unroll 1
        for (int v = 0; n > v * kOctetBytes; ++v) {
          const int at = v * kOctetBytes + in_octet() * kVector;
          copy_vector(to + static_cast<std::uint32_t>(at), open.at + at, open.bytes - at,
                      open.alignment);
        }
      } else if (piece >= stages_ * kOctets && in_octet() == 0) {
        gpu::ptx::cp_async_bulk(to, open.at, open.bytes, landed(i, first()));
      }
    }
    gpu::ptx::cp_async_commit();
  }

  /// Until stage i has this piece; its bytes.
  __device__ __forceinline__ int wait_for(int piece, int i) {
    const uint2 size = __ldg(reinterpret_cast<const uint2*>(p_.pieces + piece) + 5);
    if (in_bulk(static_cast<int>(size.x), static_cast<int>(size.y))) {
      gpu::ptx::mbarrier_wait(landed(i, first()), phases_ >> i & 1);
      phases_ ^= 1u << i;
    } else if (stages_ == kMostStages) {
      gpu::ptx::cp_async_wait<kMostStages - 1>();
    } else {
      gpu::ptx::cp_async_wait<kFewStages - 1>();
    }
    return static_cast<int>(size.x);
  }

  const PoolParams& p_;
  DigestScratch<Depth::all>& scratch_;
  int stages_;
  std::uint32_t ring_, more_, landed_;
  unsigned phases_ = 0;  // of this octet's, a bit a stage
  Address address_{};
};

/// Hashes the CTA's tile, of which this lane's row is `slot`, the same in every warp. A barrier
/// must follow.
template <Depth kDepth>
__device__ __forceinline__ void hash_tile(const PoolParams& p, const TileShape& tile,
                                          std::int32_t slot, ByteScratch<kDepth>& bytes) {
  const int t = static_cast<int>(threadIdx.x);
  if (lane_id() < tile.rows) note_bytes(bytes, lane_id(), slot, 0);
  __syncwarp();
  DigestScratch<kDepth>& scratch = bytes.digest;
  const std::int32_t* const slots = scratch.slots[t / kWarp];
  if constexpr (kDepth == Depth::partial) {
    digest_partial(p, tile, share_of(tile, kThreads, t), scratch, slots, scratch.sums);
  } else {
    digest_all(p, tile, share_of(tile, kThreads / kOctet, t / kOctet), scratch, slots,
               scratch.sums);
  }
}

/// Tells which of the noted slots' bytes are not what their records say, once `wait` is over.
template <Depth kDepth>
__device__ __noinline__ void report_bytes(TileShape tile, Moment moment, Owner request,
                                          std::int64_t row, Shared<kDepth>& shared, Wait wait) {
  compare_digests(shared.pool, shared.ring, tile, shared.bytes, moment, request, row,
                  shared.uncounted, wait);
}

/// The digest of this lane's row. The first warp calls it.
template <Depth kDepth>
__device__ __forceinline__ std::uint64_t lane_digest(const PoolParams& p, const TileShape& tile,
                                                     const Shared<kDepth>& shared) {
  const int lane = lane_id();
  if constexpr (kDepth == Depth::none) {
    return 0;
  } else if (tile.rows > 1) {
    return lane < tile.rows ? digest_of(p, tile, shared.bytes.digest, lane) : 0;
  } else {
    std::uint64_t sum = 0;
    if constexpr (kDepth == Depth::all) {
      static_assert(kWarps == 8);  // each less than p: the sum of so many fits
#pragma unroll
      for (int w = 0; w < kWarps; ++w) sum += shared.bytes.digest.sums[w];
    } else {
      sum = lane < tile.parts ? shared.bytes.digest.sums[lane] : 0;
#pragma unroll
      for (int d = 1; d < kWarp; d *= 2) {
        const std::uint64_t other =
            __shfl_xor_sync(kAllLanes, static_cast<unsigned long long>(sum), d);
        sum = hash::fold(sum + other);
      }
    }
    return hash::finish(hash::canonical(hash::fold(sum) + shared.length_sum), p.depth);
  }
}

/// Compares this lane's slot, which is `stored`'s; -1: nothing. The first warp calls it.
template <Depth kDepth>
__device__ __forceinline__ void compare(const PoolParams& p, const StepShape& s, Moment moment,
                                        Owner request, std::int64_t row, std::int32_t slot,
                                        std::uint64_t stored, Shared<kDepth>& shared, Wait wait) {
  if constexpr (kDepth != Depth::none) {
    const int lane = lane_id();
    const bool compared = lane < s.tile.rows && slot >= 0;
    const bool differs = lane_digest(p, s.tile, shared) != stored && compared;
    if (__all_sync(kAllLanes, !differs)) return;
    if (lane < s.tile.rows) note_bytes(shared.bytes, lane, slot, stored);
    __syncwarp();
    report_bytes<kDepth>(s.tile, moment, request, row, shared, wait);
  }
}

/// Counts what was verified, and the lanes' slots as compared. By a warp.
template <Depth kDepth>
__device__ __forceinline__ void count(const PoolParams& p, RingCounts& total, int verified,
                                      std::int32_t slot) {
  const unsigned compared = __ballot_sync(kAllLanes, kDepth != Depth::none && slot >= 0);
  if (lane_id() != 0) return;
  add(total.records_verified, static_cast<std::uint64_t>(verified));
  add(total.bytes_digested,
      static_cast<std::uint64_t>(__popc(compared)) * static_cast<std::uint64_t>(p.slot_bytes));
}

/// The null slot of a clean pool must stay as it was.
__device__ __noinline__ void report_null(const PoolParams& p, const RingParams& ring, Moment moment,
                                         std::uint64_t digest) {
  const Record r = load_record(p, 0);
  const LedgerEntry e = p.ledger[0];
  if (const Sighting to =
          sight(ring, p, 0, e.generation, Reason::null_slot_dirty, moment, digest)) {
    describe_slot(r, e, *to);
    to->stored_digest = p.words->null_digest;
  }
}

// ---------------------------------------------------------------- stamps and sweep

/// Whether this step stamps the slot of a lane. By a warp.
__device__ __forceinline__ bool stamps_any(const PoolParams& p, const BatchParams& b,
                                           const StepShape& s, std::int32_t slot) {
  const std::int64_t tokens = s.stamps > 0 ? b.num_tokens : 0;
  bool any = false;
#pragma unroll 1
  for (int i = 0; i < s.tile.rows; ++i) {
    const std::int64_t one = __shfl_sync(kAllLanes, slot, i);
#pragma unroll 1
    for (std::int64_t j = lane_id(); j < tokens; j += kWarp) {
      any |= one >= 0 && stamped_slot(p, b.locations[j]) == one;
    }
  }
  return __ballot_sync(kAllLanes, any) != 0;
}

__device__ __forceinline__ std::int64_t sweep_cursor(const PoolParams& p) {
  const std::int64_t cursor = __ldcg(&p.words->sweep_cursor);
  return has(p, cursor) ? cursor : 0;
}

/// The live slot that has `rank` live ones before it, from `cursor` on; -1: there is none. By a
/// warp.
__device__ std::int64_t nth_live(const PoolParams& p, std::int64_t cursor, std::int64_t rank) {
  constexpr int kChunks = 8;  // of a lane
  const int lane = lane_id();
  const std::int64_t words = (p.num_slots + 31) / 32;
  const std::int64_t chunks = (p.num_slots + kChunk - 1) / kChunk;
  std::int64_t chunk = cursor / kChunk;
  std::int64_t next = chunk + 1;
  for (;;) {
    const std::int64_t w = chunk * (kChunk / 32) + lane;
    std::uint32_t bits = w < words ? p.live[w] : 0;
    int counts[kChunks];
    int mine = 0;
    // In case it is none of these.
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const std::int64_t c = next + lane * kChunks + i;
      counts[i] = c < chunks ? static_cast<int>(p.live_counts[c]) : 0;
    }
    if (w < cursor >> 5) bits = 0;
    if (w == cursor >> 5) bits &= ~0u << (cursor & 31);
    int up_to = sum_up_to(__popc(bits));
    const unsigned behind = __ballot_sync(kAllLanes, rank < up_to);
    if (behind != 0) {
      std::int64_t slot = -1;
      const int at = __ffs(static_cast<int>(behind)) - 1;
      if (lane == at) {
        for (std::int64_t n = rank - (up_to - __popc(bits)); n > 0; --n) bits &= bits - 1;
        slot = w * 32 + __ffs(static_cast<int>(bits)) - 1;
      }
      return static_cast<std::int64_t>(shuffle(static_cast<std::uint64_t>(slot), at));
    }
    rank -= __shfl_sync(kAllLanes, up_to, kWarp - 1);
    for (;;) {
      if (next >= chunks) return -1;
      mine = 0;
#pragma unroll
      for (int i = 0; i < kChunks; ++i) mine += counts[i];
      up_to = sum_up_to(mine);
      const unsigned found = __ballot_sync(kAllLanes, rank < up_to);
      if (found != 0) {
        const int at = __ffs(static_cast<int>(found)) - 1;
        std::int64_t left = rank - (up_to - mine);
        int i = 0;
#pragma unroll
        for (int k = 0; k < kChunks - 1; ++k) {
          if (i == k && left >= counts[k]) {
            left -= counts[k];
            ++i;
          }
        }
        chunk = next + at * kChunks + __shfl_sync(kAllLanes, i, at);
        rank = static_cast<std::int64_t>(shuffle(static_cast<std::uint64_t>(left), at));
        next = chunk + 1;
        break;
      }
      rank -= __shfl_sync(kAllLanes, up_to, kWarp - 1);
      next += kWarp * kChunks;
#pragma unroll
      for (int k = 0; k < kChunks; ++k) {
        const std::int64_t c = next + lane * kChunks + k;
        counts[k] = c < chunks ? static_cast<int>(p.live_counts[c]) : 0;
      }
    }
  }
}

/// Something is written, and by its owner.
__device__ __forceinline__ bool is_sealed(const SlotView& view) {
  return view.entry.written != 0 && view.seal == hash::seal(view.record);
}

/// True if its bytes are to be compared.
__device__ __noinline__ bool judge_slot(const PoolParams& p, const RingParams& ring,
                                        std::int64_t slot, const SlotView& view,
                                        TileCounts& counts) {
  std::uint64_t stored = 0;
  return check_view(p, ring, Moment::sweep, slot, view, true, stored, counts);
}

// ---------------------------------------------------------------- the kernel

enum class Role : std::uint8_t { check, null_slot, compose, stamp, sweep, find };

/// What a CTA does, and the how manieth of those that do it is.
__device__ __forceinline__ Role role_of(const StepShape& s, int& cta) {
  cta = static_cast<int>(blockIdx.x);
  if (cta < s.checks) return Role::check;
  cta -= s.checks;
  if (cta == 0) return Role::null_slot;
  cta -= 1;
  if (s.stamps > 0) {
    if (cta == 0) return Role::compose;
    cta -= 1;
    if (cta < s.stamps) return Role::stamp;
    cta -= s.stamps;
  }
  return cta < s.sweeps - 1 ? Role::sweep : Role::find;
}

template <Depth kDepth>
__global__ void __launch_bounds__(kThreads, kCtas)
    step_kernel(const __grid_constant__ PoolParams p, const __grid_constant__ RingParams whole_ring,
                const __grid_constant__ BatchParams b, const __grid_constant__ Workspace w,
                const __grid_constant__ StepShape s) {
  Shared<kDepth>& shared = shared_as<Shared<kDepth>>();
  if constexpr (kDepth != Depth::none) {
    init_digest(shared.bytes.digest);
    touch_pieces(p);
  }
  [[maybe_unused]] auto slot_bytes = [&] {
    if constexpr (kDepth == Depth::all) {
      return SlotBytes(p, s.stages, shared);
    } else {
      return 0;
    }
  }();
  copy_parameter(p, shared.pool);
  copy_parameter(b, shared.batch);
  prefetch_first(p, whole_ring, b);
  int cta = 0;
  const Role role = role_of(s, cta);
  __syncthreads();
  gpu::ptx::follow_previous_grid();
  read_words(p, whole_ring, shared);
  const RingParams& ring = shared.ring;
  const int t = static_cast<int>(threadIdx.x);
  const int lane = lane_id();
  const bool has_waiting = s.stamps + s.sweeps > 0;
  // What is to be hashed, a slot a lane, the same in every warp; and what belongs to it.
  bool hashes = true;
  std::int32_t slot = -1;
  std::uint64_t fields = kOne;
  CheckView check;
  SlotView swept;
  const bool alone = kDepth == Depth::all && s.tile.rows == 1;
  if (role == Role::check) {
    hashes = find_tile(p, b, s, shared);
    if (hashes) view_tile(p, b, shared, check);
    slot = check.cell.slot;
    fields = kOneCheck;
  } else if (role == Role::null_slot) {
    if (lane == 0 && p.clean_null) slot = 0;
    __syncthreads();
    report_ranges(p, ring, b, s.moment);
  } else if (role == Role::compose) {
    __syncthreads();
    compose_tile<1, true>(p, ring, b, 0, w.tokens, w.maps);
    __syncthreads();
    if (t == 0) gpu::ptx::add_release(&p.words->done.composed, 1);
    hashes = false;
  } else if (role == Role::stamp) {
    const std::int64_t j = std::int64_t{cta} * s.tile.rows + lane;
    if (lane < s.tile.rows && j < b.num_tokens) {
      slot = static_cast<std::int32_t>(stamped_slot(p, b.locations[j]));
    }
    __syncthreads();
  } else {
    // A pass ends at the last slot; the next sweep begins with the first that is too many.
    const bool finds = role == Role::find;
    const std::int64_t first = finds ? s.sweep_slots : std::int64_t{cta} * s.tile.rows;
    const std::int64_t last = finds ? first + 1 : min(first + s.tile.rows, s.sweep_slots);
    int n = 0;
    if (last - first == 1) {
      if (t < kWarp) {
        const std::int64_t live = nth_live(p, sweep_cursor(p), first);
        if (lane == 0) shared.list[0] = live;
      }
      __syncthreads();
      n = shared.list[0] >= 0 ? 1 : 0;
    } else {
      n = find_live(p, sweep_cursor(p), first, last, shared.finder, shared.list);
    }
    fields = kOneSweep;
    if (finds) {
      hashes = false;
      if (t == 0) {
        p.words->next_cursor = n != 0 ? shared.list[0] : 0;
        if (n == 0) add(ring.header->counts.sweeps, 1);
        __threadfence();
      }
    } else if (lane < n) {
      slot = static_cast<std::int32_t>(shared.list[lane]);
    }
  }

  if constexpr (kDepth == Depth::all) {
    // Of a single slot all bytes are asked for at once.
    const std::int32_t only = __shfl_sync(kAllLanes, slot, 0);
    if (alone && only >= 0 && t >= kWarp) slot_bytes.ask_for(only);
  }
  // Meanwhile the first warp has time for the rest.
  RingCounts& total = whole_ring.header->counts;
  bool sound = true;
  bool looked = false;
  NewRecord made;
  if (t < kWarp) {
    std::uint64_t arrivals = 0;
    if (t == 0) arrivals = arrive(p, fields);
    if (role == Role::check) {
      if (hashes) {
        const Walk walk(p, b, shared.request, shared.row, shared.owner);
        sound = __all_sync(kAllLanes, is_sound(walk, shared.tile, check));
        const auto cells = static_cast<int>(shared.tile.end - shared.tile.begin);
        if (sound) count<kDepth>(p, total, cells, slot);
      }
      // Nothing that a stamp changes is looked at later.
      looked = has_waiting && sound && (!hashes || (alone && !stamps_any(p, b, s, slot)));
      if (looked && lane == 0) atomicAdd(&p.words->done.looked, 1u);
    } else if (role == Role::null_slot) {
      swept.record = load_record(p, 0);
    } else if (role == Role::sweep) {
      // A slot that this very step stamps is looked at afterwards.
      if (stamps_any(p, b, s, slot)) after_stamps(p, s, shared.before)();
      if (slot >= 0) swept = view_slot(p, slot);
      sound = __all_sync(kAllLanes, slot < 0 || is_sealed(swept));
      if (sound) count<kDepth>(p, total, __popc(__ballot_sync(kAllLanes, slot >= 0)), slot);
    }
    move_on(p, whole_ring, b, s, fields, arrivals, shared);
    if (role == Role::stamp) {
      wait_for(p.words->done.composed, shared.before.composed + 1);
      const std::int64_t j = std::int64_t{cta} * s.tile.rows + lane;
      StampedToken token;
      if (slot > 0) token = load_composed(w.tokens + j);
      if (token.request >= 0) {
        made = new_record(p, b, j, token, slot);
        const std::uint64_t chain = chain_alone(token);
        made.record.chain = chain == 0 ? hash::kP : chain;
      }
      wait_for(p.words->done.looked, shared.before.looked + s.checks);
    }
  }
  if constexpr (kDepth != Depth::none) {
    if (!alone) {
      if (hashes) hash_tile(p, s.tile, slot, shared.bytes);
    } else if constexpr (kDepth == Depth::all) {
      if (t < kWarp) {
        if (lane == 0) shared.bytes.digest.sums[0] = 0;
      } else if (__shfl_sync(kAllLanes, slot, 0) >= 0) {
        slot_bytes.hash();
      }
    }
    __syncthreads();
  }

  if (t >= kWarp) return;  // one warp looks at what all have hashed
  if (role == Role::check) {
    if (hashes) {
      std::uint64_t stored = check.cell.record.kv_digest;
      if (!sound) [[unlikely]] {
        const int verified = judge_tile<kDepth>(s.moment, shared);
        if constexpr (kDepth != Depth::none) {
          __syncwarp();
          slot = shared.bytes.digest.slots[0][lane];
          stored = shared.bytes.stored[0][lane];
        }
        count<kDepth>(p, total, verified, slot);
      }
      compare(p, s, s.moment, shared.owner, shared.row, slot, stored, shared, Wait{});
    }
    // All that the check read is here, and what it reported has been fenced.
    if (has_waiting && lane == 0) {
      if (!looked) atomicAdd(&p.words->done.looked, 1u);
      atomicAdd(&p.words->done.checks, 1u);
    }
  } else if (role == Role::null_slot) {
    const std::uint64_t digest = lane_digest(p, s.tile, shared);
    if (slot == 0) {
      if (!is_blank(swept.record) || (kDepth != Depth::none && digest != p.words->null_digest))
          [[unlikely]] {
        report_null(shared.pool, ring, s.moment, digest);
      }
    }
    if (has_waiting) done(p.words->done.checks);
  } else if (role == Role::stamp) {
    const bool stamped = made.slot >= 0;
    made.record.kv_digest = lane_digest(p, s.tile, shared);
    if (stamped) store_record(p, ring, made);
    const int stored = __popc(__ballot_sync(kAllLanes, stamped));
    if (s.sweeps > 0) done(p.words->done.stamps);
    if (lane == 0) {
      add(total.records_written, static_cast<std::uint64_t>(stored));
      add(total.bytes_digested,
          static_cast<std::uint64_t>(stored) * static_cast<std::uint64_t>(p.slot_bytes));
    }
  } else if (role == Role::sweep) {
    const std::uint64_t stored = swept.record.kv_digest;
    if (!sound) [[unlikely]] {
      const bool doubtful = slot >= 0 && !is_sealed(swept);
      const int fine = __popc(__ballot_sync(kAllLanes, slot >= 0 && !doubtful));
      if (doubtful) {
        shared.views[lane] = swept;
        if (swept.entry.written != 0) after_stamps(p, s, shared.before)();
        if (!judge_slot(shared.pool, ring, slot, shared.views[lane], shared.counts)) slot = -1;
      }
      __syncwarp();
      count<kDepth>(p, total, fine + shared.counts.verified, slot);
      if (lane == 0) add(total.skipped_empty, static_cast<std::uint64_t>(shared.counts.empty));
    }
    compare(p, s, Moment::sweep, Owner{0}, std::int64_t{-1}, slot, stored, shared,
            after_stamps(p, s, shared.before));
  }
}

int ceil_div(std::int64_t n, int by) {
  return static_cast<int>((n + by - 1) / by);
}

/// CTAs for tiles of so many rows.
StepShape shape_of(const PoolParams& p, const BatchParams& b, const StepWork& work, int rows) {
  const std::int64_t cells = work.records + b.num_requests;
  StepShape s{};
  s.moment = work.moment;
  s.ends_step = work.ends_step;
  s.narrow = b.table.width <= (std::int64_t{1} << 31) / kMostRequests - 1;
  s.records = work.records;
  s.sweep_slots = std::min(work.sweep_slots, p.num_slots);
  // Of a single slot a warp leaves one sum.
  const bool alone = rows == 1 && depth_of(p) == Depth::all;
  s.tile = {rows, alone ? kWarps : parts_of(p, rows), true};
  // A request's rolling part is one range or two, each of which ends a tile.
  s.checks = rows == 1 ? static_cast<int>(cells)
                       : ceil_div(cells, rows) + 2 * static_cast<int>(b.num_requests);
  s.stamps = work.stamps ? ceil_div(b.num_tokens, rows) : 0;
  s.sweeps = work.sweep_slots > 0 ? ceil_div(s.sweep_slots, rows) + 1 : 0;
  return s;
}
int grid_of(const StepShape& s) {
  return s.checks + 1 + (s.stamps > 0 ? 1 + s.stamps : 0) + s.sweeps;
}

}  // namespace

bool fits_step(const BatchParams& b, const StepWork& work) {
  constexpr std::int64_t kMostRecords = 4096, kMostTokens = kThreads;
  return b.num_requests <= kMostRequests && b.due == nullptr && work.records > 0 &&
         work.records <= kMostRecords && work.sweep_slots <= kMostRecords &&
         (!work.stamps || (b.num_tokens <= kMostTokens && b.parents == nullptr));
}

void launch_step(const PoolParams& p, const RingParams& ring, const BatchParams& b,
                 const Workspace& w, const StepWork& work, Device device, Stream stream) {
  const gpu::OnDevice current(device);
  // As small tiles as all run at once.
  constexpr int kMostCtas = 264;
  int rows = depth_of(p) == Depth::none ? kWarp : 1;
  while (rows < kWarp && grid_of(shape_of(p, b, work, rows)) > kMostCtas) rows *= 2;
  StepShape s = shape_of(p, b, work, rows);
  // Where every CTA has a multiprocessor, a slot of 112 KB is under way at once.
  const auto as_hopper = [] {
    return gpu::runs_as_hopper(reinterpret_cast<const void*>(step_kernel<Depth::all>));
  };
  const bool roomy =
      depth_of(p) == Depth::all && grid_of(s) <= gpu::multiprocessors(device) && as_hopper();
  s.stages = roomy ? kMostStages : kFewStages;
  with_depth(p, [&](auto depth) {
    gpu::launch_following(
        "canary step", step_kernel<depth()>,
        {.grid = static_cast<unsigned>(grid_of(s)),
         .block = kThreads,
         .shared_bytes = sizeof(Shared<depth()>) + (s.stages - kFewStages) * kStageBytes},
        stream, p, ring, b, w, s);
  });
}

}  // namespace serinus::canary::cuda
