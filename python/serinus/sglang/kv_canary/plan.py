"""Planning: from the request table to what a step verifies and where it writes."""

from __future__ import annotations

import torch

from serinus import _core
from serinus.sglang.kv_canary.verify import VerifyPlan
from serinus.sglang.kv_canary.write import WritePlan

__all__ = ["launch_canary_plan_kernels"]


def launch_canary_plan_kernels(
    *,
    verify_plan_out: VerifyPlan,
    write_plan_out: WritePlan,
    req_pool_indices: torch.Tensor,
    prefix_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    req_to_token: torch.Tensor,
    swa_window_size: int,
    full_to_swa_index_mapping: torch.Tensor | None,
    verify_capacity: int,
    req_to_verify_expected_tokens: torch.Tensor | None,
    req_to_verify_expected_tokens_valid_lens: torch.Tensor | None,
    kv_token_id_vs_position_offset: int,
) -> None:
    """Lists every prefix (or its window) to verify, and the seeds of the writes.

    req_pool_indices, prefix_lens, extend_seq_lens: int64 [bs], row 0 = padding; req_to_token: int32 [rows, max_len].
    More entries than verify_capacity: ``enable`` becomes 0 and no entry is stored. CPU or CUDA tensors; CUDA work runs
    in the current stream and can be captured in a graph.
    """
    _core.sglang.plan(
        verify_plan_out,
        write_plan_out,
        req_pool_indices,
        prefix_lens,
        extend_seq_lens,
        req_to_token,
        swa_window_size,
        full_to_swa_index_mapping,
        verify_capacity,
        req_to_verify_expected_tokens,
        req_to_verify_expected_tokens_valid_lens,
        kv_token_id_vs_position_offset,
        0,
    )
