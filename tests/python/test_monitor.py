"""The monitor: a small engine over numpy pools, broken on purpose, and what is reported."""

from __future__ import annotations

import contextlib
import gc
import inspect
import json
import pathlib
import random
import weakref

import numpy as np
import pytest
import serinus

REQUEST = 7
SLOTS = [70, 3, 41, 99]


class Engine:
    """One request over a pool of two pages, as examples/watch_a_pool.cpp has it."""

    def __init__(self, **options) -> None:
        self.layout = serinus.kv_layout("fp8_656")
        self.kv = np.zeros((2, self.layout.page_bytes[0]), np.uint8)
        self.monitor = serinus.Monitor(**{"verify": "all", "source_digests": True, **options})
        self.pool = self.monitor.add_pool(self.layout, [self.kv])
        self.table = np.zeros((2, 8), np.int32)
        self.table[1, : len(SLOTS)] = SLOTS
        self.monitor.on_alloc(self.pool, SLOTS, REQUEST)
        self.tokens: list[int] = []

    def batch(self, tokens: list[int], **changes) -> serinus.Batch:
        begin = len(self.tokens)
        return serinus.Batch(
            **{
                "rows": [1],
                "prefix_lens": [begin],
                "extend_lens": [len(tokens)],
                "owners": [REQUEST],
                "req_to_token": self.table,
                "input_ids": tokens,
                "positions": list(range(begin, begin + len(tokens))),
                "out_cache_loc": self.table[1, begin : begin + len(tokens)].astype(np.int64),
                **changes,
            }
        )

    def step(self, *tokens: int, write: bool = True, **changes) -> None:
        batch = self.batch(list(tokens), **changes)
        with self.monitor.step(batch):
            for slot, token in zip(batch.out_cache_loc, tokens, strict=True):
                for segment in self.layout.segments:
                    at = self.byte(segment, int(slot))
                    self.kv.reshape(-1)[at : at + segment.bytes] = token % 251
        self.tokens += tokens

    def byte(self, segment: serinus.KvSegment, slot: int) -> int:
        return self.layout.byte_offset(segment, slot)


def test_a_quiet_engine_reports_nothing() -> None:
    engine = Engine()
    engine.step(101, 102, 103)
    engine.step(104)
    engine.monitor.flush()
    assert engine.monitor.poll() == []
    stats = engine.monitor.stats()
    assert (stats["steps"], stats["records_written"], stats["violations"], stats["live_slots"]) == (2, 4, 0, 4)
    assert stats["bytes_digested"] > 0


def test_a_flipped_byte_is_named() -> None:
    engine = Engine()
    engine.step(101, 102, 103)
    rope = engine.layout.segments[2]
    engine.kv.reshape(-1)[engine.byte(rope, SLOTS[1])] ^= 4
    engine.step(104)
    (violation,) = engine.monitor.poll()
    assert violation.reasons == ["kv_bytes"]
    assert (violation.moment, violation.pool, violation.slot, violation.request) == ("head", "kv", SLOTS[1], REQUEST)
    assert (violation.layer, violation.segment) == (0, "rope")
    assert violation.expected_digest != violation.stored_digest
    assert "kv_bytes" in str(violation)
    assert json.loads(violation.json) == violation.fields
    with pytest.raises(AttributeError):
        violation.no_such_field  # noqa: B018


def test_a_swapped_slot_is_named() -> None:
    engine = Engine()
    engine.step(101, 102, 103)
    engine.table[1, [0, 1]] = engine.table[1, [1, 0]]
    engine.step(104)
    reasons = {r for v in engine.monitor.poll() for r in v.reasons}
    assert {"position", "chain"} & reasons


def test_a_wrong_token_needs_the_truth() -> None:
    engine = Engine()
    truth = np.array([[0] * 8, [101, 999, 103, 104, 0, 0, 0, 0]], np.int32)
    engine.step(101, 102, 103, expected_tokens=truth, valid_lens=[3])
    (violation,) = engine.monitor.poll()
    assert violation.reasons == ["token"]
    assert (violation.expected_token, violation.stored_token) == (999, 102)


