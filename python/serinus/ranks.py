"""What machines must agree on: the ranks of one model about what they have cached, two sides about a transfer.

Everything crosses as bytes, over whatever transport an engine has.
"""

from __future__ import annotations

import numpy as np

from . import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .monitor import Monitor

__all__ = [
    "DIGEST_DTYPE",
    "check_transfer",
    "compare_ranks",
    "report_ranks",
    "request_digests",
    "transfer_differences",
    "transfer_terms",
]

#: What one rank has cached for one request, without slot numbers: 32 bytes.
DIGEST_DTYPE = np.dtype([("version", "<u4"), ("owner", "<u4"), ("length", "<i8"), ("chain", "<u8"), ("kv", "<u8")])


def request_digests(monitor: Monitor, pool: int, owners: Any, rows: Any, lengths: Any, req_to_token: Any) -> np.ndarray:
    """Digests of the first ``lengths[i]`` cells of ``rows[i]``, an array of DIGEST_DTYPE, to be all-gathered.

    ``torch.from_numpy(digests.view(numpy.uint8))`` is what a collective takes. Reads records, no KV bytes.
    """
    return np.frombuffer(
        _core.request_digests(monitor._core, pool, owners, rows, lengths, req_to_token), DIGEST_DTYPE
    ).copy()


def compare_ranks(gathered: Any, num_ranks: int, *, kv: bool = True) -> list[dict[str, Any]]:
    """Where the ranks differ, from what most of them have: rank, request (its index), owner, what differs
    (version, owner_differs, length, chain, kv) and text.

    gathered: the digests of all ranks, rank after rank, as a CPU tensor of any dtype
    kv: whether the bytes must agree; False for ranks that hold different heads
    """
    return _core.compare_ranks(gathered_bytes(gathered), num_ranks, kv)


def report_ranks(monitor: Monitor, gathered: Any, num_ranks: int, *, kv: bool = True) -> list[dict[str, Any]]:
    """:func:`compare_ranks`, and a violation (digest_differs_across_ranks) for each request that differs."""
    return _core.report_ranks(monitor._core, gathered_bytes(gathered), num_ranks, kv)


def gathered_bytes(gathered: Any) -> np.ndarray:
    """A view of the same memory, without the fields of a structured dtype."""
    return np.ascontiguousarray(gathered).reshape(-1).view(np.uint8)


def transfer_terms(monitor: Monitor, pool: int) -> bytes:
    """What a side of a transfer says before the first page: format, depth, layout, versions."""
    return _core.transfer_terms(monitor._core, pool)


def transfer_differences(mine: bytes, theirs: bytes) -> list[str]:
    """In words, what keeps records of one side from being understood by the other; empty: they agree."""
    return _core.transfer_differences(mine, theirs)


def check_transfer(mine: bytes, theirs: bytes) -> None:
    """Raises serinus.ValueError with the differences, if there are any."""
    _core.check_transfer(mine, theirs)
