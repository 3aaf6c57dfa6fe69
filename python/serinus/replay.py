"""A serving trace through the small engine that comes with Serinus, with the canary on."""

from __future__ import annotations

import os

from . import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["replay"]


def replay(
    trace: str | os.PathLike[str],
    *,
    faults: str = "none",
    seed: int = 1,
    requests: int = 0,
    format: str = "serinus",
    verify: str = "rolling",
    real_data: str = "all",
    budget: int = 1024,
    layout: str = "fp8_656",
    heads: int = 0,
    head_size: int = 0,
    dtype: str | None = None,
    layers: int = 2,
    page: int = 64,
    pool_tokens: int = 1_000_000,
    window: int = 0,
    draft_layers: int = 0,
    host_tokens: int = 0,
    max_running: int = 256,
    step_tokens: int = 8192,
    decode_tokens: int = 1,
    device: str = "cpu",
    threads: int = 0,
    progress: Callable[[int, int, int], object] | None = None,
) -> dict:
    """Replays a trace (Mooncake or Qwen-Bailian JSONL, Azure CSV) over paged pools with a prefix cache.

    faults: what to break, such as "all:100" or "byte_flip:10,remap:5"; seed: of the faults
    requests: replay only so many, 0 = all; format, verify, real_data, budget: of the canary
    heads, head_size, dtype: of the mha_* layouts, as in :func:`serinus.kv_layout`
    decode_tokens: that a request decodes a step, more than 1 as if drafts were accepted
    device: where pools and tables lie that the canary reads: "cpu", "cuda" or "cuda:N"
    progress: called with (requests done, requests in all, steps) now and then

    Returns counts, ``faults`` (each with its kind, state and the steps of injection and detection) and ``violations``
    (each with ``fault``, the index of the fault that explains it, or -1). Ctrl-C works. Raises serinus.InputError for
    a trace that cannot be read, serinus.ValueError for options that cannot be.
    """
    options = {
        "format": format,
        "verify": verify,
        "real_data": real_data,
        "budget": budget,
        "layout": layout,
        "heads": heads,
        "head_size": head_size,
        "dtype": dtype,
        "layers": layers,
        "page": page,
        "pool_tokens": pool_tokens,
        "window": window,
        "draft_layers": draft_layers,
        "host_tokens": host_tokens,
        "max_running": max_running,
        "step_tokens": step_tokens,
        "decode_tokens": decode_tokens,
        "device": device,
        "threads": threads,
    }
    result = _core.replay(os.fspath(trace), options, faults, seed, requests, progress)
    import json

    result["violations"] = [{"fault": fault, **json.loads(line)} for fault, line in result["violations"]]
    return result
