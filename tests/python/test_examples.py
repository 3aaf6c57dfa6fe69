"""The examples, run: transformers where it is installed, the vLLM connector against a stand-in of vLLM's interface."""

from __future__ import annotations

import enum
import importlib.util
import pathlib
import subprocess
import sys
import types
from dataclasses import dataclass, field

import pytest

torch = pytest.importorskip("torch")

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("model", ["llama", "deepseek_v3"])
def test_transformers(model: str, device: str) -> None:
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("needs transformers")
    command = [sys.executable, EXAMPLES / "transformers_canary.py", "--model", model, "--device", device]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{model} on {device}, untouched: 1260 entries checked, 0 violations" in done.stdout


# ---------------------------------------------------------------- vLLM's interface, as far as a connector sees it


class KVConnectorRole(enum.Enum):
    SCHEDULER = 0
    WORKER = 1


class KVConnectorMetadata:
    pass


class KVConnectorBase:
    def __init__(self, vllm_config, role, kv_cache_config=None) -> None:
        self._metadata = None

    def bind_connector_metadata(self, metadata: KVConnectorMetadata) -> None:
        self._metadata = metadata

    def clear_connector_metadata(self) -> None:
        self._metadata = None

    def _get_connector_metadata(self) -> KVConnectorMetadata:
        assert self._metadata is not None
        return self._metadata


@dataclass
class Request:
    request_id: str
    all_token_ids: list[int]
    computed: int = 0


@dataclass
class NewRequest:
    req_id: str
    block_ids: tuple[list[int], ...]
    num_computed_tokens: int


@dataclass
class CachedRequests:
    req_ids: list[str] = field(default_factory=list)
    resumed_req_ids: set[str] = field(default_factory=set)
    new_block_ids: list[tuple[list[int], ...] | None] = field(default_factory=list)
    num_computed_tokens: list[int] = field(default_factory=list)


@dataclass
class SchedulerOutput:
    scheduled_new_reqs: list[NewRequest]
    scheduled_cached_reqs: CachedRequests
    num_scheduled_tokens: dict[str, int]


