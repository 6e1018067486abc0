from __future__ import annotations

from pathlib import Path

import pytest

from models.compilation import source_digest as tested
from models.compilation.source_digest import source_digest, sources
from tests.paths import ROOT

ENTRY = """
from tiny.parts import part  # a package stands for its modules
from tiny.constants import (
    A,
)
import numpy
"""
FILES = {
    "entry.py": ENTRY,
    "parts/__init__.py": "",
    "parts/part.py": "def f():\n    import tiny.later\n",
    "parts/beside.py": "",
    "constants.py": "import tiny.entry\nA = 1\n",
    "later.py": "",
    "unrelated.py": "from tiny.entry import f\n",
}


def forget() -> None:
    """As the next process does."""
    for cached in (tested.source_digest, tested._imported, tested._text):
        cached.cache_clear()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    package = tmp_path / "tiny"
    for name, text in FILES.items():
        file = package / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return package


def test_sources_are_all_that_a_file_imports_from_its_package(package: Path) -> None:
    found = {
        file.relative_to(package).as_posix() for file in sources(package / "constants.py", package)
    }
    assert found == {*FILES} - {"unrelated.py"}
    assert sources(package / "later.py", package) == {package / "later.py"}


@pytest.mark.parametrize("name", FILES)
def test_a_change_of_what_it_imports_changes_the_digest(package: Path, name: str) -> None:
    entry = package / "entry.py"
    before = source_digest(entry, package)
    (package / name).write_text(FILES[name] + "# changed\n")
    forget()
    assert (source_digest(entry, package) == before) == (name == "unrelated.py")


def test_a_change_during_a_run_changes_nothing(package: Path) -> None:
    """What is compiled then is still what was imported before."""
    later = package / "later.py"
    before = source_digest(later, package)
    later.write_text("changed")
    source_digest.cache_clear()
    assert source_digest(later, package) == before


def test_the_cost_model_depends_on_the_constants_that_it_names() -> None:
    package = ROOT / "models"
    found = sources(package / "cost" / "step.py", package)
    assert package / "compilation" / "compiled.py" in found
    assert package / "spec" / "layout.py" in found
    assert not [file for file in found if file.parent.name in ("search", "advice")]
