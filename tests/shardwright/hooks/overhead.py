"""The time by which a hook delays a job."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable

BUDGET_S = 2.1
"""Limit where the service hangs: the budget, and the start and end of a process."""
PATIENT_S = 7
"""Budget of hooks whose answer a test reads, on a machine that runs other tests as well. dstack
gives up after 8 s, SkyPilot after 30."""
UP_S = 0.3
"""Limit where the service answers, on a machine that has a core for each of both."""


def p95_s(work: Callable[[int], object], count: int) -> float:
    """The 95th percentile of how long the work takes; the longest of fewer than twenty times. Each
    time has a number, so that no question is asked twice."""
    taken = []
    for number in range(count):
        start = time.perf_counter()
        work(number)
        taken.append(time.perf_counter() - start)
    return sorted(taken)[math.ceil(0.95 * count) - 1]


def has_idle_cores() -> bool:
    """Whether nothing else runs here, as it must not where a time of the clock is held against a
    limit."""
    return os.getloadavg()[0] < 1
