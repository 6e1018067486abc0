"""Questions about a launch configuration: it says what is trained and how, and the request says
what it leaves open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, Discriminator, Field, Tag, model_validator

from service.json_pointers import TAG_PREFIX
from service.schemas.architecture import (
    HuggingFaceConfig,
    ModelConfig,
    ModelLayers,
    ModelName,
    NamedModel,
    NamedModelFields,
    ShapeFields,
    model_tag,
)
from service.schemas.cluster import ClusterForm
from service.schemas.comparison import ComparisonRequest, SearchTime, Side, SideForm
from service.schemas.launch_form import LaunchForm
from service.schemas.layer_list import LayerListFields
from service.schemas.patience import Patience
from service.schemas.prediction import PredictionRequest
from service.schemas.question import ProfileWanted, Question
from service.schemas.stack import StackFields, StackForm
from service.schemas.wire import Wire

Part = dict[str, Any]
"""Some of the fields of a form, which are checked with those that the launch says."""


def _model_tag(value: object) -> str:
    """Returns the tag of the form in which a model is written. An object that does not describe a
    whole model has the tag "part": it completes the model of the launch."""
    return model_tag(value, other_object="part")


ModelPart = Annotated[
    ModelName | NamedModel | ModelConfig | ModelLayers | Annotated[Part, Tag(f"{TAG_PREFIX}part")],
    Discriminator(_model_tag),
]


class QuestionParts(Wire):
    """The parts that the launch does not say. What both say must be the same, with two exceptions:
    the fields of `stack` go before the settings of the launch, and the chips of `cluster` and their
    number go before those that a script asks a scheduler for, as `sbatch -N 8` goes before #SBATCH
    -N 16."""

    model: ModelPart | None = None
    """The model as in a question, or those fields of a shape that the launch does not say, such as
    `vocab_size`."""
    cluster: ClusterForm | None = None
    """The cluster as in a question, and always required, since a launch names no chips. Without
    `num_chips` it has as many as the launch says."""
    workload: Part = Field(default={}, max_length=100)
    """The fields of a workload that the launch does not say."""
    stack: StackForm | None = None
    """A stack that runs the framework of the launch; without it that of the format."""
    profile: ProfileWanted | None = None
    """The version to predict with; without it the active one."""

    @classmethod
    def of(cls, question: Question, stack: str | StackFields | None) -> QuestionParts:
        """Returns the parts of a question, with another stack: the question of one launch can then
        complete another launch. Only fields that were given are kept, so no default contradicts
        it."""
        model: str | NamedModelFields | HuggingFaceConfig | LayerListFields | Part
        if isinstance(question.model, ShapeFields):
            model = question.model.model_dump(exclude_unset=True)
        else:
            model = question.model
        return QuestionParts(
            model=model,
            cluster=question.cluster,
            workload=question.workload.model_dump(exclude_unset=True),
            stack=stack,
        )


class LaunchedPredictionRequest(QuestionParts, Patience):
    """A layout in the words of a framework."""

    launch: LaunchForm


class LaunchedSide(Side):
    """A side that may also be what a launch configuration runs."""

    launch: LaunchForm | None = None

    @model_validator(mode="after")
    def _require_launch_alone(self) -> Self:
        """Raises ValueError for a launch beside a layout or constraints."""
        if self.launch is not None and (self.layout is not None or self.constraints is not None):
            raise ValueError("give either launch, layout or constraints")
        return self


class LaunchedComparisonRequest(QuestionParts, Patience):
    """Give `launch` on one side or on both."""

    first: SideForm[LaunchedSide]
    second: SideForm[LaunchedSide] = LaunchedSide()
    """The side that the first is held against. A side without a launch runs the stack of the other,
    unless the request names a stack."""
    time_limit_s: SearchTime = 20.0
    """Most seconds to search."""


def request_tag(value: object) -> str:
    """Returns the tag of a request: "launched" if it has a launch itself or on one of two sides,
    and else "plain". Pydantic then validates it in the schema of that tag alone."""
    parts = [value, *(_member(value, side) for side in ("first", "second"))]
    has_launch = any(_member(part, "launch") is not None for part in parts)
    return f"{TAG_PREFIX}launched" if has_launch else f"{TAG_PREFIX}plain"


def _member(value: object, name: str) -> Any:
    """Returns a member of an object or a field of a model; None where there is none."""
    if isinstance(value, Mapping):
        return value.get(name)
    return getattr(value, name, None) if isinstance(value, BaseModel) else None


Plain = TypeVar("Plain")
Launched = TypeVar("Launched")
PlainOrLaunched = Annotated[
    Annotated[Plain, Tag(f"{TAG_PREFIX}plain")] | Annotated[Launched, Tag(f"{TAG_PREFIX}launched")],
    Discriminator(request_tag),
]
"""A request whose question and layout are fields, or a launch configuration."""
PredictionForm = PlainOrLaunched[PredictionRequest, LaunchedPredictionRequest]
ComparisonForm = PlainOrLaunched[ComparisonRequest, LaunchedComparisonRequest]
