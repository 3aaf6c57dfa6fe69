// Digests of slots, an octet of lanes a slot side by side: up to 512 bytes of a piece at once,
// copied to shared memory, four such steps under way, over the borders of pieces and of slots, so
// that short pieces wait as little as long ones. Where there are few slots, the pieces of one are
// shared out to several octets. Of a partial digest, which takes 32 bytes of a piece, a lane does
// what an octet does here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "canary/cuda/lanes.cuh"
#include "canary/cuda/serinus/params.h"
#include "gpu/ptx/copy.cuh"
#include "gpu/ptx/grid.cuh"
#include "gpu/ptx/shared.cuh"

namespace serinus::canary::cuda {

inline constexpr int kThreads = 256;  ///< of every CTA that hashes
inline constexpr int kWarps = kThreads / kWarp;
inline constexpr int kOctet = 8;
inline constexpr int kVector = 16;                       ///< bytes of a lane's copy
inline constexpr int kOctetBytes = kOctet * kVector;     ///< of an octet's
inline constexpr int kVectors = hash::kBlock / kVector;  ///< of a block
inline constexpr int kWide = 4;                          ///< vectors of a lane in a step
inline constexpr int kSteps = 4;                         ///< under way
inline constexpr int kStepBytes = kWide * kOctetBytes;
/// Slots of a warp's tile; of one that a CTA shares kWarp at most.
template <Depth kDepth>
inline constexpr int kTileRows = kDepth == Depth::all ? kWarp : 4 * kWarp;
inline constexpr int kMaxParts = 32;  ///< octets, or lanes, that share a slot

/// How tiles of slots are shared out: to warps, each on its own, or to whole CTAs.
struct TileShape {
  int rows = kWarp;    ///< slots of a tile, a power of two
  int parts = 1;       ///< octets (lanes) that share a slot
  bool whole = false;  ///< the warps of a CTA share a tile
  /// Of all bytes: a lane hashes a piece alone. Then `parts` is how many warps share a slot.
  bool by_lane = false;

