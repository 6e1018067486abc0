"""Ages and lifetimes as operators write them."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from service.durations import parse_duration
from tests.paths import ROOT

GUIDE = (ROOT / "docs/guides/operator.md").read_text()


def test_the_guide_shows_every_unit_and_no_other() -> None:
    shown = dict(re.findall(r"(days|hours|minutes) \(`(\w+)`\)", GUIDE))
    assert {unit: parse_duration(text) for unit, text in shown.items()} == {
        "days": timedelta(days=90),
        "hours": timedelta(hours=36),
        "minutes": timedelta(minutes=90),
    }


@pytest.mark.parametrize("text", ["90", "d", "1.5d", "-1d", "90 d", "90D", "2w", "30s", "36501d"])
def test_other_spans_are_refused_with_how_to_write_one(text: str) -> None:
    with pytest.raises(ValueError, match="days, hours or minutes, such as 90d, 36h or 90m"):
        parse_duration(text)
