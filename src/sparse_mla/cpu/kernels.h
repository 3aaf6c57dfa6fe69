// The CPU backend's inner kernels, one table a path (f32 for each SIMD target, bf16 dot products
// where the CPU has them). attend.cpp drives them; docs/design/sparse_mla_cpu.md says why they are
// cut this way.
//
// Heads lie along the vector: everything per head is an array of `width` floats, so that a softmax
// over rows needs no reduction across lanes, and one converted KV row serves all heads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>

#include "sparse_mla/backend.h"

namespace serinus::sparse_mla {

inline constexpr int kMaxDQk = 576;
inline constexpr int kBlockRows = 96;    ///< KV rows converted at a time; a multiple of 4
inline constexpr int kGroupVectors = 4;  ///< vectors of heads worked on at a time
inline constexpr int kMaxLanes = 16;     ///< of any path
inline constexpr int kMaxGroupHeads = kGroupVectors * kMaxLanes;

/// 4-byte elements from one row to the next in Block::keys and Block::values: odd numbers of cache
/// lines, so that walking down a column does not fall on a few cache sets.
inline constexpr int kKeyPitch = kMaxDQk + 16;
inline constexpr int kValuePitch = kDV + 16;

/// Memory for SIMD: 64-byte aligned, not initialised.
template <class T>
class Aligned {
 public:
  Aligned() = default;
  explicit Aligned(std::size_t n)
      : data_(static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t(64)))) {}
  T* get() const noexcept { return data_.get(); }

 private:
  struct Free {
    void operator()(T* p) const noexcept { ::operator delete(p, std::align_val_t(64)); }
  };
  std::unique_ptr<T, Free> data_;
};

/// A block of KV rows, converted. `keys` is read along d_qk, `values` along the rows; the f32 paths
/// need `keys` alone.
struct Block {
  int rows = 0;           ///< that count
  int padded = 0;         ///< rows rounded up to a multiple of 4; those beyond are zeros
  std::uint32_t* keys;    ///< [rows][kKeyPitch] f32, or bf16 pairs of neighbouring columns
  std::uint32_t* values;  ///< [rows / 2][kValuePitch] bf16 pairs of neighbouring rows
  /// [rows / 4][kValuePitch] the values again, of four rows, in 8 bits: 128 + value / coarse_step.
  /// Null = not wanted.
  std::uint32_t* coarse;
  float coarse_step = 0;
  /// What will be loaded next. accumulate() fetches it into the cache as it goes: it has the most
  /// arithmetic to hide that behind.
  std::span<const std::uint8_t* const> upcoming;
  int row_bytes = 0;
};

/// Fetches the part `step` of `steps` of block.upcoming.
inline void fetch_upcoming(const Block& block, int step, int steps) {
  const auto rows = static_cast<int>(block.upcoming.size());
  if (step == 0) {
    // Scattered rows miss the TLB too, and a page walk holds up the arithmetic that follows it.
    // Side by side the walks overlap.
    for (const std::uint8_t* row : block.upcoming) __builtin_prefetch(row, 0, 2);
  }
  for (int r = rows * step / steps; r < rows * (step + 1) / steps; ++r) {
    const std::uint8_t* row = block.upcoming[static_cast<std::size_t>(r)];
    for (int i = 0; i < block.row_bytes; i += 64) __builtin_prefetch(row + i, 0, 2);
    __builtin_prefetch(row + block.row_bytes - 1, 0, 2);  // of a row that begins within a line
  }
  // gcc takes a function that does nothing but prefetch for one without effect, and leaves out the
  // calls.
  asm volatile("");
}

/// The weights of a block: exp(logit - max) of each row and head.
struct Weights {
  std::uint32_t* high;  ///< [rows][width] f32, or [rows / 2][width] bf16 pairs of neighbouring rows
  /// [rows / 4][width] what rounding to `high` left over, in steps of low_step: four neighbouring
  /// rows, 8 bits each, signed. Null = drop it.
  std::uint32_t* low;
  float* low_step;           ///< [width]
  std::int32_t* low_offset;  ///< [width] what 128 times all of `low` adds up to, negative
};

/// One group of heads of one token.
struct Group {
  int heads = 0;
  int width = 0;         ///< heads rounded up to whole vectors, kGroupVectors at most
  std::uint32_t* q;      ///< [d_qk][width] f32, or [d_qk / 2][width] bf16 pairs
  float* max_score;      ///< [width] running maximum of q·k
  float* sum;            ///< [width] running sum of the weights
  float* decay;          ///< [width] what the last block's new maximum leaves of the sums so far
  float* accumulated;    ///< [kDV][width], columns in an order that finish() knows
  bool started = false;  ///< false: nothing accumulated yet, the arrays hold no values
};

struct Kernels {
  const char* name;
  int lanes;  ///< floats in a vector, at most kMaxLanes
  /// `rows[h]` is the query row of head h; `flip` (0 or 0x80) changes signs.
  void (*pack_query)(std::span<const std::uint8_t* const> rows, int d_qk, std::uint8_t flip,
                     Group& group);
  /// Converts rows; sets rows, padded and what lies behind the pointers.
  void (*load_rows)(std::span<const std::uint8_t* const> rows, int d_qk, Block& block);
  /// scores[row][width] = q·k.
  void (*score)(const Block& block, int d_qk, const Group& group, float* scores);
  /// Weights exp2(factor * (score - max)), and the group's max_score, sum and decay.
  void (*weigh)(const Block& block, float factor, const float* scores, Group& group,
                Weights& weights);
  /// accumulated = accumulated * decay + weights · values.
  void (*accumulate)(const Block& block, const Weights& weights, Group& group);
  /// out[head][column] = bf16(accumulated * factor[head]), dense rows of kDV.
  void (*finish)(const Group& group, const float* factor, std::uint16_t* out);
};

/// The paths that this CPU can run, the fastest first.
std::span<const Kernels* const> cpu_paths();

/// run_cpu on a path of choice.
void run_cpu_on(const Kernels& path, const Params& p, int threads);

// Each null or empty where the build or the CPU has none.
const Kernels* avx512_bf16_path();
std::span<const Kernels* const> highway_paths();
const Kernels& portable_path();

}  // namespace serinus::sparse_mla
