"""The examination of a run: what was measured of it, beside what is predicted, and what would be
better. A *remedy* is a change of the layout, or of a setting of the framework, that helps it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from models.advice.layout_check import LayoutCheck, check_layout
from models.advice.remedies import MemoryShown, Remedy, remedies
from models.errors import Invalid
from models.layouts.rules import broken_rules
from models.prediction.prediction import Prediction, predict_layouts
from service.ask.oom_history import least_failed_gib, out_of_memory_runs
from service.learning.explained_runs import ExplainedRun
from service.learning.report_limits import require_believable
from service.resolve import measurements
from service.runtime.deadline import Deadline
from service.schemas.report import MeasuredSpeed
from service.store import Store


@dataclass(frozen=True, slots=True)
class Examination:
    """All that was worked out about a run, for its explanation."""

    run: ExplainedRun
    speed: MeasuredSpeed | None
    """The speed as it was measured."""
    prediction: Prediction | None
    """None where the layout is not legal."""
    memory_shown: MemoryShown
    check: LayoutCheck
    remedies: Sequence[Remedy]

    @property
    def step_time_s(self) -> float | None:
        """Returns the measured step time; None where no speed was measured."""
        return None if self.speed is None else self.speed.step_time_s


def examine(store: Store, run: ExplainedRun, deadline: Deadline) -> Examination:
    """Predicts the run as it was, checks its layout, and looks for what would be better."""
    problem = run.problem
    prediction = None
    if not broken_rules(problem, run.layout):
        (prediction,) = predict_layouts(problem, [run.layout], run.profile)
    speed = _measured_speed(run, prediction)
    memory_shown = run.memory_shown(prediction)
    check = check_layout(
        problem,
        run.profile,
        run.layout,
        should_continue=deadline,
        oom_gib=_failed_gib(store, run, prediction, memory_shown),
    )
    return Examination(
        run=run,
        speed=speed,
        prediction=prediction,
        memory_shown=memory_shown,
        check=check,
        remedies=remedies(prediction, check.single_changes, check.best, memory_shown),
    )


def _failed_gib(
    store: Store, run: ExplainedRun, prediction: Prediction | None, memory_shown: MemoryShown
) -> float:
    """Returns the smallest predicted need, in GiB, of the runs like this one that ran out of
    memory; infinity where none did. If this run fitted, failures that needed no more than it do not
    count, because it shows that so much fits."""
    failed_gib = least_failed_gib(out_of_memory_runs(store, run.problem, run.profile))
    if prediction is None or memory_shown.outcome == "not_known":
        return failed_gib
    if memory_shown.outcome == "ran_out":  # this run is one of those that failed
        return min(failed_gib, prediction.needed_gib)
    return failed_gib if failed_gib > prediction.needed_gib else math.inf


def _measured_speed(run: ExplainedRun, prediction: Prediction | None) -> MeasuredSpeed | None:
    """Returns the speed that was measured; None where there is none. Raises Invalid for a speed
    that no run can have; the error names the log where the speed was read from one."""
    report = run.report
    # Without a prediction no speed is too slow to believe.
    predicted_s = math.inf if prediction is None else prediction.step_time_s
    try:
        require_believable(report, run.problem, run.layout)
        if report.measured is None:
            return None
        speed = measurements.measured_speed(run.problem, report.measured, predicted_s)
    except Invalid as fault:
        # A run with a log has its figures from the log: a wrong one is the log's fault.
        if run.trouble is None or not fault.field.startswith("measured."):
            raise
        name = fault.field.removeprefix("measured.")
        raise Invalid("log", fault.value, f"says {name}, which {fault.rule}") from None
    if report.parts is not None and prediction is not None:  # only to raise for impossible parts
        measurements.compare_parts(run.problem, report.parts, speed.step_time_s, prediction)
    return speed