def test_double_handout_and_quarantine() -> None:
    engine = Engine(mode="quarantine")
    engine.step(101, 102, 103)
    engine.monitor.on_alloc(engine.pool, [SLOTS[0]], REQUEST + 1)
    (violation,) = engine.monitor.poll()
    assert violation.reasons == ["double_owner"]
    slots, requests, complete = engine.monitor.tainted()
    assert (engine.pool, SLOTS[0]) in slots
    assert complete
    assert requests
    assert violation.events[0]["event"] == "alloc"


def test_raise_mode() -> None:
    engine = Engine(mode="raise")
    engine.step(101, 102, 103)
    engine.kv.reshape(-1)[engine.byte(engine.layout.segments[0], SLOTS[0])] ^= 1
    with pytest.raises(serinus.RuntimeError, match="kv_bytes") as raised:
        engine.step(104)
    assert raised.value.id.startswith("SRN3")


def test_a_forward_that_raises_leaves_the_step_unstamped() -> None:
    engine = Engine()
    with pytest.raises(ZeroDivisionError), engine.monitor.step(engine.batch([1, 2])):
        1 / 0  # noqa: B018
    assert engine.monitor.state(engine.pool, SLOTS[0]) == "empty"


def test_states_records_and_ledger() -> None:
    engine = Engine()
    monitor = engine.monitor
    assert monitor.state(engine.pool, SLOTS[0]) == "empty"
    engine.step(101)
    assert monitor.state(engine.pool, SLOTS[0]) == "written"
    record = monitor.records(engine.pool)[SLOTS[0]]
    assert (record["token"], record["position"], record["owner"]) == (101, 0, REQUEST)
    assert record["chain"] != 0
    assert monitor.ledger(engine.pool)[SLOTS[0]]["owner"] == REQUEST
    monitor.on_free(engine.pool, SLOTS, REQUEST)
    assert monitor.state(engine.pool, SLOTS[0]) == "free"
    # The array is the monitor's memory, and keeps it alive.
    records = monitor.records(engine.pool)
    assert not records[SLOTS[0]]["chain"]
    del engine, monitor
    gc.collect()
    assert records.shape == (128,)


def test_records_travel() -> None:
    source, target = Engine(), Engine()
    source.step(101, 102, 103)
    records = np.zeros(3, [("bytes", "V32")]).view(np.uint8).reshape(3, 32)
    source.monitor.on_store(source.pool, SLOTS[:3], records)
    assert records.any(1).all()
    target.kv[:] = source.kv
    target.monitor.on_load(target.pool, records, SLOTS[:3], REQUEST)
    target.tokens = list(source.tokens)
    target.step(104)
    assert target.monitor.poll() == []
    digests = [e.monitor.request_digest(1, 3, e.batch([])) for e in (source, target)]
    assert digests[0] == digests[1] != 0


def test_records_travel_with_their_source_digests() -> None:
    """A byte damaged on the way is named on the other side: layer and segment come from the sender's digests."""
    source, target = Engine(), Engine()
    source.step(101, 102, 103)
    records, digests = np.zeros((3, 32), np.uint8), np.zeros((3, 3), np.uint32)
    source.monitor.on_store(source.pool, SLOTS[:3], records, digests)
    assert np.array_equal(digests, source.monitor.source_digests(source.pool)[SLOTS[:3]])
    target.kv[:] = source.kv
    target.kv.reshape(-1)[target.byte(target.layout.segments[1], SLOTS[1])] ^= 1
    target.monitor.on_load(target.pool, records, SLOTS[:3], REQUEST, digests)
    target.tokens = list(source.tokens)
    target.step(104)
    (violation,) = target.monitor.poll()
    assert (violation.reasons, violation.slot, violation.segment) == (["kv_bytes"], SLOTS[1], "scale")


