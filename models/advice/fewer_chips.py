"""Fewer chips than there are may be the answer: where no layout uses all of them, and where some
stand in the way.

A number of chips with few ways to divide it (a prime, or ten thousand with a batch that does not
share its factors) has no layout, or only poor ones. The products of the degrees that each axis may
have tell which smaller numbers have layouts, and in how many ways. Whole scale-up domains are tried
too, and parts of them: experts may divide 64 chips of a domain, and 72 badly. None of this says
which number is the fastest. The answer is the fastest of those that were tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from models.advice.reason import Reason
from models.columns import Array
from models.errors import Infeasible, Invalid, TooLarge
from models.layouts.factors import divisors
from models.layouts.rules import RULES_BY_NAME
from models.layouts.space import Space, default_layouts
from models.prediction.term_words import rounded
from models.search.enumeration import search, search_on
from models.search.infeasibility import (
    blame,
    contradiction,
    in_the_way,
    none_legal,
    none_uses_all,
)
from models.search.result import Goal, NothingFaster, SearchAnswer, ShouldContinue
from models.search.tables import NoLegalLayout
from models.spec.constraints import Constraints
from models.spec.hardware import Cluster
from models.spec.layout import Layouts
from models.spec.problem import Problem
from models.spec.profile import Profile

_MAX_TRIED = 12  # numbers of chips, where no layout uses all; it bounds the number of searches
_MAX_TRIED_FASTER = 6  # numbers that may be faster, where some layout uses all
# Numbers of chips that are tried of more than FEW_DEVICES up to _SEVERAL_DEVICES, where any is
# promising. With fewer, 224 of 250 GB200 were missed; beyond _SEVERAL_DEVICES they took up to twice
# as long (docs/lab/number-of-chips.md).
_LEAST_TRIED = 6
_SEVERAL_DEVICES = 512
FEW_DEVICES = 64
"""The largest number of devices for which searches are short. Up to it every smaller number is
tried, if any is promising: records of divisibility alone missed the fastest by up to 14%."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FewerChips:
    """The reason why an answer uses only `num_chips` of the chips. Either the `rule` leaves no
    layout on all of them, or a step takes less than the `all_chips_s` seconds that it takes on
    all."""

    message: str
    num_chips: int
    rule: str | None = None
    all_chips_s: float | None = None

    @property
    def reason(self) -> Reason:
        """The message, with its figures."""
        figures = {
            "num_chips": self.num_chips,
            "rule": self.rule,
            "all_chips_s": self.all_chips_s,
        }
        return Reason("fewer_chips", self.message, figures)

    @classmethod
    def that_are_faster(
        cls, num_chips: int, of_chips: int, step_time_s: float, all_chips_s: float
    ) -> FewerChips:
        message = (
            f"{of_chips - num_chips} of the {of_chips} chips are left out, since a step takes"
            f" {rounded(step_time_s)} s on {num_chips} and {rounded(all_chips_s)} s on all of them."
            " constraints.use_all_chips = true asks for all."
        )
        return cls(message=message, num_chips=num_chips, all_chips_s=all_chips_s)


@dataclass(frozen=True, slots=True)
class FastestAnswer:
    """The answer with the fastest step among several spaces, with its space and the goal that it
    was searched for."""

    space: Space
    answer: SearchAnswer
    goal: Goal

    @property
    def step_time_s(self) -> float:
        return float(self.answer.times[0])

    def answer_to(self, goal: Goal, should_continue: ShouldContinue) -> SearchAnswer:
        """Return the answer to another goal on the same space. The space is searched again unless
        the goal is the same."""
        if goal == self.goal:
            return self.answer
        known = self.answer.layouts.take(np.array(self.answer.ranked[:1]))
        return search_on(self.answer.tables, goal, should_continue, known)


def search_all_and_fewer(
    space: Space, profile: Profile, goal: Goal, should_continue: ShouldContinue
) -> tuple[Space, SearchAnswer, float | None]:
    """Return the space and the answer on all chips, or on fewer where no layout uses all or fewer
    are faster. The third value is the step time with all chips where fewer are faster, and None
    elsewhere, or where all are not as fast as the goal asks. Raise NothingFaster where no number of
    chips is."""
    best: tuple[Space, SearchAnswer] | None = None
    all_chips_s = None
    try:
        used, answer, fewer_chips = search_all_or_fewer(space, profile, goal, should_continue)
        if fewer_chips:
            return used, answer, None
        best = used, answer
        all_chips_s = float(answer.times[0])
    except NothingFaster:
        pass
    limit_s = goal.faster_than if all_chips_s is None else all_chips_s
    faster, tried_fewer = fastest_on_fewer(space, profile, limit_s, should_continue)
    if faster is None:
        all_chips_s = None
    else:
        best = faster.space, faster.answer
    if best is None:
        raise NothingFaster
    used, answer = best
    if not tried_fewer:
        answer = answer.inexact(space.problem.step_time_at_peak_s)
    return used, answer, all_chips_s


