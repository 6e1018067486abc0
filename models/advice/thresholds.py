"""Thresholds say how much bandwidth, or how large a domain, would change whether a pipeline is
needed. They are found by doubling, halving and bisection."""

from __future__ import annotations

import math
from dataclasses import dataclass

from models.advice.sweep import FrontierSweep
from models.search.result import ShouldContinue
from models.spec.constraints import Constraints
from models.spec.hardware import Cluster
from models.spec.problem import Problem
from models.spec.profile import Profile

_FARTHEST = 16.0  # times as much, or as little, at most
_DOUBLINGS = ((1.0, 2.0), (2.0, 4.0), (4.0, 8.0), (8.0, _FARTHEST))
_STEPS = [step for a, b in _DOUBLINGS for step in ((a, b), (1 / a, 1 / b))]
"""Factors on the present value, as pairs of neighbours that are tried: the nearest first, up and
down in turn."""
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
    """Return a threshold for every axis that the fabric has. Empty where it is unknown whether a
    pipeline is needed as things are. Layouts that need as much memory as `oom_gib`, with which a
    run like these ran out, are left out."""
    sweep = FrontierSweep(problem, profile, constraints, should_continue, oom_gib)
    here = sweep.point({})
    if not here.is_answered:
        return []
    above = not here.is_simple(tolerance)
    cluster = problem.cluster
    found = []
    gb_s = _bandwidths(cluster)
    for axis, scale in (("scale_up", "up"), ("scale_out", "out")):
        if scale in gb_s:
            found.append(
                _ThresholdSearch(sweep, tolerance, above, axis, gb_s[scale]).along_bandwidths()
            )
    if cluster.fabric.domain is not None:
        chips = cluster.scale_up_domain_chips
        found.append(_ThresholdSearch(sweep, tolerance, above, "domain", chips).along_domains())
    return found


def _bandwidths(cluster: Cluster) -> dict[str, float]:
    """Return the GB/s of a chip by the scale of links: "up" within scale-up domains, "out" between
    them, of each the innermost links. For a torus, "up" is that of one link."""
    devices = cluster.chip.devices_per_chip
    # Dims are in order from the innermost; read backwards, the innermost of a scale overwrites.
    gb_s: dict[str, float] = {dim.scale: dim.gb_s * devices for dim in reversed(cluster.dims)}
    torus = cluster.fabric.torus
    if torus and "up" in gb_s:
        gb_s["up"] = torus.gb_s_per_link  # instead of the links within a package
    return gb_s


@dataclass(frozen=True, slots=True)
class _ThresholdSearch:
    """Searches along one axis, from its present `value`, for the place where the need of a pipeline
    changes. `is_above` says whether a pipeline is worth more than the tolerance at `value`."""

    sweep: FrontierSweep
    tolerance: float
    is_above: bool
    axis: str
    value: float

    def along_bandwidths(self) -> Threshold:
        """Try factors on the bandwidth, the nearest first, and bisect between the last two. Return
        the threshold."""
        for holds, changes in _STEPS:
            changed = self._is_changed_at(changes)
            if changed is None:
                return self._threshold(self.value, None, exact=False)
            if changed:
                return self._bisect(holds, changes)
        return self._threshold(self.value, None, exact=True)

    def _bisect(self, holds: float, changes: float) -> Threshold:
        """Return the threshold between a factor at which the verdict holds and one at which it
        changes, by bisection of their logarithms."""
        exact = True
        while max(holds / changes, changes / holds) > _CLOSE:
            middle = (holds * changes) ** 0.5
            changed = self._is_changed_at(middle)
            if changed is None:
                exact = False
                break
            if changed:
                changes = middle
            else:
                holds = middle
        return self._threshold(holds * self.value, changes * self.value, exact=exact)

    def along_domains(self) -> Threshold:
        """Try domains twice, four times and so on as large, then a half, a quarter and so on, until
        the need of a pipeline changes. Return the threshold."""
        largest = min(self.sweep.problem.cluster.num_chips, self.value * _FARTHEST)
        least = max(self.value / _FARTHEST, 1)
        for factor in (2.0, 0.5):
            holds = self.value
            size = int(holds * factor)
            while least <= size <= largest:
                changed = self._is_changed_at(size)
                if changed is None:
                    return self._threshold(self.value, None, exact=False)
                if changed:
                    return self._threshold(holds, size, exact=True)
                holds = size
                size = int(size * factor)
        return self._threshold(self.value, None, exact=True)

    def _is_changed_at(self, place: float) -> bool | None:
        """Return whether the need of a pipeline differs at a value of the axis from that at
        present; None where time ran out before that was known."""
        if not self.sweep.should_continue():
            return None
        simple, proved = self.sweep.is_simple({self.axis: place}, self.tolerance)
        return simple == self.is_above if proved else None

    def _threshold(self, holds_at: float, changes_at: float | None, *, exact: bool) -> Threshold:
        """Return the threshold of this axis: the verdict holds at `holds_at` and changes at
        `changes_at`, which is None if it never does."""
        return Threshold(
            axis=self.axis,
            is_above=self.is_above,
            value=self.value,
            holds_at=holds_at,
            changes_at=changes_at,
            exact=exact,
        )
