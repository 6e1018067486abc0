"""How much bandwidth, or how large a domain, would change whether a pipeline is needed; by
bisection."""

from __future__ import annotations

import math
from dataclasses import dataclass

from models.advice.sweep import FrontierSweep, Point
from models.search.result import ShouldContinue
from models.spec.constraints import Constraints
from models.spec.problem import Problem
from models.spec.profile import Profile

_FARTHEST = 16.0  # times as much, or as little
_DOUBLED = ((1.0, 2.0), (2.0, 4.0), (4.0, 8.0), (8.0, _FARTHEST))
_STEPS = [
    step for a, b in _DOUBLED for step in ((a, b), (1 / a, 1 / b))
]  # nearest first, each from the one before
_CLOSE = 1.1  # bisected until both sides are within this factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """`axis` (models.advice.frontier.AXES); `needed`: with things as they are, `value`, a pipeline
    is worth more than the tolerance. It is so up to `holds_at`, the last value before `changes_at`
    that was tried, and no longer there; None if no doubling up to 16 times as much or as little
    changes it, and `holds_at` is then `value`. Values are GB/s per chip, of a torus per link, or
    chips in a domain. What a pipeline is worth need not grow all the way: a change between two that
    were tried may be missed.
    """

    axis: str
    needed: bool
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
    failed_gib: float = math.inf,
) -> list[Threshold]:
    """For every axis that the fabric has; none where it is not known whether a pipeline is needed
    as things are. `failed_gib`: with which a run like these has run out of memory."""
    survey = FrontierSweep(problem, profile, constraints, should_continue, failed_gib)
    here = survey.point({})
    if not here.is_answered:
        return []
    cluster, found = problem.cluster, []
    rates = {dim.scale: dim.gb_s * cluster.chip.devices_per_chip for dim in reversed(cluster.dims)}
    if (torus := cluster.fabric.torus) and "up" in rates:
        rates["up"] = torus.gb_s_per_link  # not that of a package
    for axis, scale in (("scale_up", "up"), ("scale_out", "out")):
        if scale in rates:
            found.append(_Asked(survey, tolerance, axis, rates[scale]).threshold(here))
    if cluster.fabric.domain is not None:
        found.append(
            _Asked(survey, tolerance, "domain", cluster.scale_up_domain_chips).domains(here)
        )
    return found


@dataclass(frozen=True, slots=True)
class _Asked:
    survey: FrontierSweep
    tolerance: float
    axis: str
    value: float

    def threshold(self, here: Point) -> Threshold:
        needed = not here.is_simple(self.tolerance)
        for holds, changes in _STEPS:
            changed = self._changed(needed, changes)
            if changed is None:
                return self._found(needed, self.value, None, exact=False)
            if changed:
                return self._bisected(needed, holds, changes)
        return self._found(needed, self.value, None, exact=True)

    def _bisected(self, needed: bool, holds: float, changes: float) -> Threshold:
        while wide := max(holds / changes, changes / holds) > _CLOSE:
            middle = (holds * changes) ** 0.5
            changed = self._changed(needed, middle)
            if changed is None:
                break
            holds, changes = (holds, middle) if changed else (middle, changes)
        return self._found(needed, holds * self.value, changes * self.value, exact=not wide)

    def domains(self, here: Point) -> Threshold:
        """Domains twice, four times … as large, then half and a quarter, until one changes it."""
        needed = not here.is_simple(self.tolerance)
        largest = min(self.survey.problem.cluster.num_chips, self.value * _FARTHEST)
        least = max(self.value / _FARTHEST, 1)
        for factor in (2.0, 0.5):
            size = holds = self.value
            while least <= (size := int(size * factor)) <= largest:
                changed = self._changed(needed, size)
                if changed is None:
                    return self._found(needed, self.value, None, exact=False)
                if changed:
                    return self._found(needed, holds, size, exact=True)
                holds = size
        return self._found(needed, self.value, None, exact=True)

    def _changed(self, needed: bool, place: float) -> bool | None:
        """Whether what is `needed` here is not so there, or the other way round; None where time
        ran out before that was known."""
        if not self.survey.should_continue():
            return None
        simple, proved = self.survey.is_simple({self.axis: place}, self.tolerance)
        return simple == needed if proved else None

    def _found(
        self, needed: bool, holds_at: float, changes_at: float | None, *, exact: bool
    ) -> Threshold:
        return Threshold(
            axis=self.axis,
            needed=needed,
            value=self.value,
            holds_at=holds_at,
            changes_at=changes_at,
            exact=exact,
        )
