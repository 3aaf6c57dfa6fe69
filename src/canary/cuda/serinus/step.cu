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
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "canary/cuda/serinus/check.cuh"
#include "canary/cuda/serinus/compose.cuh"
#include "canary/cuda/serinus/slots.cuh"
#include "canary/cuda/serinus/tile.h"
#include "gpu/launch_following.h"
#include "gpu/ptx/grid.cuh"

namespace serinus::canary::cuda {

namespace {

constexpr int kCtas = 2;  // on every multiprocessor
constexpr int kMostRequests = kThreads;

struct StepShape {
  Moment moment;
  bool ends_step;
  std::int64_t records, sweep_slots;
  TileShape tile, null_tile;
  int checks, stamps, sweeps;  ///< CTAs
};

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
  TileCounts counts;
  std::uint64_t step;
  StepDone before;
  // A check's:
  std::uint64_t lengths[kWarps];
  int tiles[kWarps];
  Range tile;
  std::int64_t request, row;
  Owner owner;
  // Stamps':
  std::int32_t slots[kWarp];
  int stored;
  // A sweep's:
  Finder finder;
  std::int64_t list[kWarp];
};

/// What the launch needs of PoolWords and of the ring, before anybody moves it.
template <Depth kDepth>
__device__ __forceinline__ void read_words(const PoolParams& p, const RingParams& ring,
                                           Shared<kDepth>& shared) {
  if (threadIdx.x != 0) return;
  shared.counts = {};
  shared.step = __ldcg(&ring.header->counts.steps);
  shared.before.checks = __ldcg(&p.words->done_before.checks);
  shared.before.composed = __ldcg(&p.words->done_before.composed);
  shared.before.stamps = __ldcg(&p.words->done_before.stamps);
}

/// This CTA has read all that the launch moves; what the arrivals were before is known when it is
/// asked for. By thread 0, after a barrier.
__device__ __forceinline__ std::uint64_t arrive(const PoolParams& p, std::uint64_t fields) {
  return atomicAdd(counter(p.words->arrivals), static_cast<unsigned long long>(fields)) + fields;
}

/// Moves what belongs to the step, where this CTA arrived last of all. By thread 0.
__device__ __forceinline__ void finish_arrivals(const PoolParams& p, const RingParams& ring,
                                                const StepShape& s, std::uint64_t arrivals,
                                                const StepDone& before, std::uint64_t step) {
  if (field(arrivals, 0) != gridDim.x) return;
  p.words->arrivals = 0;
  if (s.stamps + s.sweeps > 0) {
    p.words->done_before = {before.checks + s.checks + 1, before.composed + (s.stamps > 0 ? 1 : 0),
                            before.stamps + s.stamps};
  }
  if (s.ends_step) ring.header->counts.steps = step + 1;
}

/// Waits until `count` of all launches has come to `target`: of CTAs that come before this one.
__device__ __forceinline__ void wait_for(const std::uint32_t& count, std::uint32_t target) {
  while (newer(target, gpu::ptx::load_acquire(&count))) {
  }
}
/// This CTA has done its part. All threads call it; what they stored is seen by who waits.
__device__ __forceinline__ void done(std::uint32_t& count) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(&count, 1u);
}

// ---------------------------------------------------------------- checks

