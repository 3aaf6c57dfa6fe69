"""The canary of an engine: describe its pools, announce what its allocator does, bracket every forward."""

from __future__ import annotations

import os
import weakref

from . import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from typing import Any

__all__ = ["Batch", "Monitor", "Violation", "config_from_sglang_flags", "read_config"]

# One slot's record, and what the allocator last announced about it (canary.h): dtypes for numpy.
RECORD_DTYPE = [
    ("token", "<u4"),
    ("position", "<u4"),
    ("owner", "<u4"),
    ("generation", "<u4"),
    ("chain", "<u8"),
    ("kv_digest", "<u8"),
]
LEDGER_DTYPE = [
    ("owner", "<u4"),
    ("generation", "<u4"),
    ("prev", "<i4"),
    ("written", "<u4"),
    ("previous_owner", "<u4"),
]


def _parsed(line: str) -> dict[str, Any]:
    import json  # which takes as long to import as all of serinus

    return json.loads(line)


class Violation:
    """One fault at one slot. ``str()`` is its report line; the fields of its JSON are attributes.

    reasons, moment, format, pool (its name), slot, request, row, expected_position, stored_position, expected_token,
    stored_token, expected_chain, stored_chain, expected_digest, stored_digest (hexadecimal), expected_owner,
    stored_owner, expected_generation, stored_generation, prev_slot, layer, segment, first_step, last_step, count,
    events.
    """

    __slots__ = ("fields", "json", "pool_number", "text")

    def __init__(self, pool_number: int, text: str, json_line: str) -> None:
        self.pool_number = pool_number
        self.text = text
        self.json = json_line
        self.fields = _parsed(json_line)

    def __getattr__(self, name: str) -> Any:
        if name == "fields":  # not set yet: an unpickled shell
            raise AttributeError(name)
        try:
            return self.fields[name]
        except KeyError:
            raise AttributeError(name) from None

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Violation {self.text}>"

    def __reduce__(self) -> tuple:
        return type(self), (self.pool_number, self.text, self.json)


class Batch:
    """One forward, as the tables describe it. One entry a request, except where noted.

    rows: rows of the request table, 0 = padding; prefix_lens: tokens already in the pool (these are checked);
    extend_lens: tokens that this forward writes; owners: who the requests are (1..2**32-1)
    req_to_token: int32 [rows, max_len], slot of (row, position)
    input_ids, positions, out_cache_loc: flat over the new tokens of all requests, in order; a negative location is
        not written
    parents: tree drafts: for each flat token the flat index of the one before it, -1 = it follows the prefix
    expected_tokens: int32 [rows, max_len], and valid_lens, how much of each request's row is known: independent truth
    pools: numbers of the pools that this forward reads and writes; default all

    Lists are int64 tensors on the CPU (looked at in place) or sequences of ints; the tables lie where the pools are.
    Where ``rows`` is a tensor on a GPU, everything is (int64, owners int32 or uint32): such a batch can be
    captured in a CUDA graph, and is read in stream order.
    """

    __slots__ = (
        "expected_tokens",
        "extend_lens",
        "input_ids",
        "out_cache_loc",
        "owners",
        "parents",
        "pools",
        "positions",
        "prefix_lens",
        "req_to_token",
        "rows",
        "valid_lens",
    )

    def __init__(
        self,
        *,
        rows: Any,
        prefix_lens: Any,
        extend_lens: Any,
        owners: Any,
        req_to_token: Any,
        input_ids: Any = None,
        positions: Any = None,
        out_cache_loc: Any = None,
        parents: Any = None,
        expected_tokens: Any = None,
        valid_lens: Any = None,
        pools: Any = None,
    ) -> None:
        self.rows = rows
        self.prefix_lens = prefix_lens
        self.extend_lens = extend_lens
        self.owners = owners
        self.req_to_token = req_to_token
        self.input_ids = input_ids
        self.positions = positions
        self.out_cache_loc = out_cache_loc
        self.parents = parents
        self.expected_tokens = expected_tokens
        self.valid_lens = valid_lens
        self.pools = pools


