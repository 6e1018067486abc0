"""The files that sources of rules and refusals name are those of the real releases."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.formats.launch.accelerate import sharding
from service.formats.launch.deepspeed import document
from service.formats.launch.facts import facts
from service.formats.launch.maxtext import reader as maxtext
from service.formats.launch.maxtext import stops as maxtext_stops
from service.formats.launch.torchtitan import reader as torchtitan
from service.formats.launch.torchtitan import stops as torchtitan_stops
from tests.launchers.judging import PYTHON
from tests.paths import ROOT

pytestmark = [
    pytest.mark.launchers,
    pytest.mark.skipif(not PYTHON.exists(), reason="make test-launchers makes the environment"),
]
FOLDERS = {"megatron-core": "megatron", "megatron-bridge": "megatron/bridge"}
"""Packages whose modules lie in a folder of another name."""


def _sources() -> Iterator[str]:
    for rules in json.loads((ROOT / "models/data/rule_sources.json").read_text()).values():
        yield from rules.values()
    for file in (ROOT / "service/formats/launch/fields").glob("*.json"):
        table = facts(file.stem)
        yield from (table[name] for name in ("parser", "of_parser_source") if name in table)
    yield facts("megatron_refusals")["source"]
    yield from (sharding.SOURCE, document.SOURCE, maxtext_stops.TYPES, maxtext.MUON)
    yield from (torchtitan.MESH_SOURCE, torchtitan_stops.SOURCE, torchtitan_stops.COMPILE)


def _installed() -> dict[str, str]:
    """The releases of the environment, by package."""
    folders = PYTHON.parents[1].glob("lib/python*/site-packages/*.dist-info")
    names = (folder.name.removesuffix(".dist-info").rpartition("-") for folder in folders)
    return {name.replace("_", "-").lower(): release for name, _, release in names}


def test_sources_name_files_of_the_releases_that_they_name() -> None:
    (site,) = PYTHON.parents[1].glob("lib/python*/site-packages")
    installed, seen = _installed(), 0
    for source in _sources():
        match = re.match(r"([a-z-]+) (\d[\d.]*): (.*)", source)
        if match is None or installed.get(match.group(1)) != match.group(2):
            continue  # arithmetic, or a release that is not installed here
        folder = site / FOLDERS.get(match.group(1), match.group(1))
        for file in re.findall(r"[\w/]+\.py", match.group(3)):
            places = (folder / file, site / file, *_beside(folder, match.group(3), file))
            assert any(place.exists() for place in places), source
            seen += 1
    assert seen > 30


def _beside(folder: Path, files: str, file: str) -> Iterator[Path]:
    """A file in the folder of the one that is named before it."""
    first = re.search(r"[\w/]+\.py", files)
    if first is not None:
        yield folder / Path(first.group()).parent / file
