"""Goodput is the share of time that failures leave.

Failures happen every M = 1/(rate · chips) seconds on average, at times that nothing foretells; a
checkpoint takes C, and a restart R. Work of τ seconds between checkpoints then takes
M · e^(R/M) · (e^((τ + C)/M) - 1) (Daly 2006, doi:10.1016/j.future.2004.11.016, equation 20). The
loss is least for τ/M = 1 - e^-((τ + C)/M), which is nearly √(2·C·M) where failures are rare (Young
1974, doi:10.1145/361147.361115).
"""

from __future__ import annotations

import math

_NO_FAILURES = 1e-12  # an hour: fewer count as none, which keeps the time between them finite
LEAST_GOODPUT = 1e-12
"""The least goodput that is shown, so that divisions by it stay finite."""
_NEWTON_STEPS = 8  # it converges quadratically from Young's estimate


def best_checkpointing(
    *, failures_per_hour: float, checkpoint_s: float, restart_s: float
) -> tuple[float | None, float]:
    """Return (seconds of work between checkpoints, goodput) where goodput is highest; (None, 1)
    without failures. Internally, times are counted in mean times between failures. The module's
    docstring has the formulas."""
    if failures_per_hour < _NO_FAILURES:
        return None, 1.0
    between_failures_s = 3600 / failures_per_hour
    checkpoint = checkpoint_s / between_failures_s
    restart = restart_s / between_failures_s
    work = _best_work_between_checkpoints(checkpoint)
    if work:
        # This is work / (e^restart · (e^(work + checkpoint) - 1)). With e^checkpoint factored out
        # it keeps its digits for short times and does not overflow for long ones.
        time = math.expm1(work) - math.expm1(-checkpoint)
        goodput = work * math.exp(-checkpoint - restart) / time
    else:  # checkpoints take no time and are always taken, so that only restarts cost
        goodput = math.exp(-restart)
    return work * between_failures_s, max(goodput, LEAST_GOODPUT)


def _best_work_between_checkpoints(checkpoint: float) -> float:
    """Return the work between checkpoints that loses least to failures, for checkpoints that take
    `checkpoint`. Both are in mean times between failures: 0.19 for checkpoints of 0.02."""
    if not checkpoint:
        return 0.0
    work = min(math.sqrt(2 * checkpoint), 1.0)  # Young's estimate; the best is never above 1
    for _ in range(_NEWTON_STEPS):
        # Newton's step -f / f' = 1 - work / (1 - e^-(work + checkpoint)) towards the zero of
        # f = work - 1 + e^-(work + checkpoint).
        work += 1 + work / math.expm1(-work - checkpoint)
    return work
