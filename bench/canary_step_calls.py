"""What the host asks of CUDA in a decode step that a canary watches: the calls of 100 steps, by name.

    python bench/canary_step_calls.py [--requests N] [--context N] [--json FILE] [--commit C]

Counted by torch's profiler (CUPTI), which sees every call of the runtime in the process. Three ways to run a step:
arrays on the host, arrays on the GPU, and both moments in a CUDA graph that is replayed. Between two steps a slot a
request is given back and handed out again, and poll() is called. A call that waits for the device is an error.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import sys
from collections.abc import Callable

import serinus
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

STEPS = 100
PAGE = 64
# Each returns when the device is done, or may.
WAITING = {"cudaMemcpy", "cudaMemcpy2D", "cudaMemset", "cudaMalloc", "cudaFree", "cudaMallocHost", "cudaFreeHost"}


class Decode:
    """`requests` requests of `context` tokens, each of which writes one more at the same place, again and again."""

    def __init__(self, requests: int, context: int) -> None:
        self.owners = list(range(1, requests + 1))
        width = context + 1
        each = (width + PAGE - 1) // PAGE * PAGE
        slots = PAGE * (1 + requests * each // PAGE)
        self.kv = torch.zeros(slots // PAGE, PAGE * 1024, dtype=torch.uint8, device="cuda")
        layout = serinus.kv_layout("mha_nhd", page_size=PAGE, heads=4, head_size=64)
        self.monitor = serinus.Monitor()
        buffers = [self.kv[:, : PAGE * 512].contiguous(), self.kv[:, PAGE * 512 :].contiguous()]
        self.pool = self.monitor.add_pool(layout, buffers, table_rows=requests + 1)
        table = PAGE + torch.arange(requests)[:, None] * each + torch.arange(width)
        self.last = [int(s) for s in table[:, -1]]
        for owner, row in zip(self.owners, table.tolist(), strict=True):
            self.monitor.on_alloc(self.pool, row, owner)
        self.table = torch.zeros(requests + 1, width, dtype=torch.int32, device="cuda")
        self.table[1:] = table.to(torch.int32)
        everything = self.batch(0, table.flatten().tolist(), list(range(width)) * requests, width, on_gpu=False)
        self.step(everything)
        self.on_host = self.batch(context, self.last, [context] * requests, 1, on_gpu=False)
        self.on_gpu = self.batch(context, self.last, [context] * requests, 1, on_gpu=True)

    def batch(self, prefix: int, slots: list[int], positions: list[int], extend: int, on_gpu: bool) -> serinus.Batch:
        n = len(self.owners)
        arrays = {
            "rows": self.owners,
            "prefix_lens": [prefix] * n,
            "extend_lens": [extend] * n,
            "input_ids": [p * 31 % 150_000 for p in positions],
            "positions": positions,
            "out_cache_loc": slots,
        }
        owners = self.owners
        if on_gpu:
            arrays = {name: torch.tensor(values, device="cuda") for name, values in arrays.items()}
            owners = torch.tensor(owners, dtype=torch.int32, device="cuda")
        return serinus.Batch(**arrays, owners=owners, req_to_token=self.table)

    def step(self, batch: serinus.Batch) -> None:
        self.monitor.begin_step(batch)
        self.monitor.end_step(batch)

    def announce(self) -> None:
        for owner, slot in zip(self.owners, self.last, strict=True):
            self.monitor.on_free(self.pool, [slot], owner)
            self.monitor.on_alloc(self.pool, [slot], owner)


def calls(decode: Decode, step: Callable[[], None]) -> dict[str, int]:
    """Calls of the CUDA runtime in STEPS steps."""

    def run() -> None:
        for _ in range(STEPS):
            decode.announce()
            step()
            assert decode.monitor.poll() == []

    run()  # kernels are loaded, memory is taken
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        with record_function("steps"):
            run()
    events = profiler.events()
    (steps,) = (e.time_range for e in events if e.name == "steps" and e.device_type == DeviceType.CPU)
    return dict(
        collections.Counter(
            e.name
            for e in events
            if re.match("cu(da)?[A-Z]", e.name) and steps.start <= e.time_range.start <= steps.end
        ).most_common()
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--json")
    parser.add_argument("--commit", default="unknown")
    options = parser.parse_args()
    decode = Decode(options.requests, options.context)
    graph = torch.cuda.CUDAGraph()
    decode.step(decode.on_gpu)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        decode.step(decode.on_gpu)

    def replay() -> None:
        decode.monitor.begin_replay(decode.on_gpu)
        graph.replay()

    ways = {
        "arrays on the host": lambda: decode.step(decode.on_host),
        "arrays on the GPU": lambda: decode.step(decode.on_gpu),
        "in a graph": replay,
    }
    found = {way: calls(decode, step) for way, step in ways.items()}
    for way, counts in found.items():
        print(f"{way}, {STEPS} steps of {options.requests} requests:")
        for name, count in counts.items():
            print(f"  {count:6} {name}")
    waiting = {name for counts in found.values() for name in counts if name in WAITING or "Synchronize" in name}
    if options.json:
        rows = {f"{name}, {way}": n for way, counts in found.items() for name, n in counts.items()}
        flat = {"case": f"step-calls-{options.requests}", "steps": STEPS, "requests": options.requests}
        flat |= {"context": options.context, **rows}
        with open(options.json, "w") as file:
            json.dump({**flat, "device": torch.cuda.get_device_name(), "commit": options.commit}, file)
    if waiting:
        print("calls that wait for the device:", ", ".join(sorted(waiting)), file=sys.stderr)
    return 1 if waiting else 0


if __name__ == "__main__":
    sys.exit(main())
