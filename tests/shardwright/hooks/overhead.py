"""The time by which a hook delays a job."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

BUDGET_S = 2.1
"""What a hook may take where the service hangs: its budget, and the start and end of a process."""


def p95_s(work: Callable[[], object], count: int) -> float:
    """The 95th percentile of how long the work takes; the longest of fewer than twenty times."""
    taken = []
    for _ in range(count):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return sorted(taken)[math.ceil(0.95 * count) - 1]
