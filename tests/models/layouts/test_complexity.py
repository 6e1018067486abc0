"""The documented order of simplicity."""

from __future__ import annotations

from models.layouts.complexity import POINTS, TERM_WORDS
from tests.paths import ROOT


def test_the_documented_order_of_complexity_is_the_one_that_counts() -> None:
    page = (ROOT / "docs" / "model.md").read_text()
    section = " ".join(page.split("## Simplicity")[1].split())
    points = section.split("Points add up: ")[1].split(". ")[0]
    assert set(points.split(", ")) == {
        f"{TERM_WORDS[name]} {value}" for name, value in POINTS.items()
    }
