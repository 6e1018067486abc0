"""Sources of what frameworks stop at."""

from __future__ import annotations

import json
import re

import pytest

from service.formats.launch.facts import facts
from service.formats.settings.stop import Stopped, Stops
from tests.paths import ROOT

FIELDS = ROOT / "service/formats/launch/fields"
TABLES = sorted(
    file.stem for file in FIELDS.glob("*.json") if json.loads(file.read_text()).get("fields")
)
RELEASE_AND_FILE = r"[a-z-]+ \d+\.\d+\.\d+: [\w/]+\.py"


@pytest.mark.parametrize("table", TABLES)
def test_a_table_names_the_parser_that_stops_at_unknown_names(table: str) -> None:
    assert re.match(RELEASE_AND_FILE, facts(table)["parser"])


def test_refusals_of_megatron_name_a_release_and_a_file() -> None:
    table = facts("megatron_refusals")
    assert re.match(RELEASE_AND_FILE, table["source"])
    assert re.match(RELEASE_AND_FILE, table["of_parser_source"])


def test_what_stops_while_a_part_is_read_has_the_source_of_that_part() -> None:
    def read() -> int:
        raise Stopped("degree", 3, "must be even", "degree 2")

    stops = Stops("framework 1.2.3: mesh.py")
    assert stops.attempt(read, instead=1) == 1
    assert stops.attempt(read, instead=1) == 1
    (stop,) = stops.noted
    assert (stop.setting, stop.value, stop.cure) == ("degree", 3, "degree 2")
    assert stop.source == "framework 1.2.3: mesh.py"
