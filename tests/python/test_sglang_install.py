"""Drop-ins in the place of SGLang's modules, in a stand-in of its package tree. Each case in a process of its own."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch")

OPS = "sglang.kernels.ops"
MODULES = [f"{OPS}.kv_canary.{m}" for m in ("consts", "verify", "write", "plan", "scatter_req_token_ids")]
PREFILL = f"{OPS}.attention.sparse_mla_q8kv8_prefill_sm90"


@pytest.fixture
def tree(tmp_path: pathlib.Path) -> pathlib.Path:
    """sglang with modules of those names, each saying that it is the original, and a plugin loader."""
    for name in (*MODULES, PREFILL):
        file = tmp_path / (name.replace(".", "/") + ".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("ORIGINAL = True\n")
    for folder in (tmp_path / "sglang").rglob("*"):
        if folder.is_dir():
            (folder / "__init__.py").touch()
    (tmp_path / "sglang/__init__.py").touch()
    # Who uses the canary, as an engine does.
    (tmp_path / "sglang/runner.py").write_text(
        f"from {OPS}.kv_canary import consts\n"
        f"from {OPS}.kv_canary.verify import *\n"
        f"from {OPS}.kv_canary import verify as verify_module\n"
        f"import {OPS}.kv_canary.plan as plan_module\n"
        "ORIGINALS = [hasattr(m, 'ORIGINAL') for m in (consts, verify_module, plan_module)]\n"
    )
    return tmp_path


def run(tree: pathlib.Path, code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": f"{tree}:{os.environ.get('PYTHONPATH', '')}", **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_install_and_uninstall(tree: pathlib.Path) -> None:
    code = f"""
        import importlib, sys
        import serinus.sglang as s
        s.install()
        s.install()
        from sglang import runner
        from serinus.sglang.kv_canary import verify
        print(runner.ORIGINALS, runner.verify_module is verify, runner.CanaryLaunchTag is verify.CanaryLaunchTag)
        print(importlib.import_module("{PREFILL}").sparse_mla_q8kv8_prefill_fwd.__module__)
        s.uninstall()
        s.uninstall()
        print([importlib.import_module(m).ORIGINAL for m in {[*MODULES, PREFILL]!r}])
        del sys.modules["sglang.runner"]
        print(importlib.import_module("sglang.runner").ORIGINALS)
    """
    assert run(tree, code).splitlines() == [
        "[False, False, False] True True",
        "serinus.sglang.sparse_mla_q8kv8_prefill_sm90",
        str([True] * 6),
        "[True, True, True]",
    ]


def test_install_one_part(tree: pathlib.Path) -> None:
    code = f"""
        import importlib, serinus.sglang as s
        s.install("prefill")
        print(hasattr(importlib.import_module("{PREFILL}"), "ORIGINAL"))
        print(hasattr(importlib.import_module("{MODULES[0]}"), "ORIGINAL"))
        try:
            s.install("attention")
        except ValueError as e:
            print(e)
    """
    assert run(tree, code).splitlines() == [
        "False",
        "True",
        "part takes one of all, kv_canary, prefill, got 'attention'",
    ]


def test_too_late(tree: pathlib.Path) -> None:
    code = f"""
        import sys
        from sglang import runner
        import serinus, serinus.sglang
        before = dict(sys.modules)
        try:
            serinus.sglang.install()
        except serinus.RuntimeError as e:
            print(e.id, e)
        print([m for m in {[*MODULES, PREFILL]!r} if sys.modules.get(m) is not before.get(m)])
    """
    assert run(tree, code).splitlines() == [
        f"SRN6207 {MODULES[0]} is imported already: install the drop-ins before SGLang imports it",
        "[]",
    ]


def test_packages_loaded_before(tree: pathlib.Path) -> None:
    """Where the holding package is there already, the module is its attribute, too."""
    code = f"""
        import {OPS}.kv_canary
        import serinus.sglang as s
        s.install()
        print({OPS}.kv_canary.verify.__name__)
        s.uninstall()
        print(hasattr({OPS}.kv_canary, "verify"))
    """
    assert run(tree, code).splitlines() == ["serinus.sglang.kv_canary.verify", "False"]


def test_without_sglang(tmp_path: pathlib.Path) -> None:
    code = f"""
        import serinus.sglang as s
        s.install()
        from {OPS}.kv_canary.consts import FailReason
        print(FailReason.__module__)
    """
    assert run(tmp_path, code) == "serinus.sglang.kv_canary.consts"


@pytest.mark.parametrize(
    ("setting", "want"), [("", "[]"), ("kv_canary", str(MODULES)), ("all", str([*MODULES, PREFILL]))]
)
def test_plugin(tree: pathlib.Path, setting: str, want: str) -> None:
    """As SGLang loads it: the entry point of the project's metadata, called without arguments."""
    pyproject = pathlib.Path(__file__).parents[2] / "pyproject.toml"
    text = pyproject.read_text().split('[project.entry-points."sglang.srt.plugins"]')[1]
    module, function = text.split('serinus = "')[1].split('"')[0].split(":")
    code = f"""
        import importlib, sys
        getattr(importlib.import_module("{module}"), "{function}")()
        print([m for m in {[*MODULES, PREFILL]!r} if m in sys.modules])
    """
    assert run(tree, code, SERINUS_SGLANG=setting) == want
