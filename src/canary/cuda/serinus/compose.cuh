// A tile of new tokens composed to one map of the chain before it: what was there before is read
// here, and nowhere later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cub/block/block_scan.cuh>

#include "canary/cuda/serinus/tokens.cuh"

namespace serinus::canary::cuda {

using LengthScan = cub::BlockScan<long long, kThreads>;

/// R^n and R^-n, mod 2^61 - 1.
struct Powers {
  std::uint64_t up[kStampTile + 1], down[kStampTile + 1];
};
constexpr Powers make_powers() {
  // R^(p - 2): the inverse.
  std::uint64_t inverse = 1;
  std::uint64_t square = hash::kR;
  for (std::uint64_t e = hash::kP - 2; e != 0; e >>= 1) {
    if ((e & 1) != 0) inverse = hash::multiply(inverse, square);
    square = hash::multiply(square, square);
  }
  Powers p{};
  p.up[0] = p.down[0] = 1;
  for (std::int64_t n = 1; n <= kStampTile; ++n) {
    p.up[n] = hash::multiply(p.up[n - 1], hash::kR);
    p.down[n] = hash::multiply(p.down[n - 1], inverse);
  }
  return p;
}
__device__ constexpr Powers kPowers = make_powers();

__device__ __forceinline__ std::uint64_t times(std::uint64_t a, std::uint64_t b) {
  return hash::fold(hash::fold(static_cast<hash::u128>(a) * b));  // <= p + 7, as fold() gives it
}
__device__ __forceinline__ std::uint64_t plus(std::uint64_t a, std::uint64_t b) {
  return hash::fold(a + b);
}

/// A thread's run of tokens in its tile: how many are stamped, whether one of them begins a chain,
/// and the chain after them, with nothing before them.
struct Run {
  int stamped = 0;
  bool starts = false;
  std::uint64_t chain = 0;
};
/// What was before a run: stamped tokens, whether one of them began a chain, and the chain.
struct ChainSoFar {
  int stamped = 0;
  bool started = false;
  std::uint64_t chain = 0;
};

/// What of the tile is before this thread's run; thread kThreads has nothing after it, so the last
/// one's `after` is the tile. A chain is R^n * (sum of its runs' chains * R^-n), n counted from the
/// tile's beginning, so that runs are joined by plain sums: what was before the last start is
/// taken off again. All threads call it.
template <int kEach>
__device__ __forceinline__ ChainSoFar before_run(const Run& mine, ChainSoFar& after) {
  struct OfWarp {
    int stamped;
    bool starts;
    std::uint64_t sum, cut;  // cut: the sum before its last start
  };
  __shared__ OfWarp warps[kWarps];
  const int lane = lane_id();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const unsigned below = (1u << lane) - 1;
  ChainSoFar before;
  int of_warp = 0;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const unsigned some = __ballot_sync(kAllLanes, mine.stamped > k);
    before.stamped += __popc(some & below);
    of_warp += __popc(some);
  }
  if (lane == 0) warps[warp].stamped = of_warp;
  __syncthreads();
  for (int w = 0; w < warp; ++w) before.stamped += warps[w].stamped;
  const int up_to = before.stamped + mine.stamped;

  const std::uint64_t scaled = times(mine.chain, __ldg(&kPowers.down[up_to]));
  std::uint64_t sum = scaled;
#pragma unroll
  for (int d = 1; d < kWarp; d *= 2) {
    const std::uint64_t other = __shfl_up_sync(kAllLanes, static_cast<unsigned long long>(sum), d);
    if (lane >= d) sum = plus(sum, other);
  }
  std::uint64_t sum_before = shuffle_up(sum);
  if (lane == 0) sum_before = 0;
  const unsigned starts = __ballot_sync(kAllLanes, mine.starts);
  const unsigned starts_below = starts & below;
  const auto at_last = [&](unsigned mask) {
    return shuffle(sum_before, mask != 0 ? kWarp - 1 - __clz(static_cast<int>(mask)) : 0);
  };
  std::uint64_t cut = at_last(starts_below);
  const std::uint64_t cut_of_warp = at_last(starts);
  if (lane == kWarp - 1) {
    warps[warp].starts = starts != 0;
    warps[warp].sum = sum;
    warps[warp].cut = cut_of_warp;
  }
  __syncthreads();
  std::uint64_t base = 0;
  std::uint64_t cut_before = 0;
  for (int w = 0; w < warp; ++w) {
    if (warps[w].starts) {
      cut_before = plus(base, warps[w].cut);
      before.started = true;
    }
    base = plus(base, warps[w].sum);
  }
  cut = starts_below != 0 ? plus(base, cut) : cut_before;
  before.started |= starts_below != 0;
  const auto chain_of = [&](std::uint64_t of, std::uint64_t off, int n) {
    return times(plus(of, 2 * hash::kP - off), __ldg(&kPowers.up[n]));
  };
  before.chain = chain_of(plus(base, sum_before), cut, before.stamped);
  after.stamped = up_to;
  after.started = before.started || mine.starts;
  after.chain = chain_of(plus(base, sum), mine.starts ? plus(base, sum_before) : cut, up_to);
  return before;
}

