"""Requests to hold two layouts side by side, and the answers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Self, TypeVar

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from models.advice.comparison import Comparison
from models.spec.hardware import Cluster
from service.schemas.launch_form import LaunchRead
from service.schemas.layout import ConstraintFields, LayoutFields
from service.schemas.micro_batch import in_sequences
from service.schemas.patience import Patience
from service.schemas.prediction import Grounds, MemoryTerms, TimeTerms
from service.schemas.question import PinnedQuestion
from service.schemas.recommendation import CandidateAnswer
from service.schemas.reservation import ReservationAnswer
from service.schemas.wire import Wire


class Side(Wire):
    """A layout, or constraints: then the fastest that they allow. With neither, the fastest of all
    that are as sure to fit as constraints ask by themselves."""

    layout: LayoutFields | None = None
    constraints: ConstraintFields | None = None

    @model_validator(mode="after")
    def _refuse_both(self) -> Self:
        """Raises ValueError where both a layout and constraints are given."""
        if self.layout is not None and self.constraints is not None:
            raise ValueError("give either layout or constraints")
        return self


AnySide = TypeVar("AnySide", bound=Side)


def _in_sequences(side: AnySide, info: ValidationInfo) -> AnySide:
    """Returns the side with micro-batches that are given in tokens converted to sequences."""
    parts = {
        name: in_sequences(part, info, f"{info.field_name}.{name}")
        for name in ("layout", "constraints")
        if (part := getattr(side, name)) is not None
    }
    return side.model_copy(update=parts)


SideForm = Annotated[AnySide, AfterValidator(_in_sequences)]
SearchTime = Annotated[float, Field(gt=0, le=60)]


class ComparisonRequest(PinnedQuestion, Patience):
    first: SideForm[Side]
    second: SideForm[Side] = Side()
    """The side that the first is held against."""
    time_limit_s: SearchTime = 20.0
    """Most seconds to search."""


class ComparisonAnswer(Grounds):
    first: CandidateAnswer
    second: CandidateAnswer
    time: TimeTerms
    """The first minus the second."""
    memory_gib: MemoryTerms
    """The first minus the second, each on its fullest stage."""
    reasons: list[str]
    exact: bool
    """No search was cut short by the time limit."""
    launch_read: dict[str, LaunchRead] = {}
    """By side: what was read of those that are launch configurations. Where the two run different
    stacks, `request` has that of the first, and that of the second beside its layout."""
    reservations: dict[str, list[ReservationAnswer]] = {}
    """By side: settings of a launch that could change the answer and were not understood. All else
    here is given as if they were not there."""

    @classmethod
    def of(cls, comparison: Comparison, cluster: Cluster, grounds: dict[str, Any]) -> Self:
        """Returns the comparison as an answer. `grounds` are the fields of Grounds."""
        values = asdict(comparison)
        for side in ("first", "second"):
            values[side] = CandidateAnswer.of(getattr(comparison, side), cluster)
        return cls.model_validate({**values, **grounds})
