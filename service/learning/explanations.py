"""Explains a run: why it was slow, or died, and what to try.

The run is read (`explained_runs`) and examined (`examination`). Each part of the answer has a
module: `explained_speed`, `explained_failure`, and `log_observations` on what the log itself
shows. `first_fix` picks from them what to do first. A *remedy* is a change that helps the run, of a
field of the layout (a *knob*) or of a setting of the framework (a *switch*). A *reservation* is a
setting of the launch that was not understood.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from models.advice.remedies import Remedy
from models.advice.single_changes import SingleChange
from service.formats.logs.contents import LogContents
from service.learning.examination import Examination, examine
from service.learning.explained_failure import failure_explained
from service.learning.explained_runs import Request, log_submission, read_run
from service.learning.explained_speed import gap_explained, speed_explained, time_shares
from service.learning.first_fix import first_fix, saved_seconds
from service.learning.log_observations import log_explained
from service.resolve.answer_basis import grounds
from service.resolve.assumptions import layout_assumptions
from service.runtime.deadline import Deadline, no_client
from service.schemas.check import WarningAnswer
from service.schemas.explanation import ExplanationAnswer, RemedyAnswer
from service.schemas.layout import LayoutFields
from service.schemas.reservation import ReservationAnswer
from service.schemas.training_log import LogSubmission
from service.store import UseCase

_CAVEATS: dict[str, str] = {
    "gradient_bytes": "gradients are summed in other precision: compare the loss",
    "gather_bytes": "parameters are sent in other precision: compare the loss",
}
"""Effects of a switch besides speed and memory, by the field of the stack that it sets."""


class Explanations(UseCase):
    def log_submission(self, request: Request) -> LogSubmission | None:
        """Returns the log of a request; None where it has none. It has to be read before
        `explain`."""
        return log_submission(self._store, request)

    def explain(
        self,
        request: Request,
        contents: LogContents | None,
        require_client: Callable[[], None] = no_client,
    ) -> dict[str, Any]:
        """Returns the explanation of a run. `contents` is what its log says; None where there is no
        log. `require_client` raises once the client has hung up."""
        run = read_run(self._store, request, contents)
        deadline = Deadline(request.time_limit_s, require_client)
        return _compose_answer(examine(self._store, run, deadline)).model_dump(mode="json")


def _compose_answer(examination: Examination) -> ExplanationAnswer:
    """Returns the explanation: its parts, the assumptions that it rests on, and what to do
    first."""
    run = examination.run
    speed = speed_explained(examination)
    gap = gap_explained(examination)
    failure = failure_explained(examination) if run.has_died else None
    log = log_explained(run, examination.prediction)
    # With an illegal layout, of which nothing is predicted, no switch has an effect to tell.
    layout = None if examination.prediction is None else run.layout
    basis = grounds(run.question, run.resolved, run.profile, layout)
    basis["assumptions"] += layout_assumptions(
        run.layout_field, run.given_layout, run.completed_layout, run.problem
    )
    return ExplanationAnswer(
        **basis,
        first_fix=first_fix(examination, speed, gap, failure, log),
        outcome=run.report.outcome,
        layout=run.completed_layout,
        speed=speed,
        where_the_time_goes=time_shares(examination.prediction),
        gap=gap,
        failure=failure,
        log=log,
        what_to_try=[_remedy_answer(examination, remedy) for remedy in examination.remedies],
        search_exact=examination.check.best_is_exact,
        warnings=[*map(WarningAnswer.from_attributes, examination.check.warnings)],
        launch_read=run.launch,
        reservations=ReservationAnswer.first_of(run.reservations),
    )


def _remedy_answer(examination: Examination, remedy: Remedy) -> RemedyAnswer:
    """Returns a remedy as the answer shows it, with the seconds that it saves of a step: of the
    measured one, or of the predicted one where none was measured."""
    saved_s = None
    if remedy.gain is not None and examination.prediction is not None:
        saved_s = saved_seconds(
            examination.step_time_s or examination.prediction.step_time_s, remedy.gain
        )
    change = remedy.change
    return RemedyAnswer.from_attributes(
        remedy,
        change=remedy.words,
        kind=_kind_of_change(change),
        knob=change and change.knob,
        layout=LayoutFields.shown(remedy.layout, on_torus=examination.run.problem.cluster.is_torus),
        saved_s=saved_s,
        fits=remedy.is_safe,
        caveat=_CAVEATS.get(change.knob) if change and change.switch else None,
    )


def _kind_of_change(change: SingleChange | None) -> Literal["layout", "switch", "search"]:
    """Returns the kind of a change: a field of the layout, a switch of the stack, or, for None, the
    best layout of a search."""
    if change is None:
        return "search"
    return "layout" if change.switch is None else "switch"
