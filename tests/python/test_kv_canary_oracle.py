"""The canary drop-ins against a model in plain Python, written from the format's formulas alone: random plans, writes
and verifications, compared whole (rings, records, plans, counters)."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import random

import pytest

torch = pytest.importorskip("torch")

from serinus.sglang.kv_canary.plan import launch_canary_plan_kernels  # noqa: E402
from serinus.sglang.kv_canary.scatter_req_token_ids import launch_scatter_req_token_ids_kernel  # noqa: E402
from serinus.sglang.kv_canary.verify import (  # noqa: E402
    CanaryLaunchTag,
    RealKvSource,
    VerifyOrWriteContext,
    VerifyPlan,
    launch_canary_verify_kernel,
)
from serinus.sglang.kv_canary.write import WritePlan, launch_canary_write_kernel  # noqa: E402

U64 = (1 << 64) - 1
VECTORS = pathlib.Path(__file__).parent.parent / "canary/data/canary_vectors.json"
SHARED_VECTORS = pathlib.Path(__file__).parents[3] / "shared/spec/canary_vectors.json"


# ---------------------------------------------------------------- the model


def sigma(x: int) -> int:
    x &= U64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & U64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & U64
    return x ^ (x >> 31)


def mix3(a: int, b: int, c: int) -> int:
    return sigma(sigma(sigma(a) ^ (b & U64)) ^ (c & U64))


def signed(x: int) -> int:
    x &= U64
    return x - (1 << 64) if x >> 63 else x


@dataclasses.dataclass
class Source:
    rows: list[bytes]
    page_size: int
    token_bytes: int
    read_bytes: int

    def fold(self, slot: int, mode: int) -> int:
        begin = slot % self.page_size * self.token_bytes
        data = self.rows[slot // self.page_size][begin : begin + (16 if mode == 1 else self.read_bytes)]
        f = 0
        for i in range(0, len(data), 8):
            f = sigma(f ^ int.from_bytes(data[i : i + 8], "little"))
        return f


class Model:
    """One endpoint: records (lists of four signed numbers), ring, counters."""

    def __init__(self, records: list[list[int]], ring: list[list[int]], found: int, tag: int, assert_positions: int):
        self.records, self.ring, self.found = records, ring, found
        self.tag, self.assert_positions = tag, assert_positions
        self.sources: list[Source] = []
        self.mode = 0
        self.slot_runs = self.kernel_runs = 0
        self.rows: list[list[int]] = []  # all that were reported, also those that the ring dropped

    def report(self, *fields: int) -> None:
        row = [self.tag, *(signed(f) for f in fields)]
        self.rows.append(row)
        if self.found < len(self.ring):
            self.ring[self.found] = row
        self.found += 1

    def hash_of(self, slot: int) -> int:
        if slot < 0:
            return sigma(0xC0FFEE1234567890)
        token, position, prev_hash, _ = self.records[slot]
        return mix3(prev_hash, token, position)

    def fold(self, slot: int) -> int:
        r = 0
        if self.mode:
            for source in self.sources:
                r = sigma(r ^ source.fold(slot, self.mode))
        return r

    def verify(self, entries: list[tuple[int, int, int, int]], num_valid: int, enable: int, tokens: bool) -> None:
        self.kernel_runs += 1
        if not enable:
            return
        active = entries[: min(num_valid & 0xFFFFFFFF, len(entries))]
        self.slot_runs += len(active)
        for slot, position, prev, token in active:
            if slot == 0:
                continue
            stored_token, stored_position, stored_hash, stored_kv = self.records[slot]
            want = self.hash_of(prev) if prev != 0 else stored_hash & U64
            bits = 1 if stored_hash & U64 != want else 0
            bits |= 32 if tokens and token != -1 and stored_token != token else 0
            bits |= 2 if stored_position != position else 0
            bits |= 4 if stored_kv & U64 != self.fold(slot) else 0
            if bits:
                expected = token if tokens else -1
                self.report(slot, stored_position, stored_token, expected, stored_hash, want, bits)

    def write(self, offsets, seeds, num_valid, tokens, positions, slots, expected) -> None:
        self.kernel_runs += 1
        for r in range(min(num_valid & 0xFFFFFFFF, len(seeds))):
            if offsets[r + 1] <= offsets[r]:
                continue
            h = self.hash_of(seeds[r])
            check = seeds[r] >= 0 and self.assert_positions != 0
            last = self.records[seeds[r]][1] if check else 0
            for i in range(offsets[r], offsets[r + 1]):
                slot, token, position = slots[i], tokens[i], positions[i]
                if slot < 0:
                    continue
                self.slot_runs += 1
                if expected is not None:
                    bits = (8 if token != expected[0][i] else 0) | (16 if position != expected[1][i] else 0)
                    if bits:
                        self.report(slot, position, token, expected[0][i], h, expected[1][i], bits)
                if check:
                    if position != last + 1:
                        self.report(slot, position, token, token, h, last + 1, 16)
                    last = position
                self.records[slot] = [token, position, signed(h), signed(self.fold(slot))]
                h = mix3(h, token, position)


def plan(rows, prefix, extend, table, window, mapping, expected, valid_lens, offset):
    """Entries (slot, position, prev, token), write offsets and seeds."""

    def translate(slot: int) -> int:
        return slot if mapping is None or slot < 0 else mapping[min(slot, len(mapping) - 1)]

    entries, offsets, seeds = [], [0], []
    for r, row in enumerate(rows):
        begin = max(0, prefix[r] - window) if window > 0 else 0
        for position in range(begin, prefix[r] if row else 0):
            prev = -1 if position == 0 else translate(table[row][position - 1])
            token, at = -1, position + offset
            if expected is not None and 0 <= at < valid_lens[r]:
                token = expected[row][at]
            entries.append((translate(table[row][position]), position, prev, token))
        n = max(0, extend[r]) if row else 0
        seeds.append(translate(table[row][prefix[r] - 1]) if n and prefix[r] > 0 else -1)
        offsets.append(offsets[-1] + n)
    return entries, offsets, seeds


# ---------------------------------------------------------------- the same for both


def i64(values, device: str) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device)


def number(rng: random.Random) -> int:
    """A field's value: small ones meet by chance, and every bit is used."""
    return rng.choice([rng.randrange(4), rng.randrange(60_000), rng.randrange(-(1 << 63), 1 << 63)])


