"""Thresholds say how much bandwidth, or how large a domain, would change whether a pipeline is
needed. They are found by doubling, halving and bisection.

A step is a pair of neighbouring values that are tried: the present verdict on the need of a
pipeline *holds* at the first, and may *change* at the second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from models.advice.sweep import FrontierSweep
from models.search.result import ShouldContinue
from models.spec.constraints import Constraints
from models.spec.hardware import Cluster
from models.spec.problem import Problem
from models.spec.profile import Profile

_FARTHEST = 16.0  # times as much, or as little, at most
_DOUBLINGS = ((1.0, 2.0), (2.0, 4.0), (4.0, 8.0), (8.0, _FARTHEST))
_BANDWIDTH_STEPS = [step for a, b in _DOUBLINGS for step in ((a, b), (1 / a, 1 / b))]
"""Factors on the present bandwidth, as pairs of neighbours that are tried: the nearest first, up
and down in turn."""
_CLOSE = 1.1  # a bisection ends when both sides are within this factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """The value along an `axis` (models.advice.frontier.AXES) at which the need of a pipeline
    changes.

    `is_above` says whether a pipeline is worth more than the tolerance as things are, at `value`.
    That holds up to `holds_at`, the last value tried before `changes_at`, and no longer at
    `changes_at`. If no doubling up to 16 times as much or as little changes it, `changes_at` is
    None and `holds_at` is `value`. Values are GB/s per chip (for a torus, per link) or chips in a
    domain. The worth of a pipeline need not be monotonic: two changes between neighbours that were
    tried are missed.
    """

    axis: str
    is_above: bool
    value: float
    holds_at: float
    changes_at: float | None
    exact: bool


def thresholds(
    problem: Problem,
    profile: Profile,
    constraints: Constraints,
    tolerance: float,
    should_continue: ShouldContinue,
    oom_gib: float = math.inf,
) -> list[Threshold]:
    """Return a threshold for every axis that the fabric has: bandwidth within scale-up domains,
    bandwidth between them, and chips in a domain. Empty where it is unknown whether a pipeline is
    needed as things are. Layouts that need `oom_gib` or more, at which a run of this model, chip
    and stack ran out of memory, are left out."""
    sweep = FrontierSweep(problem, profile, constraints, should_continue, oom_gib)
    here = sweep.point({})
    if not here.is_answered:
        return []
    is_above = not here.needs_no_pipeline(tolerance)
    cluster = problem.cluster
    found = []
    gb_s = _bandwidths(cluster)
    for scale in [scale for scale in ("up", "out") if scale in gb_s]:
        # The present place is the factor 1 on the bandwidth.
        search = _ThresholdSearch(sweep, tolerance, is_above, f"scale_{scale}", 1, gb_s[scale])
        found.append(search.first_threshold(_BANDWIDTH_STEPS, bisects=True))
    if cluster.fabric.domain is not None:
        chips = cluster.scale_up_domain_chips
        search = _ThresholdSearch(sweep, tolerance, is_above, "domain", chips, 1)
        found.append(search.first_threshold(_domain_steps(chips, cluster.num_chips), bisects=False))
    return found


def _bandwidths(cluster: Cluster) -> dict[str, float]:
    """Return the bandwidth of a chip in GB/s by the scale of its links: "up" within scale-up
    domains, "out" between them. Of several levels of one scale the innermost counts. For a torus,
    "up" is the bandwidth of one link."""
    devices = cluster.chip.devices_per_chip
    # Dims are in order from the innermost; read backwards, the innermost of a scale overwrites.
    gb_s: dict[str, float] = {dim.scale: dim.gb_s * devices for dim in reversed(cluster.dims)}
    torus = cluster.fabric.torus
    if torus and "up" in gb_s:
        gb_s["up"] = torus.gb_s_per_link  # instead of the links within a package
    return gb_s


@dataclass(frozen=True, slots=True)
class _ThresholdSearch:
    """Searches along one axis for the place where the need of a pipeline changes, from the
    `present` place, at which `is_above` says whether a pipeline is worth more than the tolerance.
    Places are factors on a bandwidth of `unit` GB/s, or chips in a domain, of which the unit is
    1."""

    sweep: FrontierSweep
    tolerance: float
    is_above: bool
    axis: str
    present: float
    unit: float

    def first_threshold(self, steps: Iterable[tuple[float, float]], *, bisects: bool) -> Threshold:
        """Return the threshold at the first of `steps`, pairs of a place and the next one, between
        which the need of a pipeline changes. With `bisects` it is then narrowed down between the
        two, which needs an axis of continuous values."""
        for holds, changes in steps:
            changed = self._is_changed_at(changes)
            if changed is None:  # time ran out: a change may lie beyond
                return self._threshold(self.present, None, exact=False)
            if changed:
                return self._bisect(holds, changes) if bisects else self._threshold(holds, changes)
        return self._threshold(self.present, None)  # no change at any step

    def _bisect(self, holds: float, changes: float) -> Threshold:
        """Return the threshold between a factor at which the verdict holds and one at which it
        changes, by bisection of their logarithms."""
        exact = True
        while max(holds / changes, changes / holds) > _CLOSE:
            middle = (holds * changes) ** 0.5
            changed = self._is_changed_at(middle)
            if changed is None:  # time ran out: the bounds so far are the answer
                exact = False
                break
            if changed:
                changes = middle
            else:
                holds = middle
        return self._threshold(holds, changes, exact=exact)

    def _is_changed_at(self, place: float) -> bool | None:
        """Return whether the need of a pipeline at this place differs from that at present; None
        where time ran out before that was known."""
        if not self.sweep.should_continue():
            return None
        # `needs_none` (no pipeline is needed) is None where no layout fits: that is no change.
        needs_none, proved = self.sweep.verdict_at({self.axis: place}, self.tolerance)
        # `is_above` says that a pipeline is needed at present, `needs_none` that none is needed at
        # this place: the need has changed where both are true, or both are false.
        return needs_none == self.is_above if proved else None

    def _threshold(self, holds: float, changes: float | None, *, exact: bool = True) -> Threshold:
        """Return the threshold of this axis: the verdict holds at the place `holds` and changes at
        the place `changes`, which is None if it never does."""
        return Threshold(
            axis=self.axis,
            is_above=self.is_above,
            value=self.present * self.unit,
            holds_at=holds * self.unit,
            changes_at=None if changes is None else changes * self.unit,
            exact=exact,
        )


def _domain_steps(chips: int, num_chips: int) -> Iterator[tuple[int, int]]:
    """Yield the chips of domains as pairs of neighbours that are tried: from `chips` to twice, four
    times and so on as many, up to `num_chips`, then to a half, a quarter and so on. None is more
    than _FARTHEST times larger or smaller."""
    largest = min(num_chips, chips * _FARTHEST)
    least = max(chips / _FARTHEST, 1)
    for factor in (2.0, 0.5):
        size = chips
        while least <= (next_size := int(size * factor)) <= largest:
            yield size, next_size
            size = next_size
