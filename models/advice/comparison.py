"""Two layouts side by side: where the difference comes from, term by term."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np

from models.advice.candidate import Candidate, candidates
from models.advice.safe_fit import avoiding
from models.cost.step import predict
from models.errors import Infeasible
from models.layouts.complexity import TERM_WORDS
from models.layouts.space import Space
from models.prediction.prediction import on_host
from models.search.branch_and_bound import search
from models.search.infeasibility import blame, in_the_way
from models.search.result import Goal, ShouldContinue, run_to_completion
from models.search.tables import NoLegalLayout
from models.spec.constraints import Constraints
from models.spec.layout import AXES, Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import Profile

_SAID = 0.005  # of a step: smaller differences are not worth a word


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`time` in seconds and `memory_gib`, by term: the first minus the second. `exact`: no search
    was cut short."""

    first: Candidate
    second: Candidate
    time: dict[str, float]
    memory_gib: dict[str, float]
    reasons: tuple[str, ...]
    exact: bool


Side = Layout | Constraints
"""A layout, or the fastest of those that constraints allow."""


def compare(
    problem: Problem,
    profile: Profile,
    first: Side,
    second: Side,
    should_continue: ShouldContinue = run_to_completion,
    failed_gib: float = math.inf,
) -> Comparison:
    """Raises Infeasible where constraints allow no layout that fits; layouts are taken as legal
    (models.layouts.rules). `failed_gib`: with which a run like these has run out of memory;
    constraints leave out what needs as much."""
    sides = {"first": first, "second": second}
    found = [
        _found(problem, profile, name, side, should_continue, failed_gib)
        for name, side in sides.items()
    ]
    layouts = Layouts.concatenate([layouts for layouts, _ in found])
    one, other = candidates(
        predict(problem, layouts, profile.coefficients(problem.scopes)), profile
    )
    a, b = one.prediction, other.prediction
    time = {name: value - b.time[name] for name, value in a.time.items()}
    memory = {name: value - b.memory_gib[name] for name, value in a.memory_gib.items()}
    late = [name for name, (_, exact) in zip(sides, found, strict=True) if not exact]
    reasons = _reasons(one, other, time, memory)
    if late:
        reasons = (
            f"the search was stopped: the {' and the '.join(late)} may be slower than it need be",
            *reasons,
        )
    return Comparison(
        first=one,
        second=other,
        time=time,
        memory_gib=memory,
        reasons=reasons,
        exact=not late,
    )


def _found(
    problem: Problem,
    profile: Profile,
    name: str,
    side: Side,
    should_continue: ShouldContinue,
    failed_gib: float,
) -> tuple[Layouts, bool]:
    if isinstance(side, Layout):
        return Layouts.of([side]), True
    try:
        answer = avoiding(
            failed_gib,
            problem,
            side,
            lambda heeded: search(Space(problem, heeded), profile, Goal(), should_continue),
        )
    except NoLegalLayout as none:
        contradicted = in_the_way(Space(problem, side))
        raise contradicted.prefixed(name) if contradicted else Infeasible(*blame(problem)) from none
    return answer.layouts.take(np.array([0])), answer.certificate.exact


def _reasons(
    one: Candidate, other: Candidate, time: dict[str, float], memory: dict[str, float]
) -> tuple[str, ...]:
    a, b = one.prediction, other.prediction
    if a.layout == b.layout:
        return ("both are the same layout",)
    ratio = a.step_time_s / b.step_time_s - 1
    said = sorted(
        ((v, k) for k, v in time.items() if abs(v) > _SAID * b.step_time_s),
        key=lambda pair: -abs(pair[0]),
    )
    terms = (
        ", ".join(f"{name} {seconds:+.3g} s" for seconds, name in said) or "little in any one term"
    )
    slower = "slower" if ratio > 0 else "faster"
    reasons = [f"the first is {abs(ratio):.1%} {slower}: {terms}", _differing(a.layout, b.layout)]
    if a.step_time_low_s <= b.step_time_high_s and b.step_time_low_s <= a.step_time_high_s:
        reasons.append(
            "their 80% intervals overlap, though much of what is uncertain is the same in both"
        )
    more = a.needed_gib - b.needed_gib
    largest = sorted(
        ((v, k) for k, v in memory.items() if abs(v) >= 0.05), key=lambda pair: -abs(pair[0])
    )[:3]
    of = ": " + ", ".join(f"{name} {gib:+.1f}" for gib, name in largest) if largest else ""
    reasons.append(f"the first needs {abs(more):.1f} GiB {'more' if more > 0 else 'less'}{of}")
    reasons += [
        f"the {name} does not fit: {p.needed_gib:.1f} of {p.usable_gib:.1f} GiB on stage"
        f" {p.memory_stage}{on_host(p)}"
        for name, p in (("first", a), ("second", b))
        if not p.fits
    ]
    only = [
        sorted(x.complexity_terms.keys() - y.complexity_terms.keys())
        for x, y in ((one, other), (other, one))
    ]
    for name, terms_ in zip(("first", "second"), only, strict=True):
        if terms_:
            reasons.append(f"only the {name} has {', '.join(TERM_WORDS[term] for term in terms_)}")
    return tuple(reasons)


def _differing(one: Layout, other: Layout) -> str:
    pairs = [(f.name, getattr(one, f.name), getattr(other, f.name)) for f in fields(Layout)]
    said = [f"{name} {_said(a)}, not {_said(b)}" for name, a, b in pairs if a != b]
    return "the first has " + "; ".join(said)


def _said(value: object) -> str:
    if isinstance(value, tuple):
        return (" < " if set(value) == set(AXES) else "+").join(value) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
