"""The canary drop-ins: SGLang's records, bit by bit, on the CPU and on the GPU."""

from __future__ import annotations

import dataclasses
import inspect
import json
import pathlib

import pytest
import serinus

torch = pytest.importorskip("torch")

from serinus.sglang.kv_canary import consts  # noqa: E402
from serinus.sglang.kv_canary.plan import launch_canary_plan_kernels  # noqa: E402
from serinus.sglang.kv_canary.scatter_req_token_ids import (  # noqa: E402
    _SCATTER_BATCH_BLOCK,
    launch_scatter_req_token_ids_kernel,
    scatter_req_token_ids_torch_reference,
)
from serinus.sglang.kv_canary.verify import (  # noqa: E402
    CANARY_SLOT_BYTES,
    CanaryLaunchTag,
    RealKvSource,
    VerifyOrWriteContext,
    VerifyPlan,
    launch_canary_verify_kernel,
)
from serinus.sglang.kv_canary.write import WritePlan, launch_canary_write_kernel  # noqa: E402

VECTORS = json.loads((pathlib.Path(__file__).parent.parent / "canary/data/canary_vectors.json").read_text())


def vectors(key: str):
    return pytest.mark.parametrize("case", [pytest.param(c, id=c["name"]) for c in VECTORS[key]])


def signed(value: str | int) -> int:
    value = int(value, 16) if isinstance(value, str) else value
    return value - (1 << 64) if value >= 1 << 63 else value


def i64(values, device: str) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device)


def fields(record: dict) -> list[int]:
    return [record["token"], record["position"], signed(record["prev_hash"]), signed(record["real_kv_hash"])]


def records_of(num_slots: int, records: dict, device: str) -> torch.Tensor:
    buffer = torch.zeros(num_slots, CANARY_SLOT_BYTES, dtype=torch.uint8)
    for slot, record in records.items():
        buffer.view(torch.int64)[int(slot)] = torch.tensor(fields(record))
    return buffer.to(device)


def sources_of(sources: list[dict], device: str) -> tuple[RealKvSource, ...]:
    return tuple(
        RealKvSource(
            tensor=torch.tensor([list(bytes.fromhex(row)) for row in s["rows_hex"]], dtype=torch.uint8, device=device),
            page_size=s["page_size"],
            num_bytes_per_token=s["num_bytes_per_token"],
            read_bytes=s["read_bytes"],
        )
        for s in sources
    )


def context_of(buffer: torch.Tensor, **changes) -> VerifyOrWriteContext:
    device = buffer.device

    def counter(dtype: torch.dtype, value: int = 0) -> torch.Tensor:
        return torch.full((1,), value, dtype=dtype, device=device)

    return VerifyOrWriteContext(
        **{
            "canary_buf": buffer,
            "kernel_kind": CanaryLaunchTag.HEAD_K_FULL,
            "violation_ring": torch.zeros(8, consts.VIOLATION_FIELDS, dtype=torch.int64, device=device),
            "violation_write_index": counter(torch.int32),
            "slot_run_counter": counter(torch.int64),
            "kernel_run_counter": counter(torch.int64),
            "real_kv_sources": (),
            "real_kv_hash_mode": consts.RealKvHashMode.NONE,
            "enable_chain_position_assert": counter(torch.int32, 1),
            **changes,
        }
    )


def check_log(context: VerifyOrWriteContext, want: dict, ordered: bool) -> None:
    assert context.violation_write_index.item() == want["violation_write_index"]
    assert context.slot_run_counter.item() == want["slot_run_counter"]
    assert context.kernel_run_counter.item() == want["kernel_run_counter"]
    rows = context.violation_ring.tolist()
    for row in want["ring_rows_written"]:
        fields = [int(f) for f in row["row_i64_as_strings"]]
        if ordered:
            assert rows[row["ring_index"]] == fields
        else:
            rows.remove(fields)


def vector_context(case: dict, records: str, device: str) -> VerifyOrWriteContext:
    given = case["in"]
    return context_of(
        records_of(given["num_slots"], given[records], device),
        kernel_kind=CanaryLaunchTag(given["kernel_kind"]),
        violation_ring=torch.zeros(case["out"]["log"]["ring_capacity"], 8, dtype=torch.int64, device=device),
        violation_write_index=torch.full((1,), given["violation_write_index_before"], dtype=torch.int32, device=device),
        real_kv_sources=sources_of(given["sources"], device),
        real_kv_hash_mode=consts.RealKvHashMode[given["mode"]],
        enable_chain_position_assert=torch.full(
            (1,), given.get("enable_chain_position_assert", 1), dtype=torch.int32, device=device
        ),
    )


