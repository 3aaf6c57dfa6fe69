"""Token histories of the requests, from one flat array into the expected-token pool."""

from __future__ import annotations

import torch

from serinus import _core

__all__ = ["launch_scatter_req_token_ids_kernel", "scatter_req_token_ids_torch_reference"]

_SCATTER_BATCH_BLOCK: int = 512  # bs + 1 at most


def launch_scatter_req_token_ids_kernel(
    *,
    flat_in: torch.Tensor,
    offsets: torch.Tensor,
    req_pool_indices: torch.Tensor,
    pool_out: torch.Tensor,
) -> None:
    """flat_in[offsets[r] + p] -> pool_out[req_pool_indices[r], p], the low 32 bits, for p within the pool's width.

    flat_in, offsets [bs + 1], req_pool_indices [bs]: int64; pool_out: int32 [rows, width]. Rows that are not named
    stay as they are. CPU or CUDA tensors.
    """
    _core.sglang.scatter_req_token_ids(flat_in, offsets, req_pool_indices, pool_out)


def scatter_req_token_ids_torch_reference(
    *,
    flat_in: torch.Tensor,
    offsets: torch.Tensor,
    req_pool_indices: torch.Tensor,
    pool_out: torch.Tensor,
) -> None:
    """The same in plain torch, a request at a time, unchecked: what the kernel is compared with. Synchronises."""
    width = pool_out.shape[1]
    bounds = offsets.tolist()
    for r, row in enumerate(req_pool_indices.tolist()):
        begin, end = bounds[r], min(bounds[r + 1], bounds[r] + width, flat_in.shape[0])
        if end > begin:
            # int64 to int32 keeps the low 32 bits.
            pool_out[row, : end - begin] = flat_in[begin:end].to(pool_out.device, torch.int32)
