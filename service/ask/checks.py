"""Checks a job that is about to be submitted: is it legal, does it fit, what would be faster, and
what to change first?"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from models.advice.layout_check import LayoutCheck, check_layout
from models.advice.layout_warnings import LayoutWarning
from models.advice.rule_cures import BrokenRule, nearest_cures
from models.advice.single_changes import SingleChange
from models.layouts.rule_sources import rule_source
from models.layouts.rules import broken_rules
from models.spec.constraints import SAFE_FIT_PROBABILITY
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import Profile
from service.ask.check_size import shortened
from service.ask.oom_history import least_failed_gib, oom_warnings, out_of_memory_runs
from service.field_violations import echoed_value, truncate
from service.formats.launch.formats import FORMATS, LaunchFormat, format_of_stack
from service.formats.launch.job import Changes, OwnName
from service.formats.launch.knob_settings import KNOB_SETTINGS, alternatives_in_settings
from service.formats.settings.reservation import Reservation
from service.formats.settings.stop import Stop
from service.resolve.answer_basis import grounds
from service.resolve.assumptions import empty_chunk_assumptions, layout_assumptions
from service.resolve.held_nodes import on_held_nodes
from service.resolve.launch_changes import LaunchChanges
from service.resolve.launch_settings import written_settings
from service.resolve.launched_question import LaunchedQuestion, launched_question
from service.resolve.profiles import requested_profile
from service.resolve.resolution import ResolvedQuestion, Resolver
from service.runtime.deadline import Deadline, no_client
from service.schemas.check import (
    BestAnswer,
    BrokenRuleAnswer,
    ChangeAnswer,
    CheckAnswer,
    CheckedPrediction,
    CheckRequest,
    FitAnswer,
    LaunchedCheckRequest,
    SettingChange,
    WarningAnswer,
    summary_of,
    verdict_of,
)
from service.schemas.launch_form import LaunchRead
from service.schemas.layout import LayoutFields
from service.schemas.prediction import OutOfMemoryRun, PredictedLayout
from service.schemas.question import PinnedQuestion
from service.schemas.reservation import ReservationAnswer
from service.schemas.switches import SwitchAnswer
from service.store import Rows, Store

_MOST_RULES = 8  # people fix the first few, and then check again
_MOST_CHARACTERS = 100  # of a setting or its value
_MOST_RULE_CHARACTERS = 400  # a few lines of a terminal


@dataclass(frozen=True, slots=True)
class ResolvedCheck:
    """A request in the values that the models compute with."""

    question: PinnedQuestion
    resolved: ResolvedQuestion
    profile: Profile
    place: str
    """The field of the request that has the layout."""
    given: LayoutFields
    completed: LayoutFields
    """The given layout with what it leaves open as the stack has it."""
    format: LaunchFormat | None
    """The format in whose words changes are said; None where the stack has none."""
    read: LaunchRead | None
    stops: tuple[Stop, ...] = ()
    """Faults at which the framework stops, beyond the rules that its layout breaks."""
    reservations: tuple[Reservation, ...] = ()
    """Settings of a launch on which no verdict rests."""
    overruled: tuple[str, ...] = ()
    """Sentences about values of a launch in whose place those of the request were taken."""
    own_names: Mapping[str, OwnName] = field(default_factory=dict)
    """The names that the tool of a launch has for settings."""
    changes: LaunchChanges | None = None
    """Single changes of a launch, in its own words."""
    min_fit_probability: float = SAFE_FIT_PROBABILITY

    @property
    def settings(self) -> Mapping[str, str]:
        """The framework's names for the knobs of a layout."""
        return {} if self.format is None else KNOB_SETTINGS[self.format.name]

    def named(self, setting: str) -> str:
        """Returns the name of a setting in the tool, or the release, that was read."""
        if setting in self.own_names:
            return self.own_names[setting].name
        if self.format is None or self.read is None:
            return setting
        return self.format.name_in(setting, self.read.version)

    @property
    def layout(self) -> Layout | None:
        """The layout that is checked; None where the framework stops at settings that it follows
        from."""
        return None if self.shown_layout is None else self.shown_layout.build()

    @property
    def shown_layout(self) -> LayoutFields | None:
        return None if any(stop.hides_layout for stop in self.stops) else self.completed