@vectors("plan")
def test_plan_vectors(case: dict, device: str) -> None:
    given, want = case["in"], case["out"]
    verify = VerifyPlan.allocate(verify_capacity=given["verify_capacity"], device=device).zero_for_testing_()
    write = WritePlan.allocate(write_req_capacity=given["write_req_capacity"], device=device).zero_for_testing_()

    def optional(name: str, dtype: torch.dtype) -> torch.Tensor | None:
        return None if given[name] is None else torch.tensor(given[name], dtype=dtype, device=device)

    launch_canary_plan_kernels(
        verify_plan_out=verify,
        write_plan_out=write,
        req_pool_indices=i64(given["req_pool_indices"], device),
        prefix_lens=i64(given["prefix_lens"], device),
        extend_seq_lens=i64(given["extend_seq_lens"], device),
        req_to_token=torch.tensor(given["req_to_token"], dtype=torch.int32, device=device),
        swa_window_size=given["swa_window_size"],
        full_to_swa_index_mapping=optional("full_to_swa_index_mapping", torch.int64),
        verify_capacity=given["verify_capacity"],
        req_to_verify_expected_tokens=optional("req_to_verify_expected_tokens", torch.int32),
        req_to_verify_expected_tokens_valid_lens=optional("valid_lens", torch.int64),
        kv_token_id_vs_position_offset=given["kv_token_id_vs_position_offset"],
    )
    assert verify.verify_num_valid.item() == want["verify_num_valid"]
    assert verify.enable.item() == want["enable"]
    for name in ("slot_indices", "expected_positions", "prev_slot_indices", "expected_tokens"):
        got = getattr(verify, f"verify_{name}")
        if want["enable"]:
            assert got[: want["verify_num_valid"]].tolist() == want[f"verify_{name}"], name
        else:  # over capacity: no entry is stored
            assert got.tolist() == [-1 if name == "expected_tokens" else 0] * given["verify_capacity"], name
    assert write.write_offsets.tolist() == want["write_offsets"]
    seeds = want["write_seed_slot_indices_first_bs"]
    assert write.write_seed_slot_indices[: len(seeds)].tolist() == seeds
    assert write.write_num_valid_reqs.item() == want["write_num_valid_reqs"]


@vectors("write")
def test_write_vectors(case: dict, device: str) -> None:
    given, want = case["in"], case["out"]
    context = vector_context(case, "nonzero_records_before", device)
    before = context.canary_buf.clone()
    plan = WritePlan.allocate(write_req_capacity=given["write_req_capacity"], device=device).zero_for_testing_()
    plan.write_offsets[: len(given["write_offsets"])] = i64(given["write_offsets"], device)
    plan.write_seed_slot_indices[: len(given["write_seed_slot_indices"])] = i64(
        given["write_seed_slot_indices"], device
    )
    plan.write_num_valid_reqs.fill_(given["write_num_valid_reqs"])
    expected = given["expected_inputs"]
    launch_canary_write_kernel(
        context=context,
        plan=plan,
        input_ids=i64(given["input_ids"], device),
        positions=i64(given["positions"], device),
        out_cache_loc=i64(given["out_cache_loc"], device),
        enable_write_input_assert=expected is not None,
        expected_input_tokens=i64(expected["tokens"], device) if expected else None,
        expected_input_positions=i64(expected["positions"], device) if expected else None,
    )
    check_log(context, want["log"], case["ordered"])
    after = before.clone()
    for slot, record in want["changed_records"].items():
        after.view(torch.int64)[int(slot)] = i64(fields(record), device)
    assert torch.equal(context.canary_buf, after)


@vectors("verify")
def test_verify_vectors(case: dict, device: str) -> None:
    given, want = case["in"], case["out"]
    context = vector_context(case, "nonzero_records", device)
    before = context.canary_buf.clone()
    plan = VerifyPlan.allocate(verify_capacity=given["verify_capacity"], device=device).zero_for_testing_()
    n = len(given["verify_slot_indices"])
    plan.verify_slot_indices[:n] = i64(given["verify_slot_indices"], device)
    plan.verify_expected_positions[:n] = i64(given["verify_expected_positions"], device)
    plan.verify_prev_slot_indices[:n] = i64(given["verify_prev_slot_indices"], device)
    plan.verify_expected_tokens[:n] = i64(given["verify_expected_tokens"], device)
    plan.verify_num_valid.fill_(given["verify_num_valid"])
    plan.enable.fill_(given["enable"])
    launch_canary_verify_kernel(
        context=context, plan=plan, check_verify_expected_token=given["check_verify_expected_token"]
    )
    # Rows come in the entries' order on the CPU; a GPU gives no order, and drops any where the ring is full.
    if device == "cpu" or want["log"]["violation_write_index"] <= want["log"]["ring_capacity"]:
        check_log(context, want["log"], case["ordered"] and device == "cpu")
    assert torch.equal(context.canary_buf, before)


def test_scatter_vector(device: str) -> None:
    case = VECTORS["scatter_req_token_ids"]
    for function in (launch_scatter_req_token_ids_kernel, scatter_req_token_ids_torch_reference):
        shape = (case["pool_rows"], case["pool_cols"])
        pool = torch.full(shape, case["pool_before_fill"], dtype=torch.int32, device=device)
        function(
            flat_in=i64(case["flat_in"], device),
            offsets=i64(case["offsets"], device),
            req_pool_indices=i64(case["req_pool_indices"], device),
            pool_out=pool,
        )
        assert pool.tolist() == case["pool_after"]
    # Beyond 32 bits: the low ones.
    pool = torch.zeros((2, 1), dtype=torch.int32, device=device)
    launch_scatter_req_token_ids_kernel(
        flat_in=i64([2**33 + 7], device), offsets=i64([0, 1], device), req_pool_indices=i64([1], device), pool_out=pool
    )
    assert pool[1].item() == 7


