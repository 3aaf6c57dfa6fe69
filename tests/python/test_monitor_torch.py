"""The monitor over torch pools: the same engine, broken in the same ways, on the CPU and on a GPU."""

from __future__ import annotations

import pytest
import serinus
from serinus import ranks

torch = pytest.importorskip("torch")

REQUEST, OTHER = 7, 9
SLOTS = [70, 3, 41, 99, 12, 55, 64, 8]


class Engine:
    """Requests over a pool of three pages of one buffer a layer; the table and the KV lie on `device`."""

    LAYERS = 2

    def __init__(self, device: str, **options) -> None:
        self.device = device
        self.layout = serinus.kv_layout("fp8_656")
        self.kv = torch.zeros(3, self.LAYERS, self.layout.page_bytes[0], dtype=torch.uint8, device=device)
        self.monitor = serinus.Monitor(**{"verify": "all", **options})
        layers = [self.kv[:, i] for i in range(self.LAYERS)]  # pages of all layers side by side
        self.pool = self.monitor.add_pool(self.layout, layers, num_layers=self.LAYERS, table_rows=4)
        self.table = torch.zeros(4, 16, dtype=torch.int32, device=device)
        self.length: dict[int, int] = {}

    def start(self, row: int, owner: int, slots: list[int]) -> None:
        self.monitor.on_alloc(self.pool, slots, owner)
        self.table[row, : len(slots)] = torch.tensor(slots, dtype=torch.int32)
        self.length[row] = 0

    def byte(self, slot: int, segment: int = 0, layer: int = 0) -> torch.Tensor:
        page, at = divmod(slot, self.layout.page_size)
        part = self.layout.segments[segment]
        offset = part.offset + at * part.token_stride
        return self.kv[page, layer, offset : offset + 1]

    def batch(self, work: dict[int, tuple[int, list[int]]], on_device: bool = False) -> serinus.Batch:
        """work: owner and new tokens by row."""
        rows = list(work)
        tokens = [t for _, new in work.values() for t in new]
        positions = [self.length[r] + i for r in rows for i in range(len(work[r][1]))]
        lists = {
            "rows": rows,
            "prefix_lens": [self.length[r] for r in rows],
            "extend_lens": [len(work[r][1]) for r in rows],
            "input_ids": tokens,
            "positions": positions,
            "out_cache_loc": [int(self.table[r, self.length[r] + i]) for r in rows for i in range(len(work[r][1]))],
        }
        owners = [owner for owner, _ in work.values()]
        if on_device:
            lists = {name: torch.tensor(v, dtype=torch.int64, device=self.device) for name, v in lists.items()}
            owners = torch.tensor(owners, dtype=torch.int32, device=self.device)
        return serinus.Batch(**lists, owners=owners, req_to_token=self.table)

    def forward(self, batch: serinus.Batch) -> None:
        slots = torch.as_tensor(batch.out_cache_loc, dtype=torch.long, device=self.device)
        tokens = torch.as_tensor(batch.input_ids, dtype=torch.long, device=self.device)
        page, at = slots // self.layout.page_size, slots % self.layout.page_size
        for part in self.layout.segments:
            columns = (part.offset + at * part.token_stride)[:, None] + torch.arange(part.bytes, device=self.device)
            for layer in range(self.LAYERS):
                self.kv[page[:, None], layer, columns] = (tokens % 251).to(torch.uint8)[:, None]

    def step(self, work: dict[int, tuple[int, list[int]]], on_device: bool = False) -> None:
        batch = self.batch(work, on_device)
        with self.monitor.step(batch):
            self.forward(batch)
        for row, (_, new) in work.items():
            self.length[row] += len(new)

    def found(self) -> set[tuple[str, int, int]]:
        """Reason, slot and request of everything reported."""
        self.monitor.flush()
        return {(reason, v.slot, v.request) for v in self.monitor.poll() for reason in v.reasons}


@pytest.fixture(params=["lists", pytest.param("tensors", marks=pytest.mark.gpu)])
def on_device(request: pytest.FixtureRequest, device: str) -> bool:
    """A batch whose arrays lie on the GPU as well."""
    if request.param == "tensors" and device == "cpu":
        pytest.skip("batches of CPU tensors are lists")
    return request.param == "tensors"


def two_requests(device: str, on_device: bool, **options) -> Engine:
    engine = Engine(device, **options)
    engine.start(1, REQUEST, SLOTS[:5])
    engine.start(2, OTHER, SLOTS[5:])
    engine.step({1: (REQUEST, [101, 102, 103]), 2: (OTHER, [201, 202])}, on_device)
    return engine


