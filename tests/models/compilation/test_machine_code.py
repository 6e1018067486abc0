"""Functions of a package of two files, compiled by processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.paths import ROOT

CALLER = """
import sys
from pathlib import Path
import numba
from models.compilation.cache_folder import CacheFolders
from models.compilation.machine_code import MachineCode, NotKept, only_kept
from tiny.called import added

FOLDERS = CacheFolders([Path(sys.argv[1])])
HERE = Path(__file__).parent

def compiled(function):
    dispatcher = numba.njit(function)
    dispatcher._cache = MachineCode(function, HERE, FOLDERS)
    return dispatcher

added = compiled(added)

@compiled
def tenfold(x):
    return 10 * added(x)

if "only-kept" in sys.argv:
    try:
        with only_kept():
            tenfold(1)
        print("kept")
    except NotKept:
        print("not kept")
    sys.exit()

values = [tenfold(1), tenfold(0.5)]
print(*values, "compiled" if tenfold._cache_misses else "loaded")
"""
CALLED = """
from tiny.constants import CONSTANT

def added(x):
    return x + CONSTANT
"""
Run = Callable[[], str]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    package = tmp_path / "tiny"
    package.mkdir()
    for name, text in (("caller", CALLER), ("called", CALLED), ("constants", "CONSTANT = 1")):
        (package / f"{name}.py").write_text(text)
    return package


def started(package: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tiny.caller", str(package.parent / "kept"), *arguments],
        env={"PYTHONPATH": f"{package.parent}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=package.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def printed(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output.strip()


def test_what_may_not_be_compiled_is_loaded_or_refused(package: Path) -> None:
    assert printed(started(package, "only-kept")) == "not kept"
    printed(started(package))
    assert printed(started(package, "only-kept")) == "kept"


def test_what_one_process_compiled_the_next_loads_until_a_constant_changes(package: Path) -> None:
    """Also one of a function that is called."""
    assert printed(started(package)) == "20 15.0 compiled"
    assert printed(started(package)) == "20 15.0 loaded"
    (package / "constants.py").write_text("CONSTANT = 2")
    assert printed(started(package)) == "30 25.0 compiled"
    assert printed(started(package)) == "30 25.0 loaded"
    kept = [file.name for file in (package.parent / "kept").iterdir()]
    assert len(kept) == 4  # two functions for two types: none of the old ones is left


@pytest.mark.long
def test_several_processes_may_compile_at_once(package: Path) -> None:
    processes = [started(package) for _ in range(3)]
    assert {printed(each)[:7] for each in processes} == {"20 15.0"}
    assert printed(started(package)) == "20 15.0 loaded"


@pytest.mark.long
def test_functions_compile_where_nothing_can_be_kept(package: Path) -> None:
    (package.parent / "kept").write_text("is no folder")
    assert printed(started(package)) == "20 15.0 compiled"