# -- where no layout uses all chips
# --------------------------------------------------------------------------------------------------


def search_all_or_fewer(
    space: Space,
    profile: Profile,
    goal: Goal,
    should_continue: ShouldContinue,
    known: Layouts | None = None,
) -> tuple[Space, SearchAnswer, FewerChips | None]:
    """Return the space of the answer, the answer, and the reason for fewer chips. The space is that
    of all chips, of which some layouts may be `known`, or of fewer where no layout uses all. The
    reason is None for all chips. Raise Infeasible where no layout uses all though the constraints
    ask for that."""
    try:
        return space, search(space, profile, goal, should_continue, known), None
    except NoLegalLayout:
        if space.constraints.use_all_chips:
            raise none_legal(space) from None
        return _search_fewer(space, profile, goal, should_continue)


def _search_fewer(
    space: Space, profile: Profile, goal: Goal, should_continue: ShouldContinue
) -> tuple[Space, SearchAnswer, FewerChips]:
    """Return the fastest answer among the numbers of fewer chips that were tried. It is not exact
    where time ran out before all were.

    Constraints are refused instead where layouts exist and none on all chips can meet them. The
    error names a number of chips on which one can. An answer on fewer chips than asked for would
    hide the mistake, and might be faster than the best on all.
    """
    problem = space.problem
    factorizations = factorizations_by_devices(problem, space.constraints)
    if error := in_the_way(space):
        fewer = next(_promising_spaces(space, factorizations), None)
        if fewer is None:
            raise error
        raise error.with_detail(f"{fewer.problem.cluster.num_chips} of the chips have one")
    rule, message = blame(problem)
    tried = _spaces_to_try(space, factorizations, _MAX_TRIED)
    best, failure, tried_all = fastest_space(
        _most_promising_first(tried, factorizations), profile, goal, should_continue
    )
    if best is None:
        conflict = _contradiction_on_fewer(problem, space.constraints, message)
        raise failure or conflict or Infeasible(rule, message)
    answer = best.answer_to(goal, should_continue)
    used = best.space.problem.cluster.num_chips
    text = f"{none_uses_all(problem, message)}; the answer uses {used}."
    if not tried_all:
        text += " Time ran out before every other number that promises as much was tried."
        answer = answer.inexact(problem.step_time_at_peak_s)
    return best.space, answer, FewerChips(rule=rule, message=text, num_chips=used)


def _contradiction_on_fewer(
    problem: Problem, constraints: Constraints, message: str
) -> Infeasible | None:
    """Return the constraint that is contradicted on fewer chips, where those have layouts but none
    that the constraints allow; None otherwise. `message` says why no layout uses all chips."""
    if not constraints.allowed:
        return None
    free = Constraints()
    factorizations = factorizations_by_devices(problem, free)
    unconstrained = next(_promising_spaces(Space(problem, free), factorizations), None)
    if unconstrained is None:
        return None
    error = contradiction(unconstrained.problem, constraints)
    return error.with_preface(f"{none_uses_all(problem, message)}, and of fewer")


# -- where fewer chips may be faster
# --------------------------------------------------------------------------------------------------


def fastest_on_fewer(
    space: Space, profile: Profile, seconds: float, should_continue: ShouldContinue
) -> tuple[FastestAnswer | None, bool]:
    """Return the fastest answer on fewer chips, and whether there was time for all numbers that are
    worth a try. The answer is None where no step on fewer chips takes less than `seconds`. No
    number is worth a try where the constraints ask for all chips. At least half of the devices are
    used, unless whole scale-up domains are fewer."""
    if space.constraints.use_all_chips:
        return None, True
    devices = space.problem.cluster.num_devices
    factorizations = factorizations_by_devices(space.problem, space.constraints)
    upper_half = {
        count: ways for count, ways in factorizations.items() if devices <= 2 * count < 2 * devices
    }
    most = _MAX_TRIED_FASTER if devices > FEW_DEVICES else _MAX_TRIED
    better_divided = _spaces_to_try(
        space, upper_half, most, more_than=factorizations.get(devices, 0)
    )
    whole_domains = [space.on_cluster(cluster) for cluster in _whole_domains(space.problem)]
    by_devices = {
        tried.problem.cluster.num_devices: tried for tried in (*whole_domains, *better_divided)
    }
    best, _, tried_all = fastest_space(
        _most_promising_first(by_devices.values(), factorizations),
        profile,
        Goal(faster_than=seconds),
        should_continue,
    )
    return best, tried_all


