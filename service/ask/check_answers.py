"""Answers a check: its verdict, the rules that the job breaks, and what to change first, in the
framework's own words.

A *knob* is one choice of a layout, such as tp, and a *setting* is what a framework calls it. A
*stop* is a setting with which the framework refuses to start. A *reservation* is a setting that
could change the answer and was not understood.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from models.advice.layout_check import LayoutCheck
from models.advice.layout_warnings import LayoutWarning
from models.advice.rule_cures import BrokenRule, nearest_cures_in_words
from models.advice.single_changes import SingleChange
from models.layouts.rule_sources import options_source, rule_source
from models.layouts.rules import broken_rules
from models.spec.constraints import SAFE_FIT_PROBABILITY
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import Profile
from service.ask.oom_history import least_failed_gib, oom_warnings
from service.field_violations import echoed_value, truncate
from service.formats.launch.formats import LaunchFormat
from service.formats.launch.job import Inexpressible, OwnName
from service.formats.launch.knob_settings import KNOB_SETTINGS, alternatives_in_settings
from service.formats.settings.reservation import Reservation
from service.formats.settings.stop import Stop
from service.resolve.answer_basis import grounds
from service.resolve.assumptions import empty_chunk_assumptions, layout_assumptions
from service.resolve.launch_changes import LaunchChanges
from service.resolve.launch_jobs import inexpressible_value
from service.resolve.launch_settings import written_settings
from service.resolve.resolution import ResolvedQuestion
from service.schemas.check import (
    BestAnswer,
    BrokenRuleAnswer,
    ChangeAnswer,
    CheckAnswer,
    CheckedPrediction,
    FitAnswer,
    SettingChange,
    WarningAnswer,
    summary_of,
    verdict_of,
)
from service.schemas.launch_form import LaunchRead
from service.schemas.layout import LayoutFields
from service.schemas.prediction import OutOfMemoryRun, PredictedLayout, speed_intervals
from service.schemas.question import PinnedQuestion
from service.schemas.reservation import ReservationAnswer

_MOST_RULES = 8  # people fix the first few, and then check again
_MOST_CHARACTERS = 100  # of a setting or its value
_MOST_RULE_CHARACTERS = 400  # a few lines of a terminal


@dataclass(frozen=True, slots=True)
class ResolvedCheck:
    """A job to be checked, with all names resolved. The job is a layout, or a *launch*: a script,
    command line or file that starts a training."""

    question: PinnedQuestion
    resolved: ResolvedQuestion
    profile: Profile
    place: str
    """The field of the request that has the layout."""
    given_layout: LayoutFields
    completed_layout: LayoutFields
    """The given layout, with the defaults of the stack for what it leaves open."""
    format: LaunchFormat | None
    """The format in whose words changes are said; None where the stack has none."""
    read: LaunchRead | None
    """The facts that were read from a launch; None where the request has a layout."""
    stops: tuple[Stop, ...] = ()
    """Faults at which the framework stops, beyond the rules that its layout breaks."""
    reservations: tuple[Reservation, ...] = ()
    """Settings of a launch that were not understood: no verdict rests on them."""
    overruled: tuple[str, ...] = ()
    """Sentences about values of a launch in whose place those of the request were taken."""
    own_names: Mapping[str, OwnName] = field(default_factory=dict)
    """The names that the tool of a launch has for settings."""
    changes: LaunchChanges | None = None
    """Finds the settings of a launch that make a change; None where the request has a layout."""
    min_fit_probability: float = SAFE_FIT_PROBABILITY

    @property
    def settings(self) -> Mapping[str, str]:
        """Returns the framework's setting for each knob of a layout, by the name of the knob."""
        return {} if self.format is None else KNOB_SETTINGS[self.format.name]

    def named(self, setting: str) -> str:
        """Returns the name that a setting has in the tool or the release that was read."""
        if setting in self.own_names:
            return self.own_names[setting].name
        if self.format is None or self.read is None:
            return setting
        return self.format.name_in(setting, self.read.version)

    @property
    def layout(self) -> Layout | None:
        """Returns the layout that is checked; None if the framework stops before it has one."""
        return None if self.shown_layout is None else self.shown_layout.build()

    @property
    def shown_layout(self) -> LayoutFields | None:
        """Returns the layout with all of its fields, for the answer; None if the framework stops
        before it has one."""
        return None if any(stop.hides_layout for stop in self.stops) else self.completed_layout