def test_report_text() -> None:
    from serinus import _core

    for case in VECTORS["report_text"]:
        row = [int(f) for f in case["row_i64_as_strings"]]
        got = _core.sglang.report_text(row, case["total_violations"], case["ring_overflow"], case["step_when_pumped"])
        assert got == case["text"]


def test_hash_vectors() -> None:
    for case in VECTORS["splitmix64"]:
        assert consts.splitmix64(int(case["in"], 16)) == int(case["out"], 16)
    for case in VECTORS["mix3"]:
        a, b, c = (int(case[name], 16) for name in "abc")
        assert consts.splitmix64_mix3(a, b, c) == int(case["out"], 16)
        assert consts.splitmix64_mix3(signed(a), signed(b), signed(c)) == int(case["out"], 16)


# ---------------------------------------------------------------- interface


def test_interface() -> None:
    classes = {
        RealKvSource: "tensor page_size num_bytes_per_token read_bytes",
        VerifyOrWriteContext: "canary_buf kernel_kind violation_ring violation_write_index slot_run_counter "
        "kernel_run_counter real_kv_sources real_kv_hash_mode enable_chain_position_assert",
        VerifyPlan: "verify_slot_indices verify_expected_tokens verify_expected_positions verify_prev_slot_indices "
        "verify_num_valid enable",
        WritePlan: "write_offsets write_seed_slot_indices write_num_valid_reqs",
    }
    for cls, names in classes.items():
        assert sorted(f.name for f in dataclasses.fields(cls)) == sorted(names.split())
        parameters = cls.__dataclass_params__
        assert parameters.frozen
        assert cls.__slots__
        assert all(f.kw_only and f.default is dataclasses.MISSING for f in dataclasses.fields(cls))
    functions = {
        launch_canary_verify_kernel: "context plan check_verify_expected_token",
        launch_canary_write_kernel: "context plan input_ids positions out_cache_loc enable_write_input_assert "
        "expected_input_tokens expected_input_positions",
        launch_canary_plan_kernels: "verify_plan_out write_plan_out req_pool_indices prefix_lens extend_seq_lens "
        "req_to_token swa_window_size full_to_swa_index_mapping verify_capacity req_to_verify_expected_tokens "
        "req_to_verify_expected_tokens_valid_lens kv_token_id_vs_position_offset",
        launch_scatter_req_token_ids_kernel: "flat_in offsets req_pool_indices pool_out",
        scatter_req_token_ids_torch_reference: "flat_in offsets req_pool_indices pool_out",
        VerifyPlan.allocate: "verify_capacity device",
        WritePlan.allocate: "write_req_capacity device",
    }
    for function, names in functions.items():
        parameters = inspect.signature(function).parameters.values()
        assert [p.name for p in parameters] == names.split()
        assert all(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters)


def test_constants() -> None:
    public = {name for name in vars(consts) if not name.startswith("_")}
    assert {name for name in public if isinstance(getattr(consts, name), int)} == set(
        "CANARY_CHAIN_ANCHOR TOKEN_TO_KV_SLOT_PADDING REQ_POOL_IDX_PADDING CANARY_FIELDS_PER_SLOT CANARY_FIELD_TOKEN "
        "CANARY_FIELD_POSITION CANARY_FIELD_PREV_HASH CANARY_FIELD_REAL_KV_HASH VIOLATION_FIELDS "
        "VIOLATION_FIELD_KERNEL_KIND VIOLATION_FIELD_SLOT_IDX VIOLATION_FIELD_POSITION VIOLATION_FIELD_STORED_TOKEN "
        "VIOLATION_FIELD_EXPECTED_TOKEN VIOLATION_FIELD_STORED_CHAIN_HASH VIOLATION_FIELD_EXPECTED_AUX "
        "VIOLATION_FIELD_FAIL_REASON_BITS MAX_REAL_KV_SOURCES REAL_KV_SOURCE_FIELDS_PER_ENTRY "
        "REAL_KV_SOURCE_FIELD_PAGE_SIZE REAL_KV_SOURCE_FIELD_NUM_BYTES_PER_TOKEN "
        "REAL_KV_SOURCE_FIELD_READ_BYTES".split()
    )
    want = VECTORS["constants"]
    assert int(want["chain_anchor"], 16) == consts.CANARY_CHAIN_ANCHOR
    assert want["slot_bytes"] == CANARY_SLOT_BYTES
    assert {t.name: t.value for t in CanaryLaunchTag} == want["launch_tags"]
    assert {m.name: m.value for m in consts.RealKvHashMode} == want["real_kv_hash_mode"]
    assert {f"{name}_mismatch".upper(): bit for name, bit in want["fail_reason_bits"].items()} == {
        r.name: r.value for r in consts.FailReason
    }
    assert want["max_real_kv_sources"] == consts.MAX_REAL_KV_SOURCES
    for i, name in enumerate(want["violation_row"]):
        assert getattr(consts, f"VIOLATION_FIELD_{name.upper()}") == i
    for i, name in enumerate(want["fields_per_slot"]):
        assert getattr(consts, f"CANARY_FIELD_{name.upper()}") == i


