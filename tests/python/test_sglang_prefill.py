"""The prefill drop-in: signature, messages in order, and results on the GPU against a float64 reference."""

from __future__ import annotations

import inspect
import itertools

import pytest

torch = pytest.importorskip("torch")

from serinus.sglang.sparse_mla_q8kv8_prefill_sm90 import sparse_mla_q8kv8_prefill_fwd  # noqa: E402


def arguments(
    device: str = "cuda", s_q: int = 2, h_q: int = 64, d_qk: int = 576, s_kv: int = 40, topk: int = 128
) -> dict:
    generator = torch.Generator().manual_seed(s_q * 1000 + h_q + d_qk + topk)

    def fp8(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(torch.float8_e4m3fn).to(device)

    return {
        "q": fp8(s_q, h_q, d_qk),
        "kv": fp8(s_kv, 1, d_qk),
        "indices": torch.randint(-1, s_kv, (s_q, 1, topk), generator=generator).int().to(device),
        "sm_scale": d_qk**-0.5,
        "q_scale": torch.full((1,), 0.5, device=device),
        "kv_scale": torch.full((), 0.75, device=device),
        "d_v": 512,
        "attn_sink": torch.randn(h_q, generator=generator).to(device),
        "topk_length": torch.randint(0, topk + 1, (s_q,), generator=generator).int().to(device),
        "out": torch.empty(s_q, h_q, 512, dtype=torch.bfloat16, device=device),
        "max_logits": torch.empty(s_q, h_q, device=device),
        "lse": torch.empty(s_q, h_q, device=device),
    }


def test_signature() -> None:
    parameters = inspect.signature(sparse_mla_q8kv8_prefill_fwd).parameters
    assert list(parameters) == (
        "q kv indices sm_scale q_scale kv_scale d_v attn_sink topk_length out max_logits lse".split()
    )
    defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
    assert defaults == dict.fromkeys(["attn_sink", "topk_length", "out", "max_logits", "lse"], None) | {"d_v": 512}
    keyword_only = [name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY]
    assert keyword_only == ["out", "max_logits", "lse"]


def test_cpu_tensors_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^q must be a CUDA tensor$"):
        sparse_mla_q8kv8_prefill_fwd(**arguments("cpu"))


def _strided(t: torch.Tensor) -> torch.Tensor:
    wide = torch.zeros(*t.shape[:-1], 2 * max(t.shape[-1], 1), dtype=torch.uint8 if t.element_size() == 1 else t.dtype,
                       device=t.device)  # fmt: skip
    return (wide.view(t.dtype) if wide.dtype is not t.dtype else wide)[..., ::2]


# (argument, what is wrong with it, the message), in the order of the checks.
ORDER = [
    ("q", lambda t: t[0], "q must have shape (s_q, h_q, d_qk), got (64, 576)"),
    ("kv", lambda t: t[:, 0], "kv must have shape (s_kv, h_kv, d_qk), got (40, 576)"),
    ("indices", lambda t: t[:, 0], "indices must have shape (s_q, h_kv, topk), got (2, 128)"),
    ("q", lambda t: t.cpu(), "q must be a CUDA tensor"),
    ("kv", lambda t: t.cpu(), "kv must be a CUDA tensor"),
    ("indices", lambda t: t.cpu(), "indices must be a CUDA tensor"),
    ("q", lambda t: t.view(torch.uint8), "q must be torch.float8_e4m3fn, got torch.uint8"),
    ("kv", lambda t: t.to(torch.bfloat16), "kv must be torch.float8_e4m3fn, got torch.bfloat16"),
    ("q", _strided, "q must be contiguous"),
    ("kv", _strided, "kv must be contiguous"),
    ("indices", _strided, "indices must be contiguous"),
    ("kv", lambda t: t[..., :512].contiguous(), "kv d_qk must match q d_qk=576, got 512"),
    ("q", lambda t: t[:, :16].contiguous(),
     "sparse_mla_q8kv8_prefill_fwd requires h_q padded to a positive multiple of 64, got 16"),
    ("kv", lambda t: t.view(torch.uint8).expand(-1, 2, -1).contiguous().view(t.dtype),
     "sparse_mla_q8kv8_prefill_fwd requires h_kv=1, got 2"),
    ("indices", lambda t: t[:1], "indices must have shape (2, 1, topk), got (1, 1, 128)"),
    ("indices", lambda t: t.long(), "indices must be int32, got torch.int64"),
    ("indices", lambda t: t[..., :100].contiguous(),
     "Q8KV8 sparse-prefill topk width must be a positive multiple of 128, got 100"),
    ("topk_length", lambda t: t.long(), "topk_length must be int32 with shape (2,), got (2,)/torch.int64"),
    ("topk_length", lambda t: t[:1], "topk_length must be int32 with shape (2,), got (1,)/torch.int32"),
    ("topk_length", lambda t: t.cpu(), "topk_length must be a CUDA tensor"),
    ("d_v", lambda t: 256, "sparse_mla_q8kv8_prefill_fwd only supports d_v=512, got 256"),
    ("topk_length", lambda t: None, "attn_sink requires topk_length to be provided as well"),
    ("attn_sink", lambda t: t.double(), "attn_sink must be float32 with shape (64,), got (64,)/torch.float64"),
    ("attn_sink", lambda t: t.cpu(), "attn_sink must be a CUDA tensor"),
    ("q_scale", lambda t: 0.5, "q_scale must be a torch.Tensor"),
    ("q_scale", lambda t: t.cpu().numpy(), "q_scale must be a torch.Tensor"),
    ("q_scale", lambda t: t.cpu(), "q_scale must be a CUDA tensor"),
    ("q_scale", lambda t: t.half(), "q_scale must be float32, got torch.float16"),
    ("q_scale", lambda t: t.expand(2).contiguous(), "q_scale must be a scalar tensor, got shape (2,)"),
    ("kv_scale", lambda t: None, "kv_scale must be a torch.Tensor"),
    ("out", lambda t: t[:1], "out must have shape (2, 64, 512), got (1, 64, 512)"),
    ("out", lambda t: t.half(), "out must have dtype torch.bfloat16, got torch.float16"),
    ("out", lambda t: t.cpu(), "out must be on device cuda:0, got cpu"),
    ("out", _strided, "out must be contiguous"),
    ("max_logits", lambda t: t[:, :1], "max_logits must have shape (2, 64), got (2, 1)"),
    ("lse", lambda t: t.double(), "lse must have dtype torch.float32, got torch.float64"),
]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "spoil", "message"), ORDER)
def test_messages(name: str, spoil, message: str) -> None:
    good = arguments()
    sparse_mla_q8kv8_prefill_fwd(**good)
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        sparse_mla_q8kv8_prefill_fwd(**{**good, name: spoil(good[name])})
    assert str(raised.value) == message