def fastest_space(
    spaces: Iterable[Space], profile: Profile, goal: Goal, should_continue: ShouldContinue
) -> tuple[FastestAnswer | None, Infeasible | None, bool]:
    """Return the fastest answer among some spaces, the failure of the first that has layouts but
    none that fits, and whether there was time for all spaces.

    The spaces are searched for the goal until there is an answer, and then only for layouts that
    are faster than the best so far. A space that is too large for a search is left out.
    """
    best = None
    failure = None
    in_time = True
    for space in spaces:
        in_time = should_continue()
        has_fallback = best is not None or np.isfinite(goal.faster_than)
        if has_fallback and not in_time:
            break
        improved_goal = Goal(faster_than=best.step_time_s) if best else goal
        try:
            answer = search(space, profile, improved_goal, should_continue)
            best = FastestAnswer(space, answer, improved_goal)
        except (NoLegalLayout, NothingFaster, TooLarge):
            pass
        except Infeasible as error:
            failure = failure or error
        in_time = should_continue()
    return best, failure, in_time


# -- which numbers of chips are tried
# --------------------------------------------------------------------------------------------------


def _most_promising_first(
    spaces: Iterable[Space], factorizations: Mapping[int, int]
) -> list[Space]:
    """Return the spaces in an order in which the fastest probably comes first, because the others
    are then searched quickly."""

    def promise_of_space(space: Space) -> float:
        devices = space.problem.cluster.num_devices
        return promise_score(devices, factorizations.get(devices, 0))

    return sorted(spaces, key=promise_of_space, reverse=True)


def promise_score(devices: int, ways: int) -> float:
    """Return a score by which numbers of devices are tried. Many devices help, and so do many ways
    to divide them, but ever less."""
    return devices * math.log1p(ways)


def _promising_spaces(
    whole: Space, factorizations: Mapping[int, int], *, more_than: int = 0
) -> Iterator[Space]:
    """Yield spaces on fewer chips that have layouts, from the largest number down. A number must be
    divisible in more ways than all larger ones and than `more_than`. Of few devices every number
    with layouts is yielded, if any is divisible in more ways than `more_than`."""
    cluster = whole.problem.cluster
    most_ways = max(factorizations.values(), default=0)
    takes_every = cluster.num_devices <= FEW_DEVICES and most_ways > more_than
    for count in sorted(factorizations, reverse=True):
        if count % cluster.chip.devices_per_chip:
            continue
        if not takes_every and factorizations[count] <= more_than:
            continue
        for smaller in _clusters_within(cluster, np.array([count])):
            space = whole.on_cluster(smaller)
            if space.has_legal():
                more_than = factorizations[count]
                yield space


def _spaces_to_try(
    whole: Space, factorizations: Mapping[int, int], most: int, *, more_than: int = 0
) -> list[Space]:
    """Return the first promising spaces. Where these are too few, but not none, and there are not
    too many devices, add the most promising of the other numbers: 224 are fewer than 240 and divide
    in fewer ways, but may divide into the stages that suit a model."""
    cluster = whole.problem.cluster
    spaces = list(islice(_promising_spaces(whole, factorizations, more_than=more_than), most))
    is_of_several = FEW_DEVICES < cluster.num_devices <= _SEVERAL_DEVICES
    if not (is_of_several and 0 < len(spaces) < _LEAST_TRIED):
        return spaces
    known = {cluster.num_devices} | {space.problem.cluster.num_devices for space in spaces}
    others = sorted(
        factorizations.keys() - known,
        key=lambda count: promise_score(count, factorizations[count]),
        reverse=True,
    )
    for smaller in _clusters_within(cluster, np.array(others, dtype=np.int64)):
        space = whole.on_cluster(smaller)
        if space.has_legal():
            spaces.append(space)
        if len(spaces) == _LEAST_TRIED:
            break
    return spaces


def _whole_domains(problem: Problem) -> list[Cluster]:
    """Return clusters of whole scale-up domains, where some chips stand outside them. Where experts
    divide a domain by powers of two only, return also as many domains with the largest power of two
    in each: 64 chips of 72."""
    cluster = problem.cluster
    if not cluster.dims or cluster.dims[0].kind == "ring":
        return []
    domain = max(cluster.dims[0].domain, 1)
    domains, outside = divmod(cluster.num_devices, domain)
    devices_per_domain = [domain] if outside else []
    if cluster.chips_per_domain is None and _experts_want_power_of_two(problem, domain):
        devices_per_domain.append(1 << (domain.bit_length() - 1))
    counts = {domains * devices for devices in devices_per_domain} - {0, cluster.num_devices}
    return list(_clusters_within(cluster, np.array(sorted(counts, reverse=True), dtype=np.int64)))


