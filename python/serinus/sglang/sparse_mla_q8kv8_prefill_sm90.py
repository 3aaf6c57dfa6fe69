"""SGLang's Q8KV8 (FP8) sparse MLA prefill, with its narrower contract and its messages."""

from __future__ import annotations

import os
from operator import index

import torch

from serinus import _core
from serinus.prefill import workspace_bytes

__all__ = ["sparse_mla_q8kv8_prefill_fwd"]

# Looking at topk_length's values waits for the device, so it is done on demand only; the kernel clamps them anyway.
_CHECK_TOPK_LENGTH = os.environ.get("SERINUS_CHECK_TOPK_LENGTH", "") not in ("", "0")


def sparse_mla_q8kv8_prefill_fwd(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sm_scale: float,
    q_scale: torch.Tensor,
    kv_scale: torch.Tensor,
    d_v: int = 512,
    attn_sink: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    *,
    out: torch.Tensor | None = None,
    max_logits: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As :func:`serinus.sparse_mla_prefill`, for contiguous CUDA tensors, h_q a multiple of 64, topk of 128, and a
    sink only together with topk_length. Raises ValueError otherwise. Returns (out, max_logits, lse).
    """
    # Scales of any other framework count as none: the message asks for a torch.Tensor.
    scales = (scale if isinstance(scale, torch.Tensor) else None for scale in (q_scale, kv_scale))
    inputs = (q, kv, indices, float(sm_scale), *scales, index(d_v), attn_sink, topk_length)
    _core.check_sglang_prefill((*inputs, out, max_logits, lse))
    if _CHECK_TOPK_LENGTH and topk_length is not None:
        topk = indices.shape[2]
        outside = topk_length[(topk_length < 0) | (topk_length > topk)]
        if outside.numel():
            _core.raise_topk_length_out_of_range(topk, int(outside[0]))
    s_q, h_q = q.shape[0], q.shape[1]
    if out is None:
        out = torch.empty((s_q, h_q, d_v), dtype=torch.bfloat16, device=q.device)
    if max_logits is None:
        max_logits = torch.empty((s_q, h_q), dtype=torch.float32, device=q.device)
    if lse is None:
        lse = torch.empty((s_q, h_q), dtype=torch.float32, device=q.device)
    needed = workspace_bytes(q, kv, indices)
    workspace = torch.empty(needed, dtype=torch.uint8, device=q.device) if needed else None
    _core.sparse_mla_prefill((*inputs, out, max_logits, lse), workspace, False, False, None, 0)
    return out, max_logits, lse
