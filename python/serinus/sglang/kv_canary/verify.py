"""Verification: what a launch sees (context, sources), what it walks (plan), and the launch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch

from serinus import _core
from serinus.sglang.kv_canary.consts import RealKvHashMode

__all__ = [
    "CANARY_SLOT_BYTES",
    "CanaryLaunchTag",
    "RealKvHashMode",
    "RealKvSource",
    "VerifyOrWriteContext",
    "VerifyPlan",
    "launch_canary_verify_kernel",
]

#: Bytes of a slot's record; the stride of a canary buffer may be larger.
CANARY_SLOT_BYTES: int = 32


class CanaryLaunchTag(IntEnum):
    """Who launched a check: moment, half and pool of an endpoint."""

    HEAD_K_FULL = 0
    HEAD_V_FULL = 1
    TAIL_K_FULL = 2
    TAIL_V_FULL = 3
    SWEEP_K_FULL = 4
    SWEEP_V_FULL = 5
    HEAD_K_SWA = 6
    HEAD_V_SWA = 7
    TAIL_K_SWA = 8
    TAIL_V_SWA = 9
    SWEEP_K_SWA = 10
    SWEEP_V_SWA = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class RealKvSource:
    """Bytes of every slot in one buffer: slot s in row s // page_size, at byte (s % page_size) * num_bytes_per_token.

    tensor: at least 2-D, rows of a multiple of 16 bytes; num_bytes_per_token and read_bytes: multiples of 16.
    Raises ValueError for anything else.
    """

    tensor: torch.Tensor
    page_size: int
    num_bytes_per_token: int
    read_bytes: int

    def __post_init__(self) -> None:
        _core.sglang.check_source(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOrWriteContext:
    """One endpoint: its records, where to report, and the bytes to fingerprint.

    canary_buf: uint8 [num_slots, stride >= 32]; violation_ring: int64 [capacity, 8], filled once;
    violation_write_index: int32 [1]; slot_run_counter, kernel_run_counter: int64 [1]; real_kv_sources: at most 4;
    enable_chain_position_assert: int32 [1].
    """

    canary_buf: torch.Tensor
    kernel_kind: CanaryLaunchTag
    violation_ring: torch.Tensor
    violation_write_index: torch.Tensor
    slot_run_counter: torch.Tensor
    kernel_run_counter: torch.Tensor
    real_kv_sources: tuple[RealKvSource, ...]
    real_kv_hash_mode: RealKvHashMode
    enable_chain_position_assert: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyPlan:
    """The entries of a verification: four int64 [capacity] and two int32 [1]."""

    verify_slot_indices: torch.Tensor
    verify_expected_tokens: torch.Tensor  # -1: not compared
    verify_expected_positions: torch.Tensor
    verify_prev_slot_indices: torch.Tensor  # < 0: chain head; 0: unreachable
    verify_num_valid: torch.Tensor
    enable: torch.Tensor  # 0: the launch does nothing but count itself

    @classmethod
    def allocate(cls, *, verify_capacity: int, device: torch.device | str) -> VerifyPlan:
        """An enabled plan without entries. Raises ValueError unless the capacity is positive."""
        _core.sglang.check_verify_capacity(verify_capacity)

        def entries() -> torch.Tensor:
            return torch.empty(verify_capacity, dtype=torch.int64, device=device)

        return cls(
            verify_slot_indices=entries(),
            verify_expected_tokens=entries(),
            verify_expected_positions=entries(),
            verify_prev_slot_indices=entries(),
            verify_num_valid=torch.zeros(1, dtype=torch.int32, device=device),
            enable=torch.ones(1, dtype=torch.int32, device=device),
        )

    @staticmethod
    def allocation_bytes(verify_capacity: int) -> int:
        """Bytes of the tensors that :meth:`allocate` makes."""
        return 4 * 8 * verify_capacity + 2 * 4

    def zero_for_testing_(self) -> VerifyPlan:
        """Known content for tests of the plan: zeros, expected tokens -1. Returns the plan."""
        for tensor in (
            self.verify_slot_indices,
            self.verify_expected_positions,
            self.verify_prev_slot_indices,
            self.verify_num_valid,
            self.enable,
        ):
            tensor.zero_()
        self.verify_expected_tokens.fill_(-1)
        return self


def launch_canary_verify_kernel(
    *,
    context: VerifyOrWriteContext,
    plan: VerifyPlan,
    check_verify_expected_token: bool,
) -> None:
    """Checks every entry of the plan against the records; a ring row for each at fault. Reads the buffer only.

    CPU or CUDA tensors; CUDA work runs in the current stream and can be captured in a graph.
    """
    _core.sglang.verify(context, plan, bool(check_verify_expected_token), 0)