def test_events() -> None:
    engine = Engine()
    monitor, pool = engine.monitor, engine.pool
    engine.step(101, 102, 103)
    monitor.on_transfer(pool, SLOTS[:1], REQUEST, 8)
    monitor.on_free(pool, SLOTS[:1], 8)
    events = monitor.events(pool, SLOTS[0])
    assert [(e["event"], e["owner"], e["peer"]) for e in events] == [
        ("alloc", REQUEST, -1),
        ("transfer", REQUEST, 8),
        ("free", 8, -1),
    ]
    assert monitor.events(pool, SLOTS[0], 1) == events[-1:]
    assert [slot for slot, _ in monitor.pool_events(pool)][-2:] == SLOTS[:1] * 2
    monitor.on_free(pool, SLOTS[:1], 8)  # twice
    (violation,) = monitor.poll()
    assert violation.events == monitor.events(pool, SLOTS[0])


def test_health_and_pool_stats() -> None:
    engine = Engine(health_steps=2)
    assert engine.monitor.health() == []
    other = engine.monitor.add_pool(engine.layout, [np.zeros_like(engine.kv)], name="other")
    engine.monitor.on_alloc(other, [5], REQUEST)
    for token in range(4):
        engine.step(token, pools=[engine.pool])
    stalls = engine.monitor.health()
    assert {(s["moment"], s["pool"]) for s in stalls} >= {("head", other), ("tail", other)}
    assert all("pool=other" in s["text"] for s in stalls)
    stats = engine.monitor.pool_stats()
    assert [s["name"] for s in stats] == ["kv", "other"]
    assert stats[0]["live_slots"] == len(SLOTS)
    assert set(stats[0]["violations"]) >= {"token", "kv_bytes", "stale"}
    engine.monitor.detach_pool(other)
    with pytest.raises(serinus.ValueError):
        engine.monitor.on_alloc(other, [6], REQUEST)


def test_what_was_found_outlives_its_pool() -> None:
    engine = Engine()
    engine.monitor.on_alloc(engine.pool, [SLOTS[0]], REQUEST + 1)
    engine.monitor.detach_pool(engine.pool)
    (violation,) = engine.monitor.poll()
    assert (violation.pool, violation.slot, violation.reasons) == ("kv", SLOTS[0], ["double_owner"])


def test_arrays_that_nobody_else_keeps() -> None:
    """A batch may make its arrays when it is asked for them."""
    engine = Engine()

    class Lazy:
        def __init__(self, batch: serinus.Batch) -> None:
            self.batch = batch

        def __getattr__(self, name: str) -> object:
            value = getattr(self.batch, name)
            return np.array(value) if isinstance(value, list | np.ndarray) and name != "owners" else value

    for token in range(3):
        batch = Lazy(engine.batch([token]))
        engine.monitor.begin_step(batch)
        engine.monitor.end_step(batch)
        engine.tokens.append(token)
    assert engine.monitor.stats()["records_written"] == 3
    assert [int(p) for p in engine.monitor.records(engine.pool)["position"][SLOTS[:3]]] == [0, 1, 2]
    assert engine.monitor.poll() == []


def test_a_sweep_source_may_replace_itself() -> None:
    engine = Engine(format="sglang", sweep_interval=1)
    calls = []

    def leave() -> list[tuple[int, int, int]]:
        calls.append(1)
        engine.monitor._core.set_sweep_source(engine.pool, list)
        gc.collect()
        return []

    engine.monitor._core.set_sweep_source(engine.pool, leave)
    engine.step(1)
    engine.step(2)
    assert calls == [1]


