"""torch operators: opcheck, torch.compile, CUDA graphs, autograd."""

from __future__ import annotations

import pytest
import serinus

torch = pytest.importorskip("torch")

import serinus.torch  # noqa: E402
from serinus.sglang.kv_canary import consts  # noqa: E402
from serinus.sglang.kv_canary.verify import (  # noqa: E402
    CanaryLaunchTag,
    RealKvSource,
    VerifyOrWriteContext,
    VerifyPlan,
)
from serinus.sglang.kv_canary.write import WritePlan  # noqa: E402


def prefill_arguments(device: str) -> dict:
    generator = torch.Generator().manual_seed(3)

    def fp8(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(torch.float8_e4m3fn).to(device)

    return {
        "q": fp8(3, 4, 576),
        "kv": fp8(20, 1, 576),
        "indices": torch.randint(-1, 20, (3, 1, 8), generator=generator).int().to(device),
        "sm_scale": 0.05,
        "q_scale": torch.ones(1, device=device),
        "kv_scale": torch.ones(1, device=device),
        "attn_sink": torch.randn(4, generator=generator).to(device),
        "topk_length": torch.tensor([8, 3, 0], dtype=torch.int32, device=device),
    }


def outputs(device: str) -> dict:
    return {
        "out": torch.zeros(3, 4, 512, dtype=torch.bfloat16, device=device),
        "max_logits": torch.zeros(3, 4, device=device),
        "lse": torch.zeros(3, 4, device=device),
    }


class Canary:
    """A small pool with one request, planned, verified and written by operators."""

    def __init__(self, device: str) -> None:
        def i64(*values: int) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        self.kv = torch.arange(16 * 64, device=device).to(torch.uint8).reshape(16, 64)
        self.context = VerifyOrWriteContext(
            canary_buf=torch.zeros(16, 32, dtype=torch.uint8, device=device),
            kernel_kind=CanaryLaunchTag.TAIL_K_FULL,
            violation_ring=torch.zeros(8, 8, dtype=torch.int64, device=device),
            violation_write_index=torch.zeros(1, dtype=torch.int32, device=device),
            slot_run_counter=i64(0),
            kernel_run_counter=i64(0),
            real_kv_sources=(RealKvSource(tensor=self.kv, page_size=1, num_bytes_per_token=64, read_bytes=64),),
            real_kv_hash_mode=consts.RealKvHashMode.ALL,
            enable_chain_position_assert=torch.ones(1, dtype=torch.int32, device=device),
        )
        self.verify_plan = VerifyPlan.allocate(verify_capacity=16, device=device).zero_for_testing_()
        self.write_plan = WritePlan.allocate(write_req_capacity=2, device=device).zero_for_testing_()
        self.table = torch.tensor([[0] * 8, [3, 4, 5, 6, 7, 8, 9, 10]], dtype=torch.int32, device=device)
        self.row, self.prefix, self.extend = i64(1), i64(0), i64(3)
        self.tokens, self.positions, self.slots = i64(11, 12, 13), i64(0, 1, 2), i64(3, 4, 5)
        self.verify_plan.enable.fill_(1)

    def plan(self) -> None:
        serinus.torch.plan(self.verify_plan, self.write_plan, self.row, self.prefix, self.extend, self.table)

    def step(self) -> None:
        self.plan()
        serinus.torch.verify(self.context, self.verify_plan, False)
        serinus.torch.write(self.context, self.write_plan, self.tokens, self.positions, self.slots)

    def advance(self) -> None:
        self.prefix += 3
        self.positions += 3
        self.slots += 3


def recorded(monkeypatch: pytest.MonkeyPatch, name: str, call) -> tuple[tuple, dict]:
    """The arguments with which a function of serinus.torch calls its operator."""
    seen: list = []

    class Ops:
        def __getattr__(self, attribute: str):
            return lambda *args, **kwargs: seen.append((attribute, args, kwargs))

    with monkeypatch.context() as patched:
        patched.setattr(torch.ops, "serinus", Ops())
        call()
    ((attribute, args, kwargs),) = seen
    assert attribute == name
    return args, kwargs


@pytest.mark.parametrize(
    "name",
    [
        "sparse_mla_prefill",
        "sparse_mla_prefill_out",
        "canary_verify",
        "canary_write",
        "canary_plan",
        "scatter_req_token_ids",
    ],
)
def test_opcheck(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    canary = Canary(device)
    canary.plan()
    a = prefill_arguments(device)
    for fp8 in ("q", "kv"):  # opcheck does arithmetic on its inputs, which torch does not offer for float8
        a[fp8] = a[fp8].view(torch.uint8)
    calls = {
        "sparse_mla_prefill": lambda: serinus.torch.sparse_mla_prefill(**a),
        "sparse_mla_prefill_out": lambda: serinus.torch.sparse_mla_prefill(**a, out=tuple(outputs(device).values())),
        "canary_verify": lambda: serinus.torch.verify(canary.context, canary.verify_plan, True),
        "canary_write": lambda: serinus.torch.write(
            canary.context,
            canary.write_plan,
            canary.tokens,
            canary.positions,
            canary.slots,
            canary.tokens,
            canary.positions,
        ),
        "canary_plan": canary.plan,
        "scatter_req_token_ids": lambda: serinus.torch.scatter_req_token_ids(
            canary.tokens, canary.prefix.new_tensor([0, 3]), canary.row, canary.table
        ),
    }
    args, kwargs = recorded(monkeypatch, name, calls[name])
    torch.library.opcheck(getattr(torch.ops.serinus, name).default, args, kwargs)


def test_operators_compute_what_the_functions_compute(device: str) -> None:
    a = prefill_arguments(device)
    want = serinus.sparse_mla_prefill(**a)
    for x, y in zip(serinus.torch.sparse_mla_prefill(**a), want, strict=True):
        assert torch.equal(x, y)
    given = outputs(device)
    got = serinus.torch.sparse_mla_prefill(**a, out=tuple(given.values()))
    assert got[0] is given["out"]
    for x, y in zip(given.values(), want, strict=True):
        assert torch.equal(x, y)


def test_forward_only(device: str) -> None:
    a = prefill_arguments(device)
    a["attn_sink"].requires_grad_()
    out, _, _ = serinus.torch.sparse_mla_prefill(**a)
    with pytest.raises(serinus.RuntimeError, match="serinus::sparse_mla_prefill is forward only") as raised:
        out.float().sum().backward()
    assert raised.value.id == "SRN6208"
    with pytest.raises(serinus.RuntimeError, match="serinus::sparse_mla_prefill_out is forward only"):
        serinus.torch.sparse_mla_prefill(**a, out=tuple(outputs(device).values()))
    with torch.no_grad():
        serinus.torch.sparse_mla_prefill(**a, out=tuple(outputs(device).values()))


def damage_is_found(canary: Canary, step) -> None:
    step()
    canary.advance()
    step()
    assert canary.context.violation_write_index.item() == 0
    assert canary.context.slot_run_counter.item() == 3 + 3 + 3
    canary.kv[4, 20] ^= 1
    canary.advance()
    canary.extend.fill_(1)
    step()
    assert canary.context.violation_write_index.item() == 1
    row = canary.context.violation_ring[0].tolist()
    assert (row[consts.VIOLATION_FIELD_SLOT_IDX], row[consts.VIOLATION_FIELD_FAIL_REASON_BITS]) == (4, 4)


def test_a_step_of_operators(device: str) -> None:
    canary = Canary(device)
    damage_is_found(canary, canary.step)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.gpu)])
def test_torch_compile(backend: str, device: str) -> None:
    if backend == "inductor" and device == "cpu":
        pytest.skip("inductor needs a C++ compiler on the CPU")
    canary = Canary(device)
    damage_is_found(canary, torch.compile(canary.step, backend=backend, fullgraph=True))

    a = prefill_arguments(device)

    def layer(q: torch.Tensor, **rest) -> torch.Tensor:
        out, _, lse = serinus.torch.sparse_mla_prefill(q=q, **rest)
        return out.float() * 2 + lse[..., None].nan_to_num(posinf=0.0)

    want = layer(**a)
    torch.testing.assert_close(torch.compile(layer, backend=backend, fullgraph=True)(**a), want)


@pytest.mark.gpu
def test_cuda_graph() -> None:
    canary = Canary("cuda")
    canary.step()  # nothing is set up lazily, but torch's own allocator is warm then
    canary = Canary("cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        canary.step()
    damage_is_found(canary, graph.replay)