@pytest.mark.gpu
def test_messages_come_in_order() -> None:
    """Of two faults in different arguments, the one that stands first above is named."""
    good = arguments()
    for (name, spoil, message), (other, spoil_other, _) in itertools.combinations(ORDER, 2):
        # Shapes of q, kv and indices are printed in, or decide about, the messages of others.
        if name == other or other in ("q", "kv", "indices") or {name, other} == {"topk_length", "attn_sink"}:
            continue
        bad = {**good, name: spoil(good[name]), other: spoil_other(good[other])}
        with pytest.raises(ValueError) as raised:  # noqa: PT011
            sparse_mla_q8kv8_prefill_fwd(**bad)
        assert str(raised.value) == message, (name, other)


@pytest.mark.gpu
def test_aliased_outputs() -> None:
    good = arguments()
    with pytest.raises(ValueError, match=r"^out, max_logits and lse must not alias each other$"):
        sparse_mla_q8kv8_prefill_fwd(**{**good, "lse": good["max_logits"]})


@pytest.mark.gpu
@pytest.mark.parametrize("d_qk", [512, 576])
@pytest.mark.parametrize("sink", [False, True])
def test_against_float64(d_qk: int, sink: bool) -> None:
    a = arguments(s_q=9, h_q=128, d_qk=d_qk, s_kv=300, topk=256)
    for name in ("out", "max_logits", "lse"):
        del a[name]
    if not sink:
        del a["attn_sink"], a["topk_length"]
    out, max_logits, lse = sparse_mla_q8kv8_prefill_fwd(**a)
    q, kv = a["q"].double() * a["q_scale"], a["kv"][:, 0].double() * a["kv_scale"]
    rows = a["indices"][:, 0].long()
    valid = rows >= 0
    if sink:
        valid &= torch.arange(256, device="cuda") < a["topk_length"][:, None]
    keys = kv[rows.clamp(min=0)]
    logits = torch.einsum("qhd,qtd->qht", q, keys) * a["sm_scale"]
    logits = logits.masked_fill(~valid[:, None], -torch.inf)
    want_lse = logits.logsumexp(-1)
    p = (logits - want_lse[..., None]).exp().nan_to_num()
    want = torch.einsum("qht,qtd->qhd", p, keys[..., :512])
    if sink:
        want *= torch.sigmoid(want_lse - a["attn_sink"])[..., None]
    empty = ~valid.any(-1)
    # P in e4m3 over some 200 rows; the fewer rows, the less of its rounding averages out.
    assert (out.double() - want).norm() / want.norm() < 0.03
    torch.testing.assert_close(max_logits[~empty].double(), logits.amax(-1)[~empty], atol=1e-2, rtol=3e-3)
    torch.testing.assert_close(lse[~empty].double(), want_lse[~empty], atol=1e-2, rtol=3e-3)
    assert (lse[empty] == torch.inf).all()


