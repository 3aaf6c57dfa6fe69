// What the Hopper kernel gets beside the checked call, and how a call is cut into work items.
#pragma once

#include <cstdint>

#include "sparse_mla/backend.h"

namespace serinus::sparse_mla::sm90 {

/// Rows of kv that are scored at a time.
inline constexpr int kBlock = 64;

/// A work item is `heads` query heads of one token over its indices, or over one of `splits` parts
/// of them, which leaves partial results to merge: of few tokens all items are such parts, of many
/// the last ones, which would not fill the SMs once more.
struct Plan {
  int heads = 64;       ///< of a work item: 8, 16, 32 or 64, the last ones padded
  int head_groups = 1;  ///< work items side by side that cover h_q
  int splits = 1;
  int slots = 1;           ///< work items that run at the same time
  std::int64_t whole = 0;  ///< items before this one are not split
  std::int64_t items = 0;
  std::int64_t split_items() const { return items - whole; }
};

/// A row of a partial result: what merging needs beside the sums.
struct PartialStats {
  float max;        ///< largest logit, in units of log 2; -inf if nothing was valid
  float reference;  ///< what the weights count from, likewise
  float sum;        ///< sum of exp2(logit - reference), scaled like the weights
  float weights;    ///< the same of the rounded weights, which is what multiplied V
};

struct KernelParams {
  Params p;
  std::uint32_t rows = 0;  ///< indices below this one are valid
  std::uint32_t items = 0;
  std::uint32_t head_groups = 1;
  std::uint32_t splits = 1;
  std::uint32_t whole = 0;                ///< items from this one on are split
  bool q_aligned = true;                  ///< base and strides of q are multiples of 16 bytes
  std::uint16_t* partial_out = nullptr;   ///< [split items, heads, kDV] bf16, not normalised
  PartialStats* partial_stats = nullptr;  ///< [split items, heads]
};

}  // namespace serinus::sparse_mla::sm90
