"""A canary over one pool of torch tensors, on the CPU or a GPU, in SGLang's record format.

The smallest thing that an engine can attach: it owns the records of the pool's slots, plans from the tables that
attention reads, and checks at both moments of a step. All launches run in the current stream without a host
synchronisation, so a step with its canary can be captured in a CUDA graph; only :meth:`PoolCanary.report` reads back.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from . import _core
from . import torch as ops
from .sglang.kv_canary import consts
from .sglang.kv_canary.verify import (
    CANARY_SLOT_BYTES,
    CanaryLaunchTag,
    RealKvSource,
    VerifyOrWriteContext,
    VerifyPlan,
)
from .sglang.kv_canary.write import WritePlan

__all__ = ["PoolCanary"]


class PoolCanary:
    """Verifies every prefix at the head and the tail of a step, then stamps what the step writes.

    sources: the KV bytes to fingerprint, at most four; empty: tokens, positions and chains only
    num_slots: slot numbers are [0, num_slots); slot 0 is padding
    max_requests: rows of a batch; verify_capacity: prefix tokens of a batch, over all its requests. A step with more
        is stamped but not verified, and counted in :attr:`steps_over_capacity`
    ring_capacity: violations kept; later ones are counted only
    """

    def __init__(
        self,
        sources: Sequence[RealKvSource],
        *,
        num_slots: int,
        max_requests: int,
        verify_capacity: int,
        device: torch.device | str,
        ring_capacity: int = 1024,
    ) -> None:
        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        self.device = torch.device(device)
        self._ring = zeros(ring_capacity, consts.VIOLATION_FIELDS)
        self._found = zeros(1, dtype=torch.int32)
        self._over = zeros(1)
        self._reported = 0
        self._verify_plan = VerifyPlan.allocate(verify_capacity=verify_capacity, device=device)
        self._write_plan = WritePlan.allocate(write_req_capacity=max_requests, device=device)

        def endpoint(tag: CanaryLaunchTag, sources: Sequence[RealKvSource]) -> VerifyOrWriteContext:
            return VerifyOrWriteContext(
                canary_buf=zeros(num_slots, CANARY_SLOT_BYTES, dtype=torch.uint8),
                kernel_kind=tag,
                violation_ring=self._ring,
                violation_write_index=self._found,
                slot_run_counter=zeros(1),
                kernel_run_counter=zeros(1),
                real_kv_sources=tuple(sources),
                real_kv_hash_mode=consts.RealKvHashMode.ALL if sources else consts.RealKvHashMode.NONE,
                enable_chain_position_assert=torch.ones(1, dtype=torch.int32, device=device),
            )

        # Two sets of records: the head's bytes do not exist yet when it stamps.
        self._head = endpoint(CanaryLaunchTag.HEAD_K_FULL, ())
        self._tail = endpoint(CanaryLaunchTag.TAIL_K_FULL, sources)

    def head(
        self,
        rows: torch.Tensor,
        prefix_lens: torch.Tensor,
        extend_lens: torch.Tensor,
        req_to_token: torch.Tensor,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        out_cache_loc: torch.Tensor,
    ) -> None:
        """Before the forward. rows, prefix_lens, extend_lens: int64 [requests], row 0 = padding; req_to_token: int32
        [rows, length]; input_ids, positions, out_cache_loc: int64, flat over the new tokens. All contiguous, and to be
        kept until :meth:`tail`.
        """
        ops.plan(self._verify_plan, self._write_plan, rows, prefix_lens, extend_lens, req_to_token)
        self._over += 1 - self._verify_plan.enable
        self._tokens = (input_ids, positions, out_cache_loc)
        self._run(self._head)

    def tail(self) -> None:
        """After the forward, with the plan of the head."""
        self._run(self._tail)

    def _run(self, endpoint: VerifyOrWriteContext) -> None:
        ops.verify(endpoint, self._verify_plan, False)
        ops.write(endpoint, self._write_plan, *self._tokens)

    def report(self, step: int = 0) -> list[str]:
        """SGLang's text of each violation since the last call. Waits for the device."""
        found = int(self._found.item())
        stored = min(found, len(self._ring))
        rows = self._ring[self._reported : stored].tolist()
        self._reported = max(self._reported, stored)
        return [_core.sglang.report_text(row, found, found > len(self._ring), step) for row in rows]

    @property
    def violations(self) -> int:
        """How many so far, kept or not. Waits for the device."""
        return int(self._found.item())

    @property
    def entries_checked(self) -> int:
        """Entries verified or stamped, at both moments. Waits for the device."""
        return int(self._head.slot_run_counter.item() + self._tail.slot_run_counter.item())

    @property
    def steps_over_capacity(self) -> int:
        """Steps whose prefixes did not fit verify_capacity. Waits for the device."""
        return int(self._over.item())
