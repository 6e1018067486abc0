"""Fewer chips than there are: where no layout uses all of them, and where some stand in the way.

A number of chips with few ways to divide it (a prime, ten thousand with a batch that does not share
its factors) has no layout, or only poor ones. Products of the degrees that each axis may have say
which smaller numbers have layouts, and in how many ways. Experts may divide 64 chips of a scale-up
domain, and 72 badly. None of this says that a number is the fastest: what is answered is the
fastest of those tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice

import numpy as np

from models.columns import Array
from models.errors import Infeasible, Invalid, TooLarge
from models.layouts.factors import divisors
from models.layouts.rules import BY_NAME
from models.layouts.space import Space, default_layouts
from models.search.branch_and_bound import search, search_on
from models.search.infeasibility import blame, contradiction, in_the_way, none_uses_all
from models.search.result import Answer, Goal, NothingFaster, ShouldContinue
from models.search.tables import NoLegalLayout
from models.spec.constraints import Constraints
from models.spec.hardware import Cluster
from models.spec.layout import Layouts
from models.spec.problem import Problem
from models.spec.profile import Profile

_TRIED = 12  # numbers of chips, where no layout uses all
_LOOKED_AT = 6  # where some does, numbers that may be faster
_AT_LEAST = 6  # where any is worth a try, of more than FEW devices and up to _SEVERAL
_SEVERAL = 512
FEW = 64
"""Devices of which every number is worth a try, for searches are short, if any is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FewerChips:
    """Why no layout uses all chips, and how many the answer uses."""

    rule: str
    message: str
    num_chips: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FasterOnFewer:
    """Fewer chips than the answer uses, on which a step takes less."""

    num_chips: int
    step_time_s: float


def search_all_or_fewer(
    space: Space,
    profile: Profile,
    goal: Goal,
    should_continue: ShouldContinue,
    known: Layouts | None = None,
) -> tuple[Space, Answer, FewerChips | None]:
    """The answer on all chips, of which some layouts may be `known`, or on fewer where no layout
    uses all."""
    try:
        return space, search(space, profile, goal, should_continue, known), None
    except NoLegalLayout:
        return _on_fewer(space, profile, goal, should_continue)


def _on_fewer(
    space: Space, profile: Profile, goal: Goal, should_continue: ShouldContinue
) -> tuple[Space, Answer, FewerChips]:
    """The fastest answer of those tried; not exact where time ran out before all were.

    Constraints that no layout on all chips can meet, where there are others, are refused instead,
    saying on how many of the chips one can: fewer than asked for would hide the mistake, and might
    be faster than the best on all.
    """
    problem, constraints = space.problem, space.constraints
    ways = legal_counts(problem, constraints)
    if error := in_the_way(space):
        fewer = next(worth_a_try(space, ways), None)
        raise (
            error.with_detail(f"{fewer.problem.cluster.num_chips} of the chips have one")
            if fewer
            else error
        )
    rule, message = blame(problem)
    tried = _promising(_tried(space, ways, _TRIED), ways)
    best, failure, tried_all = fastest_space(tried, profile, goal, should_continue)
    if best is None:
        raise failure or _why_none(problem, constraints, message) or Infeasible(rule, message)
    smaller, answer = best.space, best.answer
    if best.goal != goal:
        known = answer.layouts.take(np.array(answer.ranked[:1]))
        answer = search_on(answer.ground, goal, should_continue, known)
    used = smaller.problem.cluster.num_chips
    text = f"{none_uses_all(problem, message)}; the answer uses {used}"
    if not tried_all:
        text += ", and time ran out before every other number that promises as much was tried"
        answer = answer.inexact(problem.step_time_at_peak_s)
    return smaller, answer, FewerChips(rule=rule, message=text, num_chips=used)


def _promising(spaces: Iterable[Space], ways: Mapping[int, int]) -> list[Space]:
    """What probably is the fastest first: the others are then looked through quickly."""

    def promised(space: Space) -> float:
        devices = space.problem.cluster.num_devices
        return promise(devices, ways.get(devices, 0))

    return sorted(spaces, key=promised, reverse=True)


def promise(devices: int, ways: int) -> float:
    """Many chips help, and so do many ways to divide them, ever less."""
    return devices * math.log1p(ways)


