"""The package as a user meets it: import, doctor, errors."""

from __future__ import annotations

import ast
import json
import os
import pathlib
import pickle
import subprocess
import sys

import pytest
import serinus


def run_python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **environment},
    )


def test_import_brings_no_framework() -> None:
    done = run_python("-c", "import sys, serinus; print([m for m in ('torch', 'numpy', 'cupy') if m in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr


def test_consts_need_no_torch() -> None:
    # torch cannot be imported at all here.
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from serinus.sglang.kv_canary import consts; print(consts.splitmix64(consts.CANARY_CHAIN_ANCHOR))"
    )
    done = run_python("-c", code)
    assert done.stdout.strip() == str(0xDE7FAE23A9A1B716), done.stderr


def test_doctor() -> None:
    done = run_python("-m", "serinus", "doctor", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["version"] == serinus.__version__
    assert found["cores"] >= 1
    assert "portable" in " ".join(found["attention_paths"])
    assert found["cuda"]["devices"] or found["cuda"]["problem"]
    assert serinus.__version__ in run_python("-m", "serinus", "doctor").stdout


def test_command_explains() -> None:
    done = run_python("-m", "serinus", "explain", "ValueError: kv must be contiguous")
    assert done.stdout.startswith("SRN2000"), done.stderr
    assert run_python("-m", "serinus", "explain", "no such line").returncode == 3
    assert run_python("-m", "serinus", "no-such-command").returncode == 2


@pytest.mark.parametrize(
    ("own", "builtin"),
    [
        (serinus.ValueError, ValueError),
        (serinus.TypeError, TypeError),
        (serinus.RuntimeError, RuntimeError),
        (serinus.NotImplementedError, NotImplementedError),
        (serinus.InputError, OSError),
        (serinus.InternalError, RuntimeError),
    ],
)
def test_errors_are_pythons_too(own: type[serinus.Error], builtin: type[Exception]) -> None:
    assert issubclass(own, builtin)
    error = own("kv must be contiguous", "SRN2000", "kv", "no")
    again = pickle.loads(pickle.dumps(error))
    for e in (error, again):
        assert (type(e), str(e), e.id, e.argument, e.value) == (own, "kv must be contiguous", "SRN2000", "kv", "no")
    assert error.explain().startswith("SRN2000")


def test_every_page_can_be_read() -> None:
    pages = serinus.error_reference()
    assert [p["id"] for p in pages] == sorted(p["id"] for p in pages)
    for page in pages:
        text = serinus.explain(page["id"])
        assert text == serinus.explain(page["slug"])
        assert page["meaning"] in text
        assert all(s in text for s in page["solutions"])
    with pytest.raises(LookupError):
        serinus.explain("nothing like it")


@pytest.mark.parametrize(("stub", "attribute"), [("_core", None), ("_sglang_core", "sglang")])
def test_stubs_name_what_there_is(stub: str, attribute: str | None) -> None:
    module = serinus._core if attribute is None else getattr(serinus._core, attribute)
    tree = ast.parse((pathlib.Path(serinus.__file__).parent / f"{stub}.pyi").read_text())

    def names(body: list[ast.stmt]) -> set[str]:
        defined = {n.name for n in body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
        return defined | {n.target.id for n in body if isinstance(n, ast.AnnAssign)}

    def public(thing: object) -> set[str]:
        return {name for name in vars(thing) if not name.startswith("_")}

    imported = {"sglang"} if attribute is None else set()
    assert {n for n in names(tree.body) if not n.startswith("_")} | imported == public(module)
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            assert {n for n in names(node.body) if not n.startswith("_")} == public(getattr(module, node.name))
