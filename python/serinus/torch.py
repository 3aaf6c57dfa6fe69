"""torch operators: ``torch.ops.serinus.*``, registered when this module is imported.

They have fake kernels and declare what they mutate, so torch.compile traces through them and CUDA graphs capture them.
The functions below take the same dataclasses as :mod:`serinus.sglang.kv_canary` and call the operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import torch

from . import _core
from . import prefill as _prefill
from .sglang.kv_canary.verify import RealKvSource, VerifyOrWriteContext, VerifyPlan
from .sglang.kv_canary.write import WritePlan

__all__ = ["plan", "scatter_req_token_ids", "sparse_mla_prefill", "verify", "write"]

_library = torch.library.Library("serinus", "DEF")


def _register(schema: str, fake):
    """Defines an operator whose kernel, for all devices, is the decorated function."""

    def decorate(kernel):
        name = schema.split("(", 1)[0]
        _library.define(schema)
        _library.impl(name, kernel, "CompositeExplicitAutograd")
        torch.library.register_fake(f"serinus::{name}", fake, lib=_library)
        return kernel

    return decorate


def _nothing(*args, **kwargs) -> None:
    """The fake kernel of an operator that only mutates."""


# ---------------------------------------------------------------- prefill

_INPUTS = "Tensor q, Tensor kv, Tensor indices, float sm_scale, Tensor q_scale, Tensor kv_scale, "
_INPUTS += "Tensor? attn_sink=None, Tensor? topk_length=None"


def _prefill_fake(
    q, kv, indices, sm_scale, q_scale, kv_scale, attn_sink=None, topk_length=None, *, empty_row_lse="plus_inf"
):
    s_q, h_q, _ = q.shape
    return (
        q.new_empty((s_q, h_q, 512), dtype=torch.bfloat16),
        q.new_empty((s_q, h_q), dtype=torch.float32),
        q.new_empty((s_q, h_q), dtype=torch.float32),
    )


@_register(f'sparse_mla_prefill({_INPUTS}, *, str empty_row_lse="plus_inf") -> (Tensor, Tensor, Tensor)', _prefill_fake)
def _prefill_kernel(
    q, kv, indices, sm_scale, q_scale, kv_scale, attn_sink=None, topk_length=None, *, empty_row_lse="plus_inf"
):
    return _prefill.sparse_mla_prefill(
        q, kv, indices, sm_scale, q_scale, kv_scale, 512, attn_sink, topk_length, empty_row_lse=empty_row_lse
    )


@_register(
    f"sparse_mla_prefill_out({_INPUTS}, *, Tensor(a!) out, Tensor(b!) max_logits, Tensor(c!) lse, "
    'Tensor(d!)? workspace=None, str empty_row_lse="plus_inf") -> ()',
    _nothing,
)
def _prefill_out_kernel(
    q,
    kv,
    indices,
    sm_scale,
    q_scale,
    kv_scale,
    attn_sink=None,
    topk_length=None,
    *,
    out,
    max_logits,
    lse,
    workspace=None,
    empty_row_lse="plus_inf",
):
    inputs = (q, kv, q_scale, kv_scale, attn_sink)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs):
        _core.raise_forward_only("serinus::sparse_mla_prefill_out")
    _prefill.sparse_mla_prefill(
        q,
        kv,
        indices,
        sm_scale,
        q_scale,
        kv_scale,
        512,
        attn_sink,
        topk_length,
        out=out,
        max_logits=max_logits,
        lse=lse,
        workspace=workspace,
        empty_row_lse=empty_row_lse,
    )


def _no_backward(ctx, *gradients):
    _core.raise_forward_only("serinus::sparse_mla_prefill")


torch.library.register_autograd("serinus::sparse_mla_prefill", _no_backward, lib=_library)


def sparse_mla_prefill(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sm_scale: float,
    q_scale: torch.Tensor,
    kv_scale: torch.Tensor,
    attn_sink: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    *,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
    workspace: torch.Tensor | None = None,
    empty_row_lse: str = "plus_inf",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """:func:`serinus.sparse_mla_prefill` as an operator; ``out`` is (out, max_logits, lse), written in place."""
    inputs = (q, kv, indices, sm_scale, q_scale, kv_scale, attn_sink, topk_length)
    if out is None:
        return torch.ops.serinus.sparse_mla_prefill(*inputs, empty_row_lse=empty_row_lse)
    torch.ops.serinus.sparse_mla_prefill_out(
        *inputs, out=out[0], max_logits=out[1], lse=out[2], workspace=workspace, empty_row_lse=empty_row_lse
    )
    return out


# ---------------------------------------------------------------- canary, in SGLang's format

# A context as operators take it: its tensors, its sources as parallel lists, its numbers.
_SOURCES = "Tensor[] source_tensors, int[] source_numbers, int real_kv_hash_mode, int kernel_kind, "
_LOG = "Tensor(a!) violation_ring, Tensor(b!) violation_write_index, Tensor(c!) slot_run_counter, "
_LOG += "Tensor(d!) kernel_run_counter, Tensor enable_chain_position_assert, "
_VERIFY_PLAN = tuple(VerifyPlan.__dataclass_fields__)
_WRITE_PLAN = tuple(WritePlan.__dataclass_fields__)


def _tensors(names: Sequence[str], written: str = "") -> str:
    """Schema of tensors by name; the letters of ``written`` mark them as mutated, in order."""
    marks = [f"({letter}!)" for letter in written] or [""] * len(names)
    return ", ".join(f"Tensor{mark} {name}" for mark, name in zip(marks, names, strict=True))


def _context(buffer, tensors, numbers, mode, kind, ring, index, slots, launches, assert_position) -> SimpleNamespace:
    return SimpleNamespace(
        canary_buf=buffer,
        kernel_kind=kind,
        violation_ring=ring,
        violation_write_index=index,
        slot_run_counter=slots,
        kernel_run_counter=launches,
        real_kv_sources=[
            SimpleNamespace(tensor=t, page_size=page, num_bytes_per_token=per_token, read_bytes=read)
            for t, page, per_token, read in zip(tensors, numbers[::3], numbers[1::3], numbers[2::3], strict=True)
        ],
        real_kv_hash_mode=mode,
        enable_chain_position_assert=assert_position,
    )


def _flat(context: VerifyOrWriteContext) -> tuple:
    """What :func:`_context` puts together again."""
    sources: Sequence[RealKvSource] = context.real_kv_sources
    return (
        context.canary_buf,
        [s.tensor for s in sources],
        [n for s in sources for n in (s.page_size, s.num_bytes_per_token, s.read_bytes)],
        int(context.real_kv_hash_mode),
        int(context.kernel_kind),
        context.violation_ring,
        context.violation_write_index,
        context.slot_run_counter,
        context.kernel_run_counter,
        context.enable_chain_position_assert,
    )


_CONTEXT_ARGUMENTS = 10


@_register(
    f"canary_verify(Tensor canary_buf, {_SOURCES}{_LOG}{_tensors(_VERIFY_PLAN)}, "
    "bool check_verify_expected_token) -> ()",
    _nothing,
)
def _verify_kernel(*arguments):
    plan = SimpleNamespace(**dict(zip(_VERIFY_PLAN, arguments[_CONTEXT_ARGUMENTS:-1], strict=True)))
    _core.sglang.verify(_context(*arguments[:_CONTEXT_ARGUMENTS]), plan, arguments[-1], 0)


@_register(
    f"canary_write(Tensor(e!) canary_buf, {_SOURCES}{_LOG}{_tensors(_WRITE_PLAN)}, Tensor input_ids, Tensor positions, "
    "Tensor out_cache_loc, Tensor? expected_input_tokens, Tensor? expected_input_positions) -> ()",
    _nothing,
)
def _write_kernel(*arguments):
    rest = arguments[_CONTEXT_ARGUMENTS:]
    plan = SimpleNamespace(**dict(zip(_WRITE_PLAN, rest[:3], strict=True)))
    input_ids, positions, out_cache_loc, expected_tokens, expected_positions = rest[3:]
    _core.sglang.write(
        _context(*arguments[:_CONTEXT_ARGUMENTS]),
        plan,
        input_ids,
        positions,
        out_cache_loc,
        expected_tokens is not None,
        expected_tokens,
        expected_positions,
        0,
    )


@_register(
    f"canary_plan({_tensors(_VERIFY_PLAN, 'abcdef')}, {_tensors(_WRITE_PLAN, 'ghi')}, Tensor req_pool_indices, "
    "Tensor prefix_lens, Tensor extend_seq_lens, Tensor req_to_token, int swa_window_size, "
    "Tensor? full_to_swa_index_mapping, Tensor? req_to_verify_expected_tokens, "
    "Tensor? req_to_verify_expected_tokens_valid_lens, int kv_token_id_vs_position_offset) -> ()",
    _nothing,
)
def _plan_kernel(*arguments):
    verify_plan = SimpleNamespace(**dict(zip(_VERIFY_PLAN, arguments[:6], strict=True)))
    write_plan = SimpleNamespace(**dict(zip(_WRITE_PLAN, arguments[6:9], strict=True)))
    rows, prefix, extend, table, window, mapping, expected, valid_lens, offset = arguments[9:]
    capacity = verify_plan.verify_slot_indices.shape[0]
    _core.sglang.plan(
        verify_plan, write_plan, rows, prefix, extend, table, window, mapping, capacity, expected, valid_lens, offset, 0
    )


@_register(
    "scatter_req_token_ids(Tensor flat_in, Tensor offsets, Tensor req_pool_indices, Tensor(a!) pool_out) -> ()",
    _nothing,
)
def _scatter_kernel(flat_in, offsets, req_pool_indices, pool_out):
    _core.sglang.scatter_req_token_ids(flat_in, offsets, req_pool_indices, pool_out)


def verify(context: VerifyOrWriteContext, plan: VerifyPlan, check_verify_expected_token: bool) -> None:
    """``launch_canary_verify_kernel`` as an operator."""
    fields = [getattr(plan, name) for name in _VERIFY_PLAN]
    torch.ops.serinus.canary_verify(*_flat(context), *fields, check_verify_expected_token)


def write(
    context: VerifyOrWriteContext,
    plan: WritePlan,
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    out_cache_loc: torch.Tensor,
    expected_input_tokens: torch.Tensor | None = None,
    expected_input_positions: torch.Tensor | None = None,
) -> None:
    """``launch_canary_write_kernel`` as an operator; the expected inputs are checked where they are given."""
    fields = [getattr(plan, name) for name in _WRITE_PLAN]
    torch.ops.serinus.canary_write(
        *_flat(context), *fields, input_ids, positions, out_cache_loc, expected_input_tokens, expected_input_positions
    )


def plan(
    verify_plan_out: VerifyPlan,
    write_plan_out: WritePlan,
    req_pool_indices: torch.Tensor,
    prefix_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    req_to_token: torch.Tensor,
    *,
    swa_window_size: int = 0,
    full_to_swa_index_mapping: torch.Tensor | None = None,
    req_to_verify_expected_tokens: torch.Tensor | None = None,
    req_to_verify_expected_tokens_valid_lens: torch.Tensor | None = None,
    kv_token_id_vs_position_offset: int = 0,
) -> None:
    """``launch_canary_plan_kernels`` as an operator; the capacity is that of the plan."""
    torch.ops.serinus.canary_plan(
        *(getattr(verify_plan_out, name) for name in _VERIFY_PLAN),
        *(getattr(write_plan_out, name) for name in _WRITE_PLAN),
        req_pool_indices,
        prefix_lens,
        extend_seq_lens,
        req_to_token,
        swa_window_size,
        full_to_swa_index_mapping,
        req_to_verify_expected_tokens,
        req_to_verify_expected_tokens_valid_lens,
        kv_token_id_vs_position_offset,
    )


def scatter_req_token_ids(
    flat_in: torch.Tensor, offsets: torch.Tensor, req_pool_indices: torch.Tensor, pool_out: torch.Tensor
) -> None:
    """``launch_scatter_req_token_ids_kernel`` as an operator."""
    torch.ops.serinus.scatter_req_token_ids(flat_in, offsets, req_pool_indices, pool_out)
