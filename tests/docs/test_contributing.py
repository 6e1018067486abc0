"""CONTRIBUTING names modules, and they are as it says."""

from __future__ import annotations

import re
from importlib import import_module

import pytest

from tests.paths import ROOT

_PAGE = (ROOT / "CONTRIBUTING.md").read_text()
_MODULE = re.compile(r"`((?:models|service|shardwright)/[\w/]+)\.py`")
_NAME_IN_MODULE = re.compile(
    r"`(\w+)`\s+(?:in|of)\s+`((?:models|service|shardwright|tests)/[\w/]+)\.py`"
)
_PLACES = [
    row.strip("|\n").split("|") for row in re.findall(r"^\|.*\|.*\|.*`tests/.*\|$", _PAGE, re.M)
]


@pytest.mark.parametrize("module", sorted(set(_MODULE.findall(_PAGE))))
def test_every_module_that_the_page_names_can_be_imported(module: str) -> None:
    import_module(module.replace("/", "."))


@pytest.mark.parametrize(("name", "module"), _NAME_IN_MODULE.findall(_PAGE))
def test_every_name_is_defined_in_the_module_that_the_page_gives(name: str, module: str) -> None:
    assert hasattr(import_module(module.replace("/", ".")), name)


@pytest.mark.parametrize("place", _PLACES, ids=lambda place: place[0].strip())
def test_every_place_that_people_look_for_has_tests(place: list[str]) -> None:
    tests = [ROOT / path for path in re.findall(r"`(tests/[\w/.]+)`", place[2])]
    assert tests
    for path in tests:
        files = [path] if path.is_file() else sorted(path.rglob("test_*.py"))
        assert any("\ndef test_" in file.read_text() for file in files), path
