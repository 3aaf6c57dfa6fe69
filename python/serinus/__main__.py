"""The package as a command: python -m serinus doctor, python -m serinus explain. The full command is serinus."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import sys

from . import __version__, _core, explain

_FRAMEWORKS = ("numpy", "torch", "cupy-cuda13x", "jax", "sglang", "vllm")


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _examine() -> dict:
    return {
        "version": __version__,
        "python": platform.python_version(),
        "extension": _core.__file__,
        **_core.machine(),
        "frameworks": {name: version for name in _FRAMEWORKS if (version := _installed(name))},
    }


def _as_text(found: dict) -> str:
    def row(label: str, text: object) -> str:
        return f"  {label:<11}{text}\n"

    out = f"serinus {found['version']}\n"
    out += row("Python", f"{found['python']}, {found['extension']}")
    out += row("CPU", f"{found['cores']} cores; attention, fastest first: {', '.join(found['attention_paths'])}")
    cuda = found["cuda"]
    if cuda["built"]:
        toolkit, driver = (f"{v // 1000}.{v % 1000 // 10}" for v in (cuda["toolkit_version"], cuda["driver_version"]))
        out += row(
            "CUDA", f"built with {toolkit}, " + (f"driver serves {driver}" if cuda["driver_version"] else "no driver")
        )
    else:
        out += row("CUDA", "not in this build")
    for d in cuda["devices"]:
        capability = ".".join(str(n) for n in d["compute_capability"])
        usable = (
            "usable"
            if d["sparse_mla"]
            else "usable by the canary; the prefill needs Hopper (9.0)"
            if d["usable"]
            else "not usable: this build has no kernels for it"
        )
        out += row("GPU", f"{d['index']}: {d['name']}, compute capability {capability}, {usable}")
    if not cuda["devices"]:
        out += row("GPU", cuda["problem"])
    frameworks = ", ".join(f"{name} {version}" for name, version in found["frameworks"].items())
    return out + row("frameworks", frameworks or "none (numpy helps)")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m serinus", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser("doctor", help="what this machine and this build offer")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    explained = commands.add_parser("explain", help="a page of the error reference")
    explained.add_argument("what", nargs="+", help="an id, a slug, or a pasted error line")
    options = parser.parse_args(arguments)
    if options.command == "doctor":
        found = _examine()
        print(json.dumps(found, indent=2) if options.json else _as_text(found), end="\n" if options.json else "")
        return 0
    try:
        print(explain(" ".join(options.what)), end="")
    except LookupError as error:
        print(error.args[0], file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
