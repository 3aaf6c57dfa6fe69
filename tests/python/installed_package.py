"""What an installed wheel must be, asked of the Python that it was installed for: ``./dev wheel`` runs this in a clean
virtual environment, away from the tree. Prints what it found; exit status 1 where anything is missing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import pathlib
import re
import statistics
import subprocess
import sys
import time

PROGRAM = pathlib.Path(__file__).parent / "typed_program.py"
MOST_MS = 100.0

problems: list[str] = []


def expect(true: object, what: str) -> None:
    print(("  fine     " if true else "  MISSING  ") + what)
    if not true:
        problems.append(what)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


def import_ms() -> float:
    """Median over fresh processes, measured within them: the interpreter's own start is not the package's."""
    code = "import time; t = time.perf_counter(); import serinus; print(time.perf_counter() - t)"
    run("-c", code)  # writes the bytecode
    return 1e3 * statistics.median(float(run("-c", code).stdout) for _ in range(9))


def check_files() -> None:
    names = {str(f) for f in importlib.metadata.files("serinus") or ()}
    for name in ("py.typed", "_core.pyi", "_sglang_core.pyi", "sglang/kv_canary/consts.py"):
        expect(f"serinus/{name}" in names, name)
    expect(any(re.fullmatch(r"serinus/_core\..*so", n) for n in names), "the extension")
    strays = [n for n in names if not re.match(r"serinus/|serinus\.libs/|serinus-[^/]*\.dist-info/|.*__pycache__", n)]
    expect(not strays, f"nothing outside the package {strays or ''}")
    wheel = importlib.metadata.distribution("serinus").read_text("WHEEL") or ""
    tag = re.search(r"^Tag: (.*)$", wheel, re.MULTILINE)
    version = sys.version_info[:2]
    want = "cp312-abi3-" if version >= (3, 12) else "cp{0}{1}-cp{0}{1}-".format(*version)
    expect(tag and tag[1].startswith(want), f"wheel tag {tag and tag[1]}, wanted {want}…")
    points = importlib.metadata.entry_points(group="sglang.srt.plugins")
    expect([p.value for p in points if p.name == "serinus"] == ["serinus.sglang:plugin"], "SGLang's plugin entry point")


def check_behaviour() -> None:
    found = run(
        "-c", "import sys, serinus; print(serinus.__file__, *(m for m in ('torch', 'numpy') if m in sys.modules))"
    )
    path, *frameworks = found.stdout.split() or [""]
    expect(pathlib.Path(sys.prefix) in pathlib.Path(path).parents, f"imported from here: {path} {found.stderr}")
    expect(not frameworks, f"imports no framework {frameworks or ''}")
    expect(run("-c", "from serinus.sglang.kv_canary import consts").returncode == 0, "consts without torch")
    doctor = run("-m", "serinus", "doctor")
    expect(doctor.returncode == 0, "python -m serinus doctor")
    print(doctor.stdout + doctor.stderr, end="")
    milliseconds = import_ms()
    expect(milliseconds < MOST_MS, f"import in {milliseconds:.0f} ms, at most {MOST_MS:.0f}")


def check_types() -> None:
    if importlib.util.find_spec("mypy") is None:
        print("  skipped  mypy is not here")
        return
    begin = time.perf_counter()
    done = run("-m", "mypy", "--strict", "--no-incremental", str(PROGRAM))
    expect(done.returncode == 0, f"mypy --strict on a program of a user's, {time.perf_counter() - begin:.0f} s")
    if done.returncode != 0:
        print(done.stdout + done.stderr)
    ran = run(str(PROGRAM))
    expect(ran.returncode == 0, f"which runs {ran.stderr}")


if __name__ == "__main__":
    check_files()
    check_behaviour()
    check_types()
    sys.exit(1 if problems else 0)