  /// Tiles of n cells, n >= 0.
  SERINUS_HOST_DEVICE std::int64_t tiles(std::int64_t n) const {
#ifdef __CUDA_ARCH__
    return (n + rows - 1) >> (__ffs(rows) - 1);
#else
    return (n + rows - 1) / rows;
#endif
  }
};

/// Rows of shared memory, of 32 pieces: bytes of each, and on to the next one, where the banks
/// differ.
inline constexpr int kRow = kStripRow;
inline constexpr int kPitch = kRow + kVector;
inline constexpr int kRowsBytes = kWarp * kPitch;

template <Depth kDepth>
struct DigestScratch {
  union {
    uint4 under_way[kSteps * kWide][kThreads];  ///< a column a thread
    uint4 stages[kDepth == Depth::all ? kWarps : 1][2][kRowsBytes / kVector];
  };
  ulonglong2 nh_keys[kDepth == Depth::all ? kVectors : 2];
  /// Row by row, a part each, of every warp's tile; or of the CTA's.
  std::uint64_t sums[kWarps * kTileRows<kDepth>];
  /// Of each warp's tile, to be digested; -1 = none.
  std::int32_t slots[kWarps][kTileRows<kDepth>];
};

/// Of a CTA's shared memory, where it has least: compute capability 8.6, 8.9 and 12.0.
inline constexpr std::size_t kMostShared = 99 * 1024;

/// A kernel's shared memory, as the launch sizes it.
template <class T>
__device__ __forceinline__ T& shared_as() {
  static_assert(sizeof(T) <= kMostShared);
  return *reinterpret_cast<T*>(gpu::ptx::dynamic_shared());
}

/// Once a kernel; a barrier must follow.
template <Depth kDepth>
__device__ inline void init_digest(DigestScratch<kDepth>& s) {
  constexpr int kKeys = sizeof s.nh_keys / sizeof s.nh_keys[0];
  for (int v = static_cast<int>(threadIdx.x); v < kKeys; v += static_cast<int>(blockDim.x)) {
    s.nh_keys[v] = make_ulonglong2(hash::nh_key(2 * v), hash::nh_key(2 * v + 1));
  }
}

/// Begins to copy the first kBytes of n bytes to shared memory, zeros where there are less.
template <int kBytes>
__device__ __forceinline__ void copy_word(std::uint32_t to, const std::uint8_t* at, int n) {
  if (n >= kBytes) {
    gpu::ptx::cp_async<kBytes>(to, at);
  } else {
    gpu::ptx::cp_async_zfill<kBytes>(to, at, max(n, 0));
  }
}
/// The same of 16 of n > 0 bytes, at any alignment.
__device__ __forceinline__ void copy_vector(std::uint32_t to, const std::uint8_t* at, int n,
                                            int alignment) {
  if (alignment == 16) {
    copy_word<16>(to, at, n);
  } else if (alignment == 8) {
#pragma unroll
    for (int i = 0; i < 16; i += 8) copy_word<8>(to + i, at + i, n - i);
  } else if (alignment == 4) {
#pragma unroll
    for (int i = 0; i < 16; i += 4) copy_word<4>(to + i, at + i, n - i);
  } else {
#pragma unroll 4
    for (int i = 0; i < 16; ++i) gpu::ptx::store_shared_u8(to + i, i < n ? __ldcg(at + i) : 0);
  }
}
/// Of 16-byte aligned rows: 16 of n bytes, where there are any.
__device__ __forceinline__ void copy_of_row(std::uint32_t to, const std::uint8_t* at, int n) {
  if (n >= kVector) {
    gpu::ptx::cp_async_of_row(to, at);
  } else if (n > 0) {
    gpu::ptx::cp_async_zfill<kVector>(to, at, n);
  }
}

/// NH of one vector of which n bytes exist, n > 0.
__device__ __forceinline__ std::uint64_t nh_vector(uint4 v, ulonglong2 key, int n) {
  std::uint64_t nh = hash::nh_pair(static_cast<std::uint64_t>(v.y) << 32 | v.x, key.x);
  if (n > 8) nh += hash::nh_pair(static_cast<std::uint64_t>(v.w) << 32 | v.z, key.y);
  return nh;
}

/// A piece, and where it lies of a slot.
struct OpenPiece {
  const std::uint8_t* at;
  int bytes, alignment;
};
struct Address {
  std::int32_t page, token;
};
__device__ __forceinline__ Address address_of(const PoolParams& p, std::int32_t slot) {
  const auto page = static_cast<std::int32_t>(static_cast<std::uint32_t>(slot) / p.page_size);
  return {page, slot - page * static_cast<std::int32_t>(p.page_size)};
}
__device__ __forceinline__ OpenPiece open_piece(const Piece* piece, Address a) {
  const auto* const row = reinterpret_cast<const ulonglong2*>(piece);
  const ulonglong2 where = __ldg(row);
  const ulonglong2 more = __ldg(row + 1);
  const uint2 size = __ldg(reinterpret_cast<const uint2*>(row) + 5);
  return {reinterpret_cast<const std::uint8_t*>(where.x) +
              a.page * static_cast<std::int64_t>(where.y) +
              a.token * static_cast<std::int64_t>(more.x),
          static_cast<int>(size.x), static_cast<int>(size.y)};
}
__device__ __forceinline__ OpenPiece open_piece(const PoolParams& p, int piece, Address a) {
  return open_piece(p.pieces + piece, a);
}
__device__ __forceinline__ hash::BlockKeys keys_of(const Piece* piece) {
  const auto* const row = reinterpret_cast<const std::uint64_t*>(piece);
  return {__ldg(row + 3), __ldg(row + 4)};
}
__device__ __forceinline__ hash::BlockKeys keys_of(const PoolParams& p, int piece) {
  return keys_of(p.pieces + piece);
}
__device__ __forceinline__ Strip strip_at(const PoolParams& p, int i) {
  const uint4 s = __ldg(reinterpret_cast<const uint4*>(p.strips + i));
  return {static_cast<std::int32_t>(s.x), static_cast<std::int32_t>(s.y),
          static_cast<std::int32_t>(s.z), static_cast<std::int16_t>(s.w & 0xFFFF),
          static_cast<std::int16_t>(s.w >> 16)};
}
/// Bytes of shared memory, whole vectors.
__device__ __forceinline__ int padded(int bytes) {
  return (bytes + kVector - 1) / kVector * kVector;
}

/// What an octet (a lane, where partial) is to hash: part `part` of the slots in rows `row`, `row`
/// + `step`, ...
struct Share {
  int row, step, part;
};
__device__ __forceinline__ Share share_of(const TileShape& shape, int units, int unit) {
  if (shape.parts == 1) return {unit, units, 0};
  return {unit / shape.parts, units / shape.parts, unit % shape.parts};
}

/// The next row of a share whose slot is to be hashed.
__device__ __forceinline__ int next_row(const TileShape& shape, const Share& share,
                                        const std::int32_t* slots, int row) {
  while (row < shape.rows && slots[row] < 0) row += share.step;
  return row;
}

/// Sums of the terms of an octet's share, all bytes. `sums` has a part's sum of every row.
__device__ inline void digest_all(const PoolParams& p, const TileShape& shape, const Share& share,
                                  DigestScratch<Depth::all>& scratch, const std::int32_t* slots,
                                  std::uint64_t* sums) {
  const int in_octet = lane_id() % kOctet;
  const unsigned octet = 0xFFu << (lane_id() - in_octet);
  const int lane_offset = in_octet * kVector;
  // What is asked for next, and what is hashed next: `left` bytes of a piece of a row's slot.
  struct Cursor {
    int row, piece, left;
  };
  Cursor ask{next_row(shape, share, slots, share.row), share.part, 0};
  if (ask.row >= shape.rows) return;
  Address address = address_of(p, slots[ask.row]);
  OpenPiece open = open_piece(p, ask.piece, address);
  ask.left = open.bytes;
  Cursor have = ask;
  hash::BlockKeys block_keys = keys_of(p, have.piece);
  std::uint64_t nh = 0;
  hash::u128 terms = 0;
  constexpr std::uint32_t kLayer = kThreads * kVector;
  const std::uint32_t ring = gpu::ptx::shared_address(&scratch.under_way[0][threadIdx.x]);
  const std::uint32_t first_key = gpu::ptx::shared_address(scratch.nh_keys) + lane_offset;
  std::uint32_t key = first_key;

  const auto load = [&](std::uint32_t to) {
    if (ask.row < shape.rows) {
      const int n = ask.left - lane_offset;
      const std::uint8_t* const at = open.at + lane_offset;
      if (open.alignment == 16) {
#pragma unroll
        for (int v = 0; v < kWide; ++v) {
          copy_of_row(to + v * kLayer, at + v * kOctetBytes, n - v * kOctetBytes);
        }
      } else {
#pragma unroll 1
        for (int v = 0; v < kWide && n > v * kOctetBytes; ++v) {
          copy_vector(to + v * kLayer, at + v * kOctetBytes, n - v * kOctetBytes, open.alignment);
        }
      }
      open.at += kStepBytes;
      ask.left -= kStepBytes;
      if (ask.left <= 0) {
        ask.piece += shape.parts;
        if (ask.piece >= p.num_pieces) {
          ask.piece = share.part;
          ask.row = next_row(shape, share, slots, ask.row + share.step);
          if (ask.row < shape.rows) address = address_of(p, slots[ask.row]);
        }
        open = open_piece(p, ask.piece, address);
        ask.left = open.bytes;
      }
    }
    gpu::ptx::cp_async_commit();
  };
  const auto take = [&](std::uint32_t from) {
    const int n = have.left - lane_offset;
#pragma unroll
    for (int v = 0; v < kWide; ++v) {
      if (n > v * kOctetBytes) {
        nh += nh_vector(gpu::ptx::load_shared_u32x4(from + v * kLayer),
                        gpu::ptx::load_shared_u64x2(key + v * kOctetBytes), n - v * kOctetBytes);
      }
    }
    key += kStepBytes;
    have.left -= kStepBytes;
    if (have.left > 0) return;
#pragma unroll
    for (int d = 1; d < kOctet; d *= 2) {
      nh += __shfl_xor_sync(octet, static_cast<unsigned long long>(nh), d);
    }
    terms += hash::block_term(nh, block_keys);
    nh = 0;
    key = first_key;
    have.piece += shape.parts;
    if (have.piece >= p.num_pieces) {
      if (in_octet == 0) sums[have.row * shape.parts + share.part] = hash::canonical(terms);
      terms = 0;
      have.piece = share.part;
      have.row = next_row(shape, share, slots, have.row + share.step);
    }
    block_keys = keys_of(p, have.piece);
    have.left = __ldg(&p.pieces[have.piece].bytes);
  };

#pragma unroll
  for (int i = 0; i < kSteps; ++i) load(ring + i * kWide * kLayer);
  for (int i = 0; have.row < shape.rows; i = (i + 1) % kSteps) {
    gpu::ptx::cp_async_wait<kSteps - 1>();
    take(ring + i * kWide * kLayer);
    load(ring + i * kWide * kLayer);
  }
}

/// The same where there are slots for all lanes: each hashes a strip of a slot alone, from rows of
/// shared memory to which the warp copies 128 bytes of 32 strips at once. A row is a line of
/// memory where slots begin anywhere in one, and a strip's first may then begin with another's
/// bytes: no line is asked for twice.
/// Where the tile has less than 32 slots, neighbouring lanes have the next strips of the same ones.
__device__ inline void digest_by_lane(const PoolParams& p, const TileShape& shape,
                                      DigestScratch<Depth::all>& scratch, const std::int32_t* slots,
                                      std::uint64_t* sums) {
  constexpr int kVectorsOfRow = kRow / kVector;
  constexpr int kCopies = kVectorsOfRow;  // of a lane in a stage
  constexpr int kRowsApart = kWarp / kCopies;
  const int lane = lane_id();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int side_by_side = kWarp / shape.rows;  // strips of a slot
  const int row = lane % shape.rows;
  const std::int32_t slot = slots[row];
  if (__ballot_sync(kAllLanes, slot >= 0) == 0) return;
  // A row without a slot goes along with the null slot, which exists.
  const Address address = address_of(p, slot < 0 ? 0 : slot);
  const int step = shape.parts * side_by_side;
  const int first = (shape.whole ? warp : 0) * side_by_side;
  const int mine = lane / shape.rows;
  const auto own_strip = [&](int base) { return strip_at(p, min(base + mine, p.num_strips - 1)); };
  // Vectors of a strip's first row that are not its own.
  const auto lead_of = [](const Strip& strip, const std::uint8_t* at) {
    const auto bits = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(at));
    return strip.by_line != 0 ? static_cast<int>(bits / kVector % kVectorsOfRow) : 0;
  };
  const std::uint32_t stages = gpu::ptx::shared_address(scratch.stages[warp]);
  const std::uint32_t own_row = static_cast<std::uint32_t>(lane * kPitch);
  // As a copier: vector `vector` of the rows `copied`, + kRowsApart, ...
  const int vector = lane % kVectorsOfRow;
  const int copied = lane / kVectorsOfRow;
  const auto copied_row = static_cast<std::uint32_t>(copied * kPitch + vector * kVector);

