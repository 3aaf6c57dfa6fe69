"""Replays from Python."""

from __future__ import annotations

import itertools
import pathlib

import pytest
import serinus

TRACE = pathlib.Path(__file__).parents[2] / "engine/traces/demo.jsonl"
SMALL = {"requests": 25, "pool_tokens": 120_000, "layers": 1, "threads": 1, "budget": 4096}


def test_a_quiet_replay() -> None:
    seen: list[tuple[int, int, int]] = []
    result = serinus.replay(TRACE, **SMALL, progress=lambda *p: seen.append(p))
    assert result["requests"] == 25
    assert result["false_alarms"] == 0
    assert result["faults"] == []
    assert result["violations"] == []
    assert result["records_verified"] > 0
    assert seen
    assert seen[-1][1] == 25
    assert all(a[2] < b[2] for a, b in itertools.pairwise(seen))


def test_faults_are_found() -> None:
    result = serinus.replay(TRACE, **SMALL, faults="byte_flip:3,remap:2", seed=3)
    assert [f["kind"] for f in result["faults"]].count("byte_flip") == 3
    states = {f["state"] for f in result["faults"]}
    assert "detected" in states
    assert states <= {"detected", "masked"}
    assert result["violations"]
    for violation in result["violations"]:  # each names a fault that was detected
        assert result["faults"][violation["fault"]]["state"] == "detected"
        assert violation["fault"] >= 0
        assert violation["reasons"]
    assert result["false_alarms"] == 0


def test_layouts_with_options() -> None:
    options = {"layout": "mha_nhd", "heads": 2, "head_size": 16, "dtype": "float8_e4m3fn", "decode_tokens": 3}
    result = serinus.replay(TRACE, **SMALL, **options, faults="byte_flip:2", seed=3)
    assert result["false_alarms"] == 0
    assert {v["segment"].split(".")[0] for v in result["violations"] if "kv_bytes" in v["reasons"]} <= {"k", "v", ""}
    with pytest.raises(serinus.ValueError, match="dtype takes one of"):
        serinus.replay(TRACE, layout="mha_nhd", heads=2, head_size=16, dtype="float16")
    with pytest.raises(serinus.TypeError, match="heads must be integers, got 'two'"):
        serinus.replay(TRACE, heads="two")


def test_the_progress_function_may_stop_it() -> None:
    class StopError(Exception):
        pass

    def stop(done: int, total: int, steps: int) -> None:
        raise StopError(steps)

    with pytest.raises(StopError):
        serinus.replay(TRACE, **SMALL, progress=stop)


def test_refusals(tmp_path: pathlib.Path) -> None:
    with pytest.raises(serinus.InputError, match=r"nothing\.jsonl"):
        serinus.replay(tmp_path / "nothing.jsonl")
    with pytest.raises(serinus.ValueError, match="byte_flip"):  # it lists the classes
        serinus.replay(TRACE, faults="bit_rot:1")
    with pytest.raises(serinus.ValueError, match="format takes one of serinus, sglang"):
        serinus.replay(TRACE, format="vllm")
    for device in ("gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:99999999999"):
        with pytest.raises(serinus.ValueError, match=f"device takes one of cpu, cuda, cuda:N, got '{device}'"):
            serinus.replay(TRACE, device=device)


@pytest.mark.gpu
def test_a_gpu_finds_what_the_cpu_finds() -> None:
    cpu, gpu = (
        serinus.replay(TRACE, **SMALL, faults="byte_flip:3,remap:2", seed=3, device=device)
        for device in ("cpu", "cuda")
    )
    assert [(f["kind"], f["state"]) for f in gpu["faults"]] == [(f["kind"], f["state"]) for f in cpu["faults"]]
    assert (gpu["false_alarms"], gpu["steps"]) == (0, cpu["steps"])