class Checks:
    def __init__(self, store: Store) -> None:
        self._store = store

    def check(
        self,
        request: CheckRequest | LaunchedCheckRequest,
        require_client: Callable[[], None] = no_client,
    ) -> dict[str, Any]:
        with self._store.reading() as rows:
            asked = self.resolve(rows, request)
        return self.check_resolved(request, asked, require_client)

    def check_resolved(
        self,
        request: CheckRequest | LaunchedCheckRequest,
        asked: ResolvedCheck,
        require_client: Callable[[], None],
    ) -> dict[str, Any]:
        deadline = Deadline(request.time_limit_s, require_client)
        problem = asked.resolved.problem
        failed = out_of_memory_runs(self._store, problem, asked.profile)
        check = check_layout(
            problem=problem,
            profile=asked.profile,
            layout=asked.layout,
            constraints=request.constraints.build(),
            should_continue=deadline,
            oom_gib=least_failed_gib(failed),
            accepts=_expressible(asked),
            express=None if asked.changes is None else asked.changes.said,
        )
        answer = _explain(asked, check, failed)
        return shortened(answer.model_dump(mode="json", by_alias=True))

    def resolve(self, rows: Rows, request: CheckRequest | LaunchedCheckRequest) -> ResolvedCheck:
        resolver = Resolver(rows)
        profile = requested_profile(rows, request.profile)
        request = _on_held_nodes(resolver, request)
        if isinstance(request, CheckRequest):
            resolved = resolver.resolve(request)
            completed = request.layout.with_stack_defaults(resolved.problem)
            return ResolvedCheck(
                question=request,
                resolved=resolved.for_layouts([completed.build()]),
                profile=profile,
                place="layout",
                given=request.layout,
                completed=completed,
                format=format_of_stack(resolved.problem.stack.id),
                read=None,
                min_fit_probability=request.constraints.build().min_fit_probability,
            )
        launched = launched_question(resolver, request.launch, request, allow_stops=True)
        return ResolvedCheck(
            question=launched.question,
            resolved=launched.resolved,
            profile=profile,
            place=launched.layout_field,
            given=launched.layout,
            completed=launched.layout.with_stack_defaults(launched.resolved.problem),
            format=FORMATS[launched.read.format],
            read=launched.read,
            stops=launched.stops,
            reservations=launched.reservations,
            overruled=launched.overruled,
            own_names=launched.own_names,
            changes=LaunchChanges(
                request.launch, launched, profile, partial(self._read_again, request)
            ),
            min_fit_probability=request.constraints.build().min_fit_probability,
        )

    def _read_again(self, request: LaunchedCheckRequest, changes: Changes) -> LaunchedQuestion:
        """The launch of a request with some settings changed."""
        with self._store.reading() as rows:
            return launched_question(
                Resolver(rows), request.launch, request, allow_stops=True, changes=changes
            )


def _on_held_nodes(
    resolver: Resolver, request: CheckRequest | LaunchedCheckRequest
) -> CheckRequest | LaunchedCheckRequest:
    if request.cluster is None:
        return request
    held = on_held_nodes(resolver, request.cluster, request.allocation)
    return request.model_copy(update={"cluster": held})


def _explain(asked: ResolvedCheck, check: LayoutCheck, failed: list[OutOfMemoryRun]) -> CheckAnswer:
    cluster = asked.resolved.problem.cluster
    prediction = check.prediction
    shown = None if prediction is None else PredictedLayout.of(prediction, cluster)
    warnings = [*check.warnings, *_more_warnings(asked, check, shown, failed)]
    basis = grounds(
        asked.question,
        asked.resolved,
        asked.profile,
        None if check.broken_rules else asked.layout,
    )
    if asked.layout is not None:
        basis["assumptions"] += layout_assumptions(
            asked.place, asked.given, asked.completed, asked.resolved.problem
        )
    basis["switches"] = [_as_released(asked, switch) for switch in basis["switches"]]
    broken = _refusals(asked, check)
    is_understood = not asked.reservations
    if shown is not None:
        basis["assumptions"] += empty_chunk_assumptions(asked.place, shown)
    return CheckAnswer(
        **basis,
        verdict=verdict_of(
            check,
            is_refused=bool(broken),
            reservations=asked.reservations,
            has_warnings=bool(warnings),
        ),
        summary=summary_of(check, broken, asked.reservations),
        legal=not broken,
        broken_rules=broken[:_MOST_RULES],
        broken_rule_count=len(broken),
        layout=asked.shown_layout,
        prediction=prediction and CheckedPrediction.of(prediction),
        fits=prediction
        and FitAnswer.of(
            check,
            prediction,
            [_change(asked, change) for change in check.fitting if is_understood],
        ),
        best=check.best and BestAnswer.of(check, check.best, cluster),
        first_change=_first_change(asked, check),
        warnings=[WarningAnswer.of(warning) for warning in warnings],
        launch_read=asked.read,
        reservations=ReservationAnswer.first_of(asked.reservations),
    )