def test_allocation(device: str) -> None:
    plan = VerifyPlan.allocate(verify_capacity=5, device=torch.device(device))
    assert plan.enable.tolist() == [1]
    tensors = [getattr(plan, f.name) for f in dataclasses.fields(plan)]
    assert sum(t.numel() * t.element_size() for t in tensors) == VerifyPlan.allocation_bytes(5)
    assert [(t.dtype, t.shape[0], t.device.type) for t in tensors] == [(torch.int64, 5, device)] * 4 + [
        (torch.int32, 1, device)
    ] * 2
    assert plan.zero_for_testing_() is plan
    assert plan.verify_expected_tokens.tolist() == [-1] * 5
    for name in ("verify_slot_indices", "verify_expected_positions", "verify_prev_slot_indices", "enable"):
        assert not getattr(plan, name).any()
    write = WritePlan.allocate(write_req_capacity=3, device=device)
    tensors = [getattr(write, f.name) for f in dataclasses.fields(write)]
    assert sum(t.numel() * t.element_size() for t in tensors) == WritePlan.allocation_bytes(3)
    assert (write.write_offsets.shape, write.write_seed_slot_indices.shape) == ((4,), (3,))
    assert write.zero_for_testing_() is write
    assert not write.write_offsets.any()


# ---------------------------------------------------------------- checks


