"""Waiting for what other threads and processes bring about."""

from __future__ import annotations

import time
from collections.abc import Callable

LONG_S = 120.0  # for a machine that does much else: a test that passes never waits so long
_PAUSE_S = 0.02
_SHARE = 0.05  # of the time waited: who asks less and less often leaves the processor to the others


def wait_for(condition: Callable[[], object], within_s: float = LONG_S) -> None:
    began = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - began
        assert waited_s < within_s, f"it did not come about within {within_s:g} s"
        time.sleep(max(_PAUSE_S, _SHARE * waited_s))