def _refusals(asked: ResolvedCheck, check: LayoutCheck) -> list[BrokenRuleAnswer]:
    """Returns the settings at which the framework stops. Where any number of settings is not known,
    such as those of a file that was not sent, only a name that it does not have is sure to be
    refused. No limit of the search is among the broken rules: `for_layouts` lifts those that a
    layout is beyond."""
    is_open = any(reservation.is_open for reservation in asked.reservations)
    broken = [] if is_open else [_broken_rule(asked, rule) for rule in check.broken_rules]
    stops = [stop for stop in asked.stops if stop.is_of_name or not is_open]
    return [*broken, *(_stop(asked, stop) for stop in stops)]


def _first_change(asked: ResolvedCheck, check: LayoutCheck) -> ChangeAnswer | None:
    """Returns the change to make first. Names that the framework does not have come before all
    else, and for a job that was not understood there is none."""
    if asked.changes is not None and any(stop.is_of_name for stop in asked.stops):
        return _spelling(asked, asked.changes)
    if asked.reservations or check.first_change is None:
        return None
    return _change(asked, check.first_change)


def _spelling(asked: ResolvedCheck, changes: LaunchChanges) -> ChangeAnswer | None:
    """The names that the framework has for those that it does not have, and the others left out,
    with what is predicted of the launch that is written so; None where nothing can be."""
    stops = [stop for stop in asked.stops if stop.is_of_name][:_MOST_RULES]
    outcome = changes.outcome({stop.meant: stop.value for stop in stops if stop.meant})
    if outcome is None:
        return None
    settings = list[SettingChange]()
    words = list[str]()
    for stop in stops:
        name, value = truncate(stop.setting, _MOST_CHARACTERS), echoed_value(stop.value)
        settings.append(SettingChange(name=name, before=value, after=None))
        if stop.meant:
            settings.append(SettingChange(name=stop.cure, before=None, after=value))
        words.append(f"write {stop.cure} for {name}" if stop.meant else f"leave out {name}")
    return ChangeAnswer(
        words=truncate(", ".join(words), _MOST_RULE_CHARACTERS),
        knob="spelling",
        before=[setting.name for setting in settings if setting.after is None],
        after=[setting.name for setting in settings if setting.before is None],
        settings=settings,
        step_time_s=outcome.step_time_s,
        gain_s=None,
        gain=None,
        fit_probability=outcome.fit_probability,
    )


def _expressible(asked: ResolvedCheck) -> Callable[[Problem, Layout], bool] | None:
    """Returns a test of whether a layout can be written in the launch format of the request; None
    where the request is no launch, or its own layout cannot be written in the format."""

    def is_said(problem: Problem, layout: Layout) -> bool:
        return bool(written_settings(asked.format, problem, layout))

    problem, own = asked.resolved.problem, asked.layout
    if asked.read is None:
        return None
    if own is not None and not broken_rules(problem, own) and not is_said(problem, own):
        return None
    return is_said


def _broken_rule(asked: ResolvedCheck, broken: BrokenRule) -> BrokenRuleAnswer:
    """A broken rule, with the field of the request to blame and what the framework calls it."""
    stack = asked.resolved.problem.stack
    setting = asked.settings.get("global_batch" if broken.is_of_batch else broken.knob or "")
    if broken.is_of_batch and asked.read is None:
        return BrokenRuleAnswer.of_batch(broken, asked.question, stack, setting)
    step = broken.knob if asked.read is None else setting or broken.knob
    value = asked.question.workload.global_batch if broken.is_of_batch else None
    return BrokenRuleAnswer(
        name=broken.rule.name,
        kind=broken.rule.kind,
        field=asked.place if step is None else f"{asked.place}.{step}",
        setting=setting,
        value=value if broken.knob is None else getattr(asked.completed, broken.knob),
        rule=broken.message,
        source=rule_source(broken.rule, stack),
        cure=broken.cure if asked.read is None else _cure_in_settings(asked.read.format, broken),
    )


