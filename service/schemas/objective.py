"""Wire schemas of where to run: other clusters, other numbers of chips, and the objective that
decides."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field

from models.advice.choice import Choice
from models.advice.objective import Objective
from models.prediction.coverage import EvidenceLevel
from models.spec.constraints import EVEN_CHANCE
from service.schemas.allocation import AllocationFields
from service.schemas.cluster import ClusterFields, ClusterPreset, PresetOrFields
from service.schemas.layout import LayoutFields
from service.schemas.prediction import ByConvention, speed_intervals
from service.schemas.stack import StackForm
from service.schemas.wire import Degree, Document, Name, Wire

UsdPerChipHour = Annotated[float, Field(gt=0, le=1e6)]
Positive = Annotated[float, Field(gt=0, le=1e18)]


class ObjectiveFields(Wire):
    minimize: Literal["step_time", "time", "cost", "chips"] = "step_time"
    """Seconds of a step; hours until `tokens` are trained; US dollars for them; or chips that keep
    the limits."""
    tokens: Positive | None = None
    """The number of tokens that the job trains; unless it is given, the workload's
    `token_budget`."""
    deadline_hours: Positive | None = None
    budget_usd: Positive | None = None
    deadline_probability: Annotated[float, Field(ge=EVEN_CHANCE, le=0.999)] = 0.9
    """The probability with which a place has to keep the deadline, and the budget. 0.5 takes the
    median: every other such job is late."""
    usd_per_chip_hour: UsdPerChipHour | None = None
    """The price of every cluster that names none of its own, and whose chip is not in `prices`. It
    takes the place of the catalogue's."""
    prices: Annotated[dict[Name, UsdPerChipHour], Field(max_length=100)] = {}
    """US dollars for an hour of a chip, by the name of the chip. A price that a cluster names goes
    first."""
    failures_per_chip_hour: Annotated[float, Field(ge=0, le=1)] = 0.0
    checkpoint_s: Annotated[float, Field(ge=0, le=86400)] = 0.0
    """The time that training stops for one checkpoint."""
    restart_s: Annotated[float, Field(ge=0, le=86400)] = 0.0

    def build(self, token_budget: float | None) -> Objective:
        """Returns the objective. Without tokens of its own it takes the token budget of the
        workload."""
        given = self.model_dump(exclude={"usd_per_chip_hour", "prices"})
        return Objective(**{**given, "tokens": self.tokens or token_budget})


class OtherPreset(ClusterPreset):
    stack: StackForm | None = None
    """The software there; without it, the question's."""


class OtherCluster(ClusterFields):
    stack: StackForm | None = None
    """The software there; without it, the question's."""


OtherForm = PresetOrFields[OtherPreset, OtherCluster]


class AlternativeFields(Wire):
    """Other places to run; the question's own cluster is among them. One whose chips cannot run the
    stack, or the precision, is refused by itself (`choices[].refused`)."""

    clusters: Annotated[list[OtherForm], Field(max_length=50)] = []
    num_chips: Annotated[list[Degree], Field(max_length=200)] = []
    """Other sizes of the question's own cluster, for elastic jobs say. A size given twice counts
    once, and so does the question's own."""
    up_to_chips: Degree | None = None
    """The fewest chips of the question's own cluster, up to so many, that keep the objective's
    limits: looked for among the parts of a scale-up domain and numbers of them, as the reasons say,
    and then one of the alternatives. Beyond one domain, racks of machines are whole. More may be
    faster or cheaper: `num_chips` names those to compare."""
    multiple_of: Degree | None = None
    """Chips that can be had at once, such as 8 of a node: `up_to_chips` then tries only multiples
    of so many."""
    allocations: Annotated[list[AllocationFields], Field(max_length=20)] = []
    """Other nodes of the question's own cluster that a scheduler could give, instead of those of
    `allocation`. As many of their chips are used as are fastest."""


class ChoiceAnswer(Document):
    """One place to run. Figures are null where no layout is legal and fits."""

    name: str
    """The place of this choice in `request`."""
    cluster: dict[str, Any] | None = None
    """The cluster in the form that requests take."""
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
    """The evidence that the prediction rests on, graded by the weakest of the terms that decide
    it."""
    layout: LayoutFields | None = None
    """The fastest there, which the figures are of; as predictions take it."""
    layout_summary: str | None = None
    """In one line."""
    mfu: ByConvention | None = None
    mfu_low: ByConvention | None = None
    """At `step_time_high_s`."""
    mfu_high: ByConvention | None = None
    tokens_per_s: float | None
    """While it trains."""
    tokens_per_s_low: float | None = None
    """At `step_time_high_s`."""
    tokens_per_s_high: float | None = None
    goodput: float | None
    """Share of the time that failures, checkpoints and restarts leave."""
    checkpoint_every_s: float | None
    """The interval that loses least (Daly 2006, equation 20; where failures are rare nearly Young's
    √(2·C·M))."""
    hours: float | None
    """At the median."""
    hours_low: float | None = None
    """The lower end of the 80% interval, whose upper end is `hours_high`."""
    hours_high: float | None = None
    usd_per_chip_hour: float | None = None
    """The request's, or the catalogue's."""
    usd: float | None
    """The cost of all chips that are held, used or not, at the median."""
    usd_low: float | None = None
    """The lower end of the 80% interval, whose upper end is `usd_high`."""
    usd_high: float | None = None
    usd_used: float | None = None
    """The cost of the chips that are used alone; as much as `usd` where those are all."""
    usd_per_million_tokens: float | None
    """The cost of all chips that are held. As in `hours` and `usd`, the time that failures lose is
    part of it."""
    missing: str | None = None
    """The figure that the objective asks for and that is not known here. Without a price, a place
    is compared by its hours."""
    meets: bool
    """Deadline and budget are kept, each with `deadline_probability`. A budget is not where the
    price is not known."""
    meets_probability: float | None = None
    """The probability that deadline and budget are kept; null without limits, and where one cannot
    be checked."""
    exact: bool
    """Proved the fastest on its chips, and on fewer of those tried (`fewer_chips`)."""
    refused: str | None

    @classmethod
    def of(cls, choice: Choice, place: dict[str, Any], *, on_torus: bool) -> Self:
        """Returns the answer for one place to run. `place` has its `cluster` and `stack`."""
        figures = dict[str, Any]()
        if choice.layout is not None:
            figures["layout"] = LayoutFields.shown(choice.layout, on_torus=on_torus)
            figures["layout_summary"] = choice.layout.summary()
            figures |= speed_intervals(choice)
        # Without a layout `choice.mfu` is an empty dictionary, which answers show as null.
        return cls.from_attributes(choice, mfu=choice.mfu or None, **figures, **place)


class ChoiceList(Document):
    items: list[ChoiceAnswer]
    """The best first."""
