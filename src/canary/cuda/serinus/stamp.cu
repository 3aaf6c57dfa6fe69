// Write on the GPU. A chain is h' = h * R + f(token, position): affine maps mod 2^61 - 1, which
// compose, so that tokens need not wait for each other. Two kernels: the first reads everything
// that was there before (tables, predecessors' records) and composes each tile of 256 tokens to one
// map; the second composes the tiles before its own, back to the last that begins a chain, then
// hashes bytes and stores. The first token of a request always begins one, so requests need no
// bounds.
#include <algorithm>
#include <cstdint>
#include <cub/block/block_scan.cuh>
#include <type_traits>

#include "canary/cuda/grid.h"
#include "canary/cuda/serinus/cells.cuh"
#include "canary/cuda/serinus/digest.cuh"
#include "canary/cuda/serinus/tile.h"
#include "gpu/launch.h"

namespace serinus::canary::cuda {

namespace {

constexpr int kThreads = kDigestThreads;
static_assert(kThreads == kStampTile);
constexpr std::int64_t kMostCells = std::int64_t{1} << 62;  // prefixes are cut to this
constexpr int kLengthBlock = 4 * kThreads;  // requests whose tokens are numbered through at once
using LengthScan = cub::BlockScan<long long, kThreads>;
using MapScan = cub::BlockScan<ChainMap, kThreads>;

struct Then {
  __device__ ChainMap operator()(const ChainMap& a, const ChainMap& b) const { return then(a, b); }
};

__device__ std::int64_t extend_of(const BatchParams& b, std::int64_t request) {
  const std::int64_t n = b.extend_lens[request];
  return n < 0 ? 0 : n > b.num_tokens ? b.num_tokens : n;
}

/// Slot of a location in this pool: > 0 where a token can lie, 0 the null slot, -1 not written
/// here, -2 out of range.
__device__ std::int64_t stamped_slot(const PoolParams& p, std::int64_t location) {
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

__device__ bool is_position(std::int64_t position) {
  return position >= 0 && position <= 0x7FFFFFFF;
}

/// Whether token j of a request's run is stamped: it has a slot and a position.
__device__ bool is_stamped(const PoolParams& p, const BatchParams& b, std::int64_t j) {
  return stamped_slot(p, b.locations[j]) > 0 && is_position(b.positions[j]);
}

__device__ void report_token(const PoolParams& p, const RingParams& ring, std::int64_t slot,
                             Reason reason, Owner request, std::int64_t row,
                             std::int64_t stored_position = -1) {
  Fault f = describe(load_record(p, slot), p.ledger[slot], slot, Moment::tail, reason);
  f.request = request;
  f.row = row;
  if (any(reason & Reason::position)) f.stored_position = stored_position;
  report(ring, p, f);
}

/// What token j of request r (or of nobody: padding) is to become. `begin` of the request's run.
__device__ StampedToken token_at(const PoolParams& p, const RingParams& ring, const BatchParams& b,
                                 std::int64_t j, std::int64_t r, std::int64_t begin) {
  StampedToken t;
  const std::int64_t row = r >= 0 ? b.rows[r] : -1;
  const Owner owner = r >= 0 ? b.owners[r] : 0;
  const bool padding = r < 0 || row == 0;
  const std::int64_t location = b.locations[j];
  const std::int64_t slot = stamped_slot(p, location);
  const std::int64_t position = b.positions[j];
  if (slot == -2) {
    report_out_of_range(ring, p, location, Moment::tail, owner, row, padding ? j : position);
  }
  if (slot == 0 && p.clean_null) {
    report_token(p, ring, 0, Reason::null_slot_dirty, owner, row);
  }
  if (slot <= 0) return t;
  if (padding) {
    report_token(p, ring, slot, Reason::foreign_write, owner, row);
    return t;
  }
  if (!is_position(position)) {
    report_token(p, ring, slot, Reason::position, owner, row, position);
    return t;
  }
  t.slot = static_cast<std::int32_t>(slot);
  t.request = static_cast<std::int32_t>(r);
  const std::int64_t prefix = b.prefix_lens[r];
  t.cell = (prefix < 0 ? 0 : prefix > kMostCells ? kMostCells : prefix) + (j - begin);
  const std::uint64_t term = hash::token_term(static_cast<std::uint32_t>(b.tokens[j]),
                                              static_cast<std::uint32_t>(position));
  // The token stamped before this one, if it comes right before.
  std::int64_t before = j - 1;
  while (before >= begin && !is_stamped(p, b, before)) --before;
  if (position != 0 && before >= begin && b.positions[before] + 1 == position) {
    t.prev = static_cast<std::int32_t>(stamped_slot(p, b.locations[before]));
    t.addend = hash::canonical(term);
    return t;
  }
  t.starts = 1;
  std::uint64_t h = kChainAnchor;
  if (position == 0) {
    t.prev = -1;
  } else if (has_row(b.table, row) && position - 1 < b.table.width) {
    // The predecessor was written before this forward: the row says where.
    const std::int64_t told = b.table.cells[row * b.table.stride + position - 1];
    const std::int64_t prev = stamped_slot(p, told);
    if (prev == -2) report_out_of_range(ring, p, told, Moment::tail, owner, row, position - 1);
    if (prev > 0) {
      t.prev = static_cast<std::int32_t>(prev);
      const std::uint64_t chain = load_record(p, prev).chain;
      if (chain != 0) h = chain;
    }
  }
  t.addend = hash::canonical(hash::chain_step(h, term));
  return t;
}

__device__ ChainMap map_of(const StampedToken& t) {
  if (t.slot <= 0) return {};
  return {t.starts != 0 ? 0 : hash::kR, t.addend};
}

__global__ void __launch_bounds__(kThreads)
    compose_kernel(const __grid_constant__ PoolParams p, const __grid_constant__ RingParams ring,
                   const __grid_constant__ BatchParams b, StampedToken* tokens, ChainMap* maps) {
  __shared__ union {
    LengthScan::TempStorage lengths;
    MapScan::TempStorage maps;
  } scratch;
  __shared__ std::int64_t firsts[kLengthBlock + 1];
  constexpr int kEach = kLengthBlock / kThreads;
  const std::int64_t j = static_cast<std::int64_t>(blockIdx.x) * kStampTile + threadIdx.x;
  // Which request the token is of: the first whose run ends after it.
  std::int64_t request = -1;
  std::int64_t begin = 0;
  std::int64_t base = 0;
  for (std::int64_t r0 = 0; r0 < b.num_requests && base < b.num_tokens; r0 += kLengthBlock) {
    long long lengths[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const std::int64_t r = r0 + threadIdx.x * kEach + i;
      lengths[i] = r < b.num_requests ? extend_of(b, r) : 0;
    }
    long long total = 0;
    LengthScan(scratch.lengths).ExclusiveSum(lengths, lengths, total);
#pragma unroll
    for (int i = 0; i < kEach; ++i) firsts[threadIdx.x * kEach + i] = base + lengths[i];
    if (threadIdx.x == 0) firsts[kLengthBlock] = base + total;
    __syncthreads();
    if (j >= base && j < base + total) {
      int below = 0;
      for (int above = kLengthBlock; above - below > 1;) {
        const int middle = (below + above) / 2;
        (firsts[middle] <= j ? below : above) = middle;
      }
      request = r0 + below;
      begin = firsts[below];
    }
    if (blockIdx.x == 0) {
      // Runs that leave the flat arrays.
      for (int i = static_cast<int>(threadIdx.x); i < kLengthBlock; i += kThreads) {
        const std::int64_t r = r0 + i;
        if (r >= b.num_requests) continue;
        const std::int64_t room = b.num_tokens - firsts[i];
        const std::int64_t length = b.extend_lens[r];
        if (length < 0 || length > (room < 0 ? 0 : room)) {
          report_out_of_range(ring, p, -1, Moment::tail, b.owners[r], b.rows[r], length);
        }
      }
    }
    base += total;
    __syncthreads();
  }
  StampedToken t;
  if (j < b.num_tokens) {
    t = token_at(p, ring, b, j, request, begin);
    tokens[j] = t;
  }
  const ChainMap mine = map_of(t);
  ChainMap inclusive;
  MapScan(scratch.maps).InclusiveScan(mine, inclusive, Then());
  if (threadIdx.x == kThreads - 1) maps[blockIdx.x] = inclusive;
}

/// The chain before tile `tile`: the maps before it, composed back to the last that forgets what
/// was before. All threads call it.
__device__ std::uint64_t chain_before(const ChainMap* maps, std::int64_t tile,
                                      MapScan::TempStorage& scratch) {
  ChainMap after{};  // of the tiles between those looked at and `tile`
  for (std::int64_t end = tile; end > 0; end -= kThreads) {
    const std::int64_t i = end - kThreads + threadIdx.x;
    const ChainMap mine = i >= 0 ? maps[i] : ChainMap{};
    ChainMap all;
    ChainMap total;
    MapScan(scratch).InclusiveScan(mine, all, Then(), total);
    after = then(total, after);
    __syncthreads();
    if (after.multiplier == 0) break;
  }
  return after.addend;
}

template <Depth kDepth>
__global__ void __launch_bounds__(kThreads, 2)
    stamp_kernel(const __grid_constant__ PoolParams p, const __grid_constant__ RingParams ring,
                 const __grid_constant__ BatchParams b, const StampedToken* tokens,
                 const ChainMap* maps, TileShape shape) {
  __shared__ union {
    MapScan::TempStorage scan;
    DigestScratch digest;
  } shared;
  __shared__ std::uint64_t chains[kStampTile];
  const int t = static_cast<int>(threadIdx.x);
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * shape.rows;
  // The chain after every token of the map tile that this CTA's tile lies in.
  const std::int64_t tile = first / kStampTile;
  const std::int64_t tile_first = tile * kStampTile;
  const std::uint64_t seed = chain_before(maps, tile, shared.scan);
  StampedToken of_tile;
  if (tile_first + t < b.num_tokens) of_tile = tokens[tile_first + t];
  ChainMap after;
  MapScan(shared.scan).InclusiveScan(map_of(of_tile), after, Then());
  chains[t] = hash::canonical(static_cast<hash::u128>(seed) * after.multiplier + after.addend);
  __syncthreads();

  const std::int64_t j = first + t;
  const bool mine = t < shape.rows && j < b.num_tokens;
  StampedToken token;
  if (mine) token = tokens[j];
  const bool stamped = mine && token.slot > 0;
  std::uint64_t digest = 0;
  if constexpr (kDepth != Depth::none) {
    if (t < shape.rows) shared.digest.slots[t] = stamped ? token.slot : -1;
    init_digest(shared.digest);
    __syncthreads();
    digest_tile<kDepth>(p, shape, shared.digest);
    __syncthreads();
    if (stamped) digest = digest_of(p, shape, shared.digest, t);
  }
  if (stamped) {
    const std::int64_t r = token.request;
    const Owner owner = b.owners[r];
    const std::int64_t row = b.rows[r];
    const std::int64_t slot = token.slot;
    LedgerEntry& e = p.ledger[slot];
    const LedgerEntry now = e;
    const bool owned = now.owner == owner && owner != 0;
    const bool claimed = !owned && claims(p, now, slot, owner);
    const auto position = static_cast<std::uint32_t>(b.positions[j]);
    const std::uint64_t chain = chains[j - tile_first];
    const Record record{static_cast<std::uint32_t>(b.tokens[j]),
                        position,
                        owner,
                        owned || claimed ? now.generation : 0,
                        chain == 0 ? hash::kP : chain,
                        digest};
    store_record(p, slot, record);
    if (owned || claimed) {
      p.seals[slot] = hash::seal(record);
      e.written = position + 1;
      e.prev = token.prev;
    }
    // A wrong input is stamped as it is, so that the chain goes on; but it is seen here first.
    const std::int64_t cell = token.cell;
    const std::int64_t told = Walk(p, b, r).token(cell);
    Reason reasons = Reason::none;
    if (std::int64_t{position} != cell) reasons |= Reason::position;
    if (told >= 0 && record.token != static_cast<std::uint32_t>(told)) reasons |= Reason::token;
    if (!owned) reasons |= claimed ? Reason::double_owner : Reason::foreign_write;
    if (any(reasons)) {
      LedgerEntry seen = now;
      if (owned || claimed) seen.written = position + 1;
      Fault f = describe(record, seen, slot, Moment::tail, reasons);
      f.request = owner;
      f.row = row;
      f.expected_position = cell;
      f.expected_token = told;
      report(ring, p, f, now.generation);
    }
  }
  const int stamps = __syncthreads_count(stamped ? 1 : 0);
  if (t == 0) {
    add(ring.header->counts.records_written, static_cast<std::uint64_t>(stamps));
    add(ring.header->counts.bytes_digested,
        static_cast<std::uint64_t>(stamps) * static_cast<std::uint64_t>(p.slot_bytes));
  }
}

}  // namespace

void launch_stamp(const PoolParams& p, const RingParams& ring, const BatchParams& b,
                  const Workspace& w, Device device, Stream stream) {
  if (b.num_tokens == 0) return;
  const gpu::OnDevice current(device);
  const auto tiles = static_cast<unsigned>((b.num_tokens + kStampTile - 1) / kStampTile);
  gpu::launch("canary stamp", compose_kernel, {tiles, kThreads}, stream, p, ring, b, w.tokens,
              w.maps);
  TileShape shape = tile_shape(p, b.num_tokens, device);
  const StampedToken* const tokens = w.tokens;
  const ChainMap* const maps = w.maps;
  const auto grid = static_cast<unsigned>((b.num_tokens + shape.rows - 1) / shape.rows);
  const auto go = [&](auto depth) {
    gpu::launch("canary stamp", stamp_kernel<depth()>, {grid, kThreads}, stream, p, ring, b, tokens,
                maps, shape);
  };
  if (p.num_sources == 0 || p.depth == Depth::none) {
    go(std::integral_constant<Depth, Depth::none>());
  } else if (p.depth == Depth::partial) {
    go(std::integral_constant<Depth, Depth::partial>());
  } else {
    go(std::integral_constant<Depth, Depth::all>());
  }
}

}  // namespace serinus::canary::cuda
