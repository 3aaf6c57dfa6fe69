"""What comes in as a tensor, and what is refused."""

from __future__ import annotations

import types

import numpy as np
import pytest
import serinus
from serinus import _core


def views(tensor) -> tuple:
    """The view that the library makes, seen through a message: wrong rank shows the shape."""
    with pytest.raises(serinus.ValueError) as raised:
        _core.check_sglang_prefill((tensor, tensor, tensor, 1.0, None, None, 512, None, None, None, None, None))
    return str(raised.value)


def scatter(flat, offsets, rows, pool) -> None:
    _core.sglang.scatter_req_token_ids(flat, offsets, rows, pool)


def arguments() -> list[np.ndarray]:
    return [
        np.arange(5, dtype=np.int64),
        np.array([0, 2, 5], np.int64),
        np.array([1, 2], np.int64),
        np.full((4, 3), -9, np.int32),
    ]


def test_numpy_is_read_and_written_in_place() -> None:
    flat, offsets, rows, pool = arguments()
    scatter(flat, offsets, rows, pool)
    assert pool.tolist() == [[-9] * 3, [0, 1, -9], [2, 3, 4], [-9] * 3]


class OnlyDlpack:
    """A tensor of some other framework: DLPack and nothing else."""

    def __init__(self, array: np.ndarray, read_only: bool = False) -> None:
        self.array = array
        self.read_only = read_only

    def __dlpack__(self, **kwargs):
        if self.read_only:
            raise BufferError("read-only")
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_dlpack_is_read_and_written_in_place() -> None:
    flat, offsets, rows, pool = arguments()
    scatter(OnlyDlpack(flat), OnlyDlpack(offsets), OnlyDlpack(rows), OnlyDlpack(pool))
    assert pool[2].tolist() == [2, 3, 4]


def test_dlpack_strides() -> None:
    wide = np.arange(20, dtype=np.int64)
    translate = _core.sglang.translate_slots
    out = np.zeros(3, np.int64)
    with pytest.raises(ValueError, match="slots must be contiguous"):
        translate(OnlyDlpack(wide[:6:2]), wide, out)
    translate(OnlyDlpack(wide[4:7]), wide * 10, out)
    assert out.tolist() == [40, 50, 60]


def test_size_one_dimensions_carry_any_stride() -> None:
    # As a slice of a pool leaves them behind: [s_kv, 1, d] out of [s_kv, 7, d].
    rng = np.random.default_rng(1)
    pool = rng.integers(0, 0x40, (32, 7, 576), dtype=np.uint8)
    q = rng.integers(0, 0x40, (2, 4, 576), dtype=np.uint8)
    indices = rng.integers(0, 32, (2, 1, 16)).astype(np.int32)
    one = np.ones(1, np.float32)
    view = pool[:, 3:4]
    assert view.strides == (7 * 576, 576, 1)
    strided = serinus.sparse_mla_prefill(q, view, indices, 0.05, one, one)
    dense = serinus.sparse_mla_prefill(q, np.ascontiguousarray(view), indices, 0.05, one, one)
    for a, b in zip(strided, dense, strict=True):
        assert np.array_equal(a, b)
    # A single token: its stride means nothing.
    odd = np.lib.stride_tricks.as_strided(q[:1], strides=(12345, 576, 1))
    a = serinus.sparse_mla_prefill(odd, view, indices[:1], 0.05, one, one)[0]
    assert np.array_equal(a, strided[0][:1])


def test_read_only_outputs_are_refused() -> None:
    flat, offsets, rows, pool = arguments()
    pool.flags.writeable = False
    before = pool.copy()
    with pytest.raises(serinus.ValueError, match="pool_out is written by this call, but it is read-only") as raised:
        scatter(flat, offsets, rows, pool)
    assert raised.value.id == "SRN6204"
    with pytest.raises(serinus.ValueError, match="read-only"):
        scatter(flat, offsets, rows, OnlyDlpack(pool, read_only=True))
    assert np.array_equal(pool, before)
    flat.flags.writeable = False  # an input may be
    scatter(flat, offsets, rows, np.zeros((4, 3), np.int32))


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ([1, 2], "flat_in must be a tensor (torch, numpy, cupy, DLPack), got list"),
        (None, "flat_in must be a tensor (torch, numpy, cupy, DLPack), got NoneType"),
        (3.5, "flat_in must be a tensor (torch, numpy, cupy, DLPack), got float"),
        (
            types.SimpleNamespace(dtype="int64"),
            "flat_in must be a tensor (torch, numpy, cupy, DLPack), got SimpleNamespace",
        ),
        (np.zeros(3, ">i8"), "flat_in has a dtype that Serinus does not know: >i8"),
        (np.zeros(3, np.complex128), "flat_in has a dtype that Serinus does not know: complex128"),
        (np.zeros(3, object), "flat_in has a dtype that Serinus does not know: object"),
    ],
)
def test_no_tensors_and_unknown_dtypes(tensor, message: str) -> None:
    _, offsets, rows, pool = arguments()
    with pytest.raises(serinus.TypeError) as raised:
        scatter(tensor, offsets, rows, pool)
    assert str(raised.value) == message


def test_strides_within_an_element() -> None:
    records = np.zeros(4, dtype=[("id", "<i8"), ("flag", "u1")])
    _, offsets, rows, pool = arguments()
    with pytest.raises(serinus.ValueError, match="flat_in has a stride of 9 bytes") as raised:
        scatter(records["id"], offsets, rows, pool)
    assert raised.value.id == "SRN6205"


def test_too_many_dimensions() -> None:
    with pytest.raises(serinus.ValueError, match="q has 7 dimensions"):
        serinus.workspace_bytes(np.zeros((1,) * 7, np.uint8), None, None)


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "int16", "uint16", "uint32", "uint64", "float16", "float32", "complex64"]
)
def test_dtypes_that_no_call_takes_have_names(dtype: str) -> None:
    flat, offsets, rows, pool = arguments()
    with pytest.raises(serinus.TypeError, match=f"flat_in must be int64, got torch.{dtype}"):
        scatter(flat.astype(dtype), offsets, rows, pool)


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    flat, offsets, rows, pool = (torch.from_numpy(a) for a in arguments())
    scatter(flat, offsets, rows, pool)
    assert pool[2].tolist() == [2, 3, 4]
    with pytest.raises(serinus.ValueError, match="does not serve: meta"):
        scatter(flat.to("meta"), offsets, rows, pool)
    with pytest.raises(serinus.TypeError, match=r"does not know: torch\.complex128"):
        scatter(flat.to(torch.complex128), offsets, rows, pool)


def test_jax_as_input() -> None:
    jax = pytest.importorskip("jax")
    flat, offsets, rows, pool = arguments()
    small = jax.numpy.asarray(rows)  # int32 unless jax is told otherwise
    with pytest.raises(serinus.TypeError, match=r"req_pool_indices must be int64, got torch\.int32"):
        scatter(flat, offsets, small, pool)
    with pytest.raises(serinus.ValueError, match="read-only"):
        scatter(flat, offsets, rows, jax.numpy.asarray(pool))
