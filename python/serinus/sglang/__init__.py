"""Drop-ins for SGLang's kernel modules.

The modules below have the functions, keyword names, dataclasses, defaults, messages and bytes of those that SGLang's
own callers import; :func:`install` puts them in their place. What is compatible: docs/python.md.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType

from .. import _core
from .._tensors import choice

__all__ = ["install", "plugin", "uninstall"]

_OPS = "sglang.kernels.ops"
_KV_CANARY = ("consts", "verify", "write", "plan", "scatter_req_token_ids")
_PARTS = {
    "kv_canary": {f"{_OPS}.kv_canary.{name}": f"{__name__}.kv_canary.{name}" for name in _KV_CANARY},
    "prefill": {
        f"{_OPS}.attention.sparse_mla_q8kv8_prefill_sm90": f"{__name__}.sparse_mla_q8kv8_prefill_sm90",
    },
}


def install(part: str = "all") -> None:
    """Puts the drop-ins in the place of SGLang's modules: "kv_canary", "prefill", or "all" of them.

    Call it before SGLang imports them, else whoever imported a function keeps the original: then
    serinus.RuntimeError, and nothing is changed. Doing it twice is fine.
    """
    targets = _targets(part)
    for name, own in targets.items():
        present = sys.modules.get(name)
        if present is not None and present.__name__ != own:
            _core.raise_already_imported(name)
    for name, own in targets.items():
        _put(name, importlib.import_module(own))


def uninstall(part: str = "all") -> None:
    """Takes them out again; the next import finds SGLang's own. What is imported already keeps what it has."""
    for name, own in _targets(part).items():
        present = sys.modules.get(name)
        if present is not None and present.__name__ == own:
            _put(name, None)


def plugin() -> None:
    """SGLang's plugin entry point. Does what SERINUS_SGLANG says: "all", "kv_canary", "prefill"; unset: nothing."""
    part = os.environ.get("SERINUS_SGLANG", "")
    if part not in ("", "0", "none"):
        install(part)


def _targets(part: str) -> dict[str, str]:
    if choice("part", part, ("all", *_PARTS)) == "all":
        return {name: own for targets in _PARTS.values() for name, own in targets.items()}
    return _PARTS[part]


def _put(name: str, module: ModuleType | None) -> None:
    """Into sys.modules, and into the package that holds it, if that is loaded: both are ways to reach a module."""
    parent, _, child = name.rpartition(".")
    package = sys.modules.get(parent)
    if module is None:
        own = sys.modules.pop(name)
        if package is not None and getattr(package, child, None) is own:
            delattr(package, child)
        return
    sys.modules[name] = module
    if package is not None:
        setattr(package, child, module)
