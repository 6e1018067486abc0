"""Remedies are the changes to try on a job that has run, or has run out of memory, each with its
*gain*: the step time before over that after, less 1."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import NormalDist, fmean
from typing import Literal

from models.advice.layout_check import LEAST_GAIN
from models.advice.single_changes import Outcome, SingleChange, knob_changes_in_words
from models.prediction.prediction import Prediction
from models.spec.constraints import EVEN_CHANCE, SAFE_FIT_PROBABILITY
from models.spec.layout import Layout
from models.spec.profile import Z80

_MOST_REMEDIES = 8  # in an answer: more are not read
_WORTH_THE_RISK = 0.05
"""The gain, beyond that of remedies that fit, from which on a remedy that may not fit is named."""

_CHANGE_SPREAD = 0.07  # of the logarithm, among published runs with measured peaks
_ERRORS = 64  # equally likely errors by which a normal distribution is represented
_LEAST_ERROR = 1e-6  # of standard deviations, between what fits and what does not
_LEAST_OWN_SPREAD = 1e-9  # keeps the quotient finite where two layouts need the same memory
_LEAST_SHARE = 1e-12  # keeps quantiles finite
_LEAST_GIB = 1e-6  # keeps logarithms finite


@dataclass(frozen=True, slots=True)
class MemoryShown:
    """The evidence of a run about memory: its layout fits, does not fit, or shows nothing.
    `peak_factor` is its measured peak over the predicted one, where it was measured."""

    outcome: Literal["fitted", "ran_out", "not_known"]
    peak_factor: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change to try. `gain` is the predicted step time before over that after, less 1; it is None
    where the layout that ran is not legal and so has no prediction. `fit_probability` takes into
    account what the run showed. `change` is None for the best layout of a search, which may change
    much."""

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
    shown: MemoryShown,
) -> list[Remedy]:
    """Return the remedies that surely fit, the shortest step first, then those that fit with an
    even chance or better and are much faster; _MOST_REMEDIES at most.

    `given` is the prediction of the layout that ran; None where that is not legal. `changes` are
    its single changes, and `best` is the best layout that a search found. `shown` is what the run
    showed of its memory. For a layout that can run, only changes that gain LEAST_GAIN are named.
    For one that is too large, only changes that need less memory are. Of the changes of one knob
    the fastest is kept, among safe ones and among others (_best_of_each_knob).
    """
    candidates = [
        Remedy(
            words=change.words,
            layout=change.layout,
            change=change,
            step_time_s=change.outcome.step_time_s,
            gain=change.gain,
            needed_gib=change.outcome.needed_gib,
            fit_probability=_fit_probability(change.layout, change.outcome, given, shown),
        )
        for change in changes
    ]
    if best is not None and all(remedy.layout != best.layout for remedy in candidates):
        candidates.append(_remedy_of_best(best, given, shown))
    # In place of an illegal layout (`given` is None) every candidate is a remedy.
    if given is not None and must_change(given, shown):
        candidates = [remedy for remedy in candidates if remedy.needed_gib < given.needed_gib]
    elif given is not None:
        candidates = [
            remedy
            for remedy in candidates
            if given.step_time_s / remedy.step_time_s - 1 >= LEAST_GAIN
        ]
    by_step_time = sorted(_best_of_each_knob(candidates), key=attrgetter("step_time_s"))
    safe = [remedy for remedy in by_step_time if remedy.is_safe]
    risky = [
        remedy
        for remedy in by_step_time
        if not remedy.is_safe and remedy.fit_probability >= EVEN_CHANCE
    ]
    if safe:
        limit_s = safe[0].step_time_s / (1 + _WORTH_THE_RISK)
        risky = [remedy for remedy in risky if remedy.step_time_s <= limit_s]
    return [*safe, *risky][:_MOST_REMEDIES]


def must_change(given: Prediction, shown: MemoryShown) -> bool:
    """Return whether a legal layout has to be changed to run: it ran out of memory, or probably
    did. `shown` is what the run itself showed of its memory."""
    is_likely_too_large = shown.outcome == "not_known" and given.fit_probability < EVEN_CHANCE
    return shown.outcome == "ran_out" or is_likely_too_large


def _best_of_each_knob(candidates: Sequence[Remedy]) -> list[Remedy]:
    """Return, for each knob, the fastest remedy among those that surely fit and the fastest among
    those that may not. A layout that the search found changes many knobs (`change` is None), and
    these layouts count as one more knob."""
    best: dict[tuple[str | None, bool], Remedy] = {}
    for remedy in sorted(candidates, key=_ranking_time_s):
        knob = None if remedy.change is None else remedy.change.knob
        best.setdefault((knob, remedy.is_safe), remedy)
    return [*best.values()]


def _ranking_time_s(remedy: Remedy) -> float:
    """Return the seconds of a step by which values of one knob are ranked. The value that tuned
    recipes now give a switch gets a bonus of LEAST_GAIN, so that it is preferred to one that gains
    hardly more."""
    change = remedy.change
    if change is None or change.switch is None:
        return remedy.step_time_s
    is_usual = change.after == change.switch.recipe_value_at().value
    return remedy.step_time_s / (1 + LEAST_GAIN) if is_usual else remedy.step_time_s


