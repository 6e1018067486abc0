"""What a prediction rests on: which of its terms the runs behind the profile exercised, where, and
how far they reach.

A term is *measured* where runs on the same chip and stack exercised it, *inherited* where only runs
of the chip's generation or of the stack did (compute: of the generation), and otherwise rests on
the *data sheet* and the priors (data/priors.json). A run exercises a term that takes at least SHARE
of what was measured of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from models.columns import Array
from models.cost.step import in_gib, predict
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem, number_by_problem
from models.spec.profile import Profile, QuantityRange, TermCoverage

SHARE = 0.02
DECISIVE = 0.05  # of the step: terms of which the weakest grades the whole

_OF_CHIPS = (
    "compute_s",
    "recompute_s",
)  # of which runs of a stack on other generations of chips say nothing
Ground = Literal["measured", "inherited", "data_sheet"]
_STRENGTH: tuple[Ground, ...] = ("measured", "inherited", "data_sheet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """The ground of one term, and the `runs` that make it; `scope` is where those ran."""

    ground: Ground
    scope: str
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """`grade`: the weakest ground among the terms that decide the step. `outside`: where no run has
    been."""

    grade: Ground
    terms: Mapping[str, Basis]
    outside: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ran:
    """A run behind a profile: whether its step time and its memory were measured."""

    problem: Problem
    layout: Layout
    timed: bool
    weighed: bool


def provenance(
    problem: Problem,
    layout: Layout,
    time: Mapping[str, float],
    memory: Mapping[str, float],
    profile: Profile,
) -> Provenance:
    """Of a prediction with these terms; those that are zero have no ground."""
    terms = {
        name: _basis(name, problem, profile)
        for name, value in {**time, **memory}.items()
        if value > 0
    }
    step = sum(time.values())
    decisive = [terms[name].ground for name, value in time.items() if value >= DECISIVE * step]
    return Provenance(
        grade=max(decisive, key=_STRENGTH.index),
        terms=terms,
        outside=tuple(_outside(problem, layout, profile)),
    )


def _basis(term: str, problem: Problem, profile: Profile) -> Basis:
    here, generation, stack = _scopes(problem)
    runs, relatives = (
        profile.runs_by_term,
        [generation] if term in _OF_CHIPS else [generation, stack],
    )
    if count := runs.get((term, here)):
        return Basis(ground="measured", scope=here, runs=count)
    most = max(relatives, key=lambda scope: runs.get((term, scope), 0))
    if count := runs.get((term, most)):
        return Basis(ground="inherited", scope=most, runs=count)
    return Basis(ground="data_sheet", scope="none", runs=0)


def is_outside(problem: Problem, layouts: Layouts, profile: Profile) -> Array:
    """Whether some quantity of each lies where no run has been, or none on the generation; shape
    (n,)."""
    found = np.full(len(layouts), not _is_known(problem, profile))
    for name, value in quantities(problem, layouts).items():
        for scope in ("all", _scopes(problem)[1]):
            span = profile.range_of.get((name, scope))
            if span is not None:
                found |= np.asarray((value < span.low) | (value > span.high))
    return found


def _outside(problem: Problem, layout: Layout, profile: Profile) -> Iterable[str]:
    """Quantities beyond those of every run, or of every run on the generation."""
    generation = f"generation:{problem.cluster.chip.generation}"
    if not _is_known(problem, profile):
        yield f"no run behind the profile is on {problem.cluster.chip.generation} chips"
    stack = f"stack:{problem.stack.calibrated_as}/"
    kinds = {
        one.scope.removeprefix(stack)
        for one in profile.neighbourhoods
        if one.scope.startswith(stack)
    }
    if kinds and problem.density not in kinds:
        yield (
            f"no run of stack {problem.stack.id} behind the profile is of a {problem.density} model"
        )
    for name, value in quantities(problem, layout).items():
        for scope, where in (
            ("all", "any run"),
            (generation, f"any run on {problem.cluster.chip.generation}"),
        ):
            span = profile.range_of.get((name, scope))
            if span is not None and not span.low <= value <= span.high:
                bound = span.high if value > span.high else span.low
                yield (
                    f"{name} = {value:g} is {'beyond' if value > span.high else 'below'} the"
                    f" {bound:g} of {where}"
                )
                break


def _is_known(problem: Problem, profile: Profile) -> bool:
    """Whether some run was on the chip's generation; of a profile without runs that is not
    asked."""
    return not profile.spans or any(span.scope == _scopes(problem)[1] for span in profile.spans)


def _scopes(problem: Problem) -> tuple[str, str, str]:
    """Narrowest first."""
    stack, chip = f"stack:{problem.stack.calibrated_as}", problem.cluster.chip
    return f"chip:{chip.id}/{stack}", f"generation:{chip.generation}", stack


def quantities(problem: Problem, layout: Layout | Layouts) -> dict[str, Any]:
    """What runs are told apart by: a number each, or of several layouts an array."""
    workload, parameters = problem.workload, problem.architecture.parameters
    degrees = {name: getattr(layout, name) for name in ("tp", "pp", "cp", "ep")}
    return {
        "chips": float(problem.cluster.num_chips),
        "parameters": float(parameters.total),
        "active_parameters": float(parameters.active),
        "seq_len": float(workload.seq_len),
        "tokens_per_step": float(workload.tokens),
        **degrees,
    }


def having_seen(profile: Profile, runs: Sequence[Ran]) -> Profile:
    """The profile, with what these runs exercise under it and how far they reach added to what it
    had seen."""
    seen = Counter(profile.runs_by_term)
    spans = {key: (span.low, span.high) for key, span in profile.range_of.items()}
    for alike in _by_problem(runs):
        problem = alike[0].problem
        for term, count in _exercised(problem, alike, profile).items():
            for scope in _scopes(problem):
                seen[term, scope] += count
        for layout in {run.layout for run in alike if run.timed}:
            _stretch(spans, problem, layout)
    return replace(
        profile,
        seen=tuple(
            TermCoverage(term=term, scope=scope, runs=count)
            for (term, scope), count in sorted(seen.items())
            if count
        ),
        spans=tuple(
            QuantityRange(quantity=n, scope=s, low=low, high=high)
            for (n, s), (low, high) in sorted(spans.items())
        ),
    )


def _by_problem(runs: Sequence[Ran]) -> Iterable[list[Ran]]:
    together: dict[int, list[Ran]] = {}
    for number, run in zip(number_by_problem(run.problem for run in runs), runs, strict=True):
        together.setdefault(number, []).append(run)
    return together.values()


def _exercised(problem: Problem, runs: Sequence[Ran], profile: Profile) -> dict[str, int]:
    """How many of the runs exercise each term."""
    found = predict(
        problem, Layouts.of([run.layout for run in runs]), profile.coefficients(problem.scopes)
    )
    timed, weighed = np.array([run.timed for run in runs]), np.array([run.weighed for run in runs])
    time = {name: timed & (part >= SHARE * found.step_time_s) for name, part in found.time.items()}
    memory = {
        in_gib(name): weighed & (part >= SHARE * found.needed_bytes)
        for name, part in found.memory.items()
    }
    return {name: int(exercised.sum()) for name, exercised in {**time, **memory}.items()}


def _stretch(
    spans: dict[tuple[str, str], tuple[float, float]], problem: Problem, layout: Layout
) -> None:
    for name, value in quantities(problem, layout).items():
        for scope in ("all", _scopes(problem)[1]):
            low, high = spans.get((name, scope), (value, value))
            spans[name, scope] = min(low, value), max(high, value)