def test_quiet(device: str, on_device: bool) -> None:
    engine = two_requests(device, on_device)
    engine.step({1: (REQUEST, [104]), 2: (OTHER, [203])}, on_device)
    assert engine.found() == set()
    stats = engine.monitor.stats()
    assert (stats["records_written"], stats["violations"], stats["live_slots"]) == (7, 0, 8)
    assert stats["records_verified"] >= 5
    assert engine.monitor.state(engine.pool, SLOTS[0]) == "written"
    record = engine.monitor.records(engine.pool)[SLOTS[3]]
    assert (record["token"], record["position"], record["owner"]) == (104, 3, REQUEST)


@pytest.mark.parametrize("segment", [0, 1, 2])
@pytest.mark.parametrize("layer", [0, 1])
def test_a_flipped_bit(segment: int, layer: int, device: str, on_device: bool) -> None:
    engine = two_requests(device, on_device)
    engine.byte(SLOTS[1], segment, layer).bitwise_xor_(4)
    engine.step({1: (REQUEST, [104]), 2: (OTHER, [203])}, on_device)
    assert engine.found() == {("kv_bytes", SLOTS[1], REQUEST)}


def test_a_swapped_slot(device: str, on_device: bool) -> None:
    engine = two_requests(device, on_device)
    engine.table[1, [0, 1]] = engine.table[1, [1, 0]]
    engine.step({1: (REQUEST, [104])}, on_device)
    found = engine.found()
    assert {slot for _, slot, _ in found} <= set(SLOTS[:3])
    assert ("position", SLOTS[1], REQUEST) in found


def test_a_slot_handed_out_twice_and_a_recycled_one(device: str, on_device: bool) -> None:
    engine = two_requests(device, on_device)
    engine.monitor.on_alloc(engine.pool, [SLOTS[0]], OTHER)
    engine.step({1: (REQUEST, [104])}, on_device)
    found = engine.found()
    assert any(reason == "double_owner" and slot == SLOTS[0] for reason, slot, _ in found)


@pytest.mark.parametrize("accepted", [[0, 2, 3], [1]])
def test_a_tree_of_drafts(accepted: list[int], device: str, on_device: bool) -> None:
    """Four drafts, topk 2: 0 and 1 follow the prefix, 2 follows 0, 3 follows 2. Paths are sound rows, mixtures not."""
    engine = Engine(device)
    engine.start(1, REQUEST, SLOTS)
    engine.step({1: (REQUEST, [101, 102])}, on_device)
    batch = engine.batch({1: (REQUEST, [103, 104, 105, 106])}, on_device)
    parents = [-1, -1, 0, 2]
    positions = [2, 2, 3, 4]
    batch.parents = torch.tensor(parents, device=device) if on_device else parents
    batch.positions = torch.tensor(positions, device=device) if on_device else positions
    with engine.monitor.step(batch):
        engine.forward(batch)
    drafts = SLOTS[2:6]
    path = [drafts[i] for i in accepted]
    engine.monitor.on_free(engine.pool, [slot for slot in drafts if slot not in path], REQUEST)
    engine.table[1, 2 : 2 + len(path)] = torch.tensor(path, dtype=torch.int32, device=device)
    engine.table[1, 2 + len(path)] = SLOTS[6]
    engine.length[1] = 2 + len(path)
    engine.step({1: (REQUEST, [107])}, on_device)
    assert engine.found() == set()
    assert [int(p) for p in engine.monitor.records(engine.pool)["position"][path]] == [positions[i] for i in accepted]
    engine.table[1, 1] = path[0]  # not what its path follows
    engine.step({1: (REQUEST, [])}, on_device)
    assert ("position", path[0], REQUEST) in engine.found()


def test_a_record_from_nowhere(device: str) -> None:
    engine = two_requests(device, False)
    record = engine.monitor.records(engine.pool)[SLOTS[1] : SLOTS[1] + 1].copy()
    record["token"] += 1
    engine.monitor.set_record(engine.pool, SLOTS[1], record.view("u1"))
    engine.step({1: (REQUEST, [104])})
    assert any(slot == SLOTS[1] for _, slot, _ in engine.found())
    with pytest.raises(IndexError):
        engine.monitor.set_record(engine.pool, 1 << 40, record.view("u1"))
    with pytest.raises(serinus.ValueError):
        engine.monitor.set_record(engine.pool, 1, record.view("u1")[:-1])


def test_records_travel_between_devices(device: str) -> None:
    """Stored from a pool of one device, loaded into one of the other: host memory in between, as a tier."""
    source, target = two_requests(device, False), Engine("cpu")
    records = torch.zeros(3, 32, dtype=torch.uint8)
    source.monitor.on_store(source.pool, SLOTS[:3], records)
    assert records.any(1).all()
    target.start(1, REQUEST, SLOTS[:5])
    target.kv.copy_(source.kv)
    target.monitor.on_load(target.pool, records, SLOTS[:3], REQUEST)
    target.length[1] = 3
    target.step({1: (REQUEST, [104])})
    assert target.found() == set()
    assert source.monitor.slot_bytes(source.pool, SLOTS[1]) == target.monitor.slot_bytes(target.pool, SLOTS[1])


