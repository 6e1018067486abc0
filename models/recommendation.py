"""The answer to "which layout?": the fastest, the simplest good one, what pipelining is worth, and why."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any

import numpy as np

from models.complexity import complexity_terms
from models.constraints import Constraints
from models.errors import Infeasible, Invalid
from models.factors import divisors
from models.hardware import Cluster
from models.layout import Layout, Layouts
from models.pareto import pareto_front, steps_of
from models.prediction import Prediction, describe, log_spreads
from models.problem import Problem
from models.profile import Profile
from models.rules import RULES
from models.search import Answer, Certificate, Goal, GoOn, NoLegalLayout, search, to_the_end
from models.space import POLICY_KNOBS, Space
from models.step import predict

Allowed = Mapping[str, tuple[Any, ...]]

_BUT_PLACEMENT = [rule for rule in RULES if rule.field != "layout.placement"]  # which the search decides last of all
_OF_A_MESH = ("layout", "layout.tp", "layout.ep", "layout.cp", "layout.micro_batch", "layout.sequence_parallel")
_AXES_FILLED = ("pp", "tp", "cp", "dp_replicate", "dp_shard")
_MESHES_LOOKED_AT = 20_000  # to name a rule, not to prove anything
_MOST_WEIGHED = 20_000  # of the fastest, for free memory
_FEWER_LOOKED_AT = 24
_FEWER_TRIED = 3  # of the largest legal chip counts below the cluster's, searched when none uses all chips


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A layout with its prediction and its place in the order of complexity (models.complexity)."""

    prediction: Prediction
    complexity: int
    complexity_terms: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FewerChips:
    """Why no layout uses all chips, and how many the answer uses."""

    rule: str
    message: str
    num_chips: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipelining:
    """The best layout without and with a pipeline. `gap` = time without / time with - 1; `split`: where the
    difference comes from, seconds by term of the step, without minus with."""

    without: Candidate | None
    with_pp: Candidate | None
    gap: float | None
    split: dict[str, float]
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """`problem` is the one answered: the question's, or with fewer chips where no layout uses all.

    `front`: layouts within the tolerance that no other beats in time, complexity and free memory (in steps of 5% of the
    usable) at once, fastest first. Of all layouts in time and complexity; in free memory of those that were evaluated.
    """

    problem: Problem
    fastest: Candidate
    simplest: Candidate
    ranked: tuple[Candidate, ...]
    front: tuple[Candidate, ...]
    certificate: Certificate
    reasons: tuple[str, ...]
    chips_used: int
    fewer_chips: FewerChips | None
    pipelining: Pipelining


def recommend(
    problem: Problem,
    profile: Profile,
    constraints: Constraints | None = None,
    *,
    tolerance: float = 0.03,
    top: int = 5,
    go_on: GoOn = to_the_end,
) -> Recommendation:
    """The fastest and the simplest good layout.

    `ranked` are the `top` fastest meshes within the tolerance, each with its best policy. Once `go_on` says no, the
    answer is the best so far, and its certificate not exact. Raises Infeasible when no
    layout is legal on any number of chips, or none fits in memory.
    """
    if not 0 <= tolerance <= 1:
        raise Invalid("tolerance", tolerance, "must be between 0 and 1")
    constraints = constraints or Constraints()
    goal = Goal(tolerance=tolerance, top=top, both_sides=True)
    fewer = None
    try:
        answer = search(problem, profile, constraints, goal, go_on)
    except NoLegalLayout as none:
        problem, answer, fewer = _on_fewer_chips(problem, profile, constraints, goal, none, go_on)
    sides = [row for row in (answer.without, answer.with_pp) if row is not None]
    front = _front(problem, profile, answer, tolerance)
    rows = list(dict.fromkeys([answer.simplest, *sides, *answer.ranked, *front]))
    chosen = dict(zip(rows, _candidates(problem, profile, answer.layouts, rows), strict=True))
    fastest, simplest = chosen[answer.ranked[0]], chosen[answer.simplest]
    pipelining = _pipelining(*(None if row is None else chosen[row] for row in (answer.without, answer.with_pp)))
    return Recommendation(
        problem=problem,
        fastest=fastest,
        simplest=simplest,
        ranked=tuple(chosen[row] for row in answer.ranked),
        front=tuple(chosen[row] for row in front),
        certificate=answer.certificate,
        reasons=(
            *_reasons(problem, fastest, simplest, tolerance, answer, pipelining, fewer),
            *_whole_domains(problem, profile, constraints, answer, go_on),
        ),
        chips_used=problem.cluster.num_chips,
        fewer_chips=fewer,
        pipelining=pipelining,
    )


