"""Dumps of a pool, read by somebody who was not there."""

from __future__ import annotations

import os

from . import _core
from .monitor import Violation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["scan"]


def scan(path: str | os.PathLike[str], *, limit: int = 1000) -> dict[str, Any]:
    """Checks a dump (:meth:`serinus.Monitor.write_dump`) in itself, as ``serinus scan`` does.

    Returns step, slots, written, bytes_checked, cells, violations (of :class:`serinus.Violation`, at most ``limit``)
    and more (how many beyond). Raises serinus.InputError for a file that is no whole dump.
    """
    found = _core.scan(os.fspath(path), limit)
    found["violations"] = [Violation(*v) for v in found["violations"]]
    return found
