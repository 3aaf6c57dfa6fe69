"""Serinus: FP8 sparse MLA prefill attention, and a canary for the KV cache.

The native API takes any tensors: torch, numpy, cupy, jax (as input), whatever has ``__dlpack__`` or
``__cuda_array_interface__``. Nothing is copied, and torch is imported only where the program has imported it.
What SGLang's own callers expect is in :mod:`serinus.sglang`, torch operators are in :mod:`serinus.torch`.
"""

from __future__ import annotations

from ._core import KvLayout, KvSegment, __version__, kv_layout, kv_layout_names
from .dump import scan
from .errors import (
    Error,
    InputError,
    InternalError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
    error_reference,
    explain,
)
from .monitor import Batch, Monitor, Violation, config_from_sglang_flags, read_config
from .prefill import CanRun, can_run, sparse_mla_prefill, workspace_bytes
from .replay import replay

__all__ = [
    "Batch",
    "CanRun",
    "Error",
    "InputError",
    "InternalError",
    "KvLayout",
    "KvSegment",
    "Monitor",
    "NotImplementedError",
    "RuntimeError",
    "TypeError",
    "ValueError",
    "Violation",
    "__version__",
    "can_run",
    "config_from_sglang_flags",
    "error_reference",
    "explain",
    "kv_layout",
    "kv_layout_names",
    "read_config",
    "replay",
    "scan",
    "sparse_mla_prefill",
    "workspace_bytes",
]
