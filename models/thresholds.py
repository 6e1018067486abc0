"""How much bandwidth, or how large a domain, would change whether a pipeline is needed; by bisection."""

from __future__ import annotations

from dataclasses import dataclass

from models.constraints import Constraints
from models.frontier import Point, point
from models.problem import Problem
from models.profile import Profile
from models.search import GoOn

_FARTHEST = 16.0  # times as much, or as little
_CLOSE = 1.1  # bisected until both sides are within this factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """`axis` (models.frontier.AXES); `needed`: with things as they are, `value`, a pipeline is worth more than the
    tolerance. It is so up to `holds_at`, the last value that was tried, and no longer at `changes_at`; None if no value
    up to 16 times as much or as little changes it. Values are GB/s per chip, or chips in a domain."""

    axis: str
    needed: bool
    value: float
    holds_at: float
    changes_at: float | None
    exact: bool


def thresholds(
    problem: Problem, profile: Profile, constraints: Constraints, tolerance: float, go_on: GoOn
) -> list[Threshold]:
    """For every axis that the fabric has."""
    here = point(problem, profile, constraints, {}, go_on)
    if here.gap is None:
        return []
    cluster, found = problem.cluster, []
    rates = {dim.scale: dim.gb_s * cluster.chip.devices_per_chip for dim in reversed(cluster.dims)}
    for axis, scale in (("scale_up", "up"), ("scale_out", "out")):
        if scale in rates:
            ask = _Asked(problem, profile, constraints, tolerance, go_on, axis, rates[scale])
            found.append(ask.threshold(here))
    domain = cluster.scale_up_domain // cluster.chip.devices_per_chip
    if cluster.fabric.torus is None and cluster.fabric.levels[0].size is not None:
        found.append(_Asked(problem, profile, constraints, tolerance, go_on, "domain", domain).domains(here))
    return found


@dataclass(frozen=True, slots=True)
class _Asked:
    problem: Problem
    profile: Profile
    constraints: Constraints
    tolerance: float
    go_on: GoOn
    axis: str
    value: float

    def threshold(self, here: Point) -> Threshold:
        needed = not here.is_simple(self.tolerance)
        ends = [self._ask(factor, needed) for factor in (_FARTHEST, 1 / _FARTHEST)]
        exact = here.exact and all(found.exact for _, found, _ in ends)
        changed = [factor for factor, _, changes in ends if changes]
        if not changed:
            return Threshold(
                axis=self.axis, needed=needed, value=self.value, holds_at=self.value, changes_at=None, exact=exact
            )
        holds, changes = 1.0, changed[0]
        while max(holds / changes, changes / holds) > _CLOSE and self.go_on():
            middle = (holds * changes) ** 0.5
            _, found, differs = self._ask(middle, needed)
            exact = exact and found.exact
            holds, changes = (holds, middle) if differs else (middle, changes)
        return Threshold(
            axis=self.axis,
            needed=needed,
            value=self.value,
            holds_at=holds * self.value,
            changes_at=changes * self.value,
            exact=exact and max(holds / changes, changes / holds) <= _CLOSE,
        )

    def domains(self, here: Point) -> Threshold:
        """Domains twice, four times … as large, then half and a quarter, until one changes it."""
        needed, exact = not here.is_simple(self.tolerance), here.exact
        chips = self.problem.cluster.num_chips
        for factor in (2.0, 0.5):
            size = holds = self.value
            while self.go_on() and 1 <= (size := size * factor) <= min(chips, self.value * _FARTHEST):
                found = point(self.problem, self.profile, self.constraints, {self.axis: size}, self.go_on)
                exact = exact and found.exact
                if found.gap is not None and found.is_simple(self.tolerance) == needed:
                    return Threshold(
                        axis=self.axis, needed=needed, value=self.value, holds_at=holds, changes_at=size, exact=exact
                    )
                holds = size
        return Threshold(
            axis=self.axis,
            needed=needed,
            value=self.value,
            holds_at=self.value,
            changes_at=None,
            exact=exact and self.go_on(),
        )

    def _ask(self, factor: float, needed: bool) -> tuple[float, Point, bool]:
        found = point(self.problem, self.profile, self.constraints, {self.axis: factor}, self.go_on)
        return factor, found, found.gap is not None and found.is_simple(self.tolerance) == needed