def _experts_want_power_of_two(problem: Problem, domain: int) -> bool:
    """Say whether there are experts, and each kind divides a domain by powers of two only."""
    common = {
        math.gcd(kind.moe.num_experts, domain) for kind in problem.architecture.kinds if kind.moe
    }
    return bool(common) and all(ranks & (ranks - 1) == 0 for ranks in common)


# -- clusters of fewer chips
# --------------------------------------------------------------------------------------------------


def clusters_with_devices(cluster: Cluster, counts: Array) -> Iterator[Cluster]:
    """Yield the cluster with each of these numbers of devices that its chips and slices allow.
    Slices of a given shape stay whole."""
    per_chip = cluster.chip.devices_per_chip
    slice_chips = math.prod(cluster.torus_shape or ())
    for count in counts[counts % (per_chip * slice_chips) == 0].tolist():
        try:
            resized = replace(
                cluster.with_num_chips(count // per_chip), torus_shape=cluster.torus_shape
            )
            _ = resized.dims  # raises Invalid where no slice has so many chips
        except Invalid:
            continue
        yield resized


def _clusters_within(cluster: Cluster, counts: Array) -> Iterator[Cluster]:
    """Yield the clusters of clusters_with_devices that are a part of this cluster: they stand in no
    more scale-up domains than it does."""
    domains = _domain_count(cluster)
    for resized in clusters_with_devices(cluster, counts):
        if _domain_count(resized) <= domains:
            yield resized


def _domain_count(cluster: Cluster) -> int:
    """Return the number of scale-up domains that the chips stand in, whole or not; 0 for a
    torus."""
    return 0 if cluster.fabric.torus else -(-cluster.num_devices // cluster.scale_up_domain)


def problem_with_chips(problem: Problem, chips: int) -> Problem:
    """Return the problem on so many of its chips, which they must allow."""
    devices = chips * problem.cluster.chip.devices_per_chip
    (cluster,) = clusters_with_devices(problem.cluster, np.array([devices]))
    return replace(problem, cluster=cluster)


# -- in how many ways devices can be divided
# --------------------------------------------------------------------------------------------------


def factorizations_by_devices(problem: Problem, constraints: Constraints) -> dict[int, int]:
    """Return the numbers of devices that are products of degrees which each axis may have by
    itself, each with its number of such products. They are in ascending order, up to the cluster's
    devices."""
    most = problem.cluster.num_devices
    allowed = constraints.allowed
    counts = np.ones(1, dtype=np.int64)
    ways = np.ones(1, dtype=np.int64)
    for axis, degrees in _degrees_by_axis(problem).items():
        if axis in allowed:
            degrees = degrees[np.isin(degrees, allowed[axis])]
        products = np.multiply.outer(counts, degrees)
        fits = products <= most
        ways_of_products = np.broadcast_to(ways[:, None], fits.shape)[fits]
        ways_of_each = np.bincount(products[fits], ways_of_products).astype(np.int64)
        counts = np.flatnonzero(ways_of_each)
        ways = ways_of_each[counts]
    return dict(zip(counts.tolist(), ways.tolist(), strict=True))


def _degrees_by_axis(problem: Problem) -> dict[str, Array]:
    """Return the degrees that each axis may have by itself, in ascending order."""
    stack = problem.stack
    layers = problem.architecture.num_layers
    tp = np.arange(1, stack.max_tp + 1)
    for rule in ("tensor_divides_heads", "tensor_divides_widths", "whole_blocks"):
        tp = tp[_obeys_rule(problem, rule, "tp", tp)]
    cp = np.arange(1, stack.max_cp + 1)
    for rule in ("sequence_divides", "context_divides_heads"):
        cp = cp[_obeys_rule(problem, rule, "cp", cp)]
    pp = np.arange(1, layers + 1)
    if stack.partition == "even":
        pp = pp[layers % pp == 0]
    return {"tp": tp, "cp": cp, "pp": pp, "dp": np.array(divisors(problem.workload.global_batch))}


def _obeys_rule(problem: Problem, rule: str, axis: str, degrees: Array) -> Array:
    """Return a mask of the degrees of one axis that obey a rule where all other axes are 1; shape
    (n,)."""
    rows = default_layouts(len(degrees)).with_columns(**{axis: degrees})
    return np.asarray(RULES_BY_NAME[rule].test(problem, rows), dtype=bool)