def check_answer(
    job: ResolvedCheck, check: LayoutCheck, failed: list[OutOfMemoryRun]
) -> CheckAnswer:
    """Returns the answer to a check. `check` is what the models say of the job, and `failed` are
    the reported runs of this model, chip and stack that ran out of memory."""
    cluster = job.resolved.problem.cluster
    prediction = check.prediction
    shown = None if prediction is None else PredictedLayout.of(prediction, cluster)
    unsaid = _value_without_setting(job, check)
    warnings = [*check.warnings, *_added_warnings(job, check, shown, failed)]
    if unsaid is not None and not unsaid.is_refused:
        message = f"{unsaid}. A script of your own has to see to it"
        warnings.append(LayoutWarning(code="no_launch", numbers={}, message=message))
    # The grounds about a layout come from its prediction, which an illegal layout does not have.
    basis = grounds(
        job.question, job.resolved, job.profile, None if check.broken_rules else job.layout
    )
    if job.layout is not None:
        basis["assumptions"] += layout_assumptions(
            job.place, job.given_layout, job.completed_layout, job.resolved.problem
        )
    # Switches of the software, such as overlaps, are named as in the release that was read.
    basis["switches"] = [
        switch.model_copy(update={"name": job.named(switch.name)}) for switch in basis["switches"]
    ]
    broken = _refusals(job, check)
    if unsaid is not None and unsaid.is_refused:
        broken.append(_unknown_value(job, unsaid))
    is_understood = not job.reservations
    if shown is not None:
        basis["assumptions"] += empty_chunk_assumptions(job.place, shown)
    return CheckAnswer(
        **basis,
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


def _value_without_setting(job: ResolvedCheck, check: LayoutCheck) -> Inexpressible | None:
    """Returns the error for a value that the launch format of the stack has no setting for. Returns
    None if there is none, if the job is a launch, which has been said, or if it is not legal."""
    if job.read is not None or job.layout is None or check.broken_rules:
        return None
    return inexpressible_value(job.resolved.problem, job.layout, job.question)


def _unknown_value(job: ResolvedCheck, unsaid: Inexpressible) -> BrokenRuleAnswer:
    """Returns a value that the framework does not have, in the form of a broken rule."""
    stack = job.resolved.problem.stack
    return BrokenRuleAnswer(
        name="framework_stops",
        field=unsaid.field,
        setting=None,
        value=echoed_value(unsaid.value),
        rule=truncate(f"stack {stack.id} has no {unsaid.value}", _MOST_RULE_CHARACTERS),
        source=options_source(stack),
        cure=truncate(unsaid.cure, _MOST_RULE_CHARACTERS),
    )


def _refusals(job: ResolvedCheck, check: LayoutCheck) -> list[BrokenRuleAnswer]:
    """Returns the faults at which the framework stops: rules that the layout breaks, and settings.
    A file that was not sent may hold settings that mend the faults. Beside such a file only names
    that the framework does not have are sure to be refused, and only they are returned."""
    is_open = any(reservation.is_open for reservation in job.reservations)  # such as of that file
    broken = [] if is_open else [_broken_rule(job, rule) for rule in check.broken_rules]
    stops = [stop for stop in job.stops if stop.is_of_name or not is_open]
    return [*broken, *(_stop_answer(job, stop) for stop in stops)]


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
        name, value = truncate(stop.setting, _MOST_CHARACTERS), echoed_value(stop.value)
        settings.append(SettingChange(name=name, before=value, after=None))
        if stop.meant:  # the known setting that is probably meant
            settings.append(SettingChange(name=stop.cure, before=None, after=value))
        words.append(f"write {stop.cure} for {name}" if stop.meant else f"leave out {name}")
    return ChangeAnswer(
        words=truncate(", ".join(words), _MOST_RULE_CHARACTERS),
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


def _broken_rule(job: ResolvedCheck, broken: BrokenRule) -> BrokenRuleAnswer:
    """Returns a broken rule with the field of the request that is to blame. In a launch it is the
    framework's setting."""
    stack = job.resolved.problem.stack
    setting = job.settings.get("global_batch" if broken.is_of_batch else broken.knob or "")
    if broken.is_of_batch and job.read is None:
        return BrokenRuleAnswer.of_batch(broken, job.question, stack, setting)
    # A launch has the setting, and a layout the knob.
    blamed = broken.knob if job.read is None else setting or broken.knob
    # The global batch is a value of the workload, and any knob one of the layout.
    value = job.question.workload.global_batch if broken.is_of_batch else None
    return BrokenRuleAnswer(
        name=broken.rule.name,
        kind=broken.rule.kind,
        field=job.place if blamed is None else f"{job.place}.{blamed}",
        setting=setting,
        value=value if broken.knob is None else getattr(job.completed_layout, broken.knob),
        rule=broken.message,
        source=rule_source(broken.rule, stack),
        cure=broken.cure if job.read is None else _cure_in_settings(job.read.format, broken),
    )


def _cure_in_settings(format_: str, broken: BrokenRule) -> str:
    """Returns the nearest cures of a broken rule as settings of the framework, joined by "or". If
    no cure has a setting, points to the best layout."""
    express = partial(alternatives_in_settings, format_)
    return nearest_cures_in_words(broken.cures, express) or (
        "no other value of one setting: take those of the best layout"
    )


def _stop_answer(job: ResolvedCheck, stop: Stop) -> BrokenRuleAnswer:
    """Returns a fault at which the framework stops, in the form of a broken rule, with long texts
    cut."""
    setting = truncate(stop.setting, _MOST_CHARACTERS)
    # Where a stop has no cure, its rule says what to write.
    without_cure = "leave it out" if stop.is_of_name else stop.rule
    return BrokenRuleAnswer(
        name="framework_stops",
        field=f"{job.place}.{setting}",
        setting=setting,
        value=echoed_value(stop.value),
        rule=truncate(stop.rule, _MOST_RULE_CHARACTERS),
        source=stop.source,
        cure=truncate(stop.cure or without_cure, _MOST_RULE_CHARACTERS),
    )


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
) -> list[LayoutWarning]:
    """Returns warnings beyond those of the models: on settings that were not understood or were
    ignored, on reported runs that ran out of memory, and on why no best layout is known. `shown` is
    the prediction; None where there is none."""
    warnings = list[LayoutWarning]()
    if job.read is not None and job.read.unread:
        unread = job.read.unread
        first = [truncate(name, _MOST_CHARACTERS) for name in unread[:5]]
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
    return warnings