  // What is asked for next: `open` with what it leads in.
  int ask = first;
  OpenPiece open{};
  int lead = 0, more = -1;
  int rows_left = 0;  // the most of all lanes
  bool aligned = false;
  const std::uint8_t* rows[kCopies];
  const auto open_next = [&] {
    if (ask >= p.num_strips) return;
    const Strip strip = own_strip(ask);
    open = open_piece(p.pieces_in_order + strip.first, address);
    lead = lead_of(strip, open.at);
    more = strip.more;
    open = {open.at - lead * kVector, strip.bytes + lead * kVector, strip.alignment};
    rows_left = __reduce_max_sync(kAllLanes, (open.bytes + kRow - 1) / kRow);
    aligned = __all_sync(kAllLanes, open.alignment == kVector) != 0;
    if (!aligned) return;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      rows[i] = reinterpret_cast<const std::uint8_t*>(
                    shuffle(reinterpret_cast<std::uintptr_t>(open.at), copied + kRowsApart * i)) +
                vector * kVector;
    }
  };
  const auto copy_own = [&](std::uint32_t to, const OpenPiece& from) {
#pragma unroll 1
    for (int v = 0; v < kVectorsOfRow && v * kVector < from.bytes; ++v) {
      copy_vector(to + own_row + static_cast<std::uint32_t>(v * kVector), from.at + v * kVector,
                  from.bytes - v * kVector, from.alignment);
    }
  };
  const auto load = [&](std::uint32_t to) {
    if (ask < p.num_strips) {
      const auto to_row = [&](int i) {
        return to + copied_row + static_cast<std::uint32_t>(i * kRowsApart * kPitch);
      };
      if (aligned && __all_sync(kAllLanes, lead == 0 && open.bytes >= kRow)) {
#pragma unroll
        for (int i = 0; i < kCopies; ++i) {
          gpu::ptx::cp_async_of_row(to_row(i), rows[i]);
          rows[i] += kRow;
        }
      } else {
        if (__all_sync(kAllLanes, lead == 0 && open.bytes <= kVector)) {
          copy_own(to, open);
        } else if (aligned) {
          const int own = open.bytes * kVectorsOfRow + lead;
#pragma unroll
          for (int i = 0; i < kCopies; ++i) {
            const int of_row = __shfl_sync(kAllLanes, own, copied + kRowsApart * i);
            if (vector >= of_row % kVectorsOfRow) {
              copy_of_row(to_row(i), rows[i], of_row / kVectorsOfRow - vector * kVector);
            }
            rows[i] += kRow;
          }
        } else {
#pragma unroll 1
          for (int i = 0; i < kCopies; ++i) {
            const int from = copied + kRowsApart * i;
            const std::uint64_t at = shuffle(reinterpret_cast<std::uintptr_t>(open.at), from);
            const int n = __shfl_sync(kAllLanes, open.bytes, from) - vector * kVector;
            const int alignment = __shfl_sync(kAllLanes, open.alignment, from);
            if (n <= 0) continue;
            copy_vector(to_row(i), reinterpret_cast<const std::uint8_t*>(at) + vector * kVector, n,
                        alignment);
          }
        }
        if (more >= 0 && (lead > 0 || (open.bytes > 0 && open.bytes <= kRow))) {
          const OpenPiece other = open_piece(p.pieces_in_order + more, address);
          const bool before = lead * kVector >= other.bytes;
          if (before || open.bytes <= kRow) {
            copy_own(to + static_cast<std::uint32_t>(before ? 0 : padded(open.bytes)), other);
            more = -1;
          }
        }
      }
      open.at += kRow;
      open.bytes -= kRow;
      lead = 0;
      if (--rows_left == 0) {
        ask += step;
        open_next();
      }
    }
    gpu::ptx::cp_async_commit();
  };

  // What is hashed next: of a strip `rest` bytes of its rows, `left` of them of the piece; of the
  // row not the first `skipped` vectors.
  int have = first;
  const Piece* piece = nullptr;
  int rest = 0, left = 0, skipped = 0, other = -1;
  std::uint64_t nh = 0;
  hash::u128 terms = 0;
  hash::BlockKeys block_keys{};
  const std::uint32_t first_key = gpu::ptx::shared_address(scratch.nh_keys);
  std::uint32_t key = first_key;
  const auto begin_strip = [&] {
    if (have >= p.num_strips) return;
    const Strip strip = own_strip(have);
    piece = p.pieces_in_order + strip.first;
    const OpenPiece begun = open_piece(piece, address);
    skipped = lead_of(strip, begun.at);
    block_keys = keys_of(piece);
    left = begun.bytes;
    rest = padded(strip.bytes);
    other = strip.more;
  };
  const auto add_term = [&](std::uint64_t of_piece, const hash::BlockKeys& keys) {
    if (have + mine < p.num_strips) terms += hash::block_term(of_piece, keys);
  };
  const auto end_piece = [&] {
    add_term(nh, block_keys);
    nh = 0;
    key = first_key;
    if (rest <= 0) return;
    ++piece;
    block_keys = keys_of(piece);
    left = __ldg(&piece->bytes);
  };
  const auto take = [&](std::uint32_t from) {
    const auto word = [&](int v) {
      return gpu::ptx::load_shared_u32x4(from + own_row + static_cast<std::uint32_t>(v * kVector));
    };
    if (__all_sync(kAllLanes, skipped == 0 && left >= kRow)) {
#pragma unroll
      for (int v = 0; v < kVectorsOfRow; ++v) {
        nh += nh_vector(word(v),
                        gpu::ptx::load_shared_u64x2(key + static_cast<std::uint32_t>(v * kVector)),
                        kVector);
      }
      key += kRow;
      left -= kRow;
      rest -= kRow;
      if (left == 0) end_piece();
    } else {
      const int filled = skipped * kVector + rest;  // of this row and the ones after
      if (other >= 0 && (skipped > 0 || (rest > 0 && filled <= kRow))) {
        const int bytes = __ldg(&p.pieces_in_order[other].bytes);
        const bool before = skipped * kVector >= bytes;
        if (before || filled <= kRow) {
          std::uint64_t of_other = 0;
          for (int v = 0; v * kVector < bytes; ++v) {
            of_other += nh_vector(word(v + (before ? 0 : filled / kVector)), scratch.nh_keys[v],
                                  bytes - v * kVector);
          }
          add_term(of_other, keys_of(p.pieces_in_order + other));
          other = -1;
        }
      }
#pragma unroll 1
      for (int v = 0; v < kVectorsOfRow; ++v) {
        if (v < skipped) continue;
        if (rest <= 0) break;
        nh += nh_vector(word(v), gpu::ptx::load_shared_u64x2(key), left);
        key += kVector;
        left -= kVector;
        rest -= kVector;
        if (left <= 0) end_piece();
      }
      skipped = 0;
    }
    if (!__all_sync(kAllLanes, rest <= 0)) return;
    have += step;
    begin_strip();
  };

  open_next();
  begin_strip();
  load(stages);
  for (int i = 0; have < p.num_strips; i ^= 1) {
    load(stages + static_cast<std::uint32_t>((i ^ 1) * kRowsBytes));
    gpu::ptx::cp_async_wait<1>();
    __syncwarp();
    take(stages + static_cast<std::uint32_t>(i * kRowsBytes));
    __syncwarp();  // before the next copies overwrite what was read
  }
  std::uint64_t sum = hash::canonical(terms);
  for (int d = shape.rows; d < kWarp; d *= 2) {
    const std::uint64_t other_lanes =
        __shfl_xor_sync(kAllLanes, static_cast<unsigned long long>(sum), d);
    sum = hash::canonical(sum + other_lanes);
  }
  if (lane < shape.rows) sums[row * shape.parts + (shape.whole ? warp : 0)] = sum;
}

