"""Where to run: other clusters, other numbers of chips, and the objective that decides."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag

from models.advice.cluster_choice import Choice, Objective
from models.prediction.coverage import EvidenceLevel
from service.json_pointers import TAG_PREFIX
from service.schemas.allocation import AllocationFields
from service.schemas.cluster import ClusterFields, ClusterPreset, cluster_union_tag, reject_name
from service.schemas.stack import StackForm
from service.schemas.wire import Degree, Document, Wire

Positive = Annotated[float, Field(gt=0, le=1e18)]


class ObjectiveFields(Wire):
    minimize: Literal["step_time", "time", "cost", "chips"] = "step_time"
    """Seconds of a step; hours until `tokens` are trained; US dollars for them; or chips that keep
    the limits."""
    tokens: Positive | None = None
    """How many the job trains; unless it is given, the workload's `token_budget`."""
    deadline_hours: Positive | None = None
    budget_usd: Positive | None = None
    usd_per_chip_hour: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Of every cluster that names no price of its own, instead of the catalogue's."""
    failures_per_chip_hour: Annotated[float, Field(ge=0, le=1)] = 0.0
    checkpoint_s: Annotated[float, Field(ge=0, le=86400)] = 0.0
    """That training stops for one."""
    restart_s: Annotated[float, Field(ge=0, le=86400)] = 0.0

    def build(self, token_budget: float | None) -> Objective:
        given = self.model_dump(exclude={"usd_per_chip_hour"})
        return Objective(**{**given, "tokens": self.tokens or token_budget})


class OtherPreset(ClusterPreset):
    stack: StackForm | None = None
    """The software there; without it, the question's."""


class OtherCluster(ClusterFields):
    stack: StackForm | None = None
    """The software there; without it, the question's."""


OtherForm = Annotated[
    Annotated[OtherPreset, Tag(f"{TAG_PREFIX}preset")]
    | Annotated[OtherCluster, Tag(f"{TAG_PREFIX}fields")],
    Discriminator(cluster_union_tag),
    BeforeValidator(reject_name),
]


class AlternativeFields(Wire):
    """Other places to run; the question's own cluster is among them. One whose chips cannot run the
    stack, or the precision, is refused by itself (`choices[].refused`)."""

    clusters: Annotated[list[OtherForm], Field(max_length=50)] = []
    num_chips: Annotated[list[Degree], Field(max_length=200)] = []
    """Of the question's own cluster: for elastic jobs, say. Each counts once, and the question's
    own not again."""
    up_to_chips: Degree | None = None
    """The fewest chips of the question's own cluster, up to so many, that keep the objective's
    limits: looked for among the parts of a scale-up domain and numbers of them, as the reasons say,
    and then one of the alternatives. More may be faster or cheaper: `num_chips` names those to
    compare."""
    allocations: Annotated[list[AllocationFields], Field(max_length=20)] = []
    """Other nodes of the question's own cluster that a scheduler could give, instead of those of
    `allocation`. As many of their chips are used as are fastest."""


class ChoiceAnswer(Document):
    """One place to run. Figures are null where no layout is legal and fits."""

    name: str
    """Where it stands in `request`."""
    cluster: dict[str, Any] | None = None
    """As a request takes it."""
    stack: str | dict[str, Any] | None = None
    """The software there, as a request takes it."""
    chip: str
    num_chips: int
    chips_used: int | None
    """Fewer where no layout uses all, or where fewer, of those tried (`fewer_chips`), are
    faster."""
    all_chips_s: float | None = None
    """A step with all of them, where fewer are faster."""
    step_time_s: float | None
    step_time_low_s: float | None = None
    """With `step_time_high_s` its 80% interval."""
    step_time_high_s: float | None = None
    grade: EvidenceLevel | None = None
    """What its prediction rests on, by the weakest of the terms that decide it."""
    tokens_per_s: float | None
    """While it trains."""
    goodput: float | None
    """Share of the time that failures, checkpoints and restarts leave."""
    checkpoint_every_s: float | None
    """The interval that loses least (Daly 2006, equation 20; where failures are rare nearly Young's
    √(2·C·M))."""
    hours: float | None
    usd_per_chip_hour: float | None = None
    """The request's, or the catalogue's."""
    usd: float | None
    """Of the chips that are used, where those are fewer."""
    usd_per_million_tokens: float | None
    """With what failures lose, as hours and usd."""
    meets: bool
    """Deadline and budget are kept."""
    exact: bool
    """Proved the fastest on its chips, and on fewer of those tried (`fewer_chips`)."""
    refused: str | None

    @classmethod
    def of(cls, choice: Choice, place: dict[str, Any]) -> Self:
        """The answer for one choice; `place` has its `cluster` and `stack`."""
        figures = {
            name: value for name, value in asdict(choice).items() if name in cls.model_fields
        }
        return cls.model_validate({**figures, **place})