def _front(problem: Problem, profile: Profile, answer: Answer, tolerance: float) -> list[int]:
    near = np.flatnonzero(answer.times <= answer.times[0] * (1 + tolerance))[:_MOST_WEIGHED]
    near = np.union1d(near, answer.front)
    predictions = predict(problem, answer.layouts.take(near), profile.coefficients(problem.scopes))
    usable = problem.cluster.usable_bytes
    free = steps_of(usable - predictions.reserved_bytes, usable)
    return [int(near[row]) for row in pareto_front(answer.times[near], answer.complexities[near], free)]


def _candidates(problem: Problem, profile: Profile, layouts: Layouts, rows: Sequence[int]) -> list[Candidate]:
    chosen = layouts.take(np.array(rows))
    predictions = predict(problem, chosen, profile.coefficients(problem.scopes))
    spread = log_spreads(problem, chosen, profile)
    terms = complexity_terms(problem, chosen)
    result = []
    for i in range(len(chosen)):
        points = {name: int(value[i]) for name, value in terms.items() if value[i]}
        prediction = describe(predictions, i, spread[i])
        result.append(Candidate(prediction=prediction, complexity=sum(points.values()), complexity_terms=points))
    return result


def _pipelining(without: Candidate | None, with_pp: Candidate | None) -> Pipelining:
    if without is None or with_pp is None:
        verdict = (
            "needed: no layout without a pipeline is legal and fits"
            if without is None
            else ("not needed: no layout with a pipeline is legal and fits")
        )
        return Pipelining(without=without, with_pp=with_pp, gap=None, split={}, verdict=verdict)
    split = {name: value - with_pp.prediction.time[name] for name, value in without.prediction.time.items()}
    gap = without.prediction.step_time_s / with_pp.prediction.step_time_s - 1
    return Pipelining(without=without, with_pp=with_pp, gap=gap, split=split, verdict=_verdict(gap, split))


def _verdict(gap: float, split: dict[str, float]) -> str:
    if gap <= 0:
        return f"not needed: the best layout without a pipeline is {-gap:.1%} faster than the best with one"
    term, seconds = max(split.items(), key=lambda item: item[1])
    back = seconds - sum(split.values())
    offset = f", of which other terms give back {back:.3g} s" if back > 0.05 * seconds else ""
    return f"worth {gap:.1%}: without a pipeline the step is slower, most of it in {term} (+{seconds:.3g} s{offset})"


def _reasons(
    problem: Problem,
    fastest: Candidate,
    simplest: Candidate,
    tolerance: float,
    answer: Answer,
    pipelining: Pipelining,
    fewer: FewerChips | None,
) -> tuple[str, ...]:
    best, time = fastest.prediction, fastest.prediction.time
    compute = time["compute_s"] / best.step_time_s
    exposed = sorted(
        ((v, k) for k, v in time.items() if k != "compute_s" and v > 0.005 * best.step_time_s), reverse=True
    )
    lost = ", ".join(f"{name} {value / best.step_time_s:.1%}" for value, name in exposed)
    reasons = [f"fastest: {best.layout.summary()}; compute is {compute:.0%} of the step; the rest: {lost or 'little'}"]
    if simplest.prediction.layout == best.layout:
        reasons.append(f"it is also the simplest of the layouts within {tolerance:.0%}")
    else:
        cost = simplest.prediction.step_time_s / best.step_time_s - 1
        dropped = sorted(fastest.complexity_terms.keys() - simplest.complexity_terms.keys())
        without = f", without {', '.join(dropped)}" if dropped else ""
        reasons.append(
            f"simplest within {tolerance:.0%}: {simplest.prediction.layout.summary()}, {cost:.2%} slower{without}"
        )
    reasons.append(f"pipelining: {pipelining.verdict}")
    reasons.append(
        f"memory: {best.reserved_gib:.1f} of {best.usable_gib:.1f} GiB on stage {best.memory_stage}; "
        f"{answer.certificate.over_memory + answer.certificate.pruned_by_memory} layouts were too large"
    )
    if fewer:
        reasons.append(fewer.message)
    if not answer.certificate.exact:
        gap = answer.certificate.gap
        reasons.append(f"the search was stopped: this is the best so far, and none is faster by more than {gap:.1%}")
    return tuple(reasons)