@pytest.mark.gpu
def test_outputs() -> None:
    a = arguments()
    given = sparse_mla_q8kv8_prefill_fwd(**a)
    assert [t.data_ptr() for t in given] == [a[n].data_ptr() for n in ("out", "max_logits", "lse")]
    fresh = {name: value for name, value in a.items() if name not in ("out", "max_logits", "lse")}
    first, second = sparse_mla_q8kv8_prefill_fwd(**fresh), sparse_mla_q8kv8_prefill_fwd(**fresh)
    for x, y, z in zip(given, first, second, strict=True):
        assert len({x.data_ptr(), y.data_ptr(), z.data_ptr()}) == 3
        assert torch.equal(x, y)
        assert torch.equal(x, z)


@pytest.mark.gpu
def test_in_a_cuda_graph_and_on_a_side_stream() -> None:
    a = arguments()
    want = [t.clone() for t in sparse_mla_q8kv8_prefill_fwd(**a)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sparse_mla_q8kv8_prefill_fwd(**a)
    for name in ("out", "max_logits", "lse"):
        a[name].zero_()
    graph.replay()
    for name, t in zip(("out", "max_logits", "lse"), want, strict=True):
        assert torch.equal(a[name], t)
    side = torch.cuda.Stream()
    swapped = a["q"].view(torch.uint8).flip(0)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(400_000_000)  # about 0.2 s: in another stream, the launch would see the old queries
        a["q"].view(torch.uint8).copy_(swapped)
        sparse_mla_q8kv8_prefill_fwd(**a)
    assert not side.query(), "the launch waited for the stream"
    side.synchronize()
    assert not torch.equal(a["out"], want[0])


@pytest.mark.gpu
@pytest.mark.parametrize("value", [-1, 129])
def test_values_of_topk_length_are_checked_on_demand(value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    a = arguments()
    a["topk_length"][1] = value
    sparse_mla_q8kv8_prefill_fwd(**a)  # the kernel clamps
    monkeypatch.setattr("serinus.sglang.sparse_mla_q8kv8_prefill_sm90._CHECK_TOPK_LENGTH", True)
    with pytest.raises(ValueError, match=r"^topk_length values must satisfy 0 <= topk_length <= topk \(128\)$"):
        sparse_mla_q8kv8_prefill_fwd(**a)
