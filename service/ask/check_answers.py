"""Answers a check: its verdict, the rules that the job breaks, and what to change first, in the
framework's own words.

A *setting* is what a framework calls a knob of a layout. A *stop* is a setting with which the
framework refuses to start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from models.advice.layout_check import LayoutCheck
from models.advice.layout_warnings import LayoutWarning
from models.advice.single_changes import SingleChange
from models.layouts.rules import broken_rules
from models.spec.layout import Layout
from models.spec.problem import Problem
from service.ask.check_refusals import MOST_CHARACTERS, MOST_RULE_CHARACTERS, refusals
from service.ask.oom_history import least_failed_gib, oom_warnings
from service.ask.resolved_check import ResolvedCheck
from service.field_violations import echoed_value, truncate
from service.formats.launch.job import Inexpressible, OwnName
from service.resolve.answer_basis import grounds
from service.resolve.assumptions import empty_chunk_assumptions, layout_assumptions
from service.resolve.launch_changes import LaunchChanges
from service.resolve.launch_jobs import inexpressible_value
from service.resolve.launch_settings import written_settings
from service.schemas.check import (
    BestAnswer,
    ChangeAnswer,
    CheckAnswer,
    CheckedPrediction,
    FitAnswer,
    SettingChange,
    WarningAnswer,
    summary_of,
    verdict_of,
)
from service.schemas.prediction import OutOfMemoryRun, PredictedLayout, speed_intervals
from service.schemas.reservation import ReservationAnswer

_MOST_RULES = 8  # people fix the first few, and then check again


def check_answer(
    job: ResolvedCheck, check: LayoutCheck, failed: list[OutOfMemoryRun]
) -> CheckAnswer:
    """Returns the answer to a check. `check` is what the models say of the job, and `failed` are
    the reported runs of this model, chip and stack that ran out of memory."""
    cluster = job.resolved.problem.cluster
    prediction = check.prediction
    shown = None if prediction is None else PredictedLayout.of(prediction, cluster)
    unsaid = _value_without_setting(job, check)
    warnings = [*check.warnings, *_added_warnings(job, check, shown, failed, unsaid)]
    broken = refusals(job, check, unsaid)
    is_understood = not job.reservations
    return CheckAnswer(
        **_basis(job, check, shown),
        verdict=verdict_of(
            check,
            is_refused=bool(broken),
            reservations=job.reservations,
            has_warnings=bool(warnings),
        ),
        summary=summary_of(check, broken, job.reservations),
        legal=not broken,
        broken_rules=broken[:_MOST_RULES],
        broken_rule_count=len(broken),
        layout=job.shown_layout,
        prediction=prediction
        and CheckedPrediction.from_attributes(prediction, **speed_intervals(prediction)),
        fits=prediction
        and FitAnswer.of(
            check,
            prediction,
            # A setting that was not understood may undo any change.
            [_change_answer(job, change) for change in check.fitting if is_understood],
        ),
        best=check.best and BestAnswer.of(check, check.best, cluster),
        first_change=_first_change(job, check),
        warnings=[*map(WarningAnswer.from_attributes, warnings)],
        launch_read=job.read,
        reservations=ReservationAnswer.first_of(job.reservations),
    )


def _basis(job: ResolvedCheck, check: LayoutCheck, shown: PredictedLayout | None) -> dict[str, Any]:
    """Returns the fields of the answer that say what it rests on, such as assumptions and switches.
    `shown` is the prediction; None where there is none."""
    # The grounds about a layout come from its prediction, which an illegal layout does not have.
    basis = grounds(
        job.question, job.resolved, job.profile, None if check.broken_rules else job.layout
    )
    if job.layout is not None:
        basis["assumptions"] += layout_assumptions(
            job.place, job.given_layout, job.completed_layout, job.resolved.problem
        )
    if shown is not None:
        basis["assumptions"] += empty_chunk_assumptions(job.place, shown)
    # Switches of the software, such as overlaps, are named as in the release that was read.
    basis["switches"] = [
        switch.model_copy(update={"name": job.named(switch.name)}) for switch in basis["switches"]
    ]
    return basis


def _value_without_setting(job: ResolvedCheck, check: LayoutCheck) -> Inexpressible | None:
    """Returns the error for a value of a layout that the launch format of the stack has no setting
    for; None if there is none, or if the layout is not legal. A launch consists of settings, so
    that nothing in it lacks one."""
    if job.read is not None or job.layout is None or check.broken_rules:
        return None
    return inexpressible_value(job.resolved.problem, job.layout, job.question)


def _first_change(job: ResolvedCheck, check: LayoutCheck) -> ChangeAnswer | None:
    """Returns the change to make first. Wrong names of settings come before all else. None if the
    job was not understood, or if no change helps."""
    if job.changes is not None and any(stop.is_of_name for stop in job.stops):
        return _spelling_change(job, job.changes)
    if job.reservations or check.first_change is None:
        return None
    return _change_answer(job, check.first_change)


def _spelling_change(job: ResolvedCheck, changes: LaunchChanges) -> ChangeAnswer | None:
    """Returns the change that respells or removes settings whose names the framework does not have,
    with the prediction for the launch after it. None if that launch cannot be predicted."""
    stops = [stop for stop in job.stops if stop.is_of_name][:_MOST_RULES]
    outcome = changes.outcome({stop.meant: stop.value for stop in stops if stop.meant})
    if outcome is None:
        return None
    settings = list[SettingChange]()
    words = list[str]()
    for stop in stops:
        name, value = truncate(stop.setting, MOST_CHARACTERS), echoed_value(stop.value)
        settings.append(SettingChange(name=name, before=value, after=None))
        if stop.meant:  # the known setting that is probably meant
            settings.append(SettingChange(name=stop.cure, before=None, after=value))
        words.append(f"write {stop.cure} for {name}" if stop.meant else f"leave out {name}")
    return ChangeAnswer(
        words=truncate(", ".join(words), MOST_RULE_CHARACTERS),
        knob="spelling",  # no knob of the layout changes
        before=[setting.name for setting in settings if setting.after is None],
        after=[setting.name for setting in settings if setting.before is None],
        settings=settings,
        step_time_s=outcome.step_time_s,
        gain_s=None,
        gain=None,
        fit_probability=outcome.fit_probability,
    )


def expressible_in_format(job: ResolvedCheck) -> Callable[[Problem, Layout], bool] | None:
    """Returns a test of whether a layout can be written in the launch format of the request:
    layouts that cannot are not advised. None, which leaves no layout out, if the request is no
    launch, or if even its own layout cannot be written."""

    def is_expressible(problem: Problem, layout: Layout) -> bool:
        return bool(written_settings(job.format, problem, layout))

    problem, own = job.resolved.problem, job.layout
    if job.read is None:
        return None
    # An illegal layout can never be written, and says nothing about the format.
    if own is not None and not broken_rules(problem, own) and not is_expressible(problem, own):
        return None
    return is_expressible


def _change_answer(job: ResolvedCheck, change: SingleChange) -> ChangeAnswer:
    """Returns a change with the framework's settings before and after it. Settings have the names
    of the tool and release that were read."""
    before, after = _settings_of_change(job, change)
    # A tool may call values otherwise too; a release of the framework differs in names alone.
    own_names = {
        name: job.own_names.get(name, OwnName(job.named(name))) for name in {**before, **after}
    }
    settings = [
        SettingChange(
            name=own.name, before=own.value(before.get(name)), after=own.value(after.get(name))
        )
        for name, own in own_names.items()
        if before.get(name) != after.get(name)
    ]
    words = _in_own_names(change.words, own_names, after)
    return ChangeAnswer.of(change, words, settings, job.min_fit_probability)


def _in_own_names(words: str, own_names: Mapping[str, OwnName], after: Mapping[str, Any]) -> str:
    """Returns the words of a change with settings and their values after it as the tool writes
    them. Words may also name settings that stay as they are."""
    for name, own in own_names.items():
        value = after.get(name)
        words = words.replace(f"{name}={value}", f"{own.name}={own.value(value)}")
        # The name alone, and not as a part of a longer one, such as tp of tp_overlap.
        words = re.sub(rf"(?<![\w.]){re.escape(name)}(?![\w.])", own.name, words)
    return words


def _settings_of_change(
    job: ResolvedCheck, change: SingleChange
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Returns the settings that a change touches, with their values before and after it. Values of
    a launch are as they were typed. Both are empty where the framework has no settings for the
    changed layout."""
    if job.changes is not None:  # the job is a launch, of which a changed copy can be read
        changed = job.changes.settings(change)
        return {name: job.changes.typed_value(name) for name in changed}, changed
    after = written_settings(job.format, change.problem, change.layout)
    layout = job.layout
    if layout is None or not after:
        return {}, {}
    # `change.given` is the prediction of the job's own layout. Where there is one, that layout is
    # legal, and its settings can be written too.
    if change.given is not None:
        problem = job.resolved.problem
        before = written_settings(job.format, problem, layout)
        return before, after if before else {}
    # The job's layout is illegal and cannot be written: only fields that are settings are shown.
    # `follows` has the fields that change with the changed one.
    fields = [name for name in (*change.fields, *change.follows) if hasattr(layout, name)]
    names = {job.settings[field]: field for field in fields if field in job.settings}
    # The old value is shown where the format writes a field's value as it is, and not translated.
    own = {
        name: getattr(layout, field)
        for name, field in names.items()
        if after.get(name) == getattr(change.layout, field)
    }
    return own, {name: after.get(name) for name in names}