def _why_none(problem: Problem, constraints: Constraints, message: str) -> Infeasible | None:
    """Where fewer chips have layouts, but none that the constraints allow; `message`: why not all
    chips."""
    if not constraints.allowed:
        return None
    free = Constraints()
    unconstrained = next(worth_a_try(Space(problem, free), legal_counts(problem, free)), None)
    if unconstrained is None:
        return None
    error = contradiction(unconstrained.problem, constraints)
    return error.with_preface(f"{none_uses_all(problem, message)}, and of fewer")


def faster_with_fewer(
    space: Space, profile: Profile, seconds: float, should_continue: ShouldContinue
) -> tuple[FasterOnFewer | None, bool]:
    """A smaller number of chips, with more ways to divide it, on which a step takes less than
    `seconds`; and whether there was time for all that are worth a try."""
    best, tried_all = best_with_fewer(space, profile, seconds, should_continue)
    if best is None:
        return None, tried_all
    chips = best.space.problem.cluster.num_chips
    return FasterOnFewer(num_chips=chips, step_time_s=best.step_time_s), tried_all


def best_with_fewer(
    space: Space, profile: Profile, seconds: float, should_continue: ShouldContinue
) -> tuple[Best | None, bool]:
    """The answer on that number of chips, and whether there was time."""
    ways, devices = (
        legal_counts(space.problem, space.constraints),
        space.problem.cluster.num_devices,
    )
    half = {count: many for count, many in ways.items() if devices <= 2 * count < 2 * devices}
    of_domains = map(space.on, _of_domains(space.problem))
    most = _LOOKED_AT if devices > FEW else _TRIED
    rest = _tried(space, half, most, more_than=ways.get(devices, 0))
    tried = {one.problem.cluster.num_devices: one for one in chain(of_domains, rest)}
    best, _, tried_all = fastest_space(
        _promising(tried.values(), ways), profile, Goal(faster_than=seconds), should_continue
    )
    return best, tried_all


@dataclass(frozen=True, slots=True)
class Best:
    """The answer on the space with the fastest step, and the goal that it was searched for."""

    space: Space
    answer: Answer
    goal: Goal

    @property
    def step_time_s(self) -> float:
        return float(self.answer.times[0])


def fastest_space(
    spaces: Iterable[Space], profile: Profile, goal: Goal, should_continue: ShouldContinue
) -> tuple[Best | None, Infeasible | None, bool]:
    """The best of some spaces, why the first that has layouts has none that fits, and whether there
    was time for all. They are searched for the goal until there is an answer, then only for what is
    faster than the best; one too large for a search is left out."""
    best, failure, in_time = None, None, True
    for space in spaces:
        in_time = should_continue()
        if (best or np.isfinite(goal.faster_than)) and not in_time:
            break
        wanted = Goal(faster_than=best.step_time_s) if best else goal
        try:
            best = Best(space, search(space, profile, wanted, should_continue), wanted)
        except (NoLegalLayout, NothingFaster, TooLarge):
            pass
        except Infeasible as error:
            failure = failure or error
        in_time = should_continue()
    return best, failure, in_time


def worth_a_try(whole: Space, ways: Mapping[int, int], *, more_than: int = 0) -> Iterator[Space]:
    """Of some `ways` to divide numbers of devices (legal_counts), those of whole chips that have
    layouts and more ways than all larger ones, and than so many; from the largest down. Of few
    devices all, where one has more than so many.
    """
    cluster = whole.problem.cluster
    every = cluster.num_devices <= FEW and max(ways.values(), default=0) > more_than
    for count in sorted(ways, reverse=True):
        if count % cluster.chip.devices_per_chip or not (every or ways[count] > more_than):
            continue
        for space in map(whole.on, _within(cluster, np.array([count]))):
            if space.has_legal():
                more_than = ways[count]
                yield space


def _tried(whole: Space, ways: Mapping[int, int], most: int, *, more_than: int = 0) -> list[Space]:
    """The first that are worth a try, and of several devices, where these are little but not
    nothing, what promises most beside them: 224 are fewer than 240 and divide in fewer ways, but
    may divide into the stages that suit a model.
    """
    spaces, cluster = (
        list(islice(worth_a_try(whole, ways, more_than=more_than), most)),
        whole.problem.cluster,
    )
    if not (FEW < cluster.num_devices <= _SEVERAL and 0 < len(spaces) < _AT_LEAST):
        return spaces
    known = {cluster.num_devices} | {space.problem.cluster.num_devices for space in spaces}
    others = sorted(
        ways.keys() - known, key=lambda count: promise(count, ways[count]), reverse=True
    )
    smaller = map(whole.on, _within(cluster, np.array(others, dtype=np.int64)))
    return [
        *spaces,
        *islice((space for space in smaller if space.has_legal()), _AT_LEAST - len(spaces)),
    ]