def source(**changes) -> RealKvSource:
    tensor = changes.pop("tensor", None)
    return RealKvSource(
        **{
            "tensor": torch.zeros(4, 32, dtype=torch.uint8) if tensor is None else tensor,
            "page_size": 1,
            "num_bytes_per_token": 32,
            "read_bytes": 32,
            **changes,
        }
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"page_size": 0}, "kv-canary: RealKvSource.page_size must be >= 1, got 0"),
        (
            {"num_bytes_per_token": 24},
            "kv-canary: RealKvSource.num_bytes_per_token must be a positive multiple of 16, got 24",
        ),
        (
            {"read_bytes": 48},
            "kv-canary: RealKvSource.read_bytes must be a positive multiple of 16 in (0, num_bytes_per_token=32], "
            "got 48",
        ),
        (
            {"read_bytes": 0},
            "kv-canary: RealKvSource.read_bytes must be a positive multiple of 16 in (0, num_bytes_per_token=32], "
            "got 0",
        ),
        (
            {"tensor": torch.zeros(32)},
            "kv-canary: RealKvSource.tensor must be at least 2-D, got shape (32,)",
        ),
        (
            {"tensor": torch.zeros(4, 3, dtype=torch.float16)},
            "kv-canary: RealKvSource.tensor dim-1 byte width must be a multiple of 16, got 6 bytes (shape=(4, 3), "
            "dtype=torch.float16)",
        ),
        # The first of several wins.
        ({"page_size": -1, "num_bytes_per_token": 1}, "kv-canary: RealKvSource.page_size must be >= 1, got -1"),
    ],
)
def test_source_checks(changes: dict, message: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        source(**changes)
    assert str(raised.value) == message
    assert raised.value.id.startswith("SRN3")


def strided(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    """Every other element of a larger tensor."""
    return torch.zeros(*shape[:-1], shape[-1] * 2, dtype=dtype, device=device)[..., ::2]


def verify_arguments(device: str, **context) -> dict:
    plan = VerifyPlan.allocate(verify_capacity=4, device=device).zero_for_testing_()
    buffer = torch.zeros(8, 32, dtype=torch.uint8, device=device)
    return {"context": context_of(buffer, **context), "plan": plan, "check_verify_expected_token": True}


def write_arguments(device: str, **context) -> dict:
    buffer = torch.zeros(8, 32, dtype=torch.uint8, device=device)
    return {
        "context": context_of(buffer, **context),
        "plan": WritePlan.allocate(write_req_capacity=2, device=device).zero_for_testing_(),
        "input_ids": i64([1, 2, 3], device),
        "positions": i64([0, 1, 2], device),
        "out_cache_loc": i64([1, 2, 3], device),
        "enable_write_input_assert": True,
        "expected_input_tokens": i64([1, 2, 3], device),
        "expected_input_positions": i64([0, 1, 2], device),
    }


PLAN_FIELDS = "verify_slot_indices verify_expected_tokens verify_expected_positions verify_prev_slot_indices".split()
CONTEXT_TENSORS = "violation_ring violation_write_index slot_run_counter kernel_run_counter".split()


def replace(arguments: dict, path: str, value) -> None:
    holder, _, name = path.rpartition(".")
    if holder:
        arguments[holder] = dataclasses.replace(arguments[holder], **{name: value})
    else:
        arguments[path] = value


def make_strided(arguments: dict, path: str, device: str) -> None:
    holder, _, name = path.rpartition(".")
    tensor = getattr(arguments[holder], name) if holder else arguments[path]
    # A single element may carry any stride: it needs two to be strided at all.
    shape = tensor.shape if tensor.shape[-1] > 1 else (2,)
    replace(arguments, path, strided(tuple(shape), tensor.dtype, device))


def check_order(launch, arguments, paths: list[tuple[str, str]], device: str) -> None:
    """With several tensors strided at once, the first of the order is named; mended one by one."""
    good = arguments(device)
    bad = arguments(device)
    for path, _ in paths:
        make_strided(bad, path, device)
    for path, name in paths:
        with pytest.raises(ValueError) as raised:  # noqa: PT011
            launch(**bad)
        assert str(raised.value) == f"kv-canary: {name} must be contiguous"
        holder, _, attribute = path.rpartition(".")
        replace(bad, path, getattr(good[holder], attribute) if holder else good[path])
    launch(**bad)


def test_verify_contiguity_in_order(device: str) -> None:
    paths = [("context.canary_buf", "canary_buf")]
    paths += [(f"plan.{f}", f"plan.{f}") for f in PLAN_FIELDS]
    paths += [("plan.verify_num_valid", "plan.verify_num_valid"), ("plan.enable", "plan.enable")]
    paths += [(f"context.{f}", f) for f in [*CONTEXT_TENSORS, "enable_chain_position_assert"]]
    check_order(launch_canary_verify_kernel, verify_arguments, paths, device)


def test_write_contiguity_in_order(device: str) -> None:
    paths = [("context.canary_buf", "canary_buf")]
    paths += [(f"plan.{f}", f"plan.{f}") for f in ("write_offsets", "write_seed_slot_indices", "write_num_valid_reqs")]
    paths += [(f, f) for f in ("input_ids", "positions", "out_cache_loc")]
    paths += [(f, f) for f in ("expected_input_tokens", "expected_input_positions")]
    paths += [(f"context.{f}", f) for f in [*CONTEXT_TENSORS, "enable_chain_position_assert"]]
    check_order(launch_canary_write_kernel, write_arguments, paths, device)


@pytest.mark.parametrize("launch", ["verify", "write"])
def test_sources_at_a_launch(launch: str, device: str) -> None:
    arguments = {"verify": verify_arguments, "write": write_arguments}[launch]
    function = {"verify": launch_canary_verify_kernel, "write": launch_canary_write_kernel}[launch]

    def with_sources(sources: list) -> dict:
        # The number of sources comes first of all: everything else is wrong as well.
        bad = arguments(device, real_kv_sources=tuple(sources))
        if len(sources) > 4:
            make_strided(bad, "context.canary_buf", device)
        return bad

    five = [source(tensor=torch.zeros(8, 32, dtype=torch.uint8, device=device))] * 5
    with pytest.raises(ValueError, match="kv-canary: at most 4 RealKvSource entries supported by the CUDA ABI, got 5"):
        function(**with_sources(five))
    columns = source(tensor=strided((8, 32), torch.uint8, device))
    with pytest.raises(ValueError, match=r"kv-canary: real_kv_sources\[1\].tensor must be contiguous"):
        function(**with_sources([five[0], columns]))
    deep = source(tensor=torch.zeros(8, 16, 2, dtype=torch.uint8, device=device))
    with pytest.raises(
        ValueError, match=r"kv-canary: real_kv_sources\[0\].tensor \(viewed as uint8\) must be 2-D, got 3-D"
    ):
        function(**with_sources([deep]))
    # Rows of a larger row: stepped by stride(0).
    gaps = source(tensor=torch.zeros(8, 48, dtype=torch.uint8, device=device)[:, :32])
    function(**with_sources([gaps]))


def test_expected_inputs(device: str) -> None:
    arguments = write_arguments(device)
    arguments["expected_input_tokens"] = None
    with pytest.raises(
        ValueError, match="kv-canary: expected input tensors are required when enable_write_input_assert=True"
    ):
        launch_canary_write_kernel(**arguments)
    arguments = {**write_arguments(device), "enable_write_input_assert": False}
    with pytest.raises(
        ValueError, match="kv-canary: expected input tensors must be None when enable_write_input_assert=False"
    ):
        launch_canary_write_kernel(**arguments)
    launch_canary_write_kernel(**{**arguments, "expected_input_tokens": None, "expected_input_positions": None})


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("context.canary_buf", lambda d: torch.zeros(8, 16, dtype=torch.uint8, device=d),
         "canary_write: slot_stride_bytes must hold at least 32 bytes per slot, got 16"),
        ("plan.write_offsets", lambda d: torch.zeros(2, dtype=torch.int64, device=d),
         r"canary_write: write_offsets.size\(0\) must equal write_req_capacity \+ 1 \(3\), got 2"),
        ("input_ids", lambda d: torch.zeros(3, dtype=torch.int32, device=d),
         "(?s)Tensor match failed for Tensor<3>.*\n- Root cause: dtype mismatch: expected int64, got int32"),
        ("positions", lambda d: torch.zeros(4, dtype=torch.int64, device=d),
         "(?s)Tensor match failed.*\n- Root cause: size mismatch in dimension 0: expected 3, got 4"),
        ("context.violation_ring", lambda d: torch.zeros(8, dtype=torch.int64, device=d),
         "(?s)Tensor match failed.*\n- Root cause: dimension mismatch: expected 2, got 1"),
    ],
)  # fmt: skip
def test_native_run_time_checks(path: str, value, message: str, device: str) -> None:
    arguments = write_arguments(device)
    replace(arguments, path, value(device))
    before = arguments["context"].canary_buf.clone()
    with pytest.raises(RuntimeError, match=message):
        launch_canary_write_kernel(**arguments)
    assert torch.equal(arguments["context"].canary_buf, before)
    assert arguments["context"].kernel_run_counter.item() == 0


