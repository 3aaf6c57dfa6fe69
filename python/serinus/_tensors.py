"""Allocation in the framework of a given tensor: the one thing that views cannot do."""

from __future__ import annotations

import sys

from . import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def empty_like_framework(like: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """An uninitialised tensor on ``like``'s device. numpy holds bfloat16 with ml_dtypes, else its bits as uint16."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(like, torch.Tensor):
        return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)
    cupy = sys.modules.get("cupy")
    module: Any
    if cupy is not None and isinstance(like, cupy.ndarray):
        module = cupy
    else:
        import numpy as module
    return module.empty(shape, dtype=_array_dtype(dtype))


def _array_dtype(dtype: str) -> Any:
    if dtype != "bfloat16":
        return dtype
    try:
        import ml_dtypes
    except ImportError:
        return "uint16"
    return ml_dtypes.bfloat16


def choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    """``value``, if it is one of ``choices``; else serinus.ValueError."""
    if value not in choices:
        _core.raise_unknown_option(name, ", ".join(choices), repr(value))
    return value
