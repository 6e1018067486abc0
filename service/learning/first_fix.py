"""The first thing to do about a run that was explained.

A *remedy* is a change of the layout, or of a setting of the framework. It is *safe* where it surely
fits into memory. Its *gain* is the share by which steps an hour grow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from models.advice.layout_check import LEAST_GAIN, LayoutCheck
from models.advice.remedies import Remedy
from models.advice.single_changes import value_in_words
from models.cost.memory_uncertainty import percent
from models.cost.predictions import TIME_TERMS
from models.prediction.term_words import rounded
from service.formats.settings.reservation import Reservation
from service.learning.examination import Examination
from service.learning.explained_failure import memory_words
from service.learning.residual_attribution import NOT_DESCRIBED
from service.schemas.explanation import (
    FailureExplained,
    GapExplained,
    LogExplained,
    Observation,
    ObservationCode,
    SpeedExplained,
)

_MUCH_OF_THE_GAIN = 0.5
_WORTH_NAMING = 0.05  # of a step
_MOST_FAULTS = 2
_BROKEN_DEVICES: tuple[ObservationCode, ...] = ("device_faults",)
"""Faults to be told of a run that is as fast as predicted, too."""
_FAULTS: tuple[ObservationCode, ...] = (
    *_BROKEN_DEVICES,
    "network_faults",
    "collective_timeouts",
    "throttling",
    "stragglers",
    "data_waits",
    "sockets",
    "allocator_retries",
    "profiling",
    "network_warnings",
)
"""Faults in a log that make a run slow, or end it, whatever its layout: the likeliest cause
first."""


@dataclass(frozen=True, slots=True)
class _Fix:
    """Something to do, and how many more steps an hour it promises, as a share."""

    gain: float
    words: str


def first_fix(
    examination: Examination,
    speed: SpeedExplained | None,
    gap: GapExplained | None,
    failure: FailureExplained | None,
    log: LogExplained | None,
) -> str:
    """Returns a sentence on the first thing to do about a run. First comes what makes the rest
    meaningless: settings that were not understood, then why the run died, then a layout that the
    framework should have refused. Otherwise it is about speed."""
    if examination.run.reservations:
        return _fix_for_reservations(examination.run.reservations)
    if failure is not None:
        return _fix_for_failure(failure, examination, log)
    if speed is None:  # nothing is predicted of an illegal layout
        return _fix_for_illegal_layout(examination.check)
    return _fix_for_speed(speed, gap, examination.remedies, log)


def _fix_for_reservations(reservations: Sequence[Reservation]) -> str:
    """Returns the advice to write the settings of the launch that were not understood in another
    way. A reservation is such a setting."""
    first = reservations[0]
    num_others = len(reservations) - 1
    more = f", and {num_others} more that `reservations` names" if num_others else ""
    return (
        f"The launch has {first.setting}, which is not understood ({first.reason}){more}. What is"
        f" said here is as if it were not there, and nothing is learnt from the run: {first.cure}."
    )


def _fix_for_failure(
    failure: FailureExplained, examination: Examination, log: LogExplained | None
) -> str:
    """Returns the advice about a run that died: the cause to look at where the layout is not to
    blame, and else the change with the shortest step of those that fit; without such a change, the
    cure of a broken rule, or what comes nearest to fitting."""
    check = examination.check
    remedies = examination.remedies
    trouble = examination.run.trouble
    if failure.kind == "not_of_the_layout" and trouble and trouble.out_of_memory_cause:
        return f"{_capitalised(failure.summary)}."  # which says what to do
    if failure.kind == "not_of_the_layout":
        where = "the error itself" if failure.error_line else "the last lines of its log"
        words = f"Start with {where}: {failure.summary}."
        # The likeliest fault goes first, if the log shows any.
        return "".join(f"{fault} " for fault in _faults_in_log(log)[:1]) + words
    if failure.kind == "unlikely_out_of_memory":
        return _fix_for_unlikely_failure(failure.summary, remedies)
    if check.prediction is None:
        cause = _capitalised(failure.summary)
    else:
        cause = f"As it ran, {memory_words(check.prediction)}"
    safe = [remedy for remedy in remedies if remedy.is_safe]
    if safe:
        return f"{_simplest_fix(safe)}. {cause}."
    if check.broken_rules:
        return f"Set {check.broken_rules[0].cure}. {cause}."
    if remedies:
        likeliest = max(remedies, key=lambda remedy: remedy.fit_probability)
        return (
            f"No change surely fits: take more chips, or a smaller job. {_imperative(likeliest)}"
            f"{_fit_words(likeliest)}, comes nearest. {cause}."
        )
    return f"No layout of this job surely fits on these chips: take more of them. {cause}."


def _simplest_fix(safe: Sequence[Remedy]) -> str:
    """Returns the advice to make the single change with the shortest step, or to run the best
    layout of a search if there is no single change. `safe` has the remedies that surely fit, the
    shortest step first."""
    single = [remedy for remedy in safe if remedy.change is not None]
    if not single:
        return f"{_imperative(safe[0])}{_fit_words(safe[0])}"
    fix = f"{_imperative(single[0])}{_fit_words(single[0])}"
    difference = single[0].step_time_s / safe[0].step_time_s - 1
    if difference > _WORTH_NAMING:
        fix += f" (a layout that changes more is {difference:.0%} faster: see what_to_try)"
    return fix


def _fix_for_unlikely_failure(summary: str, remedies: Sequence[Remedy]) -> str:
    """Returns the advice about a run that ran out of memory though it should have fitted: to look
    for another cause first, and only then to change the layout."""
    fix = f"{_capitalised(summary)}."
    for remedy in remedies[:1]:  # the first is the best; the list may be empty
        fix += f" If there is none: {_imperative(remedy)}{_fit_words(remedy)}."
    return fix


def _fit_words(remedy: Remedy) -> str:
    """Returns words such as ": it then fits with a probability of 97%, and a step takes 4%
    longer"."""
    words = f": it then fits with a probability of {percent(remedy.fit_probability)}"
    if remedy.gain is None or abs(remedy.gain) < LEAST_GAIN:
        return words
    change = abs(1 / (1 + remedy.gain) - 1)  # of a step's time, for a gain in steps an hour
    return f"{words}, and a step takes {change:.0%} {'less' if remedy.gain > 0 else 'longer'}"