/// A warp's tokens on their way to memory: each lane makes kEach that follow each other, and all
/// lanes store them side by side. Words of 64 bits, as StampedToken has them.
template <int kEach>
class TokenStage {
 public:
  static constexpr int kVectors = kEach * static_cast<int>(sizeof(StampedToken)) / kVector;
  struct alignas(kVector) Words {
    std::uint64_t of[kWarp * kVectors * 2];
  };
  static_assert(offsetof(StampedToken, cell) == 8 && offsetof(StampedToken, prev) == 16 &&
                offsetof(StampedToken, request) == 20 && offsetof(StampedToken, power) == 24);

  __device__ explicit TokenStage(Words& words) : words_(words) {}
  __device__ std::uint64_t& chain(int i) { return pair(2 * i)[0]; }
  __device__ std::uint64_t& power(int i) { return pair(2 * i + 1)[1]; }
  __device__ void put(int i, const StampedToken& t) {
    chain(i) = t.chain;
    pair(2 * i)[1] = static_cast<std::uint64_t>(t.cell);
    pair(2 * i + 1)[0] = std::uint64_t{static_cast<std::uint32_t>(t.request)} << 32 |
                         static_cast<std::uint32_t>(t.prev);
    power(i) = static_cast<std::uint32_t>(t.power);
  }
  /// The first `tokens` of the warp's.
  __device__ void store(StampedToken* to, std::int64_t tokens) const {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int at = i * kWarp + lane_id();
      if (at / 2 < tokens) {
        const std::uint64_t* const from = pair(at / kVectors, at % kVectors);
        reinterpret_cast<ulonglong2*>(to)[at] = make_ulonglong2(from[0], from[1]);
      }
    }
  }

 private:
  /// Swizzled, so that the banks differ.
  __device__ std::uint64_t* pair(int lane, int vector) const {
    return words_.of + 2 * (lane * kVectors + (vector ^ lane % kVectors));
  }
  __device__ std::uint64_t* pair(int vector) const { return pair(lane_id(), vector); }
  Words& words_;
};

