"""A canary on the paged KV cache of a transformers model, on a GPU where there is one.

    pip install . transformers && python examples/transformers_canary.py [--model llama|deepseek_v3]

The model has random weights and a few layers; what matters is its cache. Keys and values of all layers lie in one pool
of slots, found through a request table, as in a serving engine. The canary watches the pool while the model decodes:
first nothing is wrong, then one byte of an old key is flipped, then two slots of the table are swapped. Each must be
reported as what it is, and nothing else.
"""

from __future__ import annotations

import argparse
import sys

import torch
import transformers
from serinus.pool_canary import PoolCanary
from serinus.sglang.kv_canary.verify import RealKvSource
from transformers.cache_utils import Cache, CacheLayerMixin

REQUESTS, PROMPT, LONGEST = 3, 40, 64


def build(model: str) -> tuple[transformers.PreTrainedModel, int, int, int]:
    """The model, its KV heads, and the sizes of the two things that it caches per head."""
    common = {"vocab_size": 1000, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4}
    if model == "llama":
        config = transformers.LlamaConfig(**common, num_attention_heads=8, num_key_value_heads=2, head_dim=32)
        return transformers.LlamaForCausalLM(config), 2, 32, 32
    config = transformers.DeepseekV3Config(
        **common,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=64,
        kv_lora_rank=64,
        qk_nope_head_dim=32,
        qk_rope_head_dim=16,
        v_head_dim=32,
        moe_intermediate_size=64,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
    )
    # Multi-head latent attention caches one latent and one rotated key for all heads.
    return transformers.DeepseekV3ForCausalLM(config), 1, 64, 16


class Pool:
    """Slots of KV, and the table that says which slot holds which token. Slot 0 and row 0 are padding."""

    def __init__(self, layers: int, heads: int, key_size: int, value_size: int, device: str) -> None:
        self.layers, self.heads, self.sizes = layers, heads, (key_size, value_size)
        slots = 1 + REQUESTS * LONGEST
        # A slot's row holds K and V of all layers: one source, and the canary sees every byte.
        self.rows = torch.zeros(slots, layers, heads * (key_size + value_size), device=device)
        order = 1 + torch.randperm(slots - 1).reshape(REQUESTS, LONGEST)
        self.table = torch.cat([torch.zeros(1, LONGEST), order]).int().to(device)
        self.length = 0  # of every request
        self.canary = PoolCanary(
            [
                RealKvSource(
                    tensor=self.rows.reshape(slots, -1),
                    page_size=1,
                    num_bytes_per_token=self.rows[0].nbytes,
                    read_bytes=self.rows[0].nbytes,
                )
            ],
            num_slots=slots,
            max_requests=REQUESTS,
            verify_capacity=REQUESTS * LONGEST,
            device=device,
        )

    def slots(self, begin: int, end: int) -> torch.Tensor:
        return self.table[1:, begin:end].long()

    def layer(self, i: int, slots: torch.Tensor) -> list[torch.Tensor]:
        """What one layer cached for these slots: two of [requests, heads, tokens, size]."""
        sizes = [self.heads * size for size in self.sizes]
        return [
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.rows[slots, i].split(sizes, dim=-1)
        ]


class PagedLayer(CacheLayerMixin):
    """One layer of the pool, as transformers' models call it."""

    is_sliding = False

    def __init__(self, pool: Pool, number: int) -> None:
        super().__init__()
        self.pool, self.number = pool, number
        self.is_initialized = True

    def lazy_initialization(self, *states: torch.Tensor) -> None:
        pass

    def update(self, key_states, value_states, *args, **kwargs):
        begin, end = self.pool.length, self.pool.length + key_states.shape[2]
        both = torch.cat([s.transpose(1, 2).flatten(2) for s in (key_states, value_states)], dim=-1)
        self.pool.rows[self.pool.slots(begin, end), self.number] = both
        return tuple(self.pool.layer(self.number, self.pool.slots(0, end)))

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.pool.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.pool.length

    def get_max_length(self) -> int:
        return LONGEST


def step(model: transformers.PreTrainedModel, cache: Cache, pool: Pool, tokens: torch.Tensor) -> torch.Tensor:
    """One forward between the canary's two checks; returns the next token of each request."""
    n, device = tokens.shape[1], tokens.device
    rows = torch.arange(1, REQUESTS + 1, device=device)
    positions = torch.arange(pool.length, pool.length + n, device=device).expand(REQUESTS, n)
    pool.canary.head(
        rows,
        torch.full_like(rows, pool.length),
        torch.full_like(rows, n),
        pool.table,
        tokens.reshape(-1),
        positions.flatten().contiguous(),
        pool.slots(pool.length, pool.length + n).reshape(-1),
    )
    logits = model(tokens, past_key_values=cache, position_ids=positions, use_cache=True).logits
    pool.canary.tail()
    pool.length += n
    return logits[:, -1:].argmax(-1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["llama", "deepseek_v3"], default="llama")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    torch.manual_seed(0)
    model, heads, key_size, value_size = build(options.model)
    model = model.to(options.device).eval()
    pool = Pool(model.config.num_hidden_layers, heads, key_size, value_size, options.device)
    cache = Cache(layers=[PagedLayer(pool, i) for i in range(pool.layers)])

    def expect(what: str, reasons: set[str]) -> bool:
        texts = pool.canary.report(pool.length)
        seen = {r for text in texts for r in text.split("fail_reason=")[1].split(" ")[0].split("+")}
        print(f"{what}: {pool.canary.entries_checked} entries checked, {len(texts)} violations, {sorted(seen)}")
        for text in texts[:2]:
            print("  " + text.split("\n")[0])
        return seen == reasons

    with torch.inference_mode():
        tokens = step(model, cache, pool, torch.randint(1000, (REQUESTS, PROMPT), device=options.device))
        for _ in range(4):
            tokens = step(model, cache, pool, tokens)
        fine = expect(f"{options.model} on {options.device}, untouched", set())

        byte = pool.rows.view(torch.uint8)[int(pool.table[2, 7]), 1, 5:6]  # request 2, token 7, layer 1
        byte ^= 1
        tokens = step(model, cache, pool, tokens)
        fine &= expect("one bit of a key flipped", {"verify_real_kv_hash"})

        byte ^= 1
        pool.table[1, [3, 11]] = pool.table[1, [11, 3]]
        tokens = step(model, cache, pool, tokens)
        fine &= expect("two slots swapped", {"verify_position", "verify_chain_hash"})

        pool.table[1, [3, 11]] = pool.table[1, [11, 3]]
        step(model, cache, pool, tokens)
        fine &= expect("both mended", set())
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