def _fix_for_illegal_layout(check: LayoutCheck) -> str:
    """Returns the advice to check the description of a run that trained, though its framework
    should refuse its layout."""
    rule = check.broken_rules[0]
    return (
        f"Check the description of the run: it trained, though its layout breaks"
        f" {rule.rule.name}: {rule.message}. Legal would be {rule.cure}."
    )


def _fix_for_speed(
    speed: SpeedExplained,
    gap: GapExplained | None,
    remedies: Sequence[Remedy],
    log: LogExplained | None,
) -> str:
    """Returns the advice about a run that trains. If the run is slow and its log shows a fault, the
    fault comes first, and broken devices come first in any case; else what promises the most steps
    an hour."""
    candidates = [
        *_gap_fixes(speed, gap),
        *_layout_fixes(speed, _worthwhile_remedies(remedies)),
        *_log_fixes(log.observations if log else []),
    ]
    is_slow = gap is not None and gap.gap_s > 0
    faults = _faults_in_log(log) if is_slow else _faults_in_log(log, codes=_BROKEN_DEVICES)
    if faults:
        slower = f" (it is {speed.slower_by:.0%} slower than predicted)" if is_slow else ""
        return " ".join([f"Start with what the log says{slower}.", *faults[:_MOST_FAULTS]])
    if not candidates:
        return (
            f"Nothing to fix: {speed.summary}, and no change that surely fits gains"
            f" {LEAST_GAIN:.0%} or more."
        )
    return max(candidates, key=lambda fix: fix.gain).words


def _faults_in_log(
    log: LogExplained | None, codes: Sequence[ObservationCode] = _FAULTS
) -> list[str]:
    """Returns sentences on the faults that a log shows. `codes` are the kinds of fault to look
    for, the likeliest cause first, and so are the sentences."""
    observations = log.observations if log else []
    faults = [
        observation for code in codes for observation in observations if observation.code == code
    ]
    return [f"{_capitalised(observation.message)}." for observation in faults]


