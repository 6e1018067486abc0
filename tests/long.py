"""Cases of which the default suite tries a share, and the long tests all others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def one_in(step: int, cases: Iterable[Any]) -> list[Any]:
    """Returns the cases for `parametrize`, in their order: one in `step` is tried by default."""
    return [
        case if index % step == 0 else pytest.param(case, marks=pytest.mark.long)
        for index, case in enumerate(cases)
    ]
