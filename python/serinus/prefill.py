"""FP8 sparse MLA prefill attention."""

from __future__ import annotations

from operator import index

from . import _core
from ._tensors import choice, empty_like_framework

TYPE_CHECKING = False  # typing costs more than the rest of the import
if TYPE_CHECKING:
    from typing import Any

__all__ = ["CanRun", "can_run", "sparse_mla_prefill", "workspace_bytes"]

_EMPTY_ROW_LSE = ("plus_inf", "minus_inf")


class CanRun:
    """Whether a call would run; if not, why: an error of the reference. True or false as a condition."""

    __slots__ = ("error_id", "message", "ok")

    def __init__(self, ok: bool, error_id: str, message: str) -> None:
        self.ok = ok
        self.error_id = error_id
        self.message = message

    def __repr__(self) -> str:
        return "CanRun(ok=True)" if self.ok else f"CanRun(ok=False, {self.error_id}: {self.message})"

    def __bool__(self) -> bool:
        return self.ok


def sparse_mla_prefill(
    q: Any,
    kv: Any,
    indices: Any,
    sm_scale: float,
    q_scale: Any,
    kv_scale: Any,
    d_v: int = 512,
    attn_sink: Any = None,
    topk_length: Any = None,
    *,
    out: Any = None,
    max_logits: Any = None,
    lse: Any = None,
    workspace: Any = None,
    empty_row_lse: str = "plus_inf",
    p_dtype: str = "float32",
    stream: Any = None,
    threads: int = 0,
) -> tuple[Any, Any, Any]:
    """Every query token attends to its own rows of a latent KV cache: ``out = kv_scale * softmax(...) @ V``.

    CPU tensors run on the CPU, CUDA tensors on Hopper; all lie on one device. Any number of heads, any ``topk``.

    q: [s_q, h_q, d_qk] float8_e4m3fn (or its bytes as uint8), d_qk 576 or 512; strides free but the last
    kv: [s_kv, 1, d_qk], as q; row stride a multiple of 16 bytes; V is the first d_v columns
    indices: [s_q, 1, topk] int32, rows of kv; negative or >= s_kv is ignored and never loaded
    q_scale, kv_scale: one float32 each; logits = sm_scale * q_scale * kv_scale * (q . k)
    attn_sink: [h_q] float32, natural units; changes ``out`` only
    topk_length: [s_q] int32: only the first n indices of a row count; clamped to [0, topk]
    out: [s_q, h_q, d_v] bfloat16; max_logits, lse: [s_q, h_q] float32, natural units and logarithm. Allocated in q's
        framework where not given
    workspace: uint8, :func:`workspace_bytes` of them; allocated where not given and needed
    empty_row_lse: ``lse`` of a row without a valid index, "plus_inf" or "minus_inf" (neutral in a merge)
    p_dtype: on the CPU, what the softmax weights may be rounded to: "float32", or "bfloat16", faster and less exact
    stream: where CUDA work runs; default is the current stream of q's framework
    threads: of the CPU backend, 0 = all

    Returns (out, max_logits, lse). Nothing synchronises; with every output and the workspace given, nothing
    allocates. Raises serinus.ValueError, TypeError or RuntimeError; outputs are untouched then.
    """
    minus_inf = choice("empty_row_lse", empty_row_lse, _EMPTY_ROW_LSE) == "minus_inf"
    bf16_p = choice("p_dtype", p_dtype, ("float32", "bfloat16")) == "bfloat16"
    if out is None or max_logits is None or lse is None:
        # Refuse first: shapes that make no sense must not become an allocation.
        call = (
            q,
            kv,
            indices,
            float(sm_scale),
            q_scale,
            kv_scale,
            index(d_v),
            attn_sink,
            topk_length,
            out,
            max_logits,
            lse,
        )
        _core.sparse_mla_check(call)
        s_q, h_q = q.shape[0], q.shape[1]
        out = empty_like_framework(q, (s_q, h_q, d_v), "bfloat16") if out is None else out
        max_logits = empty_like_framework(q, (s_q, h_q), "float32") if max_logits is None else max_logits
        lse = empty_like_framework(q, (s_q, h_q), "float32") if lse is None else lse
    if workspace is None:
        needed = workspace_bytes(q, kv, indices)
        workspace = empty_like_framework(q, (needed,), "uint8") if needed else None
    call = (
        q,
        kv,
        indices,
        float(sm_scale),
        q_scale,
        kv_scale,
        index(d_v),
        attn_sink,
        topk_length,
        out,
        max_logits,
        lse,
    )
    _core.sparse_mla_prefill(call, workspace, minus_inf, bf16_p, stream, threads)
    return out, max_logits, lse


def workspace_bytes(q: Any, kv: Any, indices: Any) -> int:
    """Bytes of ``workspace`` that :func:`sparse_mla_prefill` needs, from shapes and device alone. 0 on the CPU."""
    return _core.sparse_mla_workspace_bytes(q, kv, indices)


def can_run(
    q: Any,
    kv: Any,
    indices: Any,
    sm_scale: float,
    q_scale: Any,
    kv_scale: Any,
    d_v: int = 512,
    attn_sink: Any = None,
    topk_length: Any = None,
    *,
    out: Any = None,
    max_logits: Any = None,
    lse: Any = None,
    workspace: Any = None,
) -> CanRun:
    """Whether :func:`sparse_mla_prefill` would run with these arguments, without launching or allocating."""
    call = (
        q,
        kv,
        indices,
        float(sm_scale),
        q_scale,
        kv_scale,
        index(d_v),
        attn_sink,
        topk_length,
        out,
        max_logits,
        lse,
    )
    return CanRun(*_core.sparse_mla_can_run(call, workspace))
