"""Shares of many cases alike: the default suite tries some of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import hypothesis
import pytest

_SHARE_OF_EXAMPLES = 4
"""The suite draws the same examples every time, so that more of them find nothing that the last run
did not. `make explore` draws new ones, and takes all."""


def one_in(step: int, cases: Iterable[Any]) -> list[Any]:
    """Returns the cases for `parametrize`, in their order: one in `step` is tried by default, and
    the long tests try all others. A case of several parameters is a tuple."""
    shared = list[Any]()
    for index, case in enumerate(cases):
        values = case if type(case) is tuple else (case,)
        shared.append(pytest.param(*values, marks=() if index % step == 0 else pytest.mark.long))
    return shared


def examples(count: int) -> int:
    """Returns how many examples a property is tried on: all of them where they are new."""
    if not hypothesis.settings.default.derandomize:
        return count
    return -(-count // _SHARE_OF_EXAMPLES)
