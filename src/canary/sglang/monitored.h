// A Monitor's pool in the sglang format: what its backends, on the CPU and on a GPU, call the same.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <serinus/canary_sglang.h>

#include "canary/sglang/kv_runs.h"
#include "gpu/host_device.h"

namespace serinus::canary::sglang {

inline std::vector<RealKvSource> real_kv_sources(const PoolSpec& spec) {
  std::vector<RealKvSource> sources;
  for (const Source& run : kv_runs(sources_of(spec.layout, spec.num_layers, spec.buffers))) {
    // The last page ends with its last token where pages are padded or interleaved.
    const std::int64_t rows =
        (run.buffer_bytes - run.offset + run.page_stride - 1) / run.page_stride;
    const std::int64_t columns =
        std::min(run.page_stride - run.offset, spec.layout.page_size * run.token_stride) / 16 * 16;
    const bool whole = (rows - 1) * run.page_stride + run.offset + columns <= run.buffer_bytes;
    sources.push_back(
        {TensorView(const_cast<std::uint8_t*>(run.base) + run.offset, DType::u8,
                    {whole ? rows : rows - 1, columns}, {run.page_stride, 1}, spec.device),
         spec.layout.page_size, run.token_stride, run.bytes});
  }
  return sources;
}

inline RealKvHashMode mode_of(Depth d) {
  return d == Depth::none      ? RealKvHashMode::none
         : d == Depth::partial ? RealKvHashMode::partial
                               : RealKvHashMode::all;
}

/// Bytes of a slot that are fingerprinted.
inline std::int64_t bytes_of(const std::vector<RealKvSource>& sources, Depth depth) {
  if (depth == Depth::partial) return kPartialBytes * static_cast<std::int64_t>(sources.size());
  std::int64_t bytes = 0;
  for (const RealKvSource& s : sources) bytes += s.read_bytes;
  return bytes;
}

inline LaunchTag tag_of(PoolKind kind, Moment m) {
  const bool swa = kind == PoolKind::swa;
  if (m == Moment::head) return swa ? LaunchTag::head_k_swa : LaunchTag::head_k_full;
  if (m == Moment::tail) return swa ? LaunchTag::tail_k_swa : LaunchTag::tail_k_full;
  return swa ? LaunchTag::sweep_k_swa : LaunchTag::sweep_k_full;
}

/// A pool whose slots are numbered apart from the full pool's.
inline bool translates(const PoolSpec& spec) {
  return spec.kind == PoolKind::swa && !spec.full_to_swa.empty();
}

SERINUS_HOST_DEVICE constexpr bool has(std::int64_t bits, FailReason r) noexcept {
  return (bits & static_cast<std::int64_t>(r)) != 0;
}
/// Written by write(): its rows mean something else than those of verify().
SERINUS_HOST_DEVICE constexpr bool is_of_a_write(std::int64_t bits) noexcept {
  return has(bits, FailReason::write_token) || has(bits, FailReason::write_position);
}
SERINUS_HOST_DEVICE constexpr Reason reasons_of(std::int64_t bits) noexcept {
  Reason reasons = Reason::none;
  if (has(bits, FailReason::verify_chain_hash)) reasons |= Reason::chain;
  if (has(bits, FailReason::verify_position) || has(bits, FailReason::write_position)) {
    reasons |= Reason::position;
  }
  if (has(bits, FailReason::verify_real_kv_hash)) reasons |= Reason::kv_bytes;
  if (has(bits, FailReason::verify_token) || has(bits, FailReason::write_token)) {
    reasons |= Reason::token;
  }
  return reasons;
}

}  // namespace serinus::canary::sglang