def _whole_domains(
    problem: Problem, profile: Profile, constraints: Constraints, answer: Answer, go_on: GoOn
) -> list[str]:
    """Where chips stand outside whole scale-up domains: whether the job would be faster without them."""
    cluster = problem.cluster
    if not cluster.dims or cluster.dims[0].kind == "ring":
        return []
    domain = _chips_of_a_domain(cluster)
    fewer = cluster.num_chips // domain * domain
    if not 0 < fewer < cluster.num_chips or not go_on():
        return []
    try:
        smaller = replace(problem, cluster=replace(cluster, num_chips=fewer))
        found = search(smaller, profile, constraints, Goal(), go_on)
    except (NoLegalLayout, Infeasible, Invalid):
        return []
    best, other = float(answer.times[0]), float(found.times[0])
    if other >= best:
        return []
    return [f"{fewer} chips in whole domains of {domain} would be faster: {other:.3g} s a step against {best:.3g} s"]


def _on_fewer_chips(
    problem: Problem, profile: Profile, constraints: Constraints, goal: Goal, none: NoLegalLayout, go_on: GoOn
) -> tuple[Problem, Answer, FewerChips]:
    """The fastest answer among the largest chip counts that have a legal layout that fits.

    Constraints that no layout can meet are refused instead: fewer chips than asked for would hide the mistake.
    """
    if constraints.allowed and Space(problem, Constraints()).has_legal():
        raise _contradiction(problem, constraints)
    rule, message = _blame(problem, none.rejected)
    found: list[tuple[Problem, Answer]] = []
    failure: Infeasible | None = None
    for cluster in islice(_smaller(problem), _FEWER_LOOKED_AT):
        smaller = replace(problem, cluster=cluster)
        try:
            found.append((smaller, search(smaller, profile, constraints, goal, go_on)))
        except NoLegalLayout:
            continue
        except Infeasible as error:
            failure = failure or error
            break
        if len(found) == _FEWER_TRIED or not go_on():
            break
    if not found:
        raise failure or Infeasible(rule, message)
    best, answer = min(found, key=lambda pair: float(pair[1].times[0]))
    used = best.cluster.num_chips
    text = f"no legal layout uses all {problem.cluster.num_chips} chips ({message}); the answer uses {used}"
    return best, answer, FewerChips(rule=rule, message=text, num_chips=used)


