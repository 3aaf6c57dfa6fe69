"""Where tests find devices. CPU tests run everywhere; those of a GPU skip where there is none."""

from __future__ import annotations

import importlib.util

import pytest


def has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def has_gpu() -> bool:
    if not has_torch():
        return False
    import torch

    return torch.cuda.is_available()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs torch and a CUDA GPU")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # torch is looked for only where a test asks for a GPU: importing it takes seconds.
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_items and not has_gpu():
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason="needs torch and a CUDA GPU"))


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Each test on the CPU, and on the GPU where there is one."""
    pytest.importorskip("torch")
    return request.param
