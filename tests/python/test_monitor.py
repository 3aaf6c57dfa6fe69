"""The monitor: a small engine over numpy pools, broken on purpose, and what is reported."""

from __future__ import annotations

import gc
import json

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
        (lambda: Engine().step(1, rows=np.array([1], np.int32)), serinus.ValueError,
         "rows must have dtype int64, got int32"),
        (lambda: Engine().step(1, rows=np.array([[1]])), serinus.ValueError, "rows must have shape (n,), got (1, 1)"),
        (lambda: Engine().step(1, req_to_token=[1, 2]), serinus.TypeError,
         "req_to_token must be a tensor (torch, numpy, cupy, DLPack), got list"),
        (lambda: Engine().monitor.verify_now("now", 1, 1, 0, 1, Engine().batch([])), serinus.ValueError,
         "moment takes one of head, tail, sweep, got 'now'"),
        (lambda: serinus.Monitor().add_pool(serinus.kv_layout("fp8_656"), [], num_slots=4), serinus.ValueError, None),
    ],
)  # fmt: skip
def test_refusals(break_it, error: type[Exception], message: str | None) -> None:
    with pytest.raises(error) as raised:
        break_it()
    if message is not None:
        assert str(raised.value) == message


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
