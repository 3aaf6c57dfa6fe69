"""Stamping: what a launch walks (plan), and the launch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from serinus import _core
from serinus.sglang.kv_canary.verify import VerifyOrWriteContext

__all__ = ["WritePlan", "launch_canary_write_kernel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """Where each request's new tokens begin, and the slot before them."""

    write_offsets: torch.Tensor  # int64 [capacity + 1], into the token arrays
    write_seed_slot_indices: torch.Tensor  # int64 [capacity]; < 0: chain head
    write_num_valid_reqs: torch.Tensor  # int32 [1]

    @classmethod
    def allocate(cls, *, write_req_capacity: int, device: torch.device | str) -> WritePlan:
        """A plan without requests. Raises ValueError unless the capacity is positive."""
        _core.sglang.check_write_req_capacity(write_req_capacity)
        return cls(
            write_offsets=torch.empty(write_req_capacity + 1, dtype=torch.int64, device=device),
            write_seed_slot_indices=torch.empty(write_req_capacity, dtype=torch.int64, device=device),
            write_num_valid_reqs=torch.zeros(1, dtype=torch.int32, device=device),
        )

    @staticmethod
    def allocation_bytes(write_req_capacity: int) -> int:
        """Bytes of the tensors that :meth:`allocate` makes."""
        return 8 * (2 * write_req_capacity + 1) + 4

    def zero_for_testing_(self) -> WritePlan:
        """Known content for tests of the plan: zeros. Returns the plan."""
        for tensor in (self.write_offsets, self.write_seed_slot_indices, self.write_num_valid_reqs):
            tensor.zero_()
        return self


def launch_canary_write_kernel(
    *,
    context: VerifyOrWriteContext,
    plan: WritePlan,
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    out_cache_loc: torch.Tensor,
    enable_write_input_assert: bool,
    expected_input_tokens: torch.Tensor | None,
    expected_input_positions: torch.Tensor | None,
) -> None:
    """Stamps the new tokens' slots with what is actually written; rows for what was not expected.

    input_ids, positions, out_cache_loc and the expected inputs: contiguous int64 [n]; a negative location is not
    written. CPU or CUDA tensors; CUDA work runs in the current stream and can be captured in a graph.
    """
    _core.sglang.write(
        context,
        plan,
        input_ids,
        positions,
        out_cache_loc,
        bool(enable_write_input_assert),
        expected_input_tokens,
        expected_input_positions,
        0,
    )