class Pair:
    """The model, and the tensors that hold the same."""

    def __init__(self, rng: random.Random, device: str) -> None:
        self.slots = rng.randrange(8, 80)
        stride = rng.choice([32, 32, 40, 64])
        records = [[0] * 4 if rng.random() < 0.2 else [number(rng) for _ in range(4)] for _ in range(self.slots)]
        capacity, found = rng.randrange(0, 40), rng.choice([0, 0, rng.randrange(60)])
        ring = [[number(rng) for _ in range(8)] for _ in range(capacity)]
        tag, assert_positions = rng.randrange(12), rng.choice([0, 1, 7])
        self.model = Model([list(r) for r in records], [list(r) for r in ring], found, tag, assert_positions)
        self.model.mode = rng.randrange(3)
        sources = []
        for _ in range(rng.randrange(5)):
            page_size, token_bytes = rng.choice([1, 2, 16]), 16 * rng.randrange(1, 5)
            width = page_size * token_bytes + rng.choice([0, 0, 32])
            pages = [rng.randbytes(width) for _ in range(self.slots // page_size + 1)]
            read_bytes = 16 * rng.randrange(1, token_bytes // 16 + 1)
            self.model.sources.append(Source(pages, page_size, token_bytes, read_bytes))
            tensor = torch.frombuffer(bytearray(b"".join(pages)), dtype=torch.uint8).reshape(len(pages), width)
            # The dtype of a pool does not matter: bytes are hashed.
            tensor = tensor.view(rng.choice([torch.uint8, torch.bfloat16, torch.float8_e4m3fn])).to(device)
            sources.append(
                RealKvSource(tensor=tensor, page_size=page_size, num_bytes_per_token=token_bytes, read_bytes=read_bytes)
            )
        buffer = torch.full((self.slots, stride), 0xA5, dtype=torch.uint8)
        buffer[:, :32] = i64(records, "cpu").view(torch.uint8)
        self.context = VerifyOrWriteContext(
            canary_buf=buffer.to(device),
            kernel_kind=CanaryLaunchTag(tag),
            violation_ring=i64(ring, device).reshape(capacity, 8),
            violation_write_index=torch.tensor([found], dtype=torch.int32, device=device),
            slot_run_counter=i64([0], device),
            kernel_run_counter=i64([0], device),
            real_kv_sources=tuple(sources),
            real_kv_hash_mode=self.model.mode,
            enable_chain_position_assert=torch.tensor([assert_positions], dtype=torch.int32, device=device),
        )
        self.stride, self.ring, self.before = stride, ring, found

    def check(self) -> None:
        model, context = self.model, self.context
        buffer = context.canary_buf.cpu()
        assert torch.equal(buffer[:, :32].contiguous().view(torch.int64), i64(model.records, "cpu"))
        assert (buffer[:, 32:] == 0xA5).all()
        counts = [
            t.item() for t in (context.violation_write_index, context.slot_run_counter, context.kernel_run_counter)
        ]
        assert counts == [model.found, model.slot_runs, model.kernel_runs]
        if not context.canary_buf.is_cuda:
            assert torch.equal(context.violation_ring, i64(model.ring, "cpu").reshape(-1, 8))
            return
        # A GPU gives no order, and drops any row where the ring is full.
        got, begin = context.violation_ring.tolist(), min(self.before, len(self.ring))
        assert got[:begin] == self.ring[:begin]
        new = min(len(model.rows), len(self.ring) - begin)
        assert got[begin + new :] == self.ring[begin + new :]
        rest = sorted(model.rows)
        for row in got[begin : begin + new]:
            rest.remove(row)


SEEDS = pytest.mark.parametrize("seed", range(60))


@SEEDS
def test_verify(seed: int, device: str) -> None:
    rng = random.Random(seed)
    pair = Pair(rng, device)
    records, slots = pair.model.records, pair.slots
    capacity = 40_000 if seed == 5 else rng.randrange(1, 60)  # more than SGLang's grid has threads
    entries = []
    for _ in range(capacity):
        slot, prev = rng.randrange(slots), rng.choice([-1, -9, 0, rng.randrange(slots)])
        if rng.random() < 0.5 and slot:  # sound, but for what later records change
            records[slot][2] = signed(pair.model.hash_of(prev))
            records[slot][3] = signed(pair.model.fold(slot))
        stored = records[slot]
        entries.append((slot, rng.choice([stored[1], number(rng)]), prev, rng.choice([stored[0], -1, -2, number(rng)])))
    pair.context.canary_buf[:, :32] = i64(records, "cpu").view(torch.uint8).to(device)
    tokens, enable = rng.random() < 0.5, rng.choice([0, 1, 1, 1, -3])
    num_valid = rng.choice([0, capacity, rng.randrange(capacity + 1), capacity + 9, -1])
    pair.model.verify(entries, num_valid, enable, tokens)
    verify = VerifyPlan.allocate(verify_capacity=capacity, device=device)
    columns = (
        verify.verify_slot_indices,
        verify.verify_expected_positions,
        verify.verify_prev_slot_indices,
        verify.verify_expected_tokens,
    )
    for tensor, column in zip(columns, zip(*entries, strict=True), strict=True):
        tensor.copy_(i64(column, device))
    verify.verify_num_valid.fill_(num_valid)
    verify.enable.fill_(enable)
    launch_canary_verify_kernel(context=pair.context, plan=verify, check_verify_expected_token=tokens)
    pair.check()


@SEEDS
def test_write(seed: int, device: str) -> None:
    rng = random.Random(1000 + seed)
    pair = Pair(rng, device)
    free = list(range(pair.slots))
    rng.shuffle(free)
    # Rows run in any order: what one writes no other reads or writes. A row may write a slot twice and leaves the later
    # record: on the CPU any slot, on a GPU slot 0, which stands for evicted and padded tokens.
    capacity = rng.randrange(1, 6)
    offsets, seeds, slots, positions = [0], [], [], []
    for _ in range(capacity):
        seeds.append(free.pop() if free and rng.random() < 0.4 else rng.choice([-1, -4]))
        own = [free.pop() for _ in range(min(len(free), rng.randrange(8)))]
        if seed % 2 and 0 in free:
            free.remove(0)
            own += [0, 0]
        n = rng.choice([rng.randrange(1, 14), rng.randrange(500)]) if own else 0
        chosen = [rng.choice([*own, -1, -6]) for _ in range(n)]
        if device != "cpu":
            chosen = [slot if slot <= 0 or slot not in chosen[:i] else -1 for i, slot in enumerate(chosen)]
        slots += chosen
        start = pair.model.records[seeds[-1]][1] + 1 if seeds[-1] >= 0 else rng.randrange(9)
        positions += [signed(start + i) if rng.random() < 0.8 else number(rng) for i in range(n)]
        offsets.append(offsets[-1] + n)
    total = offsets[-1] + rng.randrange(3)  # padding at the tail
    slots += [1] * (total - len(slots))
    positions += [0] * (total - len(positions))
    tokens = [number(rng) for _ in range(total)]
    num_valid = rng.choice([capacity, rng.randrange(capacity + 1), -1, capacity + 3])
    expected = None
    if rng.random() < 0.5:
        expected = [[x if rng.random() < 0.8 else number(rng) for x in given] for given in (tokens, positions)]
    pair.model.write(offsets, seeds, num_valid, tokens, positions, slots, expected)
    launch_canary_write_kernel(
        context=pair.context,
        plan=WritePlan(
            write_offsets=i64(offsets, device),
            write_seed_slot_indices=i64(seeds, device),
            write_num_valid_reqs=torch.tensor([num_valid], dtype=torch.int32, device=device),
        ),
        input_ids=i64(tokens, device),
        positions=i64(positions, device),
        out_cache_loc=i64(slots, device),
        enable_write_input_assert=expected is not None,
        expected_input_tokens=None if expected is None else i64(expected[0], device),
        expected_input_positions=None if expected is None else i64(expected[1], device),
    )
    pair.check()


@SEEDS
def test_plan(seed: int, device: str) -> None:
    rng = random.Random(2000 + seed)
    bs = 4096 if seed == 7 else rng.randrange(0, 12)  # the most that a plan takes
    table_rows, length = rng.randrange(1, 8), rng.randrange(1, 40)
    slots = rng.randrange(4, 200)
    table = [[rng.choice([0, -1, *[rng.randrange(slots)] * 6]) for _ in range(length)] for _ in range(table_rows)]
    rows = [rng.choice([0, *range(table_rows)]) for _ in range(bs)]
    # A padding row may hold anything, others a negative length that counts as none.
    prefix = [rng.randrange(-2, length + 1) if row else rng.randrange(-9, 99_999) for row in rows]
    extend = [rng.randrange(-2, 9) if row else rng.randrange(-9, 99_999) for row in rows]
    window = rng.choice([0, rng.randrange(1, length + 4)])
    # Shorter than the slots, too: what lies beyond takes the last.
    mapping = [rng.randrange(slots) for _ in range(rng.randrange(1, slots + 9))] + [-1]
    mapping = mapping if window or rng.random() < 0.4 else None
    expected = [[rng.randrange(-5, 60_000) for _ in range(length)] for _ in range(table_rows)]
    expected = expected if rng.random() < 0.6 else None
    valid_lens = [rng.randrange(0, length + 1) for _ in range(bs + rng.randrange(3))]
    offset = rng.choice([0, 1])
    entries, offsets, seeds = plan(rows, prefix, extend, table, window, mapping, expected, valid_lens, offset)

    capacity = max(1, len(entries) + rng.choice([0, 5, -1]))
    write_capacity = max(1, bs + rng.randrange(4))
    verify = VerifyPlan.allocate(verify_capacity=capacity, device=device)
    columns = {
        "verify_slot_indices": 0,
        "verify_expected_positions": 1,
        "verify_prev_slot_indices": 2,
        "verify_expected_tokens": 3,
    }
    for name in columns:
        getattr(verify, name).fill_(-77)
    write = WritePlan.allocate(write_req_capacity=write_capacity, device=device)
    write.write_offsets.fill_(-77)
    launch_canary_plan_kernels(
        verify_plan_out=verify,
        write_plan_out=write,
        req_pool_indices=i64(rows, device),
        prefix_lens=i64(prefix, device),
        extend_seq_lens=i64(extend, device),
        req_to_token=torch.tensor(table, dtype=torch.int32, device=device),
        swa_window_size=window,
        full_to_swa_index_mapping=None if mapping is None else i64(mapping, device),
        verify_capacity=capacity,
        req_to_verify_expected_tokens=None
        if expected is None
        else torch.tensor(expected, dtype=torch.int32, device=device),
        req_to_verify_expected_tokens_valid_lens=None if expected is None else i64(valid_lens, device),
        kv_token_id_vs_position_offset=offset,
    )
    fits = len(entries) <= capacity
    assert (verify.verify_num_valid.item(), verify.enable.item()) == (min(len(entries), capacity), int(fits))
    for name, column in columns.items():
        got = getattr(verify, name).tolist()
        if fits:
            assert got[: len(entries)] == [e[column] for e in entries], name
        else:  # not one entry is stored
            assert got == [-77] * capacity, name
    assert write.write_offsets.tolist() == offsets + [0] * (write_capacity - bs)
    assert write.write_seed_slot_indices[:bs].tolist() == seeds
    assert write.write_num_valid_reqs.item() == bs


@pytest.mark.parametrize("seed", range(20))
def test_scatter(seed: int, device: str) -> None:
    rng = random.Random(3000 + seed)
    bs, pool_rows, width = rng.choice([0, 1, 7, 511]), 600, rng.randrange(1, 9)
    rows = rng.sample(range(pool_rows), bs)
    lengths = [rng.choice([0, rng.randrange(14)]) for _ in range(bs)]
    flat = [number(rng) for _ in range(sum(lengths))]
    offsets = [sum(lengths[:r]) for r in range(bs + 1)]
    want = [[-7] * width for _ in range(pool_rows)]
    for r, row in enumerate(rows):
        for i, value in enumerate(flat[offsets[r] : offsets[r + 1]][:width]):
            low = value & 0xFFFFFFFF
            want[row][i] = low - (1 << 32) if low >> 31 else low
    pool = torch.full((pool_rows, width), -7, dtype=torch.int32, device=device)
    launch_scatter_req_token_ids_kernel(
        flat_in=i64(flat, device), offsets=i64(offsets, device), req_pool_indices=i64(rows, device), pool_out=pool
    )
    assert pool.tolist() == want


def test_the_model_agrees_with_the_vectors() -> None:
    """The model above is no copy of what it judges: it stands on vectors that neither made."""
    vectors = json.loads(VECTORS.read_text())
    for case in vectors["splitmix64"]:
        assert sigma(int(case["in"], 16)) == int(case["out"], 16)
    for case in vectors["verify"]:
        given, want = case["in"], case["out"]["log"]
        records = [[0] * 4 for _ in range(given["num_slots"])]
        for slot, r in given["nonzero_records"].items():
            hashes = [signed(int(r[name], 16)) for name in ("prev_hash", "real_kv_hash")]
            records[int(slot)] = [r["token"], r["position"], *hashes]
        ring = [[0] * 8 for _ in range(want["ring_capacity"])]
        model = Model(records, ring, given["violation_write_index_before"], given["kernel_kind"], 1)
        model.mode = {"NONE": 0, "PARTIAL": 1, "ALL": 2}[given["mode"]]
        model.sources = [
            Source(
                [bytes.fromhex(row) for row in s["rows_hex"]],
                s["page_size"],
                s["num_bytes_per_token"],
                s["read_bytes"],
            )
            for s in given["sources"]
        ]
        columns = ("slot_indices", "expected_positions", "prev_slot_indices", "expected_tokens")
        entries = list(zip(*(given[f"verify_{name}"] for name in columns), strict=True))
        entries += [(0, 0, 0, -1)] * (given["verify_capacity"] - len(entries))
        model.verify(entries, given["verify_num_valid"], given["enable"], given["check_verify_expected_token"])
        assert (model.found, model.slot_runs) == (want["violation_write_index"], want["slot_run_counter"])
        if case["ordered"]:
            for row in want["ring_rows_written"]:
                assert model.ring[row["ring_index"]] == [int(f) for f in row["row_i64_as_strings"]]


def test_the_vectors_are_the_specifications() -> None:
    if not SHARED_VECTORS.exists():
        pytest.skip("the specification is not beside this tree")
    assert json.loads(SHARED_VECTORS.read_text()) == json.loads(VECTORS.read_text())