def _smaller(problem: Problem) -> Iterator[Cluster]:
    """Clusters of fewer chips that may have a legal layout, largest first; whole domains, then within one.

    With dp dividing the batch, tp the heads and cp the sequence, pp is at least what is left of the device count
    after taking out all factors they can take; more stages than layers are never legal.
    """
    cluster = problem.cluster
    per_chip = cluster.chip.devices_per_chip
    n, domain = cluster.num_chips, _chips_of_a_domain(cluster)
    heads = math.lcm(*(kind.attention.num_heads for kind in problem.architecture.kinds))
    whole = range((n - 1) // domain * domain, 0, -domain)
    for count in (*whole, *range(min(n, domain) - 1, 0, -1)):
        stages = count * per_chip
        for factor in (problem.workload.global_batch, heads, problem.workload.seq_len):
            stages //= math.gcd(stages, factor)
        if stages > problem.architecture.num_layers:
            continue
        try:
            smaller = replace(cluster, num_chips=count, torus_shape=None)
            _ = smaller.dims
        except Invalid:
            continue
        yield smaller


def _chips_of_a_domain(cluster: Cluster) -> int:
    return max(cluster.dims[0].domain // cluster.chip.devices_per_chip, 1) if cluster.dims else 1


def _contradiction(problem: Problem, constraints: Constraints) -> Infeasible:
    """Which constraints are in the way: those whose removal alone would do, or all of them together."""
    allowed = constraints.allowed
    single = [
        knob
        for knob in allowed
        if Space(problem, replace(constraints, allowed={k: v for k, v in allowed.items() if k != knob})).has_legal()
    ]
    blamed = single or list(allowed)
    values = ", ".join(f"{knob} in {list(allowed[knob])}" for knob in blamed)
    how = "without any one of these constraints" if single else "without these constraints"
    chips = problem.cluster.num_chips
    _, why = _obstacle(problem, allowed)
    return Infeasible(
        f"constraints.{blamed[0]}",
        f"no legal layout of {chips} chips has {values}; {how} there are legal layouts; {why}",
    )


def _blame(problem: Problem, rejected: Counter[str]) -> tuple[str, str]:
    """The rule in the way of using all chips. Where only a pipeline of all chips would divide, it is the batch."""
    rule, why = _obstacle(problem, {})
    if rule not in ("batch_divides", "layers_divide") or not rejected["batch_divides"]:
        return rule, why
    batch, chips = problem.workload.global_batch, problem.cluster.num_chips
    return "batch_divides", (
        f"global_batch({batch}) is a multiple of no dp that {chips} chips leave beside the legal tp, cp and pp"
    )


def _obstacle(problem: Problem, allowed: Allowed) -> tuple[str, str]:
    """What refuses the layout that comes nearest to being legal: the first rule it breaks, and all of them in words.

    Nearest is who breaks the fewest rules, with as many layers on every stage, and gets furthest before the first.
    """
    layouts = _near(problem, allowed)
    if not len(layouts):
        return "mesh_fills_cluster", f"no degrees they allow multiply to the {problem.cluster.num_devices} devices"
    broken = np.array([~np.asarray(rule.test(problem, layouts), dtype=bool) for rule in _BUT_PLACEMENT])
    nearest = int(np.lexsort((-broken.argmax(axis=0), layouts.balanced, broken.sum(axis=0)))[0])
    layout, rules = layouts[nearest], [_BUT_PLACEMENT[i] for i in np.flatnonzero(broken[:, nearest])]
    if not rules:  # reshard without ZeRO 3, say
        return "", f"{layout.summary()} breaks no rule, but is the same as a layout that they forbid"
    reasons = "; ".join(f"{rule.name}: {rule.message(problem, layout)}" for rule in rules)
    return rules[0].name, f"the nearest, {layout.summary()}, breaks {reasons}"


def _near(problem: Problem, allowed: Allowed) -> Layouts:
    """Layouts that the constraints allow: of each kind of mesh that breaks the fewest rules, one with every policy."""
    stack = problem.stack
    degrees = Layouts.of(islice(_meshes(problem, allowed), _MESHES_LOOKED_AT))
    if not len(degrees):
        return degrees
    tests = [rule.test(problem, degrees) for rule in RULES if rule.field in _OF_A_MESH]
    refused = len(tests) - np.sum(tests, axis=0)
    best = degrees.take(refused == refused.min())
    best = best.take(np.argsort(best.dp * best.micro_batch, kind="stable"))  # most micro-batches: every schedule runs
    kinds = np.stack([best.pp, best.dp_shard > 1, best.dp_replicate > 1], axis=1)
    kept = best.take(np.unique(kinds, axis=0, return_index=True)[1])
    free: dict[str, Iterable[Any]] = {
        "schedule": {"1f1b": None, **dict.fromkeys(stack.schedules)},
        "virtual_stages": range(1, stack.max_virtual_stages + 1),
        "balanced": (False, True),
        "zero_stage": stack.zero_stages,
        "reshard": stack.reshard,
        "recompute": stack.recompute[:1],
        "offload_activations": (False,),
        "offload_optimizer": (False,),
    }
    policies = Layouts.of(Layout(**knobs) for knobs in _combinations(free, allowed))
    mesh, policy = np.indices((len(kept), len(policies))).reshape(2, -1)
    return replace(kept.take(mesh), **{knob: getattr(policies, knob)[policy] for knob in POLICY_KNOBS})


def _meshes(problem: Problem, allowed: Allowed) -> Iterator[Layout]:
    free = {"sequence_parallel": (False, True), "ep": (1,), "etp": (1,), "micro_batch": (1,)}
    for degrees in _fillings(problem.cluster.num_devices, _AXES_FILLED, allowed):
        found = (Layout(**degrees, **knobs) for knobs in _combinations(free, allowed))
        yield from (mesh for mesh in found if mesh.dp in allowed.get("dp", (mesh.dp,)))


def _fillings(devices: int, axes: Sequence[str], allowed: Allowed) -> Iterator[dict[str, Any]]:
    """Degrees that multiply to `devices`."""
    if not axes:
        yield from ({},) if devices == 1 else ()
        return
    axis, *rest = axes
    for degree in allowed.get(axis, divisors(devices)):
        if devices % degree == 0:
            yield from ({axis: degree, **more} for more in _fillings(devices // degree, rest, allowed))


def _combinations(free: Mapping[str, Iterable[Any]], allowed: Allowed) -> Iterator[dict[str, Any]]:
    values = [allowed.get(knob, choices) for knob, choices in free.items()]
    return (dict(zip(free, chosen, strict=True)) for chosen in product(*values))
