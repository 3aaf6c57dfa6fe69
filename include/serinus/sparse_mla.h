// FP8 sparse MLA prefill attention: every query token attends to its own `topk` rows of a latent KV
// cache. One call, one backend: CPU tensors run on the CPU, CUDA tensors on Hopper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <serinus/tensor.h>

namespace serinus {

/// Value of `lse` for a row without a single valid index.
enum class EmptyRowLse : std::uint8_t {
  plus_inf,   ///< FlashMLA's convention
  minus_inf,  ///< the neutral element when partial results are merged
};

/// Arguments of the prefill. All tensors lie on one device; the outputs belong to the caller.
struct SparseMlaPrefill {
  TensorView q;  ///< [s_q, h_q, d_qk] e4m3; last dimension contiguous, other strides free
  TensorView
      kv;  ///< [s_kv, 1, d_qk] e4m3; row stride any multiple of 16 bytes; V = first d_v columns
  TensorView
      indices;  ///< [s_q, 1, topk] int32; rows of kv; negative or >= s_kv = ignored, never loaded
  float sm_scale = 0;   ///< finite, either sign
  TensorView q_scale;   ///< one float32 on the device
  TensorView kv_scale;  ///< one float32 on the device
  int d_v = 512;
  std::optional<TensorView> attn_sink;    ///< [h_q] float32, natural units; changes `out` only
  std::optional<TensorView> topk_length;  ///< [s_q] int32, clamped to [0, topk]
  TensorView out;                         ///< [s_q, h_q, d_v] bfloat16
  TensorView max_logits;  ///< [s_q, h_q] float32, natural units; -inf for an empty row
  TensorView lse;         ///< [s_q, h_q] float32, natural log
  EmptyRowLse empty_row_lse = EmptyRowLse::plus_inf;
  /// CPU: what P, the softmax weights that multiply V, may be rounded to. f32; or bf16, faster
  /// where the CPU has bf16 dot products: error of `out` 0.0020 instead of 0.0017, of `lse` up to
  /// 2^-9 (it is the logarithm of the rounded weights' sum, the denominator of `out`). The Hopper
  /// kernel keeps P in e4m3 whatever this says.
  DType p_dtype = DType::f32;
  TensorView
      workspace;  ///< u8, at least sparse_mla_workspace_bytes(); may be empty where that is 0
};

/// logits = sm_scale * q_scale * kv_scale * (q . k);  out = kv_scale * sum p v.
/// An fp8 NaN that is read makes out, max_logits and lse NaN for that (query, head) alone; a NaN
/// sink makes out NaN, also in a row without a single valid index. Bitwise repeatable. CUDA:
/// stream-ordered, no allocation, no host synchronisation, capturable in a graph. `threads`
/// concerns the CPU backend alone: 0 = all that the machine has. Throws ValueError/TypeError for
/// arguments (checked in the order of the fields), RuntimeError where this build or GPU cannot run
/// it. Outputs are untouched when it throws.
void sparse_mla_prefill(const SparseMlaPrefill& args, Stream stream = {}, int threads = 0);

/// Workspace that the call needs, from shapes alone.
std::size_t sparse_mla_workspace_bytes(const SparseMlaPrefill& args);

/// Whether sparse_mla_prefill(args) would run, without launching it.
struct CanRun {
  bool ok = true;
  std::string error_id;  ///< why not: id in the error reference
  std::string message;
  explicit operator bool() const noexcept { return ok; }
};
CanRun can_run(const SparseMlaPrefill& args) noexcept;

/// The same checks as SGLang's sparse_mla_q8kv8_prefill_fwd, in its order and with its messages
/// (contiguous tensors, h_q a multiple of 64, topk of 128, sink only with topk_length).
/// `require_cuda` false lets CPU tensors through. An output without data and dimensions counts as
/// not given: the compatible function allocates it.
void check_sglang_contract(const SparseMlaPrefill& args, bool require_cuda = true);

}  // namespace serinus
