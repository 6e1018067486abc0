"""Megatron's expressions of lists."""

from __future__ import annotations

import pytest

from service.formats.megatron.layer_pattern import layer_switches


@pytest.mark.parametrize(
    ("text_", "switches"),
    [
        ("[0,1,1]", [0, 1, 1]),
        ("([0]*3+[1]*58)", [0] * 3 + [1] * 58),
        ("([1]*3+[0]*1)*3", [1, 1, 1, 0] * 3),
        ("[1]+[0]*2*3", [1] + [0] * 6),
        ("([0])+([1]*2)*2", [0, 1, 1, 1, 1]),
        ("[0]*3+", []),
        ("[10,1]", []),
        ("[2]*3", []),
        ("[b]", []),
        ("", []),
        ("[1]*101", []),
        ("(" * 3000 + "[1]" + ")" * 3000, [1]),
        ("(" * 3000 + "[1]", []),
    ],
)
def test_expressions_of_lists_are_those_of_python(text_: str, switches: list[int]) -> None:
    assert layer_switches(text_, 100) == [switch == 1 for switch in switches]
