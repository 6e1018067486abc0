"""Waiting for what other threads and processes bring about."""

from __future__ import annotations

import time
from collections.abc import Callable

LONG_S = 120.0  # for a machine that does much else: a test that passes never waits so long
_PAUSE_S = 0.02


def wait_for(condition: Callable[[], object], within_s: float = LONG_S) -> None:
    ends = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < ends, f"it did not come about within {within_s:g} s"
        time.sleep(_PAUSE_S)
