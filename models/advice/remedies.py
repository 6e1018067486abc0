"""Remedies: what to try on a job that has run, or has run out of memory, and what each would
gain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from models.advice.layout_check import LEAST_GAIN
from models.advice.single_changes import SingleChange, knob_change_in_words
from models.layouts.neighbours import KNOBS
from models.prediction.prediction import Prediction
from models.spec.constraints import EVEN_CHANCE, SAFE_FIT_PROBABILITY
from models.spec.layout import Layout

Memory = Literal["fitted", "ran_out", "not_known"]
"""What the run showed of its memory."""

_MOST_REMEDIES = 8
_TOLD_BY_OTHERS = ("recompute_layers",)  # recompute says it too
_WORTH_THE_RISK = 0.05
"""A remedy that may not fit is named where it gains so much more than those that do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change to try. `gain` is predicted step time before / after - 1, and None where nothing is
    predicted of the layout that ran, as it is not legal. `fit_probability` takes into account what
    the run showed. `change` is None for the best layout of a search, which may change much."""

    words: str
    layout: Layout
    change: SingleChange | None
    step_time_s: float
    gain: float | None
    needed_gib: float
    fit_probability: float

    @property
    def is_safe(self) -> bool:
        return self.fit_probability >= SAFE_FIT_PROBABILITY


def remedies(
    given: Prediction | None,
    changes: Iterable[SingleChange],
    best: Prediction | None,
    memory: Memory,
) -> list[Remedy]:
    """Return what to try, the shortest step first.

    `given` is the prediction of the layout that ran; None where that is not legal. `changes` are
    its single changes, and `best` is the best layout that a search found. Of a layout that can run,
    only changes that gain LEAST_GAIN are named; of one that cannot, all that make it run.
    """
    can_run = given is not None and not must_change(given, memory)
    single = _best_of_each_knob([_of_change(change, given, memory) for change in changes])
    known = {one.layout for one in single} | ({given.layout} if given else set())
    found = [_of_best(best, given, memory)] if best and best.layout not in known else []
    worth = [one for one in (*single, *found) if not can_run or (one.gain or 0.0) >= LEAST_GAIN]
    safe = sorted((one for one in worth if one.is_safe), key=_step_time_s)
    possible = (one for one in worth if one.fit_probability >= EVEN_CHANCE)
    risky = sorted((one for one in possible if not one.is_safe), key=_step_time_s)
    return [*safe, *_worth_the_risk(risky, safe)][:_MOST_REMEDIES]


def must_change(given: Prediction, memory: Memory) -> bool:
    """Return whether a legal layout has to be changed to run: it ran out of memory, or probably
    did."""
    is_likely_too_large = memory == "not_known" and given.fit_probability < EVEN_CHANCE
    return memory == "ran_out" or is_likely_too_large


def _step_time_s(remedy: Remedy) -> float:
    return remedy.step_time_s


def _best_of_each_knob(candidates: Sequence[Remedy]) -> list[Remedy]:
    """Of each knob the change with the shortest step among those that surely fit, and another that
    may fit where that is faster still."""
    kept: dict[tuple[str, bool], Remedy] = {}
    for remedy in sorted(candidates, key=_merit_s):
        if remedy.change is not None:
            kept.setdefault((remedy.change.knob, remedy.is_safe), remedy)
    return [*kept.values()]


def _merit_s(remedy: Remedy) -> float:
    """The step time, by which the values of a knob are ranked. The value that tuned recipes give a
    switch goes before one that gains hardly more."""
    change = remedy.change
    if change is None or change.switch is None:
        return remedy.step_time_s
    is_usual = change.after == change.switch.taken_at().value
    return remedy.step_time_s / (1 + LEAST_GAIN) if is_usual else remedy.step_time_s


def _worth_the_risk(risky: Sequence[Remedy], safe: Sequence[Remedy]) -> list[Remedy]:
    """The remedies that may not fit and are faster by much than all that do."""
    if not safe:
        return [*risky]
    limit_s = safe[0].step_time_s / (1 + _WORTH_THE_RISK)
    return [one for one in risky if one.step_time_s <= limit_s]


def _of_change(change: SingleChange, given: Prediction | None, memory: Memory) -> Remedy:
    outcome = change.outcome
    return Remedy(
        words=change.words,
        layout=change.layout,
        change=change,
        step_time_s=outcome.step_time_s,
        gain=change.gain,
        needed_gib=outcome.needed_gib,
        fit_probability=fit_probability_after(outcome.fit_probability, given, memory),
    )


def _of_best(best: Prediction, given: Prediction | None, memory: Memory) -> Remedy:
    return Remedy(
        words=f"the best layout of a search: {_differences(given, best)}",
        layout=best.layout,
        change=None,
        step_time_s=best.step_time_s,
        gain=None if given is None else given.step_time_s / best.step_time_s - 1,
        needed_gib=best.needed_gib,
        fit_probability=fit_probability_after(best.fit_probability, given, memory),
    )


def _differences(given: Prediction | None, best: Prediction) -> str:
    """The best layout by how it differs from the given one or, where that is not legal, as a
    whole."""
    if given is None:
        return best.layout.summary()
    changes = [
        knob_change_in_words(name, knob.value(given.layout), knob.value(best.layout))
        for name, knob in KNOBS.items()
        if knob.value(given.layout) != knob.value(best.layout) and name not in _TOLD_BY_OTHERS
    ]
    return ", ".join(changes)


def fit_probability_after(probability: float, given: Prediction | None, memory: Memory) -> float:
    """Return how likely a layout is to fit, after a run of the given layout of the same job showed
    whether that fits.

    Predictions of memory of one job are off by one factor, so that a layout which is likelier to
    fit than the given one does fit where that did: of the cases in which the given layout fits, the
    other fits in the share p / p_given, and of those in which it does not, in
    (p - p_given) / (1 - p_given).
    """
    if given is None or memory == "not_known":
        return probability
    known = given.fit_probability
    if memory == "fitted":
        return 1.0 if probability >= known else probability / known
    return 0.0 if probability <= known else (probability - known) / (1 - known)