/// Composes tile `number`, of kEach tokens a thread: what was there before is read here, and
/// nowhere later. `kAlone`: there are no other tiles, and nobody asks for its map. A CTA's work.
template <int kEach = static_cast<int>(kStampTile) / kThreads, bool kAlone = false>
__device__ __forceinline__ void compose_tile(const PoolParams& p, const RingParams& ring,
                                             const BatchParams& b, std::int64_t number,
                                             StampedToken* tokens, ChainMap* maps) {
  __shared__ LengthScan::TempStorage scan;
  __shared__ long long firsts[kThreads + 1];
  __shared__ typename TokenStage<kEach>::Words stages[kWarps];
  constexpr int kOfWarp = kEach * kWarp;
  const int t = static_cast<int>(threadIdx.x);
  const std::int64_t tile = number * kEach * kThreads;
  const std::int64_t first = tile + t * kEach;
  const std::int64_t first_of_warp = tile + t / kWarp * kOfWarp;
  TokenStage<kEach> stage(stages[t / kWarp]);
  Run run;
  Told told;
  told.load(b, first);
  int i = 0;  // of this thread's tokens, those before it are done
  std::int64_t base = 0;
  for (std::int64_t r0 = 0; r0 < b.num_requests && base < b.num_tokens; r0 += kThreads) {
    const std::int64_t r = r0 + t;
    const long long length = r < b.num_requests ? extend_of(b, r) : 0;
    long long before = 0;
    long long total = 0;
    LengthScan(scan).ExclusiveSum(length, before, total);
    firsts[t] = base + before;
    if (t == 0) firsts[kThreads] = base + total;
    __syncthreads();
    const std::int64_t end = base + total < b.num_tokens ? base + total : b.num_tokens;
    if (first_of_warp + kOfWarp > base && first_of_warp < end) {
      // The request of a token is the last whose run begins at it or before. Most warps have tokens
      // of one request.
      const int of_warp = find_run(firsts, first_of_warp > base ? first_of_warp : base);
      const bool one = first_of_warp + kOfWarp <= firsts[of_warp + 1];
#pragma unroll 1
      for (; i < kEach && first + i < end; ++i) {
        const std::int64_t j = first + i;
        int below = of_warp;
        if (!one) {
          for (int above = kThreads; above - below > 1;) {
            const int middle = (below + above) / 2;
            (firsts[middle] <= j ? below : above) = middle;
          }
        }
        const std::int64_t request = r0 + below;
        NewToken made = token_at(p, ring, b, j, told, request, firsts[below], b.rows[request],
                                 b.prefix_lens[request]);
        if (made.token.request >= 0) {  // else the chain passes over it
          run.chain = made.starts ? made.term : hash::chain_step(run.chain, made.term);
          run.starts |= made.starts;
          ++run.stamped;
        }
        made.token.chain = run.chain;
        made.token.power = run.starts ? 0 : run.stamped;
        stage.put(i, made.token);
        Told next;
        next.load_after(told, b, j + 1);
        told = next;
      }
    }
    if (number == 0 && r < b.num_requests) {
      // Runs that leave the flat arrays.
      const std::int64_t room = b.num_tokens - (base + before);
      const std::int64_t want = b.extend_lens[r];
      if (want < 0 || want > (room < 0 ? 0 : room)) {
        report_out_of_range(ring, p, -1, Moment::tail, b.owners[r], b.rows[r], want);
      }
    }
    base += total;
    __syncthreads();
  }
  const int composed = i;
#pragma unroll 1
  for (; i < kEach && first + i < b.num_tokens; ++i) {
    // Nobody's: reported, if it would be written.
    is_stamped(p, ring, b, first + i, b.locations[first + i], b.positions[first + i], -1, -1);
    stage.put(i, {});
  }
  if constexpr (kAlone && kEach == 1) {
    // Every token begins a chain: a decode step.
    if (__syncthreads_and(run.starts || run.stamped == 0) != 0) {
      stage.store(tokens + first_of_warp, b.num_tokens - first_of_warp);
      return;
    }
  }
  run.chain = hash::fold(run.chain);
  ChainSoFar after;
  const ChainSoFar before = before_run<kEach>(run, after);
#pragma unroll 1
  for (i = 0; i < composed; ++i) {
    const std::uint64_t power = stage.power(i);
    if (power == 0) continue;  // a chain began, here or before
    stage.chain(i) =
        plus(hash::fold(stage.chain(i)), times(before.chain, __ldg(&kPowers.up[power])));
    stage.power(i) = before.started ? 0 : static_cast<std::uint64_t>(before.stamped) + power;
  }
  if (!kAlone && t == kThreads - 1) {
    maps[number] = {after.started ? 0 : __ldg(&kPowers.up[after.stamped]), after.chain};
  }
  stage.store(tokens + first_of_warp, b.num_tokens - first_of_warp);
}

/// What another CTA of the launch composed.
__device__ __forceinline__ StampedToken load_composed(const StampedToken* at) {
  const auto* const from = reinterpret_cast<const ulonglong2*>(at);
  const ulonglong2 where = __ldcg(from);
  const ulonglong2 rest = __ldcg(from + 1);
  StampedToken token;
  token.chain = where.x;
  token.cell = static_cast<std::int64_t>(where.y);
  token.prev = static_cast<std::int32_t>(rest.x);
  token.request = static_cast<std::int32_t>(rest.x >> 32);
  return token;
}
/// The chain after a token of the first tile: nothing was before.
__device__ __forceinline__ std::uint64_t chain_alone(const StampedToken& token) {
  return hash::canonical(token.chain);
}

}  // namespace serinus::canary::cuda