def _gap_fixes(speed: SpeedExplained, gap: GapExplained | None) -> Iterator[_Fix]:
    """Yields the advice to look for the cause of a gap, if the run is slower than predicted."""
    if gap is None or gap.gap_s <= 0 or speed.slower_by is None:
        return
    words = f"Find out why it is {speed.slower_by:.0%} slower than predicted{_likely_cause(gap)}"
    if gap.look_at is not None:
        words += f": look at {gap.look_at}"
    words += "."
    if gap.switches:
        suspect = gap.switches[0]
        words += (
            f" Check {suspect.switch} first: the prediction takes {suspect.field} to be"
            f" {value_in_words(suspect.assumed)}; with {value_in_words(suspect.otherwise)} a step"
            f" would take {rounded(suspect.step_time_s)} s."
        )
    yield _Fix(speed.slower_by, words)


def _likely_cause(gap: GapExplained) -> str:
    """Returns the most likely cause of a gap, in words that complete a sentence about the gap, such
    as ", most likely in exposed communication (probability 70%)"."""
    if gap.term is None or gap.probability is None:
        return f": {gap.summary}"
    term = TIME_TERMS[gap.term]
    undescribed = gap.undescribed_probability or 0.0
    if gap.probability > undescribed:
        return f", most likely in {term} (probability {percent(gap.probability)})"
    return (
        f". The cause is most likely nothing that a prediction describes (probability"
        f" {percent(undescribed)}): {NOT_DESCRIBED}. The likeliest term is {term}"
    )


def _worthwhile_remedies(remedies: Sequence[Remedy]) -> list[Remedy]:
    """Returns the remedies that surely fit and whose gain is known. The best layout of a search
    changes much at once, so it is left out where a single change gains at least half as much."""
    safe = [remedy for remedy in remedies if remedy.is_safe and remedy.gain is not None]
    single = max((remedy.gain or 0.0 for remedy in safe if remedy.change is not None), default=0.0)
    return [
        remedy
        for remedy in safe
        if remedy.change is not None or single < _MUCH_OF_THE_GAIN * (remedy.gain or 0.0)
    ]


def _layout_fixes(speed: SpeedExplained, safe: Sequence[Remedy]) -> Iterator[_Fix]:
    """Yields the advice to make each of these changes, with the time that it saves."""
    for remedy in safe:
        gain = remedy.gain or 0.0
        step_time_s = speed.measured_step_time_s or speed.predicted_step_time_s
        yield _Fix(
            gain,
            f"{_imperative(remedy)}: a step should take {saved_seconds(step_time_s, gain):.2g} s"
            f" less ({gain:.0%} more steps an hour), and it fits with a probability of"
            f" {percent(remedy.fit_probability)}.",
        )


def _log_fixes(observations: Sequence[Observation]) -> Iterator[_Fix]:
    """Yields the advice on each observation in the log that costs a noticeable share of the time. A
    share `cost` of the time that is lost is a gain of cost / (1 - cost) in steps an hour."""
    for observation in observations:
        if observation.cost is not None and observation.cost >= LEAST_GAIN:
            gain = observation.cost / (1 - observation.cost)
            yield _Fix(gain, f"{_capitalised(observation.message)}.")


def saved_seconds(step_time_s: float, gain: float) -> float:
    """Returns the seconds by which a step becomes shorter. `gain` is the share by which steps an
    hour grow."""
    return step_time_s * (1 - 1 / (1 + gain))


def _imperative(remedy: Remedy) -> str:
    """Returns a remedy as the beginning of a sentence, such as "Change tp from 8 to 4"."""
    if remedy.change is None:  # "the best layout of a search: ..."
        return f"Run {remedy.words}"
    if remedy.change.switch is not None:  # its words have a verb, as in "leave out ..."
        return _capitalised(remedy.words)
    return f"Change {remedy.words}"


def _capitalised(text: str) -> str:
    return text[0].upper() + text[1:]
