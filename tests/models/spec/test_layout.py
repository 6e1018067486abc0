"""Layouts one by one and in columns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from models.errors import Invalid
from models.spec.layout import Layout, Layouts

EVEN = Layout(pp=4)
STATED = Layout(pp=4, balanced=True, layers_per_chunk=(12, 12, 12, 10))
LONG = Layout(pp=8, balanced=True, layers_per_chunk=(0, 1, 2, 3, 10_000, 5, 6, 0))


def test_columns_give_back_what_they_were_made_of() -> None:
    layouts = [EVEN, STATED, LONG]
    columns = Layouts.of(layouts)
    assert [columns[i] for i in range(3)] == layouts
    again = Layouts.concatenate([columns.take(np.array([2, 1])), Layouts.of([EVEN])])
    assert [again[i] for i in range(3)] == [LONG, STATED, EVEN]


def test_stated_layers_are_told_apart_and_read() -> None:
    columns = Layouts.of([EVEN, STATED, LONG])
    assert columns.states_layers.tolist() == [False, True, True]
    assert columns.stated_layers.tolist() == [
        [0] * 8,
        [12, 12, 12, 10, 0, 0, 0, 0],
        [0, 1, 2, 3, 10_000, 5, 6, 0],
    ]
    assert Layouts.of([]).stated_layers.shape[0] == 0
    assert not Layouts.of([EVEN]).stated_layers.any()


def test_a_summary_says_how_layers_are_split() -> None:
    assert "1f1b layers=12,12,12,10" in STATED.summary()
    assert "layers" not in EVEN.summary()


@pytest.mark.parametrize(
    ("change", "field", "rule"),
    [
        ({"pp": 8}, "layers_per_chunk", r"pp\(8\) \* virtual_stages\(1\) = 8 chunks, and has 4"),
        ({"layers_per_chunk": (12, 12, 12, -1)}, "layers_per_chunk", "0 to 10000"),
        ({"balanced": False}, "balanced", "layers_per_chunk has unequal numbers"),
    ],
)
def test_layers_go_with_the_chunks(change: dict[str, object], field: str, rule: str) -> None:
    with pytest.raises(Invalid, match=rule) as refused:
        replace(STATED, **change)
    assert refused.value.field == f"layout.{field}"
