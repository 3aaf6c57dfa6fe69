// Write on the GPU. Two roles in one launch that need nothing of each other: CTAs that walk the
// chains, a warp a request, and store everything of a record but its fingerprint; and CTAs that
// fold the bytes of all new tokens at memory speed and store the fingerprints.
//
// A chain is serial by definition: three splitmix64 a token. One warp does nothing else: all its
// lanes compute the same, so that lane l can keep the hash before token l of a batch of 32. Three
// more take turns at what comes before and after: they load a batch, and check and store it.
#include <algorithm>
#include <cstdint>

#include "canary/cuda/grid.h"
#include "canary/cuda/sglang/device.cuh"
#include "canary/cuda/sglang/fold.cuh"
#include "canary/cuda/sglang/run.h"
#include "gpu/launch.h"
#include "gpu/ptx/grid.cuh"
#include "gpu/ptx/sync.cuh"

namespace serinus::canary::sglang::cuda {

namespace {

using canary::cuda::grid_for;

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kCtasEach = 4;  // on every multiprocessor: what the staging buffers allow

/// A word that is xored into a chain, with the first xor-shift of splitmix64 applied to it.
__device__ __forceinline__ std::uint64_t prepare(std::uint64_t x) {
  return x ^ (x >> 30);
}

/// x * kFactor. The cross products are added to the upper half as they come; the compiler's own way
/// adds them up first, which is a dependent instruction more.
template <std::uint64_t kFactor>
__device__ __forceinline__ std::uint64_t times(std::uint64_t x) {
#ifdef __CUDA_ARCH__
  const auto low = static_cast<std::uint32_t>(x);
  const auto high = static_cast<std::uint32_t>(x >> 32);
  std::uint32_t product_low, product_high;
  asm("{\n.reg .u64 product;\n.reg .u32 upper;\n"
      "mul.wide.u32 product, %2, %4;\n"
      "mov.b64 {%0, upper}, product;\n"
      "mad.lo.u32 upper, %2, %5, upper;\n"
      "mad.lo.u32 %1, %3, %4, upper;\n}"
      : "=r"(product_low), "=r"(product_high)
      : "r"(low), "r"(high), "n"(static_cast<std::uint32_t>(kFactor)),
        "n"(static_cast<std::uint32_t>(kFactor >> 32)));
  return static_cast<std::uint64_t>(product_high) << 32 | product_low;
#else
  return x * kFactor;
#endif
}

/// splitmix64 but for its last xor-shift, of an x whose first has been done.
__device__ __forceinline__ std::uint64_t middle(std::uint64_t x) {
  x = times<hash::kMul1>(x);
  return times<hash::kMul2>(x ^ (x >> 27));
}

/// The last xor-shift of one splitmix64, the xor of a prepared word, and the first xor-shift of the
/// next: linear all of it, so done at once, which is one dependent step less.
__device__ __forceinline__ std::uint64_t between(std::uint64_t z, std::uint64_t prepared) {
  return (z ^ prepared) ^ ((z >> 31) ^ (z >> 30) ^ (z >> 61));
}

/// A chain is carried as z, its hash before the last xor-shift.
__device__ __forceinline__ std::uint64_t hash_in(std::uint64_t z) {
  return z ^ (z >> 31);
}
__device__ __forceinline__ std::uint64_t with_hash(std::uint64_t hash) {
  return hash ^ (hash >> 31) ^ (hash >> 62);  // the inverse
}
/// mix3(hash, token, position).
__device__ __forceinline__ std::uint64_t step(std::uint64_t z, ulonglong2 prepared) {
  z = middle(between(z, 0));
  z = middle(between(z, prepared.x));
  return middle(between(z, prepared.y));
}

/// Entries of a row on their way between the warp that walks the chain and one that helps it.
struct Batch {
  static constexpr int kParts = 4;  ///< a lane's entries: its lane, + 32, ...
  static constexpr int kEntries = kParts * kWarp;
  ulonglong2 words[kEntries];  ///< prepared tokens and positions
  std::uint64_t z[kEntries];   ///< the chain before each
  unsigned stamped[kParts];    ///< whose entry is written; the chain passes over the others
};

constexpr int kHelpers = kWarps - 1;

/// Barriers of a pair of warps, two a helper: its batch may be walked; it has been walked.
__device__ __forceinline__ int ready(int helper) {
  return 1 + 2 * helper;
}
__device__ __forceinline__ int walked(int helper) {
  return 2 + 2 * helper;
}

/// The helper is always there first, so that waiting for each other costs the walk nothing.
__device__ __forceinline__ void meet(int barrier) {
  gpu::ptx::barrier_of_threads(barrier, 2 * kWarp);
}

/// Whose turn it is to report: the rows of a request come in the order of its entries, batch after
/// batch. Batches are numbered through all rows of the CTA.
class Turn {
 public:
  __device__ explicit Turn(unsigned* next) : next_(next) {}
  __device__ void wait(unsigned batch) const {
    if (lane_id() == 0) {
      while (atomicAdd(next_, 0) != batch) __nanosleep(100);
    }
    __syncwarp();
  }
  __device__ void pass() const {
    __syncwarp();
    if (lane_id() == 0) atomicAdd(next_, 1);
  }

