"""Checks a job that is about to be submitted: is it legal, does it fit, what would be faster, and
what to change first?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from models.advice.layout_check import BrokenRule, LayoutCheck, check_layout
from models.advice.layout_warnings import LayoutWarning
from models.advice.single_changes import SingleChange
from models.layouts.rules import broken_rules
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import Profile
from service.ask.oom_history import least_failed_gib, oom_warnings, out_of_memory_runs
from service.formats.launch.formats import FORMATS, LaunchFormat, format_of_stack
from service.formats.launch.job import Stop
from service.formats.launch.knob_settings import KNOB_SETTINGS
from service.resolve.answer_basis import grounds
from service.resolve.assumptions import empty_chunk_assumptions, layout_assumptions
from service.resolve.launch_settings import written_settings
from service.resolve.launched_question import launched_question
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
from service.store import Store


@dataclass(frozen=True, slots=True)
class _ResolvedRequest:
    """A request in the values that the models compute with."""

    question: PinnedQuestion
    resolved: ResolvedQuestion
    profile: Profile
    place: str
    """Where the layout stands in the request."""
    given: LayoutFields
    completed: LayoutFields
    """The given layout with what it leaves open as the stack has it."""
    format: LaunchFormat | None
    """In whose words changes are said; None where the stack has none."""
    read: LaunchRead | None
    stops: tuple[Stop, ...] = ()
    """At which the framework stops, beyond the rules that its layout breaks."""

    @property
    def settings(self) -> Mapping[str, str]:
        """What the framework calls the knobs of a layout."""
        return {} if self.format is None else KNOB_SETTINGS[self.format.name]

    @property
    def layout(self) -> Layout | None:
        """None where the framework stops at what the layout follows from."""
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
        deadline = Deadline(request.time_limit_s, require_client)
        asked = self._resolve(request)
        problem = asked.resolved.problem
        failed = out_of_memory_runs(self._store, problem, asked.profile)
        check = check_layout(
            problem,
            asked.profile,
            asked.layout,
            request.constraints.build(),
            deadline,
            least_failed_gib(failed),
            _expressible(asked),
        )
        return _explain(asked, check, failed).model_dump(mode="json", by_alias=True)

    def _resolve(self, request: CheckRequest | LaunchedCheckRequest) -> _ResolvedRequest:
        with self._store.reading() as rows:
            resolver = Resolver(rows)
            profile = requested_profile(rows, request.profile)
            if isinstance(request, CheckRequest):
                resolved = resolver.resolve(request)
                return _ResolvedRequest(
                    question=request,
                    resolved=resolved,
                    profile=profile,
                    place="layout",
                    given=request.layout,
                    completed=request.layout.with_stack_defaults(resolved.problem),
                    format=format_of_stack(resolved.problem.stack.id),
                    read=None,
                )
            launched = launched_question(resolver, request.launch, request, allow_stops=True)
            return _ResolvedRequest(
                question=launched.question,
                resolved=launched.resolved,
                profile=profile,
                place=launched.layout_field,
                given=launched.layout,
                completed=launched.layout.with_stack_defaults(launched.resolved.problem),
                format=FORMATS[request.launch.format],
                read=launched.read,
                stops=launched.stops,
            )


def _explain(
    asked: _ResolvedRequest, check: LayoutCheck, failed: list[OutOfMemoryRun]
) -> CheckAnswer:
    cluster = asked.resolved.problem.cluster
    warnings = [*check.warnings, *_more_warnings(asked, check, failed)]
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
    broken = [_broken_rule(asked, broken) for broken in check.broken_rules]
    broken += [_stop(asked, stop) for stop in asked.stops]
    prediction = check.prediction
    if prediction is not None:
        shown = PredictedLayout.of(prediction, cluster)
        basis["assumptions"] += empty_chunk_assumptions(asked.place, shown)
    return CheckAnswer(
        **basis,
        verdict="illegal" if broken else verdict_of(check, has_warnings=bool(warnings)),
        summary=summary_of(check, broken),
        legal=not broken,
        broken_rules=broken,
        layout=asked.shown_layout,
        prediction=prediction and CheckedPrediction.of(prediction),
        fits=prediction
        and FitAnswer.of(prediction, [_change(asked, change) for change in check.fitting]),
        best=check.best and BestAnswer.of(check, check.best, cluster),
        first_change=check.first_change and _change(asked, check.first_change),
        warnings=[WarningAnswer.of(warning) for warning in warnings],
        launch_read=asked.read,
    )


def _expressible(asked: _ResolvedRequest) -> Callable[[Problem, Layout], bool] | None:
    """Whether a layout can be said in the framework's words. None where it need not be: the request
    does not use these, or they do not say its own layout."""

    def is_said(problem: Problem, layout: Layout) -> bool:
        return bool(written_settings(asked.format, problem, asked.profile, layout))

    problem, own = asked.resolved.problem, asked.layout
    if asked.read is None:
        return None
    if own is not None and not broken_rules(problem, own) and not is_said(problem, own):
        return None
    return is_said


def _broken_rule(asked: _ResolvedRequest, broken: BrokenRule) -> BrokenRuleAnswer:
    """A broken rule, with the field of the request to blame and what the framework calls it."""
    workload = asked.question.workload
    setting = asked.settings.get("global_batch" if broken.is_of_batch else broken.knob or "")
    if broken.is_of_batch and asked.read is None:
        return BrokenRuleAnswer.of_batch(broken, workload, setting)
    step = broken.knob if asked.read is None else setting or broken.knob
    value = workload.global_batch if broken.is_of_batch else None
    return BrokenRuleAnswer(
        name=broken.rule.name,
        field=asked.place if step is None else f"{asked.place}.{step}",
        setting=setting,
        value=value if broken.knob is None else getattr(asked.completed, broken.knob),
        rule=broken.message,
        cure=_in_settings(asked, broken.cure),
    )


def _in_settings(asked: _ResolvedRequest, cure: str) -> str:
    """A cure such as "tp = 1 or 2" as the framework writes it, where the request is in its
    words."""
    knob, equals, values = cure.partition(" = ")
    is_own = knob != "schedule" or asked.settings.get(knob) != asked.settings.get("virtual_stages")
    if asked.read is None or not equals or knob not in asked.settings or not is_own:
        return cure
    return f"{asked.settings[knob]} {values}"


def _stop(asked: _ResolvedRequest, stop: Stop) -> BrokenRuleAnswer:
    """A rule of the framework that is none of layouts."""
    return BrokenRuleAnswer(
        name="framework_stops",
        field=f"{asked.place}.{stop.setting}",
        setting=stop.setting,
        value=stop.value,
        rule=stop.rule,
        cure=stop.cure or stop.rule,
    )


def _change(asked: _ResolvedRequest, change: SingleChange) -> ChangeAnswer:
    """A change, with the settings of the framework that it changes. As an illegal layout has no
    settings that are written, a change of it names the one of its knob."""
    after = written_settings(asked.format, change.problem, asked.profile, change.layout)
    if change.given is None or asked.layout is None:
        own = asked.settings.get(change.knob)
        before = after if own is None or own not in after else {**after, own: change.before}
    else:
        problem = asked.resolved.problem
        before = written_settings(asked.format, problem, asked.profile, asked.layout)
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    settings = [
        SettingChange(name=name, before=before.get(name), after=after.get(name)) for name in names
    ]
    return ChangeAnswer.of(change, settings if before and after else [])


def _more_warnings(
    asked: _ResolvedRequest, check: LayoutCheck, failed: list[OutOfMemoryRun]
) -> list[LayoutWarning]:
    """What the store, the reading of the launch and the search add to what the models warn of."""
    warnings = list[LayoutWarning]()
    if asked.read is not None and asked.read.unread:
        unread = asked.read.unread
        names = ", ".join(unread[:5]) + (", …" if len(unread) > 5 else "")
        warnings.append(
            LayoutWarning(
                code="unread_settings",
                numbers={"count": len(unread)},
                message=f"settings that are not understood and could matter: {names}",
            )
        )
    if check.prediction is not None:
        shown = PredictedLayout.of(check.prediction, asked.resolved.problem.cluster)
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