def _added_warnings(
    job: ResolvedCheck,
    check: LayoutCheck,
    shown: PredictedLayout | None,
    failed: list[OutOfMemoryRun],
    unsaid: Inexpressible | None,
) -> list[LayoutWarning]:
    """Returns warnings beyond those of the models: on settings that were not understood or were
    ignored, on reported runs that ran out of memory, on why no best layout is known, and on
    `unsaid`, a value that no setting says. `shown` is the prediction; None where there is none."""
    warnings = list[LayoutWarning]()
    if job.read is not None and job.read.unread:
        unread = job.read.unread
        first = [truncate(name, MOST_CHARACTERS) for name in unread[:5]]
        names = ", ".join(first) + (", …" if len(unread) > 5 else "")
        warnings.append(
            LayoutWarning(
                code="unread_settings",
                numbers={"count": job.read.unread_count},
                message=f"settings that are not understood and could matter: {names}",
            )
        )
    # Warnings of reading a launch are of two kinds: its value was replaced, or has no effect.
    for message in job.read.warnings if job.read is not None else ():
        is_overruled = message in job.overruled
        code = "request_overrules_launch" if is_overruled else "ignored_setting"
        warnings.append(LayoutWarning(code=code, numbers={}, message=message))
    if shown is not None:
        warnings += [
            LayoutWarning(
                code="reported_out_of_memory",
                numbers={"least_failed_gib": least_failed_gib(failed)},
                message=text,
            )
            for text in oom_warnings({job.place: shown}, failed)
        ]
    if check.no_best is not None:
        warnings.append(LayoutWarning(code="no_best", numbers={}, message=check.no_best))
    if unsaid is not None and not unsaid.is_refused:
        message = f"{unsaid}. A script of your own has to see to it"
        warnings.append(LayoutWarning(code="no_launch", numbers={}, message=message))
    return warnings
