"""Divisibility may be the only reason for a pipeline, where neither bandwidth nor memory asks for
one: 96 chips divide a batch of 128 by 32 only. A number of chips or a batch nearby that needs none,
a *lift*, shows it."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from models.advice.chip_counts import clusters_with_devices
from models.advice.factorizations import factorizations_by_devices
from models.errors import Invalid, TooLarge
from models.layouts.space import Space
from models.search.enumeration import finds_any, search_on
from models.search.result import Goal, NothingFaster, ShouldContinue
from models.search.tables import NoLegalLayout, SearchTables
from models.spec.constraints import Constraints
from models.spec.problem import Problem
from models.spec.profile import Profile

_NEAR = 1 / 8  # of the chips or the batch: a neighbour is no farther away
_LONGEST_S = sys.float_info.max / 4  # more than any layout takes, and finite times 1 + tolerance
# A layout nearby is guessed to take so many times the time with a pipeline, in proportion to work.
# With 1.05 the guess was wrong more often.
_LIKELY = 1.2
_SHARES = (1, 2, 4, 8)  # of the devices: multiples of these parts are tried as batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Lift:
    """A value of a `field` of the question with which no pipeline is needed any more."""

    field: str
    value: int


def nearest_lifts(
    space: Space,
    profile: Profile,
    tolerance: float,
    pipeline_s: float,
    should_continue: ShouldContinue,
) -> tuple[Lift, ...]:
    """Return the nearest number of chips and the nearest global batch, within an eighth of the
    question's own, with which no pipeline is needed. Only values that divide in more ways without a
    pipeline are tried. Either is left out where there is none, or no time to find it. `pipeline_s`
    is the step time of the best layout with a pipeline; infinite where none without one fits."""
    # Constraints that ask for a pipeline allow no layout without one anywhere.
    if 1 not in space.constraints.allowed.get("pp", (1,)):
        return ()
    ways = _ways_without_pipeline(space.problem, space.constraints)
    ways_here = ways.get(space.problem.cluster.num_devices, 0)
    found = []
    for neighbours in (_chip_neighbours(space, ways_here), _batch_neighbours(space, ways_here)):
        for lift, neighbour in neighbours:
            if not should_continue():
                break
            # A step takes time roughly in proportion to the batch of a device. _LIKELY (1.2) leaves
            # room above that: a guess that is too short costs a second search.
            there, here = _batch_per_device(neighbour.problem), _batch_per_device(space.problem)
            guess_s = _LIKELY * pipeline_s * there / here
            if _needs_no_pipeline(neighbour, profile, tolerance, guess_s, should_continue):
                found.append(lift)
                break
    return tuple(found)


def _chip_neighbours(space: Space, ways_here: int) -> Iterator[tuple[Lift, Space]]:
    """Yield the number of chips below and the number above that divide in most ways, with their
    spaces, if those ways are more than `ways_here`, the ways of the question's own number."""
    problem = space.problem
    devices = problem.cluster.num_devices
    most = int(devices * (1 + _NEAR))
    chips = most // problem.cluster.chip.devices_per_chip
    try:
        larger = replace(problem, cluster=problem.cluster.with_num_chips(chips))
    except Invalid:  # the fabric joins no more chips: there are smaller neighbours alone
        larger = problem
    # Ways are counted up to all devices of a cluster: the larger one covers both sides.
    ways = _ways_without_pipeline(larger, space.constraints)
    least = math.ceil(devices * (1 - _NEAR))
    for side in (range(least, devices), range(devices + 1, most + 1)):
        better = [count for count in side if ways.get(count, 0) > ways_here]
        better.sort(key=lambda count: (-ways[count], abs(count - devices)))
        for cluster in clusters_with_devices(problem.cluster, better[:1]):
            lift = Lift(field="cluster.num_chips", value=cluster.num_chips)
            yield lift, space.on_cluster(cluster)


def _batch_neighbours(space: Space, ways_here: int) -> Iterator[tuple[Lift, Space]]:
    """Yield nearby batches that divide in more than `ways_here` ways, the ways of the question's
    own batch, with their spaces. Batches that all devices divide come first, then those that a half
    divides, a quarter, an eighth."""
    problem = space.problem
    devices = problem.cluster.num_devices
    batch = problem.workload.global_batch
    for value in _batches_nearby(batch, devices):
        other = replace(problem, workload=replace(problem.workload, global_batch=value))
        if _ways_without_pipeline(other, space.constraints).get(devices, 0) > ways_here:
            lift = Lift(field="workload.global_batch", value=value)
            yield lift, Space(other, space.constraints)


def _batches_nearby(batch: int, devices: int) -> list[int]:
    """Return the batches to try, within _NEAR of `batch`. Multiples of all devices come first: they
    divide over any number of ranks. Then come multiples of a half, a quarter and an eighth of the
    devices, each time the nearest first."""
    values: dict[int, None] = {}
    for share in _SHARES:
        unit = max(devices // share, 1)
        lower = batch // unit * unit
        values |= dict.fromkeys(sorted((lower, lower + unit), key=lambda value: abs(value - batch)))
    return [value for value in values if value > 0 and abs(value - batch) <= batch * _NEAR]


def _batch_per_device(problem: Problem) -> float:
    """Return the sequences of each device in a step, to which step times are roughly
    proportional."""
    return problem.workload.global_batch / problem.cluster.num_devices


def _ways_without_pipeline(problem: Problem, constraints: Constraints) -> Mapping[int, int]:
    """Return the number of ways to divide each number of devices without a pipeline."""
    return factorizations_by_devices(problem, _without_pipeline(constraints))


def _without_pipeline(constraints: Constraints) -> Constraints:
    return replace(constraints, allowed={**constraints.allowed, "pp": (1,)})


def _needs_no_pipeline(
    space: Space,
    profile: Profile,
    tolerance: float,
    guess_s: float,
    should_continue: ShouldContinue,
) -> bool:
    """Return whether the best layout without a pipeline is within the tolerance of the best with
    one; False where that is not known. `guess_s` is about the step time of the best with one.
    Both sides are searched within this guess first, since a tight limit ends searches early. If
    nothing is that fast, they are searched once more without a limit."""
    without_pipeline = Space(space.problem, _without_pipeline(space.constraints))
    try:
        tables_without = SearchTables(without_pipeline, profile)
        for limit_s in dict.fromkeys((min(guess_s, _LONGEST_S), _LONGEST_S)):
            without_s = _fastest_s(tables_without, limit_s * (1 + tolerance), should_continue)
            if math.isinf(without_s) and limit_s == _LONGEST_S:
                break
            # Look for any layout with a pipeline that is so fast that a pipeline is needed. The
            # first limit is for layouts without one: no step is that short, so none is searched.
            limits = np.array([-math.inf, min(without_s / (1 + tolerance), limit_s)])
            needs_pipeline = finds_any(SearchTables(space, profile), limits, should_continue)
            # True or None (time ran out) answers, and so does any layout without a pipeline. Where
            # neither side has a layout within the guess, both are tried again without it.
            if needs_pipeline is not False or without_s < math.inf:
                return needs_pipeline is False
    except (NoLegalLayout, Invalid, TooLarge):
        pass
    return False


def _fastest_s(tables: SearchTables, limit_s: float, should_continue: ShouldContinue) -> float:
    """Return the shortest step time below `limit_s`; infinite where no layout is so fast."""
    try:
        return float(search_on(tables, Goal(faster_than=limit_s), should_continue).times[0])
    except NothingFaster:
        return math.inf