def test_a_tree_of_drafts() -> None:
    """Two drafts follow the prefix; whichever is accepted is a sound row."""
    engine = Engine()
    engine.step(101)
    batch = engine.batch([102, 103], positions=[1, 1], parents=[-1, -1], out_cache_loc=np.array(SLOTS[1:3], np.int64))
    with engine.monitor.step(batch):
        pass
    engine.table[1, 1] = SLOTS[2]  # the second was accepted
    engine.tokens += [103]
    engine.monitor.verify_now("head", REQUEST, 1, 0, 2, engine.batch([]))
    assert engine.monitor.poll() == []


def test_the_sweep_source_of_the_sglang_format() -> None:
    engine = Engine(format="sglang", source_digests=False, sweep_interval=1)
    calls = []

    def entries() -> list[tuple[int, int, int]]:
        calls.append(1)
        return [(SLOTS[0], 0, -1), (SLOTS[1], 1, SLOTS[0])]

    engine.monitor.set_sweep_source(engine.pool, entries)
    engine.step(101, 102)
    engine.kv.reshape(-1)[engine.byte(engine.layout.segments[0], SLOTS[1])] ^= 1
    idle = engine.batch([], rows=[], prefix_lens=[], extend_lens=[], owners=[])
    with engine.monitor.step(idle):
        pass
    assert calls
    assert [(v.moment, v.slot) for v in engine.monitor.poll()] == [("sweep", SLOTS[1])]

    def broken() -> list[tuple[int, int, int]]:
        raise ZeroDivisionError

    engine.monitor.set_sweep_source(engine.pool, broken)
    with pytest.raises(ZeroDivisionError), engine.monitor.step(idle):
        pass


def test_a_monitor_is_collected_with_what_it_calls() -> None:
    class PrefixTree:
        def __init__(self, monitor: serinus.Monitor) -> None:
            self.monitor = monitor  # as an engine's own objects would

        def entries(self) -> list[tuple[int, int, int]]:
            return []

    monitor = serinus.Monitor(format="sglang")
    monitor.add_pool(serinus.kv_layout("fp8_656"), [np.zeros(128 * 656, np.uint8)])
    monitor.set_sweep_source(0, PrefixTree(monitor).entries)
    gone = weakref.ref(monitor)
    del monitor
    gc.collect()
    assert gone() is None


# ---------------------------------------------------------------- configuration