def _remedy_of_best(best: Prediction, given: Prediction | None, shown: MemoryShown) -> Remedy:
    """Return the best layout of a search as a remedy. Its words say how it differs from the given
    layout, or give it as a whole where the given one is not legal."""
    if given is None:
        words, gain = best.layout.summary(), None
    else:
        words = knob_changes_in_words(given.layout, best.layout)
        gain = given.step_time_s / best.step_time_s - 1
    return Remedy(
        words=f"the best layout of a search: {words}",
        layout=best.layout,
        change=None,
        step_time_s=best.step_time_s,
        gain=gain,
        needed_gib=best.needed_gib,
        fit_probability=_fit_probability(best.layout, best, given, shown),
    )


def _fit_probability(
    layout: Layout, predicted: Outcome | Prediction, given: Prediction | None, shown: MemoryShown
) -> float:
    """Return the probability that a layout fits, after what the run showed. A run shows nothing of
    a host's memory, so that offloading cannot make a layout surer to fit."""
    alone = predicted.fit_probability
    after = fit_probability_after(alone, predicted.needed_gib, given, shown)
    offloads = layout.offload_activations or layout.offload_optimizer
    return min(after, alone) if offloads else after


def fit_probability_after(
    probability: float, needed_gib: float, given: Prediction | None, shown: MemoryShown
) -> float:
    """Return the probability that a layout fits, given what a run of another layout of the same job
    showed. Before the run, the layout was predicted to need `needed_gib` and to fit with
    `probability`.

    Predictions of memory of one job are off by nearly the same factor, whose logarithm is normal.
    If the peak was measured, the factor is known. Otherwise the normal distribution of its
    logarithm is truncated to the values at which the layout that ran fits, or to those at which it
    does not fit, whichever the run showed. Given that factor, the logarithm of the other layout's
    has a standard deviation of at most the difference between the logarithms of both predicted
    needs, and of at most _CHANGE_SPREAD, the spread of differences between the residuals of
    published runs of one job. A run whose outcome was sure beforehand thus tells nothing new.
    """
    if given is None or shown.outcome == "not_known":
        return probability
    spread = _log_spread(given)
    headroom = _headroom(needed_gib, given, spread)
    given_headroom = _headroom(given.needed_gib, given, spread)
    # The errors of both layouts are normal with the standard deviation 1 and this correlation:
    # given the error of one, that of the other scatters by `own_spread` around its correlated part.
    own_spread = min(_CHANGE_SPREAD / spread, abs(headroom - given_headroom), 1.0)
    correlation = math.sqrt(1 - own_spread * own_spread)
    errors = _possible_errors(given_headroom, spread, shown)
    # The mean, over the possible errors of the layout that ran, of the probability that the other
    # layout's error stays below its headroom.
    cdf = NormalDist().cdf
    scale = max(own_spread, _LEAST_OWN_SPREAD)
    return fmean(cdf((headroom - correlation * error) / scale) for error in errors)


def _headroom(needed_gib: float, given: Prediction, spread: float) -> float:
    """Return the error of predicted memory, in standard deviations, at which a layout just fits."""
    # The runtime's memory is known: only the rest of the prediction may be off.
    context_gib = given.memory_gib["context_gib"]
    limit_gib = max(given.usable_gib - context_gib, _LEAST_GIB)
    return math.log(limit_gib / max(needed_gib - context_gib, _LEAST_GIB)) / spread


def _possible_errors(given_headroom: float, spread: float, shown: MemoryShown) -> list[float]:
    """Return equally likely errors of the predicted memory that agree with what the run showed, in
    standard deviations; above 0 a layout needs more than predicted. A measured peak leaves a single
    error. `given_headroom` is the error at which the layout that ran just fits."""
    if shown.peak_factor is not None:
        return [math.log(shown.peak_factor) / spread]
    fit_probability = NormalDist().cdf(given_headroom)
    # The quantiles in the middle of _ERRORS equally likely parts of the errors that are left:
    # those below the headroom for a layout that fitted, and those above it otherwise.
    shares = [(part + 0.5) / _ERRORS for part in range(_ERRORS)]
    if shown.outcome == "fitted":
        most = given_headroom - _LEAST_ERROR
        return [min(_quantile(share * fit_probability), most) for share in shares]
    least = given_headroom + _LEAST_ERROR
    misfit_probability = 1 - fit_probability
    return [max(_quantile(fit_probability + share * misfit_probability), least) for share in shares]


def _quantile(share: float) -> float:
    """Return the quantile of the standard normal distribution, kept finite at its ends."""
    return NormalDist().inv_cdf(min(max(share, _LEAST_SHARE), 1 - _LEAST_SHARE))


def _log_spread(prediction: Prediction) -> float:
    """Return the standard deviation of the logarithm of the memory that the layout reserves."""
    # The runtime's memory is known: only what the layout reserves beside it is uncertain.
    context_gib = prediction.memory_gib["context_gib"]
    return math.log((prediction.needed_high_gib - context_gib) / prediction.reserved_gib) / Z80