 private:
  unsigned* next_;
};

/// In the place of walk_row() where the chain is known: brings it, batch by batch.
__device__ void bring_row(const WriteParams& p, const WriteRow& row, Batch* batches) {
  int helper = 0;
  for (std::int64_t base = row.begin; base < row.end; base += Batch::kEntries) {
    Batch& batch = batches[helper];
    std::uint64_t hashes[Batch::kParts] = {};
#pragma unroll
    for (int part = 0; part < Batch::kParts; ++part) {
      const std::int64_t i = base + part * kWarp + lane_id();
      if (i < row.end) hashes[part] = u64(p.chain_hashes[i]);
    }
    meet(ready(helper));
#pragma unroll
    for (int part = 0; part < Batch::kParts; ++part) {
      batch.z[part * kWarp + lane_id()] = with_hash(hashes[part]);
    }
    __syncwarp();
    meet(walked(helper));
    helper = helper + 1 == kHelpers ? 0 : helper + 1;
  }
}

/// Walks the chain of a row, batch by batch.
__device__ void walk_row(const WriteParams& p, const WriteRow& row, Batch* batches, int alignment) {
  std::uint64_t z = with_hash(hash::kAnchorHash);
  if (row.seed_exists && row.seed >= 0)
    z = with_hash(hash_of(load(p.context, row.seed, alignment)));
  int helper = 0;
  for (std::int64_t base = row.begin; base < row.end; base += Batch::kEntries) {
    Batch& batch = batches[helper];
    meet(ready(helper));
    for (int part = 0; part < Batch::kParts; ++part) {
      const ulonglong2* const words = batch.words + part * kWarp;
      std::uint64_t* const to = batch.z + part * kWarp;
      const unsigned stamped = batch.stamped[part];
      if (stamped == kAllLanes) {
#pragma unroll 8
        for (int l = 0; l < kWarp; ++l) {
          to[l] = z;
          z = step(z, words[l]);
        }
      } else {
        for (unsigned left = stamped; left != 0; left &= left - 1) {
          const int l = __ffs(static_cast<int>(left)) - 1;
          to[l] = z;
          z = step(z, words[l]);
        }
      }
    }
    meet(walked(helper));
    helper = helper + 1 == kHelpers ? 0 : helper + 1;
  }
}

__device__ __forceinline__ bool is_stamped(const WriteParams& p, const WriteRow& row,
                                           std::int64_t i) {
  return i < row.end && row.seed_exists && exists(p.context, p.slots[i]);
}

/// The position before entry `base` along a row: of the last entry before that is stamped, else of
/// the seed. All lanes call it.
__device__ std::int64_t position_before(const WriteParams& p, const WriteRow& row,
                                        std::int64_t base, int alignment) {
  for (std::int64_t from = base - kWarp; base > row.begin; base = from, from -= kWarp) {
    const std::int64_t i = from + lane_id();
    const unsigned stamped = __ballot_sync(kAllLanes, i >= row.begin && is_stamped(p, row, i));
    if (stamped != 0) return p.positions[from + 31 - __clz(static_cast<int>(stamped))];
  }
  return load(p.context, row.seed, alignment).position;
}

/// A row may write slot 0 more than once, where it stands for tokens that are evicted or padding:
/// the last entry's record is to stay. The latest that a helper has seen of a row.
struct SlotZero {
  std::int64_t entry;  ///< -1: none
  std::uint64_t hash;  ///< the chain before it
};

/// Does for every third batch of a row all that is not the chain: loads, checks, stores. `first` is
/// the number of the row's first batch.
__device__ void help_row(const WriteParams& p, const WriteRow& row, int helper, unsigned first,
                         Turn turn, Batch& batch, SlotZero& zero, int alignment,
                         std::int64_t& entries, std::int64_t& out_of_range) {
  const ContextParams& c = p.context;
  const int lane = lane_id();
  const bool check_positions =
      row.seed_exists && row.seed >= 0 && *c.enable_chain_position_assert != 0;
  SlotZero last{-1, 0};  // that this lane has seen
  unsigned number = first + static_cast<unsigned>(helper);
  for (std::int64_t base = row.begin + helper * Batch::kEntries; base < row.end;
       base += kHelpers * Batch::kEntries, number += kHelpers) {
    for (int part = 0; part < Batch::kParts; ++part) {
      const std::int64_t i = base + part * kWarp + lane;
      const std::int64_t slot = i < row.end ? p.slots[i] : -1;
      const std::int64_t token = i < row.end ? p.tokens[i] : 0;
      const std::int64_t position = i < row.end ? p.positions[i] : 0;
      const bool stamped = row.seed_exists && exists(c, slot);
      if (slot >= 0) {
        ++entries;
        if (!stamped) ++out_of_range;
      }
      batch.words[part * kWarp + lane] =
          make_ulonglong2(prepare(u64(token)), prepare(u64(position)));
      batch.stamped[part] = __ballot_sync(kAllLanes, stamped);
      if (stamped) {
        store_words(c.records + slot * c.stride, u64(token), u64(position), alignment);
      }
    }
    meet(ready(helper));
    meet(walked(helper));
    std::int64_t before =
        check_positions ? position_before(p, row, base, alignment) : 0;  // of the part's first
    turn.wait(number);
    for (int part = 0; part < Batch::kParts; ++part) {
      const std::int64_t i = base + part * kWarp + lane;
      const unsigned mask = batch.stamped[part];
      const unsigned below = (1u << lane) - 1;
      const bool stamped = (mask >> lane & 1) != 0;
      const std::uint64_t hash = hash_in(batch.z[part * kWarp + lane]);
      std::int64_t wrong = 0;
      if (stamped) {
        const std::int64_t slot = p.slots[i];
        if (slot == 0) last = {i, hash};
        std::uint8_t* const to = c.records + slot * c.stride;
        if (c.num_sources > 0) {
          store_word(to + 16, hash, alignment);
        } else {
          store_words(to + 16, hash, 0, alignment);
        }
        if (p.expected_tokens != nullptr) wrong = wrong_input(p, i);
      }
      std::int64_t next = 0;
      bool jumps = false;
      if (check_positions && mask != 0) {
        const std::int64_t position = stamped ? p.positions[i] : 0;
        const unsigned earlier = mask & below;
        const std::int64_t lane_before =
            i64(shuffle(u64(position), earlier != 0 ? 31 - __clz(static_cast<int>(earlier)) : 0));
        next = i64(u64(earlier != 0 ? lane_before : before) + 1);
        before = i64(shuffle(u64(position), 31 - __clz(static_cast<int>(mask))));
        jumps = stamped && position != next;
      }
      // An entry's wrong input comes before its jump, and all of it before the next entry's.
      const unsigned inputs = __ballot_sync(kAllLanes, wrong != 0);
      const unsigned positions = __ballot_sync(kAllLanes, jumps);
      if ((inputs | positions) == 0) continue;
      int at = 0;
      if (lane == 0) at = reserve(c, __popc(inputs) + __popc(positions));
      at = __shfl_sync(kAllLanes, at, 0) + __popc(inputs & below) + __popc(positions & below);
      if (wrong != 0) {
        put_row(c, at++,
                write_violation(p, i, hash, p.expected_tokens[i], p.expected_positions[i], wrong),
                i);
      }
      if (jumps) {
        put_row(c, at,
                write_violation(p, i, hash, p.tokens[i], next,
                                static_cast<std::int64_t>(FailReason::write_position)),
                i);
      }
    }
    turn.pass();
  }
  std::int64_t latest = last.entry;
#pragma unroll
  for (int d = kWarp / 2; d > 0; d /= 2)
    latest = max(latest, __shfl_xor_sync(kAllLanes, latest, d));
  if (latest >= 0 && last.entry == latest) zero = last;
}

/// After all of a row: the record of its last entry for slot 0, once more. One thread calls it.
__device__ void settle_slot_zero(const WriteParams& p, SlotZero* zeros, int alignment) {
  SlotZero last{-1, 0};
  for (int helper = 0; helper < kHelpers; ++helper) {
    if (zeros[helper].entry > last.entry) last = zeros[helper];
    zeros[helper].entry = -1;
  }
  if (last.entry < 0) return;
  store_words(p.context.records, u64(p.tokens[last.entry]), u64(p.positions[last.entry]),
              alignment);
  store_word(p.context.records + 16, last.hash, alignment);
}

/// A CTA's rows: one warp walks, the others help. `turns` is shared, 0 at the start.
__device__ void chain_rows(const WriteParams& p, std::int64_t rows, std::int64_t cta,
                           std::int64_t ctas, Batch* batches, unsigned* turns, int alignment) {
  __shared__ SlotZero zeros[kHelpers];
  if (threadIdx.x < kHelpers) zeros[threadIdx.x].entry = -1;
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  std::int64_t entries = 0;
  std::int64_t out_of_range = 0;
  unsigned first = 0;  // of a row's batches
  for (std::int64_t r = cta; r < rows; r += ctas) {
    const WriteRow row = write_row(p, r);
    if (threadIdx.x == 0 && row.was_cut) ++out_of_range;
    if (row.end <= row.begin) continue;  // and where that is, may be anywhere
    if (warp == 0 && p.chain_hashes != nullptr) {
      bring_row(p, row, batches);
    } else if (warp == 0) {
      walk_row(p, row, batches, alignment);
    } else {
      help_row(p, row, warp - 1, first, Turn(turns), batches[warp - 1], zeros[warp - 1], alignment,
               entries, out_of_range);
    }
    first += static_cast<unsigned>((row.end - row.begin + Batch::kEntries - 1) / Batch::kEntries);
    __syncthreads();
    // A helper touches its place again once this warp has walked the next row.
    if (threadIdx.x == 0) settle_slot_zero(p, zeros, alignment);
  }
  add(p.context.slot_run_counter, entries);
  add(p.context.out_of_range_counter, out_of_range);
}

/// This warp's share of all rows' entries, 32 of one row at a time: `warp` of `warps`.
__device__ void fold_rows(const WriteParams& p, std::int64_t rows, std::int64_t warp,
                          std::int64_t warps, std::uint32_t stage, int alignment) {
  const ContextParams& c = p.context;
  const int lane = lane_id();
  std::int64_t turn = warp;  // pieces of work until it is this warp's turn
  for (std::int64_t r = 0; r < rows; r += kWarp) {
    // A row a lane; then all their pieces, numbered through.
    WriteRow row;
    if (r + lane < rows) row = write_row(p, r + lane);
    const std::int64_t pieces = row.seed_exists ? (row.end - row.begin + kWarp - 1) / kWarp : 0;
    std::int64_t up_to = pieces;
#pragma unroll
    for (int d = 1; d < kWarp; d *= 2) {
      const std::int64_t below = __shfl_up_sync(kAllLanes, up_to, d);
      if (lane >= d) up_to += below;
    }
    const std::int64_t total = __shfl_sync(kAllLanes, up_to, kWarp - 1);
    for (; turn < total; turn += warps) {
      const int owner = __ffs(static_cast<int>(__ballot_sync(kAllLanes, up_to > turn))) - 1;
      const std::int64_t first = __shfl_sync(kAllLanes, up_to - pieces, owner);
      const std::int64_t begin = __shfl_sync(kAllLanes, row.begin, owner);
      const std::int64_t end = __shfl_sync(kAllLanes, row.end, owner);
      const std::int64_t i = begin + (turn - first) * kWarp + lane;
      const std::int64_t slot = i < end ? p.slots[i] : -1;
      const bool stamped = exists(c, slot);
      const std::uint64_t real_kv_hash = fold_warp(c, slot, stamped, stage);
      if (stamped) store_word(c.records + slot * c.stride + 24, real_kv_hash, alignment);
    }
    turn -= total;
  }
}

__global__ void __launch_bounds__(kThreads, kCtasEach)
    write_kernel(const __grid_constant__ WriteParams p, unsigned chain_ctas) {
  uint4* const shared = gpu::ptx::dynamic_shared();
  const std::int64_t rows = count_of(*p.num_valid_reqs, p.req_capacity);
  const int alignment = record_alignment(p.context);
  if (blockIdx.x >= chain_ctas) {
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    fold_rows(p, rows, (blockIdx.x - chain_ctas) * std::int64_t{kWarps} + warp,
              (gridDim.x - chain_ctas) * std::int64_t{kWarps},
              gpu::ptx::shared_address(shared) + static_cast<unsigned>(warp * kFoldBytes),
              alignment);
    return;
  }
  if (thread_index() == 0) add(p.context.kernel_run_counter, 1);
  __shared__ unsigned turns;
  if (threadIdx.x == 0) turns = 0;
  chain_rows(p, rows, blockIdx.x, chain_ctas, reinterpret_cast<Batch*>(shared), &turns, alignment);
}

}  // namespace

void write(const WriteParams& p, Device device, Stream stream) {
  gpu::require_gpu("canary write", device);
  const gpu::OnDevice current(device);
  const bool bytes = p.context.num_sources > 0;
  // A chain is slow, so rows go side by side as far as two a multiprocessor; where there are bytes,
  // the rest of what fits folds them.
  const unsigned chain_ctas = grid_for(device, p.req_capacity, 1, 2);
  const auto all = static_cast<unsigned>(gpu::multiprocessors(device) * kCtasEach);
  const unsigned fold_ctas =
      bytes ? std::min(grid_for(device, p.num_tokens, kWarps, kCtasEach), all - chain_ctas) : 0;
  gpu::launch("canary write", write_kernel,
              {.grid = chain_ctas + fold_ctas,
               .block = kThreads,
               .shared_bytes = static_cast<std::size_t>(
                   bytes ? kWarps * kFoldBytes : kHelpers * static_cast<int>(sizeof(Batch)))},
              stream, p, chain_ctas);
}

}  // namespace serinus::canary::sglang::cuda
