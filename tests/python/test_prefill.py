"""The native prefill: results against float64, outputs, checks beforehand."""

from __future__ import annotations

import numpy as np
import pytest
import serinus

# Every e4m3 code as a float; the format has two NaNs and no infinity.
_SIGN = np.where(np.arange(256) < 128, 1.0, -1.0)
_EXPONENT = (np.arange(256) >> 3) & 15
_MANTISSA = np.arange(256) & 7
E4M3 = _SIGN * np.where(_EXPONENT == 0, _MANTISSA / 8 * 2.0**-6, (1 + _MANTISSA / 8) * 2.0 ** (_EXPONENT - 7.0))
E4M3[[0x7F, 0xFF]] = np.nan


def bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


class Case:
    def __init__(self, seed: int = 0, s_q: int = 5, h_q: int = 3, d_qk: int = 576, s_kv: int = 70, topk: int = 21):
        rng = np.random.default_rng(seed)
        codes = np.array([c for c in range(256) if abs(E4M3[c]) < 4], np.uint8)
        self.q = rng.choice(codes, (s_q, h_q, d_qk))
        self.kv = rng.choice(codes, (s_kv, 1, d_qk))
        self.indices = rng.integers(-2, s_kv + 2, (s_q, 1, topk)).astype(np.int32)
        self.q_scale = np.array([0.5], np.float32)
        self.kv_scale = np.array([0.75], np.float32)
        self.sm_scale = d_qk**-0.5
        self.sink = rng.normal(size=h_q).astype(np.float32)
        self.lengths = rng.integers(0, topk + 1, s_q).astype(np.int32)

    def run(self, **kwargs):
        return serinus.sparse_mla_prefill(
            self.q, self.kv, self.indices, self.sm_scale, self.q_scale, self.kv_scale, **kwargs
        )

    def reference(self, sink=None, lengths=None):
        q, kv = E4M3[self.q] * self.q_scale, E4M3[self.kv[:, 0]] * self.kv_scale
        s_q, h_q = q.shape[:2]
        out = np.zeros((s_q, h_q, 512))
        max_logits = np.full((s_q, h_q), -np.inf)
        lse = np.full((s_q, h_q), np.inf)
        for i in range(s_q):
            rows = self.indices[i, 0, : None if lengths is None else lengths[i]]
            rows = rows[(rows >= 0) & (rows < len(kv))]
            if not len(rows):
                continue
            logits = q[i] @ kv[rows].T * self.sm_scale
            max_logits[i] = logits.max(1)
            p = np.exp(logits - max_logits[i][:, None])
            lse[i] = max_logits[i] + np.log(p.sum(1))
            out[i] = p @ kv[rows, :512] / p.sum(1)[:, None]
            if sink is not None:
                out[i] *= (1 / (1 + np.exp(sink - lse[i])))[:, None]
        return out, max_logits, lse


@pytest.mark.parametrize("d_qk", [512, 576])
@pytest.mark.parametrize(("with_sink", "with_lengths"), [(False, False), (True, False), (False, True), (True, True)])
def test_against_float64(d_qk: int, with_sink: bool, with_lengths: bool) -> None:
    case = Case(d_qk=d_qk)
    sink = case.sink if with_sink else None
    lengths = case.lengths if with_lengths else None
    out, max_logits, lse = case.run(attn_sink=sink, topk_length=lengths)
    want_out, want_max, want_lse = case.reference(sink, lengths)
    error = np.linalg.norm(bf16(out) - want_out) / np.linalg.norm(want_out)
    assert error < 0.004, error
    np.testing.assert_allclose(max_logits, want_max, atol=1e-4)
    np.testing.assert_allclose(lse, want_lse, atol=1e-4)


def test_outputs_given_are_written_and_returned() -> None:
    case = Case()
    out = np.zeros((5, 3, 512), np.uint16)
    max_logits, lse = np.zeros((5, 3), np.float32), np.zeros((5, 3), np.float32)
    got = case.run(out=out, max_logits=max_logits, lse=lse)
    assert got[0] is out
    assert got[1] is max_logits
    assert got[2] is lse
    for a, b in zip(got, case.run(), strict=True):
        assert np.array_equal(np.asarray(a).view(np.uint8), np.asarray(b).view(np.uint8))


