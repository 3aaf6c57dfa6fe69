"""Faults on purpose, in a running engine: does its canary sing?

Only in a build that has them: ``pip install . -Ccmake.define.SERINUS_INJECT=ON``, never for production. What each fault
must produce: docs/triage.md.
"""

from __future__ import annotations

from . import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from .monitor import Batch, Monitor

__all__ = ["Injector"]


class Injector:
    """Seeded: the same seed and the same calls give the same faults. Pools in CPU memory only.

    probability: a step, by name: req_to_token, kv_used, kv_unused_cache, kv_post_forward, token_swap, v_byte,
        position, record
    warmup_steps: none before; pool: where bytes and records are hit
    Raises serinus.RuntimeError in a build without injection.
    """

    def __init__(
        self,
        monitor: Monitor,
        probability: Mapping[str, float],
        *,
        seed: int = 1,
        warmup_steps: int = 50,
        pool: int = 0,
    ) -> None:
        self._core = _core.Injector(monitor._core, dict(probability), seed, warmup_steps, pool)

    def before_step(self, batch: Batch) -> list[dict[str, Any]]:
        """Before :meth:`Monitor.begin_step`. Writes to the table and to the batch's input_ids and positions, which must
        be tensors. Returns what was done: what, step, pool, slot, row, cell, before, after, text.
        """
        return self._core.before_step(batch)

    def after_step(self, batch: Batch) -> list[dict[str, Any]]:
        """After :meth:`Monitor.end_step`."""
        return self._core.after_step(batch)