/// Finds this CTA's tile among those of all requests, a thread a request. False: there is none.
template <Depth kDepth>
__device__ bool find_tile(const PoolParams& p, const BatchParams& b, const StepShape& s,
                          Shared<kDepth>& shared, Plan& plan) {
  const int t = static_cast<int>(threadIdx.x);
  const int lane = lane_id();
  const int warp = t / kWarp;
  const bool mine = t < b.num_requests;
  std::int64_t row = 0;
  Owner owner = 0;
  Range all;
  RowCursor cursor;
  if (mine) {
    row = b.rows[t];
    owner = b.owners[t];
    all = prefix_range(p, b, t);
    cursor = cursor_of(p, row);
  }
  auto length = static_cast<std::uint64_t>(all.end - all.begin);
  for (int d = 1; d < kWarp; d *= 2) {
    length += __shfl_xor_sync(kAllLanes, static_cast<unsigned long long>(length), d);
  }
  if (lane == 0) shared.lengths[warp] = length;
  if (t == 0) shared.request = -1;
  __syncthreads();
  std::uint64_t total = 0;
  for (const std::uint64_t n : shared.lengths) total += n;
  int tiles = 0;
  if (mine) {
    plan = plan_of(p, b, t, s.records, total, cursor);
    for (const Range& r : plan.ranges) tiles += static_cast<int>(s.tile.tiles(r.end - r.begin));
  }
  int up_to = tiles;
  for (int d = 1; d < kWarp; d *= 2) {
    const int below = __shfl_up_sync(kAllLanes, up_to, d);
    if (lane >= d) up_to += below;
  }
  if (lane == kWarp - 1) shared.tiles[warp] = up_to;
  __syncthreads();
  for (int w = 0; w < warp; ++w) up_to += shared.tiles[w];
  int tile = static_cast<int>(blockIdx.x) - (up_to - tiles);
  if (tile >= 0 && tile < tiles) {
    Range range = plan.ranges[0];
    for (int i = 1; i < kRanges; ++i) {
      const auto before = static_cast<int>(s.tile.tiles(range.end - range.begin));
      if (tile < before) break;
      tile -= before;
      range = plan.ranges[i];
    }
    const std::int64_t begin = range.begin + std::int64_t{tile} * s.tile.rows;
    shared.tile = {begin, begin + s.tile.rows < range.end ? begin + s.tile.rows : range.end};
    shared.request = t;
    shared.row = row;
    shared.owner = owner;
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

/// The null slot and lengths that leave the table are one CTA's, cells another's.
template <Depth kDepth>
__device__ void check_tile(const PoolParams& p, const RingParams& ring, const BatchParams& b,
                           const StepShape& s, Shared<kDepth>& shared) {
  const int lane = lane_id();
  const bool first_warp = threadIdx.x < kWarp;
  const Range tile = shared.tile;
  const Walk walk(p, b, shared.request, shared.row, shared.owner);
  const auto n = static_cast<int>(tile.end - tile.begin);
  const bool inside = lane < n;
  // Everything is asked for, then bytes are hashed, then all is looked at.
  CellView mine, before;
  std::int64_t token = -1;
  if (inside) {
    const std::int32_t location = __ldg(walk.cells + tile.begin + lane);
    std::int32_t location_before = 0;
    const bool asks_before = first_warp && lane == 0 && tile.begin > 0;
    if (asks_before) location_before = __ldg(walk.cells + tile.begin - 1);
    if (first_warp) {
      token = walk.token(tile.begin + lane);
      view_cell(p, location, mine);
      if (asks_before) view_cell(p, location_before, before);
    } else {
      mine.slot = slot_of(p, location);
    }
  }
  if constexpr (kDepth != Depth::none) {
    if (lane < s.tile.rows) note_bytes(shared.bytes, lane, mine.slot, 0);
    __syncwarp();
    digest_tile<kDepth>(p, s.tile, shared.bytes.digest);
    __syncthreads();
  }
  if (!first_warp) return;
  std::uint64_t chain = shuffle_up(mine.record.chain);
  bool sound = tile.end <= std::int64_t{1} << 31;  // no record has a later position
  if (lane == 0) {
    chain = kChainAnchor;
    if (tile.begin > 0) {
      chain = before.record.chain;
      sound = sound && before.record.position == tile.begin - 1 &&
              is_readers(walk, tile.begin - 1, before.record, before.mark);
    }
  }
  if (inside) {
    sound =
        sound && is_plainly_sound(walk, tile.begin + lane, mine.record, mine.mark, chain, token);
  }
  int verified = n;
  if constexpr (kDepth != Depth::none) {
    if (lane < s.tile.rows) {
      note_bytes(shared.bytes, lane, mine.slot, mine.record.kv_digest);
    }
  }
  if (!__all_sync(kAllLanes, sound || !inside)) {
    verified =
        judge_group<kDepth>(p, ring, walk, s.moment, tile.begin, tile.end, true, 0, shared.bytes);
  }
  if (lane == 0) shared.counts.verified = verified;
  if constexpr (kDepth != Depth::none) {
    __syncwarp();
    compare_digests(p, ring, s.tile, shared.bytes, s.moment, shared.owner, shared.row,
                    shared.counts, [] {});
  }
}

template <Depth kDepth>
__device__ void check(const PoolParams& p, const RingParams& ring, const BatchParams& b,
                      const StepShape& s, Shared<kDepth>& shared) {
  const int t = static_cast<int>(threadIdx.x);
  Plan plan;
  const bool found = find_tile(p, b, s, shared, plan);
  std::uint64_t arrivals = 0;
  if (t == 0) arrivals = arrive(p, kOneCheck);
  if (found) check_tile(p, ring, b, s, shared);
  if (t == 0) finish_arrivals(p, ring, s, arrivals, shared.before, shared.step);
  if (__syncthreads_or(t == 0 && field(arrivals, 1) == static_cast<unsigned>(s.checks)) != 0) {
    if (t < b.num_requests && plan.rolls) p.cursors[b.rows[t]] = plan.next;
  }
  if (found) add_counts(p, ring, shared.counts);
  if (s.stamps + s.sweeps > 0) done(p.words->done.checks);
}

template <Depth kDepth>
__device__ void check_null_slot(const PoolParams& p, const RingParams& ring, const BatchParams& b,
                                const StepShape& s, Shared<kDepth>& shared) {
  __syncthreads();
  std::uint64_t arrivals = 0;
  if (threadIdx.x == 0) arrivals = arrive(p, kOne);
  report_ranges(p, ring, b, s.moment);
  if (p.clean_null) check_null<kDepth>(p, ring, s.moment, s.null_tile, shared.bytes);
  if (threadIdx.x == 0) {
    finish_arrivals(p, ring, s, arrivals, shared.before, shared.step);
  }
  if (s.stamps + s.sweeps > 0) done(p.words->done.checks);
}

// ---------------------------------------------------------------- stamps

template <Depth kDepth>
__device__ void compose(const PoolParams& p, const RingParams& ring, const BatchParams& b,
                        const Workspace& w, const StepShape& s, Shared<kDepth>& shared) {
  __syncthreads();
  std::uint64_t arrivals = 0;
  if (threadIdx.x == 0) arrivals = arrive(p, kOne);
  compose_tile(p, ring, b, 0, w.tokens, w.maps);
  done(p.words->done.composed);
  if (threadIdx.x == 0) finish_arrivals(p, ring, s, arrivals, shared.before, shared.step);
}

template <Depth kDepth>
__device__ void stamp(const PoolParams& p, const RingParams& ring, const BatchParams& b,
                      const Workspace& w, const StepShape& s, int cta, Shared<kDepth>& shared) {
  const int lane = lane_id();
  const int t = static_cast<int>(threadIdx.x);
  const std::int64_t j = std::int64_t{cta} * s.tile.rows + lane;
  const bool inside = lane < s.tile.rows && j < b.num_tokens;
  const std::int64_t slot = inside ? stamped_slot(p, b.locations[j]) : -1;
  __syncthreads();
  std::uint64_t arrivals = 0;
  if (t == 0) arrivals = arrive(p, kOne);
  if constexpr (kDepth != Depth::none) {
    if (lane < s.tile.rows) {
      note_bytes(shared.bytes, lane, static_cast<std::int32_t>(slot), 0);
    }
    __syncwarp();
    digest_tile<kDepth>(p, s.tile, shared.bytes.digest);
    __syncthreads();
  }
  if (t < kWarp) {
    wait_for(p.words->done.composed, shared.before.composed + 1);
    StampedToken token;
    if (slot > 0) token = load_composed(w.tokens + j);
    const bool stamped = token.request >= 0;
    std::uint64_t digest = 0;
    if constexpr (kDepth != Depth::none) {
      if (stamped) digest = digest_of(p, s.tile, shared.bytes.digest, lane);
    }
    wait_for(p.words->done.checks, shared.before.checks + s.checks + 1);
    if (stamped) store_token(p, ring, b, j, token, slot, chain_alone(token), digest);
    const int stored = __popc(__ballot_sync(kAllLanes, stamped));
    if (lane == 0) {
      finish_arrivals(p, ring, s, arrivals, shared.before, shared.step);
      add(ring.header->counts.records_written, static_cast<std::uint64_t>(stored));
      add(ring.header->counts.bytes_digested,
          static_cast<std::uint64_t>(stored) * static_cast<std::uint64_t>(p.slot_bytes));
    }
  }
  if (s.sweeps > 0) done(p.words->done.stamps);
}

// ---------------------------------------------------------------- sweep

__device__ __forceinline__ std::int64_t sweep_cursor(const PoolParams& p) {
  const std::int64_t cursor = __ldcg(&p.words->sweep_cursor);
  return has(p, cursor) ? cursor : 0;
}

/// By thread 0: whoever of the sweep arrived last moves its cursor.
__device__ __forceinline__ void finish_sweep(const PoolParams& p, const RingParams& ring,
                                             const StepShape& s, std::uint64_t arrivals,
                                             const StepDone& before, std::uint64_t step) {
  if (field(arrivals, 2) == static_cast<unsigned>(s.sweeps)) {
    __threadfence();
    p.words->sweep_cursor = __ldcg(&p.words->next_cursor);
  }
  finish_arrivals(p, ring, s, arrivals, before, step);
}

template <Depth kDepth>
__device__ void sweep(const PoolParams& p, const RingParams& ring, const BatchParams& b,
                      const StepShape& s, int cta, Shared<kDepth>& shared) {
  const int t = static_cast<int>(threadIdx.x);
  const int lane = lane_id();
  const std::int64_t first = std::int64_t{cta} * s.tile.rows;
  const std::int64_t last = min(first + s.tile.rows, s.sweep_slots);
  const int n = find_live(p, sweep_cursor(p), first, last, shared.finder, shared.list);
  std::uint64_t arrivals = 0;
  if (t == 0) arrivals = arrive(p, kOneSweep);
  const auto wait_for_all = [&] {
    wait_for(p.words->done.checks, shared.before.checks + s.checks + 1);
    wait_for(p.words->done.stamps, shared.before.stamps + s.stamps);
  };
  // A slot that this very step stamps is looked at afterwards.
  bool of_step = false;
  for (std::int64_t j = t; j < (s.stamps > 0 ? b.num_tokens : 0); j += kThreads) {
    const std::int64_t slot = stamped_slot(p, b.locations[j]);
    for (int i = 0; i < n; ++i) of_step |= shared.list[i] == slot;
  }
  if (__syncthreads_or(of_step) != 0) wait_for_all();
  SlotView view;
  const std::int64_t slot = lane < n ? shared.list[lane] : -1;
  if (slot >= 0 && t < kWarp) view = view_slot(p, slot);
  if constexpr (kDepth != Depth::none) {
    if (lane < s.tile.rows) {
      note_bytes(shared.bytes, lane, static_cast<std::int32_t>(slot), 0);
    }
    __syncwarp();
    digest_tile<kDepth>(p, s.tile, shared.bytes.digest);
    __syncthreads();
  }
  if (t < kWarp) {
    std::uint64_t stored = 0;
    bool written = false;
    if (slot >= 0) {
      if (view.entry.written != 0 && view.seal != hash::seal(view.record)) wait_for_all();
      written = check_view(p, ring, Moment::sweep, slot, view, true, stored, shared.counts);
    }
    if constexpr (kDepth != Depth::none) {
      if (lane < s.tile.rows) {
        note_bytes(shared.bytes, lane, written ? static_cast<std::int32_t>(slot) : -1, stored);
      }
      __syncwarp();
      compare_digests(p, ring, s.tile, shared.bytes, Moment::sweep, Owner{0}, std::int64_t{-1},
                      shared.counts, wait_for_all);
    }
    if (t == 0) finish_sweep(p, ring, s, arrivals, shared.before, shared.step);
  }
  add_counts(p, ring, shared.counts);
}

/// A pass ends at the last slot; the next sweep begins with the first that is too many.
template <Depth kDepth>
__device__ void find_next_sweep(const PoolParams& p, const RingParams& ring, const StepShape& s,
                                Shared<kDepth>& shared) {
  const int more =
      find_live(p, sweep_cursor(p), s.sweep_slots, s.sweep_slots + 1, shared.finder, shared.list);
  if (threadIdx.x != 0) return;
  p.words->next_cursor = more != 0 ? shared.list[0] : 0;
  if (more == 0) add(ring.header->counts.sweeps, 1);
  __threadfence();
  finish_sweep(p, ring, s, arrive(p, kOneSweep), shared.before, shared.step);
}

template <Depth kDepth>
__global__ void __launch_bounds__(kThreads, kCtas)
    step_kernel(const __grid_constant__ PoolParams p, const __grid_constant__ RingParams whole_ring,
                const __grid_constant__ BatchParams b, const Workspace w,
                const __grid_constant__ StepShape s) {
  Shared<kDepth>& shared = shared_as<Shared<kDepth>>();
  if constexpr (kDepth != Depth::none) init_digest(shared.bytes.digest);
  gpu::ptx::follow_previous_grid();
  read_words(p, whole_ring, shared);
  RingParams ring = whole_ring;
  ring.step = &shared.step;
  int cta = static_cast<int>(blockIdx.x);
  if (cta < s.checks) return check(p, ring, b, s, shared);
  cta -= s.checks;
  if (cta == 0) return check_null_slot(p, ring, b, s, shared);
  cta -= 1;
  if (s.stamps > 0) {
    if (cta == 0) return compose(p, ring, b, w, s, shared);
    cta -= 1;
    if (cta < s.stamps) return stamp(p, ring, b, w, s, cta, shared);
    cta -= s.stamps;
  }
  if (cta < s.sweeps - 1) return sweep(p, ring, b, s, cta, shared);
  find_next_sweep(p, ring, s, shared);
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
  s.records = work.records;
  s.sweep_slots = std::min(work.sweep_slots, p.num_slots);
  s.tile = {rows, parts_of(p, rows), true};
  s.null_tile = {1, parts_of(p, 1), true};
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
  constexpr std::int64_t kMostRecords = 4096, kMostTokens = 512;
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
  const StepShape s = shape_of(p, b, work, rows);
  with_depth(p, [&](auto depth) {
    gpu::launch_following("canary step", step_kernel<depth()>,
                          {.grid = static_cast<unsigned>(grid_of(s)),
                           .block = kThreads,
                           .shared_bytes = sizeof(Shared<depth()>)},
                          stream, p, ring, b, w, s);
  });
}

}  // namespace serinus::canary::cuda