def test_empty_rows() -> None:
    case = Case()
    case.indices[2] = -1
    assert np.all(case.run()[2][2] == np.inf)
    out, max_logits, lse = case.run(empty_row_lse="minus_inf")
    assert not out[2].any()
    assert np.all(max_logits[2] == -np.inf)
    assert np.all(lse[2] == -np.inf)
    with pytest.raises(serinus.ValueError, match="empty_row_lse takes one of plus_inf, minus_inf, got 'zero'"):
        case.run(empty_row_lse="zero")


def test_p_in_bf16() -> None:
    case = Case()
    want = case.reference()
    out, _, lse = case.run(p_dtype="bfloat16")
    assert np.linalg.norm(bf16(out) - want[0]) / np.linalg.norm(want[0]) < 0.005
    np.testing.assert_allclose(lse, want[2], atol=2**-8)
    with pytest.raises(serinus.ValueError, match="p_dtype takes one of float32, bfloat16, got 'e4m3'"):
        case.run(p_dtype="e4m3")


def test_refusals_leave_outputs_alone_and_can_run_says_the_same() -> None:
    case = Case()
    bad = [
        ("kv", case.kv[:, :, :500], "SRN1003", "kv d_qk must match q d_qk=576, got 500"),
        ("indices", case.indices.astype(np.int64), "SRN1004", "indices must have dtype int32, got int64"),
        ("q", case.q[..., ::-1], None, None),
    ]
    for name, value, error_id, message in bad:
        broken = Case()
        setattr(broken, name, value)
        out = np.full((5, 3, 512), 7, np.uint16)
        with pytest.raises(serinus.ValueError) as raised:
            broken.run(out=out)
        assert (out == 7).all()
        answer = serinus.can_run(
            broken.q, broken.kv, broken.indices, broken.sm_scale, broken.q_scale, broken.kv_scale, out=out
        )
        assert not answer
        assert (answer.error_id, answer.message) == (raised.value.id, str(raised.value))
        if message is not None:
            assert (raised.value.id, str(raised.value)) == (error_id, message)
    assert serinus.can_run(case.q, case.kv, case.indices, case.sm_scale, case.q_scale, case.kv_scale)
    assert serinus.workspace_bytes(case.q, case.kv, case.indices) == 0
    not_a_tensor = serinus.can_run(case.q, case.kv, case.indices, 1.0, 1.0, case.kv_scale)
    assert not_a_tensor.error_id == "SRN6201"


def test_overlapping_outputs_are_refused() -> None:
    both = np.zeros((5, 3), np.float32)
    with pytest.raises(serinus.ValueError, match="out, max_logits and lse must not alias each other"):
        Case().run(max_logits=both, lse=both)


def test_other_threads_run_meanwhile() -> None:
    """The interpreter's lock is free during the work: the other thread counts on."""
    import threading

    case = Case(s_q=256, h_q=16, s_kv=4096, topk=1024)
    counted = 0
    done = threading.Event()

    def count() -> None:
        nonlocal counted
        while not done.is_set():
            counted += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        before = counted
        case.run(threads=1)
        assert counted > before + 1000
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("uint8", [False, True])
def test_torch_on_the_cpu(uint8: bool) -> None:
    torch = pytest.importorskip("torch")
    case = Case()
    want = case.run()
    for name in ("q", "kv", "indices", "q_scale", "kv_scale"):
        setattr(case, name, torch.from_numpy(getattr(case, name)))
    if not uint8:
        case.q, case.kv = case.q.view(torch.float8_e4m3fn), case.kv.view(torch.float8_e4m3fn)
    out, max_logits, lse = case.run()
    assert out.dtype == torch.bfloat16
    assert np.array_equal(out.view(torch.uint16).numpy(), np.asarray(want[0]).view(np.uint16))
    assert np.array_equal(max_logits.numpy(), want[1])
    assert np.array_equal(lse.numpy(), want[2])