def _cure_in_settings(format_: str, broken: BrokenRule) -> str:
    """The cures of a broken rule that the framework has words for, in these."""
    said = {
        cure: alternatives_in_settings(format_, cure.name, cure.values) for cure in broken.cures
    }
    typed = [cure for cure, words in said.items() if words is not None]
    cures = [f"{said[cure]}{cure.note}" for cure in nearest_cures(typed)]
    return ", or ".join(cures) or "no other value of one setting: take those of the best layout"


def _stop(asked: ResolvedCheck, stop: Stop) -> BrokenRuleAnswer:
    """A rule of the framework that is none of layouts."""
    setting = truncate(stop.setting, _MOST_CHARACTERS)
    return BrokenRuleAnswer(
        name="framework_stops",
        field=f"{asked.place}.{setting}",
        setting=setting,
        value=echoed_value(stop.value),
        rule=truncate(stop.rule, _MOST_RULE_CHARACTERS),
        source=stop.source,
        cure=truncate(stop.cure or stop.rule, _MOST_RULE_CHARACTERS),
    )


def _change(asked: ResolvedCheck, change: SingleChange) -> ChangeAnswer:
    """A change, with the settings of the framework that it changes."""
    before, after = _settings_of_change(asked, change)
    settings = list[SettingChange]()
    words = change.words
    for name in {**before, **after}:
        own = asked.own_names.get(name, OwnName(asked.named(name)))
        old, new = own.value(before.get(name)), own.value(after.get(name))
        if before.get(name) != after.get(name):
            settings.append(SettingChange(name=own.name, before=old, after=new))
        words = words.replace(f"{name}={after.get(name)}", f"{own.name}={new}")
        words = re.sub(rf"(?<![\w.]){re.escape(name)}(?![\w.])", own.name, words)
    return ChangeAnswer.of(change, words, settings, asked.min_fit_probability)


def _as_released(asked: ResolvedCheck, switch: SwitchAnswer) -> SwitchAnswer:
    """Returns a switch by its name in the release that was read."""
    return switch.model_copy(update={"name": asked.named(switch.name)})


def _settings_of_change(
    asked: ResolvedCheck, change: SingleChange
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The settings that a change writes otherwise, before and after it: those of a launch as they
    were typed. As an illegal layout has none that are written, a change of it names those that are
    the values of its knobs."""
    if asked.changes is not None:
        changed = asked.changes.settings(change)
        return {name: asked.changes.typed(name) for name in changed}, changed
    after = written_settings(asked.format, change.problem, change.layout)
    layout = asked.layout
    if layout is None or not after:
        return {}, {}
    if change.given is not None:
        problem = asked.resolved.problem
        before = written_settings(asked.format, problem, layout)
        return before, after if before else {}
    fields = [name for name in (*change.fields, *change.follows) if hasattr(layout, name)]
    names = {asked.settings[field]: field for field in fields if field in asked.settings}
    own = {
        name: getattr(layout, field)
        for name, field in names.items()
        if after.get(name) == getattr(change.layout, field)
    }
    return own, {name: after.get(name) for name in names}


def _more_warnings(
    asked: ResolvedCheck,
    check: LayoutCheck,
    shown: PredictedLayout | None,
    failed: list[OutOfMemoryRun],
) -> list[LayoutWarning]:
    """Returns the warnings of the store, of the reading of the launch and of the search, which are
    added to those of the models."""
    warnings = list[LayoutWarning]()
    if asked.read is not None and asked.read.unread:
        unread = asked.read.unread
        first = [truncate(name, _MOST_CHARACTERS) for name in unread[:5]]
        names = ", ".join(first) + (", …" if len(unread) > 5 else "")
        warnings.append(
            LayoutWarning(
                code="unread_settings",
                numbers={"count": asked.read.unread_count},
                message=f"settings that are not understood and could matter: {names}",
            )
        )
    for message in asked.read.warnings if asked.read is not None else ():
        is_overruled = message in asked.overruled
        code = "request_overrules_launch" if is_overruled else "ignored_setting"
        warnings.append(LayoutWarning(code=code, numbers={}, message=message))
    if shown is not None:
        warnings += [
            LayoutWarning(
                code="reported_out_of_memory",
                numbers={"least_failed_gib": least_failed_gib(failed)},
                message=text,
            )
            for text in oom_warnings({asked.place: shown}, failed)
        ]
    if check.no_best is not None:
        warnings.append(LayoutWarning(code="no_best", numbers={}, message=check.no_best))
    return warnings
