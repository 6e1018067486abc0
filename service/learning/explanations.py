"""Explains a run: why it was slow, or died, and what to try."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from models.advice.layout_check import BrokenRule, LayoutCheck, check_layout
from models.advice.remedies import MemoryShown, Remedy, must_change, remedies
from models.advice.single_changes import SingleChange
from models.cost.predictions import TIME_TERMS
from models.errors import Invalid
from models.layouts.rule_sources import rule_source
from models.layouts.rules import first_broken
from models.prediction.prediction import Prediction, predict_layouts
from models.spec.constraints import SAFE_FIT_PROBABILITY
from models.spec.layout import Layouts
from models.spec.switches import switches_of
from service.ask.oom_history import least_failed_gib, out_of_memory_runs
from service.formats.logs.contents import LogContents
from service.formats.megatron import arguments as megatron_arguments
from service.learning.explained_runs import ExplainedRun, Request, log_submission, read_run
from service.learning.explanation_words import (
    CAVEATS,
    LOOK_AT,
    MEMORY_MEANING,
    failure_summary,
    first_fix_of_failure,
    first_fix_of_illegal,
    first_fix_of_reservations,
    first_fix_of_speed,
    saved_seconds,
    speed_summary,
)
from service.learning.log_observations import log_explained
from service.learning.report_ingestion import require_believable
from service.learning.residual_attribution import ResidualAttribution
from service.resolve import measurements
from service.resolve.answer_basis import grounds
from service.resolve.assumptions import layout_assumptions
from service.runtime.deadline import Deadline, no_client
from service.schemas.check import BrokenRuleAnswer, WarningAnswer
from service.schemas.explanation import (
    ExplanationAnswer,
    FailureExplained,
    FailureKind,
    GapExplained,
    LogExplained,
    MemoryShare,
    RemedyAnswer,
    SpeedExplained,
    SwitchSuspect,
    TimeShare,
)
from service.schemas.layout import LayoutFields
from service.schemas.prediction import ByConvention
from service.schemas.report import MeasuredSpeed
from service.schemas.reservation import ReservationAnswer
from service.schemas.training_log import LogSubmission
from service.store import Store

_MOST_SUSPECTS = 3
_LEAST_EXPLAINED = 0.2
"""Least share of the gap that a suspected switch explains."""
_LEAST_SHARE = 1e-3  # of the step, or of the memory: what is less is not shown


@dataclass(frozen=True, slots=True)
class _Explained:
    """All that was worked out about a run."""

    run: ExplainedRun
    speed: MeasuredSpeed | None
    """The speed as it was measured."""
    prediction: Prediction | None
    """None where the layout is not legal."""
    shown: MemoryShown
    check: LayoutCheck
    remedies: Sequence[Remedy]

    @property
    def step_time_s(self) -> float | None:
        return None if self.speed is None else self.speed.step_time_s


class Explanations:
    def __init__(self, store: Store) -> None:
        self._store = store

    def log_submission(self, request: Request) -> LogSubmission | None:
        """The log of a request, which is to be read before the rest is explained."""
        return log_submission(self._store, request)

    def explain(
        self,
        request: Request,
        contents: LogContents | None,
        require_client: Callable[[], None] = no_client,
    ) -> dict[str, Any]:
        """The answer to a request whose log says this."""
        run = read_run(self._store, request, contents)
        deadline = Deadline(request.time_limit_s, require_client)
        explained = self._work_out(run, deadline)
        return _answer(explained).model_dump(mode="json")

    def _work_out(self, run: ExplainedRun, deadline: Deadline) -> _Explained:
        problem = run.problem
        prediction = None
        if first_broken(problem, Layouts.of([run.layout]))[0] < 0:
            (prediction,) = predict_layouts(problem, [run.layout], run.profile)
        speed = _measured_speed(run, prediction)
        shown = run.memory_shown(prediction)
        check = check_layout(
            problem,
            run.profile,
            run.layout,
            None,
            deadline,
            self._failed_gib(run, prediction, shown),
        )
        return _Explained(
            run=run,
            speed=speed,
            prediction=prediction,
            shown=shown,
            check=check,
            remedies=remedies(prediction, check.single_changes, check.best, shown),
        )

    def _failed_gib(
        self, run: ExplainedRun, prediction: Prediction | None, shown: MemoryShown
    ) -> float:
        """The least predicted memory with which a run like this one ran out. Earlier failures that
        needed no more than a run which fitted do not count."""
        failed_gib = least_failed_gib(out_of_memory_runs(self._store, run.problem, run.profile))
        if prediction is None or shown.outcome == "not_known":
            return failed_gib
        if shown.outcome == "ran_out":
            return min(failed_gib, prediction.needed_gib)
        return failed_gib if failed_gib > prediction.needed_gib else math.inf


def _measured_speed(run: ExplainedRun, prediction: Prediction | None) -> MeasuredSpeed | None:
    """The speed that was measured. Raises Invalid for what no run can have measured, which is the
    fault of the log where it was read from one."""
    report = run.report
    predicted_s = math.inf if prediction is None else prediction.step_time_s
    try:
        require_believable(report, run.problem, run.layout)
        if report.measured is None:
            return None
        speed = measurements.measured_speed(run.problem, report.measured, predicted_s)
    except Invalid as fault:
        if run.trouble is None or not fault.field.startswith("measured."):
            raise
        name = fault.field.removeprefix("measured.")
        raise Invalid("log", fault.value, f"says {name}, which {fault.rule}") from None
    if report.parts is not None and prediction is not None:
        measurements.compare_parts(run.problem, report.parts, speed.step_time_s, prediction)
    return speed


# -- the answer
# --------------------------------------------------------------------------------------------------


def _answer(it: _Explained) -> ExplanationAnswer:
    run = it.run
    speed = _speed(it)
    gap = _gap(it)
    failure = _failure(it) if run.has_died else None
    log = log_explained(run, it.prediction)
    layout = None if it.prediction is None else run.layout
    basis = grounds(run.question, run.resolved, run.profile, layout)
    basis["assumptions"] += layout_assumptions(run.place, run.given, run.settled, run.problem)
    return ExplanationAnswer(
        **basis,
        first_fix=_first_fix(it, speed, gap, failure, log),
        outcome=run.report.outcome,
        layout=run.settled,
        speed=speed,
        where_the_time_goes=_time_shares(it.prediction),
        gap=gap,
        failure=failure,
        log=log,
        what_to_try=[_remedy(it, one) for one in it.remedies],
        search_exact=it.check.best_is_exact,
        warnings=[WarningAnswer.of(warning) for warning in it.check.warnings],
        launch_read=run.launch,
        reservations=ReservationAnswer.first_of(run.reservations),
    )


def _first_fix(
    it: _Explained,
    speed: SpeedExplained | None,
    gap: GapExplained | None,
    failure: FailureExplained | None,
    log: LogExplained | None,
) -> str:
    if it.run.reservations:
        return first_fix_of_reservations(it.run.reservations)
    if failure is not None:
        return first_fix_of_failure(failure, it.check, it.remedies, log)
    if speed is None:
        return first_fix_of_illegal(it.check)
    return first_fix_of_speed(speed, gap, it.remedies, log)


def _speed(it: _Explained) -> SpeedExplained | None:
    prediction = it.prediction
    if prediction is None:
        return None
    step_time_s = it.step_time_s
    return SpeedExplained(
        measured_step_time_s=step_time_s,
        measured_mfu=None if it.speed is None else ByConvention.model_validate(it.speed.mfu),
        predicted_step_time_s=prediction.step_time_s,
        predicted_low_s=prediction.step_time_low_s,
        predicted_high_s=prediction.step_time_high_s,
        predicted_mfu=ByConvention.model_validate(prediction.mfu),
        slower_by=None if step_time_s is None else step_time_s / prediction.step_time_s - 1,
        within_interval=measurements.is_within_interval(step_time_s, prediction),
        summary=speed_summary(prediction, step_time_s),
    )


def _time_shares(prediction: Prediction | None) -> list[TimeShare]:
    if prediction is None:
        return []
    shares = [
        TimeShare(
            term=term,
            seconds=seconds,
            share=seconds / prediction.step_time_s,
            meaning=TIME_TERMS[term],
        )
        for term, seconds in prediction.time.items()
        if seconds > _LEAST_SHARE * prediction.step_time_s
    ]
    return sorted(shares, key=lambda one: -one.seconds)


def _gap(it: _Explained) -> GapExplained | None:
    """Returns the causes of the gap between a measured step and its prediction; None within the
    interval."""
    run = it.run
    step_time_s = it.step_time_s
    prediction = it.prediction
    if prediction is None or step_time_s is None:
        return None
    if measurements.is_within_interval(step_time_s, prediction):
        return None
    attribution = ResidualAttribution(run.problem, run.layout, run.profile)
    diagnosis = attribution.diagnosis(step_time_s, run.report.parts)
    suspect = diagnosis.suspect
    is_slower = diagnosis.gap_s > 0
    return GapExplained(
        gap_s=diagnosis.gap_s,
        term=suspect.term if suspect else None,
        excess_s=suspect.excess_s if suspect else None,
        probability=suspect.probability if suspect else None,
        undescribed_probability=suspect.undescribed if suspect else None,
        summary=attribution.sentence(prediction, step_time_s, run.report.parts),
        look_at=LOOK_AT[suspect.term] if suspect and is_slower else None,
        switches=_suspected_switches(it, prediction, step_time_s) if is_slower else [],
    )


def _suspected_switches(
    it: _Explained, prediction: Prediction, step_time_s: float
) -> list[SwitchSuspect]:
    """Switches that nobody said how they were set, and that would bring the predicted step nearer
    to the measured one if the framework had been told nothing: the nearest first."""
    gap = math.log(step_time_s / prediction.step_time_s)
    stated = _stated_switches(it.run)

    def distance(change: SingleChange) -> float:
        return abs(math.log(step_time_s / change.outcome.step_time_s))

    suspects = dict[str, SwitchSuspect]()
    for change in sorted(it.check.single_changes, key=distance):
        if change.switch is None or change.knob in stated:
            continue
        if change.after != change.switch.default_at().value:
            continue
        if distance(change) < (1 - _LEAST_EXPLAINED) * gap:
            suspect = SwitchSuspect(
                switch=change.switch.name,
                field=change.knob,
                assumed=change.before,
                otherwise=change.after,
                step_time_s=change.outcome.step_time_s,
            )
            suspects.setdefault(change.knob, suspect)
    return [*suspects.values()][:_MOST_SUSPECTS]


def _stated_switches(run: ExplainedRun) -> set[str]:
    """The fields of the stack that the request, its launch or the log say."""
    stated = {*run.resolved.used.stack.changes}
    if run.logged is not None and run.logged.arguments:
        stated |= megatron_arguments.stack_fields(run.logged.arguments).keys()
    if run.launch is not None:
        stated |= {switch.field for switch in switches_of(run.problem.stack)}
    return stated


def _failure(it: _Explained) -> FailureExplained:
    run = it.run
    prediction = it.prediction
    error_line = None if run.trouble is None else run.trouble.last_error
    kind = _failure_kind(it)
    return FailureExplained(
        kind=kind,
        summary=failure_summary(kind, it.check, error_line),
        error_line=error_line,
        broken_rules=[_broken_rule(run, broken) for broken in it.check.broken_rules],
        needed_gib=prediction and prediction.needed_gib,
        needed_low_gib=prediction and prediction.needed_low_gib,
        needed_high_gib=prediction and prediction.needed_high_gib,
        usable_gib=prediction and prediction.usable_gib,
        stage=prediction and prediction.memory_stage,
        fit_probability=prediction and prediction.fit_probability,
        memory=_memory_shares(prediction),
    )


def _broken_rule(run: ExplainedRun, broken: BrokenRule) -> BrokenRuleAnswer:
    if broken.is_of_batch:
        return BrokenRuleAnswer.of_batch(broken, run.question, run.problem.stack)
    return BrokenRuleAnswer(
        name=broken.rule.name,
        field=run.place if broken.knob is None else f"{run.place}.{broken.knob}",
        setting=None,
        value=None if broken.knob is None else getattr(run.settled, broken.knob),
        rule=broken.message,
        source=rule_source(broken.rule, run.problem.stack),
        cure=broken.cure,
    )


def _failure_kind(it: _Explained) -> FailureKind:
    prediction = it.prediction
    if prediction is None:
        return "broken_rule"
    probability = prediction.fit_probability
    if it.shown.outcome == "ran_out":
        return "unlikely_out_of_memory" if probability >= SAFE_FIT_PROBABILITY else "out_of_memory"
    return "memory_likely" if must_change(prediction, it.shown) else "not_of_the_layout"


def _memory_shares(prediction: Prediction | None) -> list[MemoryShare]:
    if prediction is None:
        return []
    shares = [
        MemoryShare(
            term=term, gib=gib, share=gib / prediction.needed_gib, meaning=MEMORY_MEANING[term]
        )
        for term, gib in prediction.memory_gib.items()
        if gib > _LEAST_SHARE * prediction.needed_gib
    ]
    return sorted(shares, key=lambda one: -one.gib)


def _remedy(it: _Explained, remedy: Remedy) -> RemedyAnswer:
    saved_s = None
    if remedy.gain is not None and it.prediction is not None:
        saved_s = saved_seconds(it.step_time_s or it.prediction.step_time_s, remedy.gain)
    change = remedy.change
    return RemedyAnswer(
        change=remedy.words,
        kind=_kind(change),
        knob=change and change.knob,
        layout=LayoutFields.shown(remedy.layout, on_torus=it.run.problem.cluster.is_torus),
        step_time_s=remedy.step_time_s,
        gain=remedy.gain,
        saved_s=saved_s,
        fits=remedy.is_safe,
        fit_probability=remedy.fit_probability,
        needed_gib=remedy.needed_gib,
        caveat=CAVEATS.get(change.knob) if change and change.switch else None,
    )


def _kind(change: SingleChange | None) -> Literal["layout", "switch", "search"]:
    if change is None:
        return "search"
    return "layout" if change.switch is None else "switch"
