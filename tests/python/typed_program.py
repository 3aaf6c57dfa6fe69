"""A small program of a user's, for a type checker: what the stubs promise, used as it is meant. It runs, too."""

from __future__ import annotations

import numpy as np
import serinus
from serinus.sglang.kv_canary import consts


def watch() -> list[str]:
    layout = serinus.kv_layout("fp8_656")
    kv = np.zeros((2, layout.page_bytes[0]), np.uint8)
    monitor = serinus.Monitor(mode="log", source_digests=True)
    pool: int = monitor.add_pool(layout, [kv], name="main")
    monitor.on_alloc(pool, [3, 4], owner=7)
    batch = serinus.Batch(
        rows=[1],
        prefix_lens=[0],
        extend_lens=[2],
        owners=[7],
        req_to_token=np.array([[0, 0], [3, 4]], np.int32),
        input_ids=[5, 6],
        positions=[0, 1],
        out_cache_loc=[3, 4],
    )
    with monitor.step(batch):
        pass
    steps: int | float = monitor.stats()["steps"]
    return [f"{steps} steps, slot 3 is {monitor.state(pool, 3)}", *(str(v) for v in monitor.poll())]


def refused() -> str:
    one = np.ones(1, np.float32)
    q, kv = np.zeros((1, 2, 576), np.uint8), np.zeros((4, 1, 500), np.uint8)
    can: serinus.CanRun = serinus.can_run(q, kv, np.zeros((1, 1, 2), np.int32), 1.0, one, one)
    try:
        serinus.sparse_mla_prefill(q, kv, np.zeros((1, 1, 2), np.int32), 1.0, one, one)
    except serinus.ValueError as error:
        return f"{bool(can)} {error.id} {error.argument}: {error.explain()[:20]}"
    return "nothing"


if __name__ == "__main__":
    print(*watch(), refused(), hex(consts.splitmix64(1)), consts.FailReason(3).name, sep="\n")
