"""The reports that moved a prediction, as answers name them, in groups by model, chip and stack.
They are those that a calibration has learnt since the version that the answer compares with."""

from __future__ import annotations

from collections.abc import Sequence

from models.prediction.learned_changes import learned_changes
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import Profile
from service.own_profile import is_own
from service.schemas.learned import Learned, LearnedFrom
from service.schemas.wire import UNNAMED

_LEAST_SHOWN = 0.0005  # of a step: less would be shown as 0.0%
_MOST_NAMED = 3  # groups of reports that a sentence names; the others are counted together
_BILLION = 1e9


def learned(problem: Problem, layout: Layout, profile: Profile) -> Learned | None:
    """Returns the reports that moved the predicted step time of a layout, the largest change first,
    with a sentence on them. None where the profile rests on no reports."""
    changes = learned_changes(problem, layout, profile)
    if changes is None:
        return None
    noticed = [
        LearnedFrom.from_attributes(group, step_time_change=change)
        for group, change in changes.groups
        if abs(change) >= _LEAST_SHOWN
    ]
    noticed.sort(key=lambda reports: -abs(reports.step_time_change))
    # A tenant's own version is compared with the shared one on top of which it was learnt.
    whose = "the shared version" if is_own(profile.id) else "version"
    against = f"{whose} {changes.against_version}"
    return Learned(
        sentence=_sentence(changes.step_time_change, against, noticed),
        against_version=changes.against_version,
        step_time_change=changes.step_time_change,
        reports=noticed,
    )


def _sentence(change: float, against: str, reports: Sequence[LearnedFrom]) -> str:
    """Returns a sentence such as "A step takes 3.1% longer than under version 4: +2.0% from 12
    reports on h100, ...". `against` names the version compared with."""
    if not reports:
        return f"Reports that came after {against} do not move this prediction."
    parts = [
        f"{group.step_time_change:+.1%} from {_described(group)}" for group in reports[:_MOST_NAMED]
    ]
    others = reports[_MOST_NAMED:]
    if others:
        runs = sum(group.runs + group.benchmarks for group in others)
        parts.append(f"the rest from {runs} other reports")
    return f"A step takes {_change_in_words(change)} under {against}: {', '.join(parts)}."


def _change_in_words(change: float) -> str:
    """Returns a relative change of step time, such as 0.031, in words that the name of a version
    follows, such as "3.1% longer than"."""
    if abs(change) < _LEAST_SHOWN:
        return "as long as"
    return f"{abs(change):.1%} {'longer' if change > 0 else 'less'} than"


def _described(reports: LearnedFrom) -> str:
    """Returns the number of reports, and what they measured as far as it may be told, such as "12
    reports of llama-3-8b on h100 (latest 01AB...)"."""
    counts = [
        f"{count} {noun}{'' if count == 1 else 's'}"
        for count, noun in ((reports.runs, "report"), (reports.benchmarks, "benchmark"))
        if count
    ]
    words = " and ".join(counts)
    if reports.model is not None and reports.parameters is not None:
        # The hash that an unnamed model is listed by would tell a reader nothing.
        is_named = not reports.model.startswith(f"{UNNAMED}-")
        size = f"{reports.parameters / _BILLION:.3g}B parameters"
        words += f" of {reports.model}" if is_named else f" of a model of {size}"
    if reports.chip is not None:
        words += f" on {reports.chip}"
    if reports.stack is not None:
        words += f" with {reports.stack}"
    if reports.latest:
        words += f" (latest {reports.latest[0]})"
    return words
