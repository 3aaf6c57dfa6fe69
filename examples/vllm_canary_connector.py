"""A vLLM KV connector (v1) that transfers nothing and watches everything: a canary on the paged KV cache.

    vllm serve MODEL --no-async-scheduling --kv-transfer-config '{"kv_connector": "CanaryConnector",
        "kv_connector_module_path": "vllm_canary_connector", "kv_role": "kv_both",
        "kv_connector_extra_config": {"max_requests": 256, "max_tokens": 262144}}'

with this file on the PYTHONPATH. vLLM calls a connector where a canary belongs: the scheduler's half is told which
blocks each request has, the worker's half is called before and after every forward. Two layers are fingerprinted, the
first and the last, since SGLang's record format takes four sources. Synchronous scheduling is needed: a token must be
known when its forward is scheduled.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import torch
from serinus.pool_canary import PoolCanary
from serinus.sglang.kv_canary.verify import RealKvSource
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)

logger = logging.getLogger(__name__)


@dataclass
class Scheduled:
    """What one request computes in a step."""

    blocks: list[int]
    computed: int  # tokens that are in the cache already
    tokens: list[int]  # those that the step writes


@dataclass
class CanaryMetadata(KVConnectorMetadata):
    requests: list[Scheduled] = field(default_factory=list)


class CanaryConnector(KVConnectorBase_V1):
    def __init__(self, vllm_config, role: KVConnectorRole, kv_cache_config=None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.block_size = vllm_config.cache_config.block_size
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self.max_requests = extra.get("max_requests", 256)
        self.max_tokens = extra.get("max_tokens", 1 << 18)
        self.requests: dict[str, object] = {}  # the scheduler's: vLLM's own Request, which knows its tokens
        self.blocks: dict[str, list[int]] = {}
        self.canary: PoolCanary | None = None  # the worker's
        self.step = 0

    # ---- scheduler

    def get_num_new_matched_tokens(self, request, num_computed_tokens: int) -> tuple[int, bool]:
        return 0, False

    def update_state_after_alloc(self, request, blocks, num_external_tokens: int) -> None:
        self.requests[request.request_id] = request

    def build_connector_meta(self, scheduler_output) -> CanaryMetadata:
        scheduled = {}
        for new in scheduler_output.scheduled_new_reqs:
            self.blocks[new.req_id] = list(new.block_ids[0])
            scheduled[new.req_id] = new.num_computed_tokens
        cached = scheduler_output.scheduled_cached_reqs
        for name, added, computed in zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True):
            if name in cached.resumed_req_ids:  # preempted before: all of its blocks are new ones
                self.blocks[name] = []
            self.blocks[name] += added[0] if added else []
            scheduled[name] = computed
        meta = CanaryMetadata()
        for name, computed in scheduled.items():
            n = scheduler_output.num_scheduled_tokens[name]
            tokens = list(self.requests[name].all_token_ids[computed : computed + n])
            meta.requests.append(Scheduled(list(self.blocks[name]), computed, tokens))
        return meta

    def request_finished(self, request, block_ids) -> tuple[bool, None]:
        self.requests.pop(request.request_id, None)
        self.blocks.pop(request.request_id, None)
        return False, None

    # ---- worker

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        layers = list(kv_caches.values())
        watched = layers[:1] if len(layers) == 1 else [layers[0], layers[-1]]
        sources = [source for layer in watched for source in self._sources(layer)]
        slots = sources[0].tensor.shape[0] * self.block_size
        self.canary = PoolCanary(
            sources,
            num_slots=slots,
            max_requests=self.max_requests,
            verify_capacity=self.max_tokens,
            device=layers[0].device,
        )

    def _sources(self, layer: torch.Tensor) -> list[RealKvSource]:
        """K and V where the layer keeps them apart, [2, blocks, tokens, ...]; else one latent [blocks, tokens, ...]."""
        halves = list(layer) if layer.shape[0] == 2 and layer.dim() == 5 else [layer]
        for half in halves:
            if half.shape[1] != self.block_size:
                raise NotImplementedError(f"a KV layout without its tokens second: {tuple(layer.shape)}")
        rows = [half.flatten(1).view(torch.uint8) for half in halves]
        return [
            RealKvSource(
                tensor=r,
                page_size=self.block_size,
                num_bytes_per_token=r.shape[1] // self.block_size,
                read_bytes=r.shape[1] // self.block_size,
            )
            for r in rows
        ]

    def start_load_kv(self, forward_context, **kwargs) -> None:
        """Before the forward: the head's checks."""
        requests = self._get_connector_metadata().requests
        self.checking = self.canary is not None and bool(requests)
        if not self.checking:
            return
        longest = max(r.computed + len(r.tokens) for r in requests)
        table = torch.zeros(len(requests) + 1, longest, dtype=torch.int32)  # row 0 is padding
        positions, locations = [], []
        for row, r in enumerate(requests, start=1):
            every = torch.arange(r.computed + len(r.tokens))
            slots = torch.tensor(r.blocks)[every // self.block_size] * self.block_size + every % self.block_size
            table[row, : len(every)] = slots
            positions.append(every[r.computed :])
            locations.append(slots[r.computed :])
        device = self.canary.device
        self.canary.head(
            torch.arange(1, len(requests) + 1, device=device),
            torch.tensor([r.computed for r in requests], device=device),
            torch.tensor([len(r.tokens) for r in requests], device=device),
            table.to(device),
            torch.tensor([t for r in requests for t in r.tokens], device=device),
            torch.cat(positions).to(device),
            torch.cat(locations).to(device),
        )

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, layer_name: str, kv_layer, attn_metadata, **kwargs) -> None:
        pass

    def wait_for_save(self) -> None:
        """After the forward: the tail's checks, and what both found."""
        if not self.checking:
            return
        self.canary.tail()
        self.step += 1
        for text in self.canary.report(self.step):
            logger.warning("%s", text)
