// The fingerprint of 32 slots at once, one a lane. The fold of a slot is serial by definition, so a
// lane must walk all of its slot's bytes; but lanes that each loaded their own row would fetch the
// same cache lines again and again. So the warp copies a piece of all 32 rows into shared memory
// with coalesced asynchronous copies, a few pieces ahead, and each lane reads its own from there.
#pragma once

#include <cstdint>

#include "canary/cuda/sglang/device.cuh"
#include "gpu/ptx/copy.cuh"
#include "gpu/ptx/shared.cuh"

namespace serinus::canary::sglang::cuda {

inline constexpr int kStages = 3;                          ///< pieces under way
inline constexpr int kPieceVectors = 8;                    ///< 16-byte vectors of a row in a piece
inline constexpr int kRowPitch = kPieceVectors * 16 + 16;  ///< lanes' reads hit different banks
inline constexpr int kStageBytes = kWarp * kRowPitch;
inline constexpr int kFoldBytes = kStages * kStageBytes;  ///< of shared memory a warp

/// One vector of a row to shared memory, by the widest copies that `alignment` allows.
__device__ __forceinline__ void stage_vector(std::uint32_t to, const std::uint8_t* from,
                                             int alignment) {
  if (alignment >= 16) {
    gpu::ptx::cp_async_of_row(to, from);
  } else if (alignment >= 4) {
#pragma unroll
    for (int b = 0; b < 16; b += 4) gpu::ptx::cp_async<4>(to + b, from + b);
  } else {
    uint4 v;
    const auto word = [from](int w) {
      return std::uint32_t{from[4 * w]} | std::uint32_t{from[4 * w + 1]} << 8 |
             std::uint32_t{from[4 * w + 2]} << 16 | std::uint32_t{from[4 * w + 3]} << 24;
    };
    v = make_uint4(word(0), word(1), word(2), word(3));
    gpu::ptx::store_shared(to, v);
  }
}

__device__ __forceinline__ int source_alignment(const SourceParams& s) {
  const std::uint64_t bits =
      reinterpret_cast<std::uintptr_t>(s.base) | u64(s.row_stride) | u64(s.token_stride);
  return bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : 1;
}

/// Fingerprint of a slot, which exists, by its lane alone: sources of 16 bytes each.
__device__ __forceinline__ std::uint64_t fold_lane(const ContextParams& c, std::int64_t slot) {
  std::uint64_t all = 0;
  for (int k = 0; k < c.num_sources; ++k) {
    const SourceParams& s = c.sources[k];
    const ulonglong2 words =
        load_words(s.base + offset_of(s, slot, 16), source_alignment(s) == 16 ? 16 : 1);
    all = hash::splitmix64(all ^ hash::splitmix64(hash::splitmix64(words.x) ^ words.y));
  }
  return all;
}

/// Walks over the pieces of a slot's bytes: all of source 0, then of source 1, ...
struct Pieces {
  const ContextParams& c;
  int source = 0;
  std::int64_t word = 0;  ///< first of the next piece

  __device__ bool done() const { return source >= c.num_sources; }
  /// 16-byte vectors of the next piece.
  __device__ int vectors() const {
    const std::int64_t left = (c.sources[source].words - word) / 2;
    return left < kPieceVectors ? static_cast<int>(left) : kPieceVectors;
  }
  /// True where the piece passed was its source's last.
  __device__ bool next() {
    word += kPieceVectors * 2;
    if (word < c.sources[source].words) return false;
    ++source;
    word = 0;
    return true;
  }
};

/// Fingerprint of this lane's slot, which exists (exists()) where `take`. All lanes call it;
/// `stage` is the warp's kFoldBytes of shared memory.
__device__ inline std::uint64_t fold_warp(const ContextParams& c, std::int64_t slot, bool take,
                                          std::uint32_t stage) {
  const int lane = lane_id();
  // This lane copies vector lane % 8 of the rows lane / 8, lane / 8 + 4, ...
  constexpr int kRows = kWarp * kPieceVectors / kWarp;
  constexpr int kRowStep = kWarp / kPieceVectors;
  const int vector = lane % kPieceVectors;
  const std::uint8_t* rows[kRows];
  int alignment = 16;
  Pieces ahead{c};
  const auto find_rows = [&] {
    if (ahead.done()) return;
    const SourceParams& s = c.sources[ahead.source];
    alignment = source_alignment(s);
    const std::uint64_t mine =
        take ? reinterpret_cast<std::uintptr_t>(s.base) + u64(offset_of(s, slot, s.words * 8)) : 0;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      rows[i] =
          reinterpret_cast<const std::uint8_t*>(shuffle(mine, lane / kPieceVectors + kRowStep * i));
    }
  };
  int fill = 0;
  const auto copy_next = [&] {
    if (!ahead.done()) {
      const std::uint32_t to = stage + static_cast<std::uint32_t>(fill * kStageBytes + vector * 16);
      if (vector < ahead.vectors()) {
        const std::int64_t at = ahead.word * 8 + vector * 16;
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          const int row = lane / kPieceVectors + kRowStep * i;
          if (rows[i] != nullptr)
            stage_vector(to + static_cast<std::uint32_t>(row * kRowPitch), rows[i] + at, alignment);
        }
      }
      if (ahead.next()) find_rows();
    }
    gpu::ptx::cp_async_commit();
    fill = fill + 1 == kStages ? 0 : fill + 1;
  };

  find_rows();
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) copy_next();
  std::uint64_t all = 0;
  std::uint64_t f = 0;
  int drain = 0;
  for (Pieces here{c}; !here.done();) {
    copy_next();
    gpu::ptx::cp_async_wait<kStages - 1>();
    __syncwarp();
    const std::uint32_t from =
        stage + static_cast<std::uint32_t>(drain * kStageBytes + lane * kRowPitch);
    const int vectors = here.vectors();
    ulonglong2 words[kPieceVectors];  // all at once: the fold waits for none of them
#pragma unroll
    for (int v = 0; v < kPieceVectors; ++v) {
      if (v < vectors) words[v] = gpu::ptx::load_shared_u64x2(from + v * 16);
    }
#pragma unroll
    for (int v = 0; v < kPieceVectors; ++v) {
      if (v < vectors) {
        f = hash::splitmix64(f ^ words[v].x);
        f = hash::splitmix64(f ^ words[v].y);
      }
    }
    if (here.next()) {
      all = hash::splitmix64(all ^ f);
      f = 0;
    }
    drain = drain + 1 == kStages ? 0 : drain + 1;
    __syncwarp();  // before the next copies overwrite what was read
  }
  gpu::ptx::cp_async_wait_all();
  __syncwarp();
  return all;
}

}  // namespace serinus::canary::sglang::cuda
