"""A comparison puts two layouts side by side and says, term by term, where they differ.

A *side* is one of the two: a layout, or constraints that stand for the fastest layout that they
allow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import numpy as np

from models.advice.candidate import Candidate, candidates
from models.advice.safe_fit import solve_avoiding_oom
from models.cost.predictions import predict
from models.errors import Infeasible
from models.layouts.complexity import TERM_WORDS
from models.layouts.space import Space
from models.prediction.prediction import Prediction, host_memory_note
from models.prediction.term_words import MEMORY_WORDS, TIME_WORDS
from models.search.enumeration import search
from models.search.infeasibility import constraints_in_the_way, rule_to_blame
from models.search.result import Goal, ShouldContinue, run_to_completion
from models.search.tables import NoLegalLayout
from models.spec.constraints import Constraints
from models.spec.layout import AXES, Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import Profile
from models.spec.stack import Stack
from models.spec.switches import NOTHING, switches_of

_WORTH_NAMING = 0.005  # of a step: a sentence does not name smaller differences
_WORTH_NAMING_GIB = 0.05  # smaller differences would be shown as 0.0 GiB
_LEAST_SHOWN_RATIO = 0.0005  # smaller ratios would be shown as 0.0%
_MEMORY_TERMS_NAMED = 3  # more are not read


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two candidates, and by term the `time` in seconds and the `memory_gib` of the first minus
    those of the second. `exact` says that no search was cut short."""

    first: Candidate
    second: Candidate
    time: dict[str, float]
    memory_gib: dict[str, float]
    reasons: tuple[str, ...]
    exact: bool


Side = Layout | Constraints
"""A layout, or constraints that stand for the fastest layout that they allow."""


def compare(
    problem: Problem,
    profile: Profile,
    first: Side,
    second: Side,
    should_continue: ShouldContinue = run_to_completion,
    oom_gib: float = math.inf,
    second_stack: Stack | None = None,
) -> Comparison:
    """Return the comparison of two sides. `second_stack` is the software of the second side, where
    that is another than the problem's.

    Layouts must be legal (models.layouts.rules). Constraints stand for the fastest layout that
    needs less than `oom_gib`, at which a run of this model, chip and stack ran out of memory. Raise
    Infeasible where constraints allow no layout that fits, and TooLarge where they leave too many
    to search.
    """
    second_stack = second_stack or problem.stack
    sides = {
        "first": (problem, first),
        "second": (replace(problem, stack=second_stack), second),
    }
    compared = []
    stopped = []
    for name, (asked, side) in sides.items():
        layout, exact = _layout_of_side(asked, profile, name, side, should_continue, oom_gib)
        predictions = predict(asked, layout, profile.coefficients(asked.scopes))
        compared += candidates(predictions, profile)
        if not exact:
            stopped.append(name)
    first_candidate, second_candidate = compared
    time = _difference(first_candidate.prediction.time, second_candidate.prediction.time)
    memory_gib = _difference(
        first_candidate.prediction.memory_gib, second_candidate.prediction.memory_gib
    )
    software = _differences(problem.stack, second_stack)
    reasons = _reasons(first_candidate, second_candidate, time, memory_gib, software)
    if stopped:
        names = " and the ".join(stopped)
        reasons.insert(0, f"the search was stopped: the {names} may be slower than it need be")
    return Comparison(
        first=first_candidate,
        second=second_candidate,
        time=time,
        memory_gib=memory_gib,
        reasons=tuple(reasons),
        exact=not stopped,
    )


def _layout_of_side(
    problem: Problem,
    profile: Profile,
    name: str,
    side: Side,
    should_continue: ShouldContinue,
    oom_gib: float,
) -> tuple[Layouts, bool]:
    """Return the layout that a side stands for, as one row, and whether its search was exact.
    `name` is that of the side, for errors. Raise the errors of `compare`."""
    if isinstance(side, Layout):
        return Layouts.of([side]), True
    space = Space(problem, side)
    try:
        answer = solve_avoiding_oom(
            oom_gib,
            space,
            lambda searched: search(searched, profile, Goal(), should_continue),
        )
    except NoLegalLayout as none:
        contradicted = constraints_in_the_way(space)
        if contradicted:
            raise contradicted.prefixed(name) from none
        raise Infeasible(*rule_to_blame(problem)) from none
    # The layouts of an answer are sorted, the fastest first.
    return answer.layouts.take(np.array([0])), answer.certificate.exact


def _difference(first: dict[str, float], second: dict[str, float]) -> dict[str, float]:
    """Return the first values minus the second ones, by name."""
    return {name: value - second[name] for name, value in first.items()}