/// The same of a lane's share, partial: two vectors of each piece, of more than 32 bytes the first
/// and the last.
__device__ inline void digest_partial(const PoolParams& p, const TileShape& shape,
                                      const Share& share, DigestScratch<Depth::partial>& scratch,
                                      const std::int32_t* slots, std::uint64_t* sums) {
  constexpr int kPieces = kSteps * kWide / 2;  // under way
  struct Cursor {
    int row, piece;
  };
  Cursor ask{next_row(shape, share, slots, share.row), share.part};
  if (ask.row >= shape.rows) return;
  Address address = address_of(p, slots[ask.row]);
  Cursor have = ask;
  hash::u128 terms = 0;
  constexpr std::uint32_t kStage = kThreads * kVector;
  const std::uint32_t ring = gpu::ptx::shared_address(&scratch.under_way[0][threadIdx.x]);
  // True where that was the last piece of a row.
  const auto next = [&](Cursor& c) {
    c.piece += shape.parts;
    if (c.piece < p.num_pieces) return false;
    c.piece = share.part;
    c.row = next_row(shape, share, slots, c.row + share.step);
    return true;
  };
  const auto load = [&](std::uint32_t to) {
    if (ask.row < shape.rows) {
      const OpenPiece open = open_piece(p, ask.piece, address);
      copy_vector(to, open.at, open.bytes, open.alignment);
      if (open.bytes > kVector) {
        const int second = open.bytes > 2 * kVector ? open.bytes - kVector : kVector;
        const int alignment = second % 16 == 0  ? open.alignment
                              : second % 8 == 0 ? min(open.alignment, 8)
                              : second % 4 == 0 ? min(open.alignment, 4)
                                                : 1;
        copy_vector(to + kStage, open.at + second, open.bytes - second, alignment);
      }
      if (next(ask) && ask.row < shape.rows) address = address_of(p, slots[ask.row]);
    }
    gpu::ptx::cp_async_commit();
  };
#pragma unroll 1
  for (int i = 0; i < kPieces; ++i) load(ring + 2 * i * kStage);
  for (int i = 0; have.row < shape.rows; i = (i + 1) % kPieces) {
    gpu::ptx::cp_async_wait<kPieces - 1>();
    const std::uint32_t from = ring + 2 * i * kStage;
    const int bytes = __ldg(&p.pieces[have.piece].bytes);
    std::uint64_t nh = nh_vector(gpu::ptx::load_shared_u32x4(from), scratch.nh_keys[0], bytes);
    if (bytes > kVector) {
      nh += nh_vector(gpu::ptx::load_shared_u32x4(from + kStage), scratch.nh_keys[1],
                      min(bytes, 2 * kVector) - kVector);
    }
    terms += hash::block_term(nh, keys_of(p, have.piece));
    const int row = have.row;
    if (next(have)) {
      sums[row * shape.parts + share.part] = hash::canonical(terms);
      terms = 0;
    }
    load(from);
  }
}