def test_configuration(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "canary.json"
    file.write_text('{"mode": "raise", "records_per_step": 77, "source_digests": true}')
    violations = tmp_path / "violations.jsonl"
    environment = {
        "SERINUS_CANARY_CONFIG": str(file),
        "SERINUS_CANARY_RECORDS_PER_STEP": "78",
        "SERINUS_CANARY_VIOLATIONS_FILE": str(violations),
    }
    config = serinus.read_config(environment=environment)
    # Its keys are the arguments of Monitor, all of them.
    assert set(config) == set(inspect.signature(serinus.Monitor).parameters)
    assert (config["mode"], config["records_per_step"], config["source_digests"]) == ("raise", 78, True)
    monitor = serinus.Monitor(**config)
    assert monitor.options == {**config, "violations_file": ""}
    defaults = {name: p.default for name, p in inspect.signature(serinus.Monitor).parameters.items()}
    assert serinus.read_config(environment={}) == defaults
    with pytest.raises(serinus.ValueError, match="SERINUS_CANARY_MODE"):
        serinus.read_config(environment={"SERINUS_CANARY_MODE": "loud"})
    with pytest.raises(serinus.InputError):
        serinus.read_config(str(tmp_path / "absent.json"), {})


def test_sglang_flags() -> None:
    config = serinus.config_from_sglang_flags("log", "partial", 5)
    assert (config["format"], config["mode"], config["depth"], config["sweep_interval"]) == (
        "sglang",
        "log",
        "partial",
        5,
    )
    serinus.Monitor(**config)
    with pytest.raises(ValueError, match="kv-canary: kv_canary must be one of none/log/raise, got 'loud'"):
        serinus.config_from_sglang_flags("loud")


def test_the_violations_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "violations.jsonl"
    engine = Engine(violations_file=str(path))
    engine.step(101, 102, 103)
    engine.kv.reshape(-1)[engine.byte(engine.layout.segments[0], SLOTS[0])] ^= 1
    engine.step(104)
    (violation,) = engine.monitor.poll()
    engine.monitor.log_to("")  # the sink ends when nobody holds it, and writes what it has
    (line,) = (json.loads(line) for line in path.read_text().splitlines())
    # As it was first seen: the tail saw it again.
    assert {**line, "count": 2, "moment": "head"} == {**violation.fields, "count": 2}


# ---------------------------------------------------------------- dumps, ranks, transfers, injection


def test_a_dump_and_its_scan(tmp_path: pathlib.Path) -> None:
    engine = Engine()
    engine.step(101, 102, 103)
    path = tmp_path / "pool.dump"
    rows = [{"owner": REQUEST, "row": 1, "cells": SLOTS[:3], "tokens": [101, 102, 103]}]
    engine.monitor.write_dump(path, rows=rows)
    sound = serinus.scan(path)
    assert (sound["written"], sound["cells"], sound["violations"], sound["more"]) == (3, 3, [], 0)
    engine.kv.reshape(-1)[engine.byte(engine.layout.segments[0], SLOTS[2])] ^= 1
    rows[0]["tokens"] = [101, 999, 103]
    engine.monitor.write_dump(path, rows=rows)
    assert {(r, v.slot) for v in serinus.scan(path)["violations"] for r in v.reasons} == {
        ("kv_bytes", SLOTS[2]),
        ("token", SLOTS[1]),
        ("chain", SLOTS[1]),
    }
    assert serinus.scan(path, limit=1)["more"] == 1
    engine.monitor.write_dump(path, bytes="listed", listed=[(engine.pool, SLOTS[0])])
    assert serinus.scan(path)["bytes_checked"] == 1
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(serinus.InputError):
        serinus.scan(path)


def test_ranks_are_compared() -> None:
    from serinus import ranks

    gathered = []
    for rank in range(3):
        engine = Engine()
        engine.step(101, 102 if rank != 1 else 999, 103)
        digests = ranks.request_digests(engine.monitor, engine.pool, [REQUEST, 9], [1, 1], [3, 1], engine.table)
        assert list(digests["length"]) == [3, 1]
        gathered.append(digests)
    found = ranks.compare_ranks(np.concatenate(gathered), 3)
    assert [(d["rank"], d["request"], d["owner"], d["chain"], d["kv"]) for d in found] == [(1, 0, REQUEST, True, True)]
    assert found[0]["text"] == f"rank 1, request {REQUEST}: chain, kv"
    # As a collective leaves them: bytes, in a tensor of whatever framework.
    assert ranks.compare_ranks(np.concatenate(gathered).view(np.uint8), 3) == found
    assert ranks.report_ranks(engine.monitor, np.concatenate(gathered), 3) == found
    (violation,) = engine.monitor.poll()
    assert violation.reasons == ["digest_differs_across_ranks"]
    with pytest.raises(serinus.ValueError, match="lengths has 1 entries where owners has 2"):
        ranks.request_digests(engine.monitor, engine.pool, [7, 9], [1, 1], [3], engine.table)
    with pytest.raises(serinus.ValueError, match="gathered"):
        ranks.compare_ranks(np.zeros(33, np.uint8), 1)


def test_terms_of_a_transfer() -> None:
    from serinus import ranks

    mine, same, other = (Engine(), Engine(), Engine(depth="partial"))
    terms = [ranks.transfer_terms(e.monitor, e.pool) for e in (mine, same, other)]
    assert ranks.transfer_differences(terms[0], terms[1]) == []
    ranks.check_transfer(terms[0], terms[1])
    assert ranks.transfer_differences(terms[0], terms[2]) == ["depth: all here, partial there"]
    with pytest.raises(serinus.ValueError, match="depth: all here, partial there"):
        ranks.check_transfer(terms[0], terms[2])
    assert ranks.transfer_differences(terms[0], bytes(range(112)))
    with pytest.raises(serinus.ValueError):
        ranks.check_transfer(terms[0], terms[1][:-1])


def test_injection() -> None:
    from serinus.inject import Injector

    engine = Engine()
    try:
        injector = Injector(engine.monitor, {"kv_used": 1.0}, seed=3, warmup_steps=0)
    except serinus.RuntimeError as error:
        if "built without" in str(error):  # the rule
            pytest.skip("this build has no injection")
        raise
    engine.step(101, 102, 103)
    batch = engine.batch([104], input_ids=np.array([104]), positions=np.array([3]))
    (done,) = injector.before_step(batch)
    assert done["what"] == "kv_used"
    assert done["slot"] in SLOTS[:3]
    with engine.monitor.step(batch):
        pass
    assert injector.after_step(batch) == []
    assert [(v.reasons, v.slot) for v in engine.monitor.poll()] == [(["kv_bytes"], done["slot"])]
    with pytest.raises(serinus.ValueError, match="probability takes one of req_to_token"):
        Injector(engine.monitor, {"kv": 1.0})
    with pytest.raises(serinus.TypeError, match="input_ids must be a tensor"):
        injector.before_step(engine.batch([1]))


def test_the_sglang_format() -> None:
    engine = Engine(format="sglang", source_digests=False)
    engine.step(101, 102, 103)
    engine.kv.reshape(-1)[engine.byte(engine.layout.segments[0], SLOTS[2])] ^= 1
    engine.step(104)
    assert any("kv_bytes" in v.reasons for v in engine.monitor.poll())


def test_buffers_are_kept_alive_and_may_be_interleaved() -> None:
    """Pages of two layers side by side, as some engines allocate them; the engine forgets its reference."""
    layout = serinus.kv_layout("fp8_656")
    kv = np.zeros((4, 2, layout.page_bytes[0]), np.uint8)
    monitor = serinus.Monitor(verify="all", source_digests=True)
    monitor.add_pool(layout, [kv[:, 0], kv[:, 1]], num_layers=2)
    monitor.on_alloc(0, [65, 66], 1)
    table = np.zeros((2, 4), np.int32)
    table[1, :2] = [65, 66]
    common = {"rows": [1], "owners": [1], "req_to_token": table}
    batch = serinus.Batch(
        **common, prefix_lens=[0], extend_lens=[2], input_ids=[5, 6], positions=[0, 1], out_cache_loc=[65, 66]
    )
    with monitor.step(batch):
        pass
    kv[1, 1, 0 * 656] ^= 255  # layer 1, slot 64: nobody's
    kv[1, 1, 2 * 656] ^= 255  # layer 1, slot 66
    del kv
    gc.collect()
    monitor.verify_now("head", 1, 1, 0, 2, serinus.Batch(**common, prefix_lens=[2], extend_lens=[0]))
    (violation,) = monitor.poll()
    assert (violation.slot, violation.layer, violation.segment) == (66, 1, "latent")


@pytest.mark.parametrize(
    ("break_it", "error", "message"),
    [
        (lambda: serinus.Monitor(mode="warn"), serinus.ValueError,
         "mode takes one of none, log, raise, quarantine, got 'warn'"),
        (lambda: Engine().step(1, owners=["x"]), serinus.TypeError, "owners must be integers, got ['x']"),
        (lambda: Engine().step(1, rows=[1 << 70]), serinus.TypeError, None),
        (lambda: Engine().step(1, owners=[-1]), serinus.TypeError,
         "owners must be integers, got -1, which is out of range"),
        (lambda: Engine().step(1, pools=[1 << 32]), serinus.TypeError,
         "pools must be integers, got 4294967296, which is out of range"),
        (lambda: Engine().step(1, rows=np.array([1], np.int32)), serinus.ValueError,
         "rows must have dtype int64, got int32"),
        (lambda: Engine().step(1, rows=np.array([[1]])), serinus.ValueError, "rows must have shape (n,), got (1, 1)"),
        (lambda: Engine().step(1, req_to_token=[1, 2]), serinus.TypeError,
         "req_to_token must be a tensor (torch, numpy, cupy, DLPack), got list"),
        (lambda: Engine().monitor.verify_now("now", 1, 1, 0, 1, Engine().batch([])), serinus.ValueError,
         "moment takes one of head, tail, sweep, got 'now'"),
        (lambda: serinus.Monitor().add_pool(serinus.kv_layout("fp8_656"), [], num_slots=4), serinus.ValueError, None),
        (lambda: Engine().monitor.add_pool(Engine().layout, [Engine().kv], kind="swa", full_to_swa=[1, 2]),
         serinus.TypeError, "full_to_swa must be a tensor (torch, numpy, cupy, DLPack), got list"),
    ],
)  # fmt: skip
def test_refusals(break_it, error: type[Exception], message: str | None) -> None:
    with pytest.raises(error) as raised:
        break_it()
    if message is not None:
        assert str(raised.value) == message


@pytest.mark.parametrize("format", ["serinus", "sglang"])
def test_whatever_it_is_given(format: str, tmp_path: pathlib.Path) -> None:
    """Numbers out of every table, and things that are no numbers: errors that Python knows, and nothing read or written
    where it should not be."""
    from serinus import ranks

    rng = random.Random(5)
    engine = Engine(format=format, source_digests=format == "serinus")
    monitor, table = engine.monitor, engine.table
    table[1, 3:] = [-1, 1 << 30, 200, 0, 99]
    numbers = [-1, 0, 1, 3, 127, 128, 1 << 31, 1 << 32, (1 << 63) - 1, -(1 << 63)]
    others = [1 << 70, "x", None, 3.5, [1], b"ab", np.array([1, 2]), np.zeros((3, 3), np.int32)]
    records = np.zeros((2, 32), np.uint8)

    def step(*n) -> None:
        batch = engine.batch(
            [1, 2],
            rows=[n[0]],
            prefix_lens=[n[1]],
            extend_lens=[n[2]],
            owners=[n[3]],
            out_cache_loc=[n[4], 3],
            parents=[n[5], -1],
            valid_lens=[n[1]],
            expected_tokens=table,
        )
        monitor.begin_step(batch)
        monitor.end_step(batch)

    calls = {
        monitor.on_alloc: 3,
        monitor.on_free: 3,
        monitor.on_attach: 4,
        monitor.on_transfer: 4,
        monitor.on_move: 3,
        monitor.events: 3,
        monitor.pool_events: 1,
        monitor.records: 1,
        monitor.ledger: 1,
        monitor.source_digests: 1,
        monitor.state: 2,
        monitor.slot_bytes: 2,
        step: 6,
        (lambda pool, slot: monitor.set_record(pool, slot, records[0])): 2,
        (lambda pool, slot: monitor.on_store(pool, slot, records)): 2,
        (lambda pool, slot, owner: monitor.on_load(pool, records, [slot, 3], owner)): 3,
        (lambda *n: monitor.verify_now("head", *n, engine.batch([]))): 4,
        (lambda pool, *n: ranks.request_digests(monitor, pool, *([x] for x in n), table)): 4,
        (lambda n: ranks.compare_ranks(records, n)): 1,
        (
            lambda pool, slot, n: monitor.write_dump(
                tmp_path / "dump",
                bytes="listed",
                listed=[(pool, slot)],
                rows=[{"owner": n, "row": slot, "cells": [n], "pools": [pool]}],
            )
        ): 3,
    }
    for call, arguments in calls.items():
        for _ in range(60):
            given = [rng.choice(numbers if rng.random() < 0.8 else others) for _ in range(arguments)]
            given = [0 if i == 0 and rng.random() < 0.6 else x for i, x in enumerate(given)]
            with contextlib.suppress(serinus.Error, TypeError, IndexError):
                call(*given)
    monitor.flush()
    assert all(0 <= v.slot < 128 or v.slot == -1 or "out_of_range" in v.reasons for v in monitor.poll())


def test_layouts() -> None:
    names = serinus.kv_layout_names()
    assert "fp8_656" in names
    layout = serinus.kv_layout("fp8_656", page_size=32)
    assert (layout.page_size, layout.token_bytes, layout.num_buffers) == (32, 656, 1)
    assert [(s.name, s.role, s.bytes) for s in layout.segments] == [
        ("latent", "latent", 512),
        ("scale", "scale", 16),
        ("rope", "rope", 128),
    ]
    assert layout.byte_offset(layout.segments[1], 33) == layout.page_bytes[0] + 656 + 512
    for slot, stride in [(-1, None), (1 << 31, None), (1 << 62, None), (5, -1), (5, 1 << 62)]:
        with pytest.raises(serinus.ValueError) as refused:
            layout.byte_offset(layout.segments[0], slot, stride)
        assert refused.value.id == "SRN1202"
    assert "latent" in layout.draw()
    assert serinus.kv_layout("mha_nhd", heads=2, head_size=64, dtype="bfloat16").token_bytes == 2 * 2 * 64 * 2
    with pytest.raises(serinus.ValueError, match="fp8_656") as raised:  # it lists what there is
        serinus.kv_layout("fp8_657")
    assert raised.value.id.startswith("SRN1")


def test_a_layout_of_ones_own() -> None:
    def segment(offset: int) -> serinus.KvSegment:
        return serinus.KvSegment(name=f"s{offset}", role="key", offset=offset, token_stride=64, bytes=32)

    layout = serinus.KvLayout(name="mine", page_size=4, page_bytes=[256], segments=[segment(0), segment(32)])
    assert layout.token_bytes == 64
    assert serinus.Monitor().add_pool(layout, [np.zeros(1024, np.uint8)]) == 0
    with pytest.raises(serinus.ValueError):
        serinus.KvLayout(name="overlap", page_size=4, page_bytes=[256], segments=[segment(0), segment(16)])


def test_torch_tables() -> None:
    torch = pytest.importorskip("torch")
    engine = Engine()
    batch = engine.batch(
        [101, 102],
        req_to_token=torch.from_numpy(engine.table),
        out_cache_loc=torch.tensor(SLOTS[:2]),
        rows=torch.tensor([1]),
    )
    with engine.monitor.step(batch):
        pass
    assert engine.monitor.stats()["records_written"] == 2


def test_prometheus() -> None:
    prometheus_client = pytest.importorskip("prometheus_client")
    from serinus.prometheus import Collector

    engine = Engine()
    registry = prometheus_client.CollectorRegistry()
    registry.register(Collector(engine.monitor, "engine"))
    engine.step(101, 102, 103)
    engine.kv.reshape(-1)[engine.byte(engine.layout.segments[0], SLOTS[0])] ^= 1
    engine.step(104)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"monitor": "engine", **labels})

    families = {f.name: f for f in registry.collect()}
    # Every number of the library's own text comes through, whatever it is called.
    samples = [s for f in families.values() for s in f.samples]
    lines = [line for line in engine.monitor.metrics_text("engine").splitlines() if line and line[0] != "#"]
    assert len(samples) == len(lines) > 10
    found = [s for s in samples if s.labels.get("reason") == "kv_bytes"]
    assert [s.value for s in found] == [1.0]
    assert found[0].labels["pool"] == "kv"
    assert value(found[0].name, **{k: v for k, v in found[0].labels.items() if k != "monitor"}) == 1.0
    assert b"kv_bytes" in prometheus_client.generate_latest(registry)