class Engine:
    """Scheduler and worker around a connector, and a model that writes the token's number into its KV."""

    BLOCK = 4

    def __init__(self, connector_class: type, kv_caches: dict[str, torch.Tensor]) -> None:
        config = types.SimpleNamespace(
            cache_config=types.SimpleNamespace(block_size=self.BLOCK),
            kv_transfer_config=types.SimpleNamespace(kv_connector_extra_config={"max_requests": 4, "max_tokens": 256}),
        )
        self.scheduler = connector_class(config, KVConnectorRole.SCHEDULER)
        self.worker = connector_class(config, KVConnectorRole.WORKER)
        self.worker.register_kv_caches(kv_caches)
        self.caches = kv_caches
        self.free = list(range(1, 16))  # block 0 is vLLM's null block
        self.blocks: dict[str, list[int]] = {}
        self.requests: dict[str, Request] = {}

    def add(self, name: str, prompt: list[int]) -> None:
        self.requests[name] = Request(name, list(prompt))

    def step(self, *, resumed: frozenset[str] = frozenset()) -> None:
        new, cached, counts = [], CachedRequests(), {}
        for name, request in self.requests.items():
            length = len(request.all_token_ids)
            needed = -(-length // self.BLOCK) - len(self.blocks.get(name, []))
            added = [self.free.pop(0) for _ in range(needed)]
            if name not in self.blocks:
                self.blocks[name] = added
                assert self.scheduler.get_num_new_matched_tokens(request, 0) == (0, False)
                self.scheduler.update_state_after_alloc(request, None, 0)
                new.append(NewRequest(name, (list(added),), request.computed))
            else:
                self.blocks[name] += added
                cached.req_ids.append(name)
                if name in resumed:
                    cached.resumed_req_ids.add(name)
                    added = self.blocks[name]
                cached.new_block_ids.append((list(added),) if added else None)
                cached.num_computed_tokens.append(request.computed)
            counts[name] = length - request.computed
        meta = self.scheduler.build_connector_meta(SchedulerOutput(new, cached, counts))
        self.worker.bind_connector_metadata(meta)
        self.worker.start_load_kv(None)
        for layer, cache in self.caches.items():
            self.worker.wait_for_layer_load(layer)
            for name, request in self.requests.items():
                for position in range(request.computed, len(request.all_token_ids)):
                    block, offset = self.blocks[name][position // self.BLOCK], position % self.BLOCK
                    token = cache[:, block, offset] if cache.dim() == 5 else cache[block, offset]
                    token.fill_(request.all_token_ids[position])
            self.worker.save_kv_layer(layer, cache, None)
        self.worker.wait_for_save()
        self.worker.clear_connector_metadata()
        for request in self.requests.values():
            request.computed = len(request.all_token_ids)
            request.all_token_ids.append(100 + request.computed)  # sampled


@pytest.fixture
def connector_class(monkeypatch: pytest.MonkeyPatch) -> type:
    name = "vllm.distributed.kv_transfer.kv_connector.v1.base"
    parts = name.split(".")
    for i in range(len(parts)):
        monkeypatch.setitem(sys.modules, ".".join(parts[: i + 1]), types.ModuleType(".".join(parts[: i + 1])))
    base = sys.modules[name]
    base.KVConnectorBase_V1, base.KVConnectorMetadata = KVConnectorBase, KVConnectorMetadata
    base.KVConnectorRole = KVConnectorRole
    spec = importlib.util.spec_from_file_location("vllm_canary_connector", EXAMPLES / "vllm_canary_connector.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "vllm_canary_connector", module)
    spec.loader.exec_module(module)
    return module.CanaryConnector


def caches(kind: str, device: str) -> dict[str, torch.Tensor]:
    shape = {"mha": (2, 16, Engine.BLOCK, 2, 8), "mla": (16, Engine.BLOCK, 32)}[kind]
    return {f"layer{i}": torch.zeros(shape, dtype=torch.bfloat16, device=device) for i in range(3)}


@pytest.mark.parametrize("kind", ["mha", "mla"])
def test_vllm_connector(kind: str, connector_class: type, device: str, caplog: pytest.LogCaptureFixture) -> None:
    kv = caches(kind, device)
    engine = Engine(connector_class, kv)
    engine.add("a", [1, 2, 3, 4, 5, 6])
    engine.step()
    engine.add("b", [7, 8, 9])
    for _ in range(4):
        engine.step()
    canary = engine.worker.canary
    assert canary.violations == 0
    assert canary.entries_checked > 40
    assert canary.steps_over_capacity == 0
    # A byte of the last layer, of a token that a holds.
    block = engine.blocks["a"][0]
    where = kv["layer2"][1, block, 2] if kind == "mha" else kv["layer2"][block, 2]
    where.view(torch.uint8).flatten()[3:4].bitwise_xor_(64)
    engine.step()
    assert canary.violations == 1
    (text,) = [r.getMessage() for r in caplog.records]
    assert "launch_tag=TAIL_K_FULL fail_reason=verify_real_kv_hash" in text
    assert f"slot_idx={block * Engine.BLOCK + 2} " in text
    where.view(torch.uint8).flatten()[3:4].bitwise_xor_(64)
    # The block table: two blocks of a changed places.
    engine.blocks["a"][:2] = engine.blocks["a"][1::-1]
    engine.scheduler.blocks["a"][:2] = engine.scheduler.blocks["a"][1::-1]
    caplog.clear()
    engine.step()
    assert any("verify_position" in r.getMessage() for r in caplog.records)


def test_vllm_connector_after_preemption(connector_class: type) -> None:
    kv = caches("mla", "cpu")
    engine = Engine(connector_class, kv)
    engine.add("a", [1, 2, 3, 4, 5])
    engine.step()
    engine.step()
    # Preempted: its blocks are gone, all of it is computed again elsewhere.
    engine.blocks["a"] = []
    engine.requests["a"].computed = 0
    engine.step(resumed=frozenset("a"))
    engine.step()
    assert engine.worker.canary.violations == 0
    engine.scheduler.request_finished(engine.requests.pop("a"), [])
    engine.step()  # nothing to do
    assert engine.scheduler.requests == {}