def built(cluster: Cluster, counts: Array) -> Iterator[Cluster]:
    """The same with so many devices, where chips and slices allow it: of slices of a given shape
    whole ones."""
    per_chip = cluster.chip.devices_per_chip
    for count in counts[counts % (per_chip * math.prod(cluster.torus_shape or ())) == 0].tolist():
        try:
            smaller = replace(
                cluster.with_num_chips(count // per_chip), torus_shape=cluster.torus_shape
            )
            _ = smaller.dims
        except Invalid:
            continue
        yield smaller


def _within(cluster: Cluster, counts: Array) -> Iterator[Cluster]:
    """Those of its own chips: in no more scale-up domains than there are."""
    return (smaller for smaller in built(cluster, counts) if _domains(smaller) <= _domains(cluster))


def _domains(cluster: Cluster) -> int:
    """How many it has, or has some of; none where it is a torus."""
    return 0 if cluster.fabric.torus else -(-cluster.num_devices // cluster.scale_up_domain)


def with_chips(problem: Problem, chips: int) -> Problem:
    """The same on so many of its chips."""
    (cluster,) = built(problem.cluster, np.array([chips * problem.cluster.chip.devices_per_chip]))
    return replace(problem, cluster=cluster)


def _of_domains(problem: Problem) -> list[Cluster]:
    """Where chips stand outside whole scale-up domains, those within; and where experts divide a
    domain by powers of two only, of whole ones the largest power of two: of 72 chips 64."""
    cluster = problem.cluster
    if not cluster.dims or cluster.dims[0].kind == "ring":
        return []
    domain = max(cluster.dims[0].domain, 1)
    domains, outside = divmod(cluster.num_devices, domain)
    parts = [domain] if outside else []
    shared = {
        math.gcd(kind.moe.num_experts, domain) for kind in problem.architecture.kinds if kind.moe
    }
    if (
        shared
        and cluster.chips_per_domain is None
        and all(ranks & (ranks - 1) == 0 for ranks in shared)
    ):
        parts.append(1 << (domain.bit_length() - 1))
    counts = {domains * part for part in parts} - {0, cluster.num_devices}
    return list(_within(cluster, np.array(sorted(counts, reverse=True), dtype=np.int64)))


def legal_counts(problem: Problem, constraints: Constraints) -> dict[int, int]:
    """Numbers of devices up to the cluster's, in order, and how many products of degrees each
    is."""
    most, allowed = problem.cluster.num_devices, constraints.allowed
    counts, ways = np.ones(1, dtype=np.int64), np.ones(1, dtype=np.int64)
    for axis, degrees in _degrees(problem).items():
        degrees = degrees[np.isin(degrees, allowed[axis])] if axis in allowed else degrees
        products = np.multiply.outer(counts, degrees)
        fits = products <= most
        counts, code = np.unique(products[fits], return_inverse=True)
        ways = np.bincount(
            code, np.broadcast_to(ways[:, None], fits.shape)[fits], len(counts)
        ).astype(np.int64)
    return dict(zip(counts.tolist(), ways.tolist(), strict=True))


def _degrees(problem: Problem) -> dict[str, Array]:
    """What each axis may have by itself."""
    stack, layers = problem.stack, problem.architecture.num_layers
    tp, cp, pp = (np.arange(1, most + 1) for most in (stack.max_tp, stack.max_cp, layers))
    for rule in ("tensor_divides_heads", "tensor_divides_widths", "whole_blocks"):
        tp = tp[_obeyed(problem, rule, "tp", tp)]
    for rule in ("sequence_divides", "context_divides_heads"):
        cp = cp[_obeyed(problem, rule, "cp", cp)]
    if stack.partition == "even":
        pp = pp[layers % pp == 0]
    return {"tp": tp, "cp": cp, "pp": pp, "dp": np.array(divisors(problem.workload.global_batch))}


def _obeyed(problem: Problem, rule: str, axis: str, degrees: Array) -> Array:
    rows = default_layouts(len(degrees)).with_columns(**{axis: degrees})
    return np.asarray(BY_NAME[rule].test(problem, rows), dtype=bool)
