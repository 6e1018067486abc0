"""The description of what ran, in a report, a log or an explanation."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, ValidatorFunctionWrapHandler, WrapValidator

from models.errors import Invalid
from service.schemas.architecture import Model
from service.schemas.cluster import ClusterForm
from service.schemas.micro_batch import LayoutForm
from service.schemas.question import Question
from service.schemas.stack import StackForm
from service.schemas.wire import Instant, Label, Wire
from service.schemas.workload import WorkloadFields

_OLD_CHOICE = "surer"
"""A name that is in old recommendations only, in place of "bolder": read, and not offered."""


def _known_choice(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    return value if value == _OLD_CHOICE else check(value)


Choice = Annotated[
    Literal["recommended", "fastest", "simplest", "bolder"], WrapValidator(_known_choice)
]
"""The name of a layout in a recommendation."""
Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
LINKS = ("prediction_id", "recommendation_id", "check_id")
LINKED = "prediction_id, recommendation_id, check_id or launch"
"""The members that say what ran, in place of a question and a layout."""
_QUESTION_FIELDS = ("model", "cluster", "workload", "stack", "layout")


class RunSubject(Wire):
    """The run: a prediction, a recommendation or a check by its id, or the question and the layout
    themselves."""

    prediction_id: Id | None = None
    recommendation_id: Id | None = None
    check_id: Id | None = None
    """Id of a check that was stored."""
    rank: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Position of the layout that ran, from 1; without it the recommended one of a recommendation
    (of an answer without `layouts`, the fastest), the only one of a prediction."""
    choice: Choice | None = None
    """The name that the layout has in a recommendation, instead of `rank`."""
    model: Model | None = None
    cluster: ClusterForm | None = None
    workload: WorkloadFields | None = None
    stack: StackForm | None = None
    layout: LayoutForm | None = None
    measured_at: Instant | None = None
    """When it ran; without it, now, or what a training log says. Where the stack is described here
    and has no `age_years`, its software is as old as this."""
    source: Label | None = None
    """The team, cluster or tool that measured. However much one source sends, it counts for so many
    runs at most."""

    def require_one_subject(self, settled: Collection[str] = ()) -> None:
        """Raises Invalid unless the run is either linked to an answer or described. The fields in
        `settled` are known from elsewhere and need no description."""
        linked = [name for name in LINKS if getattr(self, name) is not None]
        described = [name for name in _QUESTION_FIELDS if getattr(self, name) is not None]
        if len(linked) > 1:
            second = linked[1]
            raise Invalid(second, getattr(self, second), f"give it or {linked[0]}, not both")
        if linked and described:
            raise Invalid(described[0], None, f"is already fixed by {linked[0]}")
        if self.choice is not None and (self.recommendation_id is None or self.rank is not None):
            raise Invalid("choice", self.choice, "goes with recommendation_id, and without rank")
        # A check has a single layout, and a description has one.
        if self.rank is not None and linked in ([], ["check_id"]):
            raise Invalid("rank", self.rank, "needs prediction_id or recommendation_id")
        undescribed = [
            name for name in _QUESTION_FIELDS if name not in described and name not in settled
        ]
        if not linked and undescribed:
            raise Invalid(undescribed[0], None, f"is required without {LINKED}")

    @property
    def is_linked(self) -> bool:
        return any(getattr(self, name) is not None for name in LINKS)

    def question(self) -> Question:
        """Returns the question that describes the run. Raises ValidationError."""
        given = {name: getattr(self, name) for name in Question.model_fields}
        return Question.model_validate(given)