def test_raise_mode(device: str) -> None:
    engine = two_requests(device, False, mode="raise")
    engine.byte(SLOTS[0]).bitwise_xor_(1)

    def steps() -> None:
        engine.step({1: (REQUEST, [104]), 2: (OTHER, [203])})
        for _ in range(3):  # no step waits for a GPU: what one found, a later one raises
            if device == "cuda":
                torch.cuda.synchronize()
            engine.step({2: (OTHER, [])})

    with pytest.raises(serinus.RuntimeError, match="kv_bytes"):
        steps()


@pytest.mark.gpu
def test_the_callers_stream() -> None:
    """A step sees what its stream did before, and waits for nothing."""
    engine = two_requests("cuda", False)
    side = torch.cuda.Stream()
    engine.batch({1: (REQUEST, [104])})
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        batch = engine.batch({1: (REQUEST, [])})
        torch.cuda._sleep(400_000_000)  # about 0.2 s
        engine.byte(SLOTS[1]).bitwise_xor_(4)
        engine.monitor.begin_step(batch)
        engine.monitor.end_step(batch)
        assert not side.query(), "the step waited for the stream"
    side.synchronize()
    assert engine.found() == {("kv_bytes", SLOTS[1], REQUEST)}


@pytest.mark.gpu
def test_in_a_cuda_graph() -> None:
    """Both moments and the forward captured once, replayed over a changing batch, with announcements in between."""
    engine = Engine("cuda")
    engine.start(1, REQUEST, SLOTS)
    batch = engine.batch({1: (REQUEST, [100])}, on_device=True)
    engine.monitor.begin_replay(batch)
    warm = Engine("cuda")
    warm.start(1, REQUEST, SLOTS)
    warm.step({1: (REQUEST, [100])}, on_device=True)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with engine.monitor.step(batch):
            engine.forward(batch)
    for t in range(6):
        batch.prefix_lens.fill_(t)
        batch.positions.fill_(t)
        batch.input_ids.fill_(100 + t)
        batch.out_cache_loc.copy_(engine.table[1, t : t + 1])
        engine.monitor.begin_replay(batch)
        graph.replay()
        if t == 4:
            assert engine.found() == set()
            engine.byte(SLOTS[2], 1, 1).bitwise_xor_(64)
    assert engine.found() == {("kv_bytes", SLOTS[2], REQUEST)}


@pytest.mark.gpu
def test_request_digests_are_made_on_the_gpu() -> None:
    engine = two_requests("cuda", False)
    batch = engine.batch({1: (REQUEST, [104]), 2: (OTHER, [203])}, on_device=True)
    digests = torch.zeros(2, 32, dtype=torch.uint8, device="cuda")
    engine.monitor.request_digests(engine.pool, batch, digests)
    made = digests.cpu().numpy().view(ranks.DIGEST_DTYPE).reshape(-1)
    lengths = batch.prefix_lens.cpu()
    assert (lengths > 0).all()
    host = ranks.request_digests(engine.monitor, engine.pool, [REQUEST, OTHER], [1, 2], lengths, engine.table)
    assert made.tolist() == host.tolist()
    with pytest.raises(serinus.ValueError, match="digests"):
        engine.monitor.request_digests(engine.pool, batch, digests[:1])


def test_wait_brings_what_a_check_found(device: str) -> None:
    engine = two_requests(device, False)
    engine.byte(SLOTS[1]).bitwise_xor_(1)
    engine.monitor.verify_now("head", REQUEST, 1, 0, 3, engine.batch({1: (REQUEST, [])}))
    engine.monitor.wait()
    assert [v.slot for v in engine.monitor.poll()] == [SLOTS[1]]


@pytest.mark.gpu
def test_what_lies_on_the_wrong_device_is_refused() -> None:
    engine = two_requests("cuda", False)
    batch = engine.batch({1: (REQUEST, [104])})
    batch.req_to_token = batch.req_to_token.cpu()
    with pytest.raises(serinus.ValueError, match="req_to_token"):
        engine.monitor.begin_step(batch)
    layers = [engine.kv[:, 0], engine.kv[:, 1].cpu()]
    with pytest.raises(serinus.ValueError, match=r"buffers\[1\]"):
        serinus.Monitor().add_pool(engine.layout, layers, num_layers=2)
    with pytest.raises(serinus.ValueError):
        engine.monitor.add_pool(engine.layout, [torch.zeros(128 * 656, dtype=torch.uint8)])