@pytest.mark.gpu
def test_mixed_devices() -> None:
    arguments = write_arguments("cuda")
    arguments["input_ids"] = arguments["input_ids"].cpu()
    with pytest.raises(RuntimeError, match=r"(?s)Tensor match failed.*device mismatch: expected cuda:0, got cpu"):
        launch_canary_write_kernel(**arguments)


def plan_arguments(device: str) -> dict:
    return {
        "verify_plan_out": VerifyPlan.allocate(verify_capacity=16, device=device),
        "write_plan_out": WritePlan.allocate(write_req_capacity=4, device=device),
        "req_pool_indices": i64([1, 2], device),
        "prefix_lens": i64([2, 1], device),
        "extend_seq_lens": i64([1, 1], device),
        "req_to_token": torch.arange(24, dtype=torch.int32, device=device).reshape(3, 8),
        "swa_window_size": 2,
        "full_to_swa_index_mapping": i64(range(25), device),
        "verify_capacity": 16,
        "req_to_verify_expected_tokens": torch.zeros(3, 8, dtype=torch.int32, device=device),
        "req_to_verify_expected_tokens_valid_lens": i64([2, 2], device),
        "kv_token_id_vs_position_offset": 0,
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"req_pool_indices": lambda d: i64([0] * 4097, d)},
         "kv-canary: launch_canary_plan_kernels supports at most bs=4096 reqs per launch, got bs=4097. Bump "
         "_PLAN_BS_BLOCK_SIZE if real workloads need this."),
        ({"full_to_swa_index_mapping": lambda d: None},
         "kv-canary: launch_canary_plan_kernels requires full_to_swa_index_mapping when swa_window_size > 0"),
        ({"verify_capacity": lambda d: 15},
         "kv-canary: launch_canary_plan_kernels verify_capacity=15 does not match "
         "verify_plan_out.verify_slot_indices.shape[0]=16"),
        ({"req_to_verify_expected_tokens_valid_lens": lambda d: None},
         "kv-canary: launch_plan_entries_kernel requires req_to_verify_expected_tokens_valid_lens when "
         "req_to_verify_expected_tokens is set"),
        ({"prefix_lens": lambda d: strided((2,), torch.int64, d)}, "kv-canary: prefix_lens must be contiguous"),
        ({"prefix_lens": lambda d: i64([1], d)}, "kv-canary: prefix_lens length must be 2, got 1"),
        ({"req_to_token": lambda d: torch.zeros(3, 8, dtype=torch.int64, device=d)},
         "kv-canary: req_to_token must have dtype torch.int32, got torch.int64"),
        ({"req_to_token": lambda d: torch.zeros(24, dtype=torch.int32, device=d)},
         "kv-canary: req_to_token must be 2-D, got shape (24,)"),
        ({"extend_seq_lens": lambda d: i64([[1, 1]], d)},
         "kv-canary: extend_seq_lens must be 1-D, got shape (1, 2)"),
        ({"req_to_verify_expected_tokens_valid_lens": lambda d: i64([1], d)},
         "kv-canary: req_to_verify_expected_tokens_valid_lens length must be >= 2, got 1"),
        ({"write_plan_out": lambda d: WritePlan.allocate(write_req_capacity=1, device=d)},
         "kv-canary: bs=2 exceeds write_req_capacity=1"),
    ],
)  # fmt: skip
def test_plan_checks(changes: dict, message: str, device: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        launch_canary_plan_kernels(**{**plan_arguments(device), **{k: v(device) for k, v in changes.items()}})
    assert str(raised.value) == message
    launch_canary_plan_kernels(**plan_arguments(device))


def test_plan_contiguity_in_order(device: str) -> None:
    """By the names of SGLang's own messages, which are those of its kernels' arguments."""
    names = {
        "req_pool_indices": "req_pool_indices",
        "prefix_lens": "prefix_lens",
        "extend_seq_lens": "extend_seq_lens",
        "req_to_token": "req_to_token",
        "full_to_swa_index_mapping": "lut_tensor",
        "write_plan_out.write_offsets": "out_write_offsets",
        "write_plan_out.write_seed_slot_indices": "out_write_seed_slot_indices",
        "verify_plan_out.verify_num_valid": "out_verify_num_valid",
        "verify_plan_out.enable": "out_verify_enable",
        "write_plan_out.write_num_valid_reqs": "out_write_num_valid_reqs",
    }
    check_order(launch_canary_plan_kernels, plan_arguments, list(names.items()), device)


@pytest.mark.gpu
def test_plan_on_mixed_devices() -> None:
    arguments = plan_arguments("cuda")
    arguments["prefix_lens"] = arguments["prefix_lens"].cpu()
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        launch_canary_plan_kernels(**arguments)
    want = "kv-canary: prefix_lens must be on out_verify_offsets_scratch's device cuda:0, got cpu"
    assert str(raised.value) == want


def test_capacities() -> None:
    with pytest.raises(ValueError, match="kv-canary: VerifyPlan verify_capacity must be positive, got 0"):
        VerifyPlan.allocate(verify_capacity=0, device="cpu")
    with pytest.raises(ValueError, match="kv-canary: WritePlan write_req_capacity must be positive, got -3"):
        WritePlan.allocate(write_req_capacity=-3, device="cpu")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"flat_in": lambda d: i64([[1]], d)}, ValueError,
         "kv-canary: scatter_req_token_ids flat_in must be 1-D, got shape (1, 1)"),
        ({"pool_out": lambda d: torch.zeros(4, dtype=torch.int32, device=d)}, ValueError,
         "kv-canary: scatter_req_token_ids pool_out must be 2-D, got shape (4,)"),
        ({"offsets": lambda d: torch.zeros(3, dtype=torch.int32, device=d)}, TypeError,
         "kv-canary: scatter_req_token_ids offsets must be int64, got torch.int32"),
        ({"pool_out": lambda d: torch.zeros(4, 2, dtype=torch.int64, device=d)}, TypeError,
         "kv-canary: scatter_req_token_ids pool_out must be int32, got torch.int64"),
        ({"offsets": lambda d: i64([0, 1], d)}, ValueError,
         "kv-canary: scatter_req_token_ids offsets length 2 != bs+1 (3)"),
        ({"offsets": lambda d: i64([0] * 513, d), "req_pool_indices": lambda d: i64([0] * 512, d)}, ValueError,
         "kv-canary: scatter_req_token_ids bs+1=513 exceeds BATCH_BLOCK=512; bump _SCATTER_BATCH_BLOCK if real "
         "workloads need this"),
    ],
)  # fmt: skip
def test_scatter_checks(changes: dict, error: type[Exception], message: str, device: str) -> None:
    assert _SCATTER_BATCH_BLOCK == 512
    arguments = {
        "flat_in": i64([1, 2], device),
        "offsets": i64([0, 1, 2], device),
        "req_pool_indices": i64([1, 2], device),
        "pool_out": torch.zeros(4, 2, dtype=torch.int32, device=device),
    }
    launch_scatter_req_token_ids_kernel(**arguments)
    with pytest.raises(error) as raised:
        launch_scatter_req_token_ids_kernel(**{**arguments, **{k: v(device) for k, v in changes.items()}})
    assert str(raised.value) == message