def _reasons(
    first_candidate: Candidate,
    second_candidate: Candidate,
    time: dict[str, float],
    memory_gib: dict[str, float],
    software: list[str],
) -> list[str]:
    """Return sentences on how two candidates differ. `time` has differences in seconds and
    `memory_gib` in GiB, by term; `software` has the differences of their stacks in words."""
    first = first_candidate.prediction
    second = second_candidate.prediction
    differing_knobs = _differences(first.layout, second.layout)
    if not differing_knobs and not software:
        return ["both are the same layout"]
    reasons = [_time_reason(first, second, time)]
    if differing_knobs:
        reasons.append(f"the first has {'; '.join(differing_knobs)}")
    if software:
        reasons.append(f"the stack of the first has {'; '.join(software)}")
    if _intervals_overlap(first, second):
        reasons.append(
            "their 80% intervals overlap, though much of what is uncertain is the same in both"
        )
    reasons.append(_memory_reason(first, second, memory_gib))
    reasons += _misfit_reasons({"first": first, "second": second})
    reasons += _complexity_reasons("first", first_candidate, second_candidate)
    reasons += _complexity_reasons("second", second_candidate, first_candidate)
    return reasons


def _time_reason(first: Prediction, second: Prediction, time: dict[str, float]) -> str:
    """Return a sentence on how much slower or faster the first is, and in which terms."""
    ratio = first.step_time_s / second.step_time_s - 1
    slower = "slower" if ratio > 0 else "faster"
    named = [
        f"{TIME_WORDS[name]} {seconds:+.3g} s"
        for seconds, name in _largest_first(time)
        if abs(seconds) > _WORTH_NAMING * second.step_time_s
    ]
    terms = ", ".join(named) or "little in any one term"
    if abs(ratio) < _LEAST_SHOWN_RATIO:
        return f"both take as long, within {_LEAST_SHOWN_RATIO:.2%}: {terms}"
    return f"the first is {abs(ratio):.1%} {slower}: {terms}"


def _memory_reason(first: Prediction, second: Prediction, memory_gib: dict[str, float]) -> str:
    """Return a sentence on how much more or less memory the first needs, and for what."""
    difference_gib = first.needed_gib - second.needed_gib
    more = "more" if difference_gib > 0 else "less"
    named = [
        f"{MEMORY_WORDS[name]} {gib:+.1f} GiB"
        for gib, name in _largest_first(memory_gib)
        if abs(gib) >= _WORTH_NAMING_GIB
    ]
    terms = ": " + ", ".join(named[:_MEMORY_TERMS_NAMED]) if named else ""
    if abs(difference_gib) < _WORTH_NAMING_GIB:
        return f"both need as much memory, within {_WORTH_NAMING_GIB:g} GiB{terms}"
    return f"the first needs {abs(difference_gib):.1f} GiB {more}{terms}"


def _largest_first(differences: dict[str, float]) -> list[tuple[float, str]]:
    """Return (difference, term), the largest by amount first."""
    pairs = [(value, name) for name, value in differences.items()]
    return sorted(pairs, key=lambda pair: -abs(pair[0]))


def _intervals_overlap(first: Prediction, second: Prediction) -> bool:
    """Return whether the 80% intervals of the two step times overlap."""
    return (
        first.step_time_low_s <= second.step_time_high_s
        and second.step_time_low_s <= first.step_time_high_s
    )


def _misfit_reasons(predictions: dict[str, Prediction]) -> list[str]:
    """Return a sentence for each prediction, by its name, that does not fit in memory."""
    return [
        f"the {name} does not fit: {prediction.needed_gib:.1f} of {prediction.usable_gib:.1f} GiB"
        f" on stage {prediction.memory_stage}{host_memory_note(prediction)}"
        for name, prediction in predictions.items()
        if not prediction.fits
    ]


def _complexity_reasons(name: str, candidate: Candidate, other: Candidate) -> list[str]:
    """Return a sentence on what makes a candidate hard to run that the other has not, such as "only
    the first has a pipeline"; `name` is "first" or "second"."""
    only_here = sorted(candidate.complexity_terms.keys() - other.complexity_terms.keys())
    if not only_here:
        return []
    return [f"only the {name} has {', '.join(TERM_WORDS[term] for term in only_here)}"]


def _differences(one: Layout | Stack, other: Layout | Stack) -> list[str]:
    """Return the fields in which two layouts or two stacks differ, such as "tp 8, not 4"."""
    return [
        f"{field.name} {_value_in_words(one, field.name)}, not {_value_in_words(other, field.name)}"
        for field in fields(one)
        if getattr(one, field.name) != getattr(other, field.name)
    ]


def _value_in_words(owner: Layout | Stack, field: str) -> str:
    """Return the value of a field of a layout or a stack. For a stack the framework's setting
    follows in brackets, such as "true (--overlap-grad-reduce)", if it has one."""
    value = getattr(owner, field)
    shown = _format_value(value)
    switches = switches_of(owner) if isinstance(owner, Stack) else ()
    for switch in switches:
        for setting in switch.settings:
            if switch.field == field and setting.value == value:
                # A setting without arguments is made by leaving the switch out.
                is_unset = setting.words == NOTHING
                words = f"{switch.name} not set" if is_unset else setting.words
                return f"{shown} ({words})"
    return shown


def _format_value(value: object) -> str:
    """Return a value as text. An order of axes is shown with "<", from the innermost axis outwards,
    and other lists with "+"."""
    if isinstance(value, tuple):
        is_order_of_axes = set(value) == set(AXES)
        separator = " < " if is_order_of_axes else "+"
        return separator.join(map(str, value)) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
