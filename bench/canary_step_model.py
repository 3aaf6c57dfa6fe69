"""What the canary's step is measured against: a step of a model of Qwen3-30B-A3B's dimensions with random weights.

A few layers are run and the time is scaled to 48; embedding and LM head are run once. Decode steps are captured in a
graph. Prefill runs 4 of the 32 requests and is scaled by 8. Prints one JSON object a row.

    python3 canary_step_model.py [--layers 4] [--out DIR] [--commit C]
"""

import argparse
import json
import pathlib
import statistics

import torch
import torch.nn.functional as F

HIDDEN, HEADS, KV_HEADS, HEAD, EXPERTS, TOPK, INTER, VOCAB, LAYERS = 2048, 32, 4, 128, 128, 8, 768, 151936, 48
DEVICE, TYPE = "cuda", torch.bfloat16


def random(*shape):
    return torch.randn(*shape, device=DEVICE, dtype=TYPE) * 0.02


class Layer:
    def __init__(self):
        self.qkv = random((HEADS + 2 * KV_HEADS) * HEAD, HIDDEN)
        self.out = random(HIDDEN, HEADS * HEAD)
        self.norms = [torch.ones(HIDDEN, device=DEVICE, dtype=TYPE) for _ in range(2)]
        self.router = random(EXPERTS, HIDDEN)
        self.up = random(EXPERTS, HIDDEN, 2 * INTER)
        self.down = random(EXPERTS, INTER, HIDDEN)

    def experts(self, x):
        weights, chosen = torch.topk(F.linear(x, self.router).float().softmax(-1), TOPK)
        weights = (weights / weights.sum(-1, keepdim=True)).to(TYPE)
        order = chosen.flatten().argsort()
        ends = torch.searchsorted(chosen.flatten()[order], torch.arange(EXPERTS, device=DEVICE), right=True)
        rows = order // TOPK
        h = torch._grouped_mm(x[rows], self.up, offs=ends.to(torch.int32))
        h = F.silu(h[:, :INTER]) * h[:, INTER:]
        y = torch._grouped_mm(h, self.down, offs=ends.to(torch.int32)) * weights.flatten()[order, None]
        return torch.zeros_like(x).index_add_(0, rows, y)

    def __call__(self, x, batch, cache):
        """x: [batch * tokens, hidden]; cache: None, or K and V of [batch, kv heads, context, head]."""
        q, k, v = (
            F.linear(F.rms_norm(x, (HIDDEN,), self.norms[0]), self.qkv)
            .view(batch, -1, HEADS + 2 * KV_HEADS, HEAD)
            .transpose(1, 2)
            .split([HEADS, KV_HEADS, KV_HEADS], 1)
        )
        if cache is not None:
            cache[0][:, :, -1:].copy_(k)
            cache[1][:, :, -1:].copy_(v)
            k, v = cache
        a = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None, enable_gqa=True)
        x = x + F.linear(a.transpose(1, 2).reshape(x.shape[0], -1), self.out)
        return x + self.experts(F.rms_norm(x, (HIDDEN,), self.norms[1]))


def milliseconds(work, rounds, graph):
    for _ in range(2):
        work()
    torch.cuda.synchronize()
    run = work
    if graph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            work()
        run = captured.replay
        run()
    times = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--commit", default="unknown")
    args = parser.parse_args()
    layers = [Layer() for _ in range(args.layers)]
    embedding, head = random(VOCAB, HIDDEN), random(VOCAB, HIDDEN)
    for name, batch, context, tokens, share, graph in [
        ("decode1-context4096", 1, 4096, 1, 1, True),
        ("decode64-context4096", 64, 4096, 1, 1, True),
        ("prefill32x16384", 4, 0, 16384, 8, False),
    ]:
        ids = torch.randint(VOCAB, (batch * tokens,), device=DEVICE)
        x = F.embedding(ids, embedding)
        caches = [
            [random(batch, KV_HEADS, context + 1, HEAD) for _ in range(2)] if context else None for _ in layers
        ]

        def run_layers():
            y = x
            for layer, cache in zip(layers, caches):
                y = layer(y, batch, cache)
            return y

        def run_ends():
            y = F.embedding(ids, embedding).view(batch, tokens, HIDDEN)[:, -1]
            return F.linear(y, head).argmax(-1)

        rounds = 30 if graph else 3
        each = milliseconds(run_layers, rounds, graph) / args.layers
        ends = milliseconds(run_ends, rounds, graph)
        row = {
            "case": f"model-step-{name}",
            "step_ms": round(share * (LAYERS * each + ends), 4),
            "layer_ms": round(share * each, 5),
            "layers_run": args.layers,
            "requests_run": batch,
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "commit": args.commit,
        }
        print(json.dumps(row), flush=True)
        if args.out:
            (args.out / f"canary-{row['case']}.json").write_text(json.dumps(row) + "\n")
        del caches, x
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