# ---------------------------------------------------------------- CPU against GPU


def random_step(seed: int, device: str) -> tuple[VerifyOrWriteContext, list[int]]:
    """Plan, write and verify of a random batch over damaged records; the context holds what they left."""
    generator = torch.Generator().manual_seed(seed)

    def randint(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator)

    slots, rows, length, bs = 400, 9, 40, 8
    table = (1 + torch.randperm(slots - 1, generator=generator)[: rows * length]).reshape(rows, length).int()
    request_rows = torch.randperm(rows - 1, generator=generator)[:bs] + 1
    request_rows[bs // 2] = 0  # padding
    prefix = randint(0, 30, bs)
    extend = randint(0, 10, bs)
    active = (request_rows != 0).long() * extend
    positions = torch.cat([torch.arange(p, p + n) for p, n in zip(prefix.tolist(), active.tolist(), strict=True)])
    owners = torch.repeat_interleave(request_rows, active)
    locations = table[owners, positions].long()
    # A windowed pool has slots of its own: the plan translates what it reads, the caller what it writes.
    mapping = torch.arange(slots).roll(seed) if seed % 2 else None
    if mapping is not None:
        locations = mapping[locations]
    if len(locations) > 2:
        locations[len(locations) // 2] = -1
    tokens = randint(0, 50_000, len(positions))
    records = randint(0, 3, slots, 4)  # small numbers: some entries match by chance
    kv = randint(0, 256, slots // 4, 4 * 64 + 32).to(torch.uint8)

    buffer = records.to(device).view(torch.uint8).reshape(slots, 32).contiguous()
    context = context_of(
        buffer,
        violation_ring=torch.zeros(2048, 8, dtype=torch.int64, device=device),
        real_kv_sources=(
            RealKvSource(tensor=kv.to(device)[:, : 4 * 64], page_size=4, num_bytes_per_token=64, read_bytes=48),
        ),
        real_kv_hash_mode=consts.RealKvHashMode(seed % 3),
    )
    verify = VerifyPlan.allocate(verify_capacity=512, device=device)
    write = WritePlan.allocate(write_req_capacity=bs + 2, device=device)
    launch_canary_plan_kernels(
        verify_plan_out=verify,
        write_plan_out=write,
        req_pool_indices=request_rows.to(device),
        prefix_lens=prefix.to(device),
        extend_seq_lens=extend.to(device),
        req_to_token=table.to(device),
        swa_window_size=(0, 7)[seed % 2],
        full_to_swa_index_mapping=None if mapping is None else mapping.to(device),
        verify_capacity=512,
        req_to_verify_expected_tokens=randint(0, 3, rows, length).int().to(device),
        req_to_verify_expected_tokens_valid_lens=randint(0, 40, bs).to(device),
        kv_token_id_vs_position_offset=seed % 2,
    )
    launch_canary_verify_kernel(context=context, plan=verify, check_verify_expected_token=True)
    launch_canary_write_kernel(
        context=context,
        plan=write,
        input_ids=tokens.to(device),
        positions=positions.to(device),
        out_cache_loc=locations.to(device),
        enable_write_input_assert=True,
        expected_input_tokens=(tokens + (randint(0, 4, len(tokens)) == 0)).to(device),
        expected_input_positions=positions.to(device),
    )
    launch_canary_verify_kernel(context=context, plan=verify, check_verify_expected_token=False)
    plans = [verify.verify_num_valid, verify.enable, write.write_offsets, write.write_num_valid_reqs]
    plans += [getattr(verify, name)[: verify.verify_num_valid.item()] for name in PLAN_FIELDS]
    return context, [t.tolist() for t in plans]


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(12))
def test_gpu_equals_cpu(seed: int) -> None:
    (cpu, cpu_plan), (gpu, gpu_plan) = random_step(seed, "cpu"), random_step(seed, "cuda")
    assert gpu_plan == cpu_plan
    assert torch.equal(gpu.canary_buf.cpu(), cpu.canary_buf)
    for name in ("violation_write_index", "slot_run_counter", "kernel_run_counter"):
        assert getattr(gpu, name).item() == getattr(cpu, name).item(), name
    assert sorted(gpu.violation_ring.tolist()) == sorted(cpu.violation_ring.tolist())


def test_random_step_finds_something() -> None:
    """The comparison above is about something: rows, and several reasons."""
    reasons = 0
    for seed in range(12):
        context, plan = random_step(seed, "cpu")
        found = context.violation_write_index.item()
        assert 0 < found < 2048
        for bits in context.violation_ring[:found, consts.VIOLATION_FIELD_FAIL_REASON_BITS].tolist():
            reasons |= bits
        assert plan[0][0] > 0
    assert reasons == 63


@pytest.mark.gpu
def test_current_stream_is_used() -> None:
    side = torch.cuda.Stream()
    arguments = write_arguments("cuda")
    plan, offsets = arguments["plan"], i64([0, 3, 3], "cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(400_000_000)  # about 0.2 s: in another stream, the launch would come before what follows
        plan.write_offsets.copy_(offsets)
        plan.write_num_valid_reqs.fill_(1)
        plan.write_seed_slot_indices.fill_(-1)
        launch_canary_write_kernel(**arguments)
    assert not side.query(), "the launch waited for the stream"
    side.synchronize()
    assert arguments["context"].slot_run_counter.item() == 3


@pytest.mark.gpu
def test_in_a_cuda_graph() -> None:
    """Plan, verify and write in one graph, replayed on new contents."""
    table = torch.arange(32, dtype=torch.int32, device="cuda").reshape(2, 16) + 1
    buffer = torch.zeros(64, 32, dtype=torch.uint8, device="cuda")
    context = context_of(buffer)
    rows, prefix, extend = i64([1, 0], "cuda"), i64([0, 0], "cuda"), i64([1, 0], "cuda")
    tokens, positions, locations = (torch.zeros(1, dtype=torch.int64, device="cuda") for _ in range(3))

    def step() -> VerifyPlan:
        verify = VerifyPlan.allocate(verify_capacity=32, device="cuda")
        write = WritePlan.allocate(write_req_capacity=2, device="cuda")
        launch_canary_plan_kernels(
            verify_plan_out=verify,
            write_plan_out=write,
            req_pool_indices=rows,
            prefix_lens=prefix,
            extend_seq_lens=extend,
            req_to_token=table,
            swa_window_size=0,
            full_to_swa_index_mapping=None,
            verify_capacity=32,
            req_to_verify_expected_tokens=None,
            req_to_verify_expected_tokens_valid_lens=None,
            kv_token_id_vs_position_offset=0,
        )
        launch_canary_verify_kernel(context=context, plan=verify, check_verify_expected_token=False)
        launch_canary_write_kernel(
            context=context,
            plan=write,
            input_ids=tokens,
            positions=positions,
            out_cache_loc=locations,
            enable_write_input_assert=False,
            expected_input_tokens=None,
            expected_input_positions=None,
        )
        return verify

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan = step()
    for t in range(8):
        prefix[0] = t
        tokens[0] = 100 + t
        positions[0] = t
        locations.copy_(table[1, t : t + 1].long())
        graph.replay()
    assert plan.verify_num_valid.item() == 7
    assert context.violation_write_index.item() == 0
    assert context.kernel_run_counter.item() == 16
    buffer[int(table[1, 3]), 0] ^= 1  # a token damaged
    prefix[0] = positions[0] = 8
    locations.copy_(table[1, 8:9].long())
    graph.replay()
    assert context.violation_write_index.item() == 1
    row = context.violation_ring[0].tolist()
    assert row[consts.VIOLATION_FIELD_SLOT_IDX] == table[1, 4].item()
    assert row[consts.VIOLATION_FIELD_FAIL_REASON_BITS] == consts.FailReason.VERIFY_CHAIN_HASH_MISMATCH


def test_errors_have_pages() -> None:
    arguments = write_arguments("cpu")
    make_strided(arguments, "input_ids", "cpu")
    with pytest.raises(serinus.ValueError) as raised:
        launch_canary_write_kernel(**arguments)
    assert raised.value.argument == "input_ids"
    assert "contiguous" in raised.value.explain()