def read_config(file: str = "", environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Arguments of :class:`Monitor`: the defaults, then the JSON file, then SERINUS_CANARY_*; the later wins.

    file: default is what SERINUS_CANARY_CONFIG names, if it is set; environment: default is the process's
    ``Monitor(**read_config())`` is a canary that is configured from outside. Raises serinus.InputError for a file that
    cannot be read or says something else, serinus.ValueError naming the variable.
    """
    return _parsed(_core.read_config(file, None if environment is None else dict(environment)))


def config_from_sglang_flags(
    kv_canary: str = "none", kv_canary_real_data: str = "none", kv_canary_sweep_interval: int = 0
) -> dict[str, Any]:
    """Arguments of :class:`Monitor` from SGLang's three flags, with its words, defaults and errors."""
    return _parsed(_core.config_from_sglang_flags(kv_canary, kv_canary_real_data, kv_canary_sweep_interval))


class _Step:
    """Both moments around a forward. contextlib would be the slowest import of the package."""

    __slots__ = ("_batch", "_monitor", "_stream")

    def __init__(self, monitor: Monitor, batch: Batch, stream: Any) -> None:
        self._monitor, self._batch, self._stream = monitor, batch, stream

    def __enter__(self) -> None:
        self._monitor.begin_step(self._batch, stream=self._stream)

    def __exit__(self, raised: type[BaseException] | None, *_: object) -> None:
        if raised is None:
            self._monitor.end_step(self._batch, stream=self._stream)


class Monitor:
    """Watches pools of KV, in CPU memory or on a GPU. Calls come from one thread at a time; :meth:`poll` and the counts
    from any.

    Pools on a GPU: announcements go along with the next step, in its stream; the moments are launches
    that nothing waits for, so what they find arrives with a later poll. docs/design/canary_cuda.md.

    format: "serinus" (owner, life, chain and digest of every byte) or "sglang" (bit-exact with SGLang's records)
    depth: how much of a token's KV is digested: "none", "partial" (16 bytes at each end of a source), "all"
    mode: "log" (poll finds out), "raise" (:meth:`end_step` raises), "quarantine" (:meth:`tainted` lists), "none"
    verify: "rolling" (what is newly reused in full, the rest in turn within the budget) or "all" at every step
    records_per_step, bytes_per_step: the rolling budget
    source_digests: name the damaged layer and segment, for 4 more bytes a slot and source
    sweep_interval: sglang format, steps between sweeps; ring_capacity: distinct violations kept until polled
    event_capacity: allocator events kept a pool, for reports
    health_steps: steps after which a pool in use that was not checked is reported by :meth:`health`; 0 = never
    violations_file: violations are appended to it as JSON lines, from a thread of their own; empty = none
    """

    def __init__(
        self,
        *,
        format: str = "serinus",
        depth: str = "all",
        mode: str = "log",
        verify: str = "rolling",
        records_per_step: int = 4096,
        bytes_per_step: int = 8 << 20,
        source_digests: bool = False,
        sweep_interval: int = 16,
        ring_capacity: int = 1024,
        event_capacity: int = 65536,
        health_steps: int = 100,
        threads: int = 1,
        violations_file: str = "",
    ) -> None:
        options = {name: value for name, value in locals().items() if name != "self"}
        self._core = _core.Monitor(options)
        if violations_file:
            self._core.log_to(violations_file)
        self._kept: dict[int, Any] = {}  # the memory that the pools' views look at
        self._sweep_sources: dict[int, Callable[[], Iterable[tuple[int, int, int]]]] = {}

    def add_pool(
        self,
        layout: _core.KvLayout,
        buffers: Sequence[Any] = (),
        *,
        name: str = "kv",
        kind: str = "full",
        num_layers: int = 1,
        num_slots: int | None = None,
        null_slot: str = "clean",
        window: int = 0,
        full_to_swa: Any = None,
        token_offset: int = 0,
        table_rows: int = 4096,
    ) -> int:
        """Attaches a pool; returns its number. Its memory must stay at its place, and is kept alive.

        layout: :func:`serinus.kv_layout`, or a KvLayout of your own
        buffers: tensors of any dtype, all on one device, layer-major (buffer b of layer l at l * layout.num_buffers +
            b); dense, or with the pages as first dimension and its stride free (pages interleaved over layers)
        kind: "full", "swa" (window, full_to_swa: int64 tensor) or "draft" (token_offset 1)
        num_slots: default is what the buffers hold; slot 0 is the null slot, "clean" or "scratch" (padding writes it)
        table_rows: on a GPU, rows of the request table that :meth:`on_attach` may name
        """
        given = {
            "name": name,
            "kind": kind,
            "num_layers": num_layers,
            "num_slots": num_slots,
            "null_slot": null_slot,
            "window": window,
            "full_to_swa": full_to_swa,
            "token_offset": token_offset,
            "table_rows": table_rows,
        }
        number = self._core.add_pool(layout, list(buffers), given)
        self._kept[number] = (tuple(buffers), full_to_swa)
        return number

    def detach_pool(self, pool: int) -> None:
        """The pool's memory is about to go: nothing of it is read any more, and it is not kept alive any longer."""
        self._core.detach_pool(pool)
        self._kept.pop(pool, None)

    def set_sweep_source(self, pool: int, entries: Callable[[], Iterable[tuple[int, int, int]]]) -> None:
        """sglang format: what a sweep walks. ``entries()`` gives (slot, position, slot before it or -1) of the prefix
        tree, and is called in :meth:`end_step`.
        """
        self._sweep_sources[pool] = entries
        here = weakref.ref(self)  # the extension's reference must not keep the monitor, and so itself, alive
        self._core.set_sweep_source(pool, lambda: monitor._sweep_sources[pool]() if (monitor := here()) else ())

    # ---- what the allocator does, in order

    def on_alloc(self, pool: int, slots: Any, owner: int) -> None:
        """``slots`` now belong to ``owner``, empty: a new life."""
        self._core.on_alloc(pool, slots, owner)

    def on_free(self, pool: int, slots: Any, owner: int = 0) -> None:
        """``slots`` belong to nobody; their records are erased."""
        self._core.on_free(pool, slots, owner)

    def on_transfer(self, pool: int, slots: Any, from_owner: int, to_owner: int) -> None:
        """``slots`` change hands within their life, as when a request gives them to the prefix cache."""
        self._core.on_transfer(pool, slots, from_owner, to_owner)

    def on_attach(self, owner: int, row: int, begin: int, end: int) -> None:
        """``owner`` now reads cells [begin, end) of its row, written by others: a prefix hit."""
        self._core.on_attach(owner, row, begin, end)

    def on_release(self, owner: int) -> None:
        """``owner`` reads nothing any more: finished, aborted or preempted."""
        self._core.on_release(owner)

    def on_move(self, pool: int, from_slots: Any, to_slots: Any) -> None:
        """Slot from_slots[i] was copied to to_slots[i], which is allocated: records travel with their bytes."""
        self._core.on_move(pool, from_slots, to_slots)

    def on_store(self, pool: int, slots: Any, records: Any, source_digests: Any = None) -> None:
        """Copies the records of ``slots`` into ``records`` (32 bytes a slot), to be kept beside their bytes.

        source_digests: uint32 [slots, sources], where the monitor keeps them
        """
        self._core.on_store(pool, slots, records, source_digests)

    def on_load(self, pool: int, records: Any, slots: Any, owner: int, source_digests: Any = None) -> None:
        """Bytes and records from elsewhere were put into ``slots``, which ``owner`` holds."""
        self._core.on_load(pool, records, slots, owner, source_digests)

    # ---- the moments

    # stream: where the work of pools on a GPU runs; default is the current stream of the table's framework

    def begin_step(self, batch: Batch, *, stream: Any = None) -> None:
        """Head: verifies what happened between the steps. Before the forward."""
        self._core.begin_step(batch, stream)

    def end_step(self, batch: Batch, *, stream: Any = None) -> None:
        """Tail: verifies what the forward trampled, stamps the new tokens, sweeps. After the forward."""
        self._core.end_step(batch, stream)

    def step(self, batch: Batch, *, stream: Any = None) -> AbstractContextManager[None]:
        """``with monitor.step(batch): forward()``. A forward that raises ends the step unstamped."""
        return _Step(self, batch, stream)

    def begin_replay(self, batch: Batch, *, stream: Any = None) -> None:
        """Before each launch of a graph that holds both moments: what was announced since it was captured or launched,
        and the checks that are due for it. ``batch`` is the captured one.
        """
        self._core.begin_replay(batch, stream)

    def verify_now(
        self, moment: str, owner: int, row: int, begin: int, end: int, tables: Batch, *, stream: Any = None
    ) -> None:
        """Verifies cells [begin, end) of one request now, outside the budget."""
        self._core.verify_now(moment, owner, row, begin, end, tables, stream)

    def stamp_now(self, batch: Batch, *, stream: Any = None) -> None:
        """Stamps the batch's tokens outside a step: a write that lands late."""
        self._core.stamp_now(batch, stream)

    def request_digest(self, row: int, length: int, tables: Batch) -> int:
        """Digest of what is cached for a request, without slot numbers: equal on all ranks."""
        return self._core.request_digest(row, length, tables)

    def request_digests(self, pool: int, batch: Batch, digests: Any, *, stream: Any = None) -> None:
        """Pools on a GPU: what ``pool`` holds of each request of the batch (its first prefix_lens cells), for an
        all-gather in the same stream; :func:`serinus.ranks.compare_ranks` reads what that brings.

        batch: on the GPU, as for a graph; after :meth:`begin_step`
        digests: uint8 [bs, 32] on the GPU; serinus.ranks.DIGEST_DTYPE
        """
        self._core.request_digests(pool, batch, digests, stream)

    # ---- what it found

    def poll(self) -> list[Violation]:
        """Takes the violations found since the last call."""
        return [Violation(*found) for found in self._core.poll()]

    def wait(self) -> None:
        """Pools on a GPU: waits for the checks launched so far, so that :meth:`poll` then has all that they found."""
        self._core.wait()

    def flush(self) -> None:
        """Runs what is still due (idle, shutdown); :meth:`poll` then leaves nothing unreported."""
        self._core.flush()

    def tainted(self) -> tuple[list[tuple[int, int]], list[int], bool]:
        """quarantine: (pool, slot) pairs and requests touched since the last call, and whether that is all of them."""
        return self._core.tainted()

    def events(self, pool: int, slot: int, n: int = 4) -> list[dict[str, Any]]:
        """The last things announced about a slot, oldest first, as in :class:`Violation`: event, owner, peer, step."""
        return self._core.events(pool, slot, n)

    def pool_events(self, pool: int) -> list[tuple[int, dict[str, Any]]]:
        """Everything that is kept of what was announced about a pool, oldest first, with the slot."""
        return self._core.pool_events(pool)

    def health(self) -> list[dict[str, Any]]:
        """Checks that stopped running: moment, pool, since_step, text. Empty while all is well. From any thread."""
        return self._core.health()

    def log_to(self, path: str) -> None:
        """Violations are also appended to this file, as JSON lines, when they are first seen; "" = no more."""
        self._core.log_to(path)

    def write_dump(
        self,
        path: str | os.PathLike[str],
        *,
        bytes: str = "all",
        listed: Iterable[tuple[int, int]] = (),
        rows: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        """Records, ledger, events and KV bytes in one file, for :func:`scan` and ``serinus scan``. Between steps.

        bytes: whose KV bytes: "all", "listed" (the (pool, slot) pairs in ``listed``) or "none"
        rows: rows of the table as they stand: mappings with owner, row, cells (slots by position), and where known
            tokens and pools
        """
        _core.write_dump(self._core, os.fspath(path), bytes, list(listed), list(rows))

    @property
    def options(self) -> dict[str, Any]:
        """What it was made with, by the names of its arguments."""
        return _parsed(self._core.options())

    def stats(self) -> dict[str, int | float]:
        """Counts since the beginning, by the names of canary.h's Stats."""
        return self._core.stats()

    def pool_stats(self) -> list[dict[str, Any]]:
        """By pool number: name, kind, num_slots, live_slots, and violations by reason."""
        return self._core.pool_stats()

    def metrics_text(self, name: str = "") -> str:
        """The counts in Prometheus's text format; ``name`` tells several monitors apart."""
        return self._core.metrics_text(name)

    def state(self, pool: int, slot: int) -> str:
        """ "free", "empty" (allocated, not written in this life) or "written"."""
        return self._core.state(pool, slot)

    def records(self, pool: int) -> Any:
        """The pool's records as a structured numpy array: over the monitor's own memory, where writing injects faults;
        of a pool on a GPU a copy (:meth:`set_record` injects).
        """
        return self._raw(pool, self._core.records(pool).view(RECORD_DTYPE)[:, 0])

    def ledger(self, pool: int) -> Any:
        """The pool's ledger, as :meth:`records`. Empty with the sglang format."""
        return self._raw(pool, self._core.ledger(pool).view(LEDGER_DTYPE)[:, 0])

    def source_digests(self, pool: int) -> Any:
        """uint32 [slots, sources], as :meth:`records`. Empty unless they are kept."""
        words = self._core.source_digests(pool).view("<u4")
        return self._raw(pool, words.reshape(-1, max(1, self._core.num_sources(pool))))

    def _raw(self, pool: int, array: Any) -> Any:
        # Of a pool on a GPU the library keeps its copy until the next call only.
        return array if self._core.device(pool) == "cpu" else array.copy()

    def set_record(self, pool: int, slot: int, record: Any) -> None:
        """Puts a record, of 32 bytes, where somebody else might have put it: for tests and drills."""
        self._core.set_record(pool, slot, record)

    def slot_bytes(self, pool: int, slot: int) -> bytes:
        """The slot's KV bytes, segment by segment, layer by layer. Waits for a GPU."""
        return self._core.slot_bytes(pool, slot)