/// Hashes the tile of this warp, or of this CTA, whose slots are in the warp's scratch (the same in
/// every warp, where a CTA shares a tile). A barrier of whoever shares it must follow, then
/// digest_of().
template <Depth kDepth>
__device__ __forceinline__ void digest_tile(const PoolParams& p, const TileShape& shape,
                                            DigestScratch<kDepth>& scratch) {
  const int t = static_cast<int>(threadIdx.x);
  const int warp = t / kWarp;
  const std::int32_t* const slots = scratch.slots[warp];
  std::uint64_t* const sums = scratch.sums + (shape.whole ? 0 : warp * kTileRows<kDepth>);
  if constexpr (kDepth == Depth::partial) {
    const Share share =
        shape.whole ? share_of(shape, kThreads, t) : share_of(shape, kWarp, t % kWarp);
    digest_partial(p, shape, share, scratch, slots, sums);
  } else if constexpr (kDepth == Depth::all) {
    if (shape.by_lane) return digest_by_lane(p, shape, scratch, slots, sums);
    const Share share = shape.whole ? share_of(shape, kThreads / kOctet, t / kOctet)
                                    : share_of(shape, kWarp / kOctet, t % kWarp / kOctet);
    digest_all(p, shape, share, scratch, slots, sums);
  }
}

/// Of row `row` of the tile.
template <Depth kDepth>
__device__ __forceinline__ std::uint64_t digest_of(const PoolParams& p, const TileShape& shape,
                                                   const DigestScratch<kDepth>& scratch, int row) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::uint64_t* const sums = scratch.sums + (shape.whole ? 0 : warp * kTileRows<kDepth>);
  std::uint64_t sum = __ldg(&p.words->length_sum);
  for (int part = 0; part < shape.parts; ++part) {
    sum = hash::canonical(sum + sums[row * shape.parts + part]);
  }
  return hash::finish(sum, p.depth);
}

}  // namespace serinus::canary::cuda
