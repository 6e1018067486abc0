"""Sweeps: one question for every combination of models, clusters, workloads, stacks and
constraints."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from models.errors import Invalid
from service.schemas.architecture import Model
from service.schemas.layout import ConstraintFields
from service.schemas.list_query import ListQuery
from service.schemas.objective import ObjectiveFields, OtherForm
from service.schemas.prediction import ByConvention, ProfileUsed
from service.schemas.question import ProfileWanted
from service.schemas.stack import StackForm
from service.schemas.wire import Document, Page, Wire
from service.schemas.workload import WorkloadFields

MAX_ITEMS = 10_000  # each is a search of seconds: so many take hours

ItemOutcome = Literal["waiting", "ok", "infeasible", "refused", "failed", "cancelled"]
SweepState = Literal["running", "finished", "cancelled"]


class SweepRequest(Wire):
    """Every combination is one item: at most 10,000 of them. The last list varies fastest."""

    models: Annotated[list[Model], Field(min_length=1, max_length=1000)]
    """Each as the `model` of a recommendation."""
    clusters: Annotated[list[OtherForm], Field(min_length=1, max_length=1000)]
    """Each as the `cluster` of a recommendation, perhaps with the `stack` that runs there."""
    workloads: Annotated[list[WorkloadFields], Field(min_length=1, max_length=1000)]
    stacks: Annotated[list[StackForm], Field(min_length=1, max_length=100)]
    """Each as the `stack` of a recommendation. Where a cluster has a stack of its own, one alone,
    which the other clusters run."""
    constraints: Annotated[list[ConstraintFields], Field(min_length=1, max_length=100)] = [
        ConstraintFields()
    ]
    objective: ObjectiveFields | None = None
    """The tokens that the job trains, and its deadline and budget. Each item then tells its
    hours and dollars. An item is one place, so `minimize` chooses nothing."""
    profile: ProfileWanted | None = None
    """The version to predict with, in every item; without it the one that is active now."""
    tolerance: Annotated[float, Field(ge=0, le=1)] = 0.03
    """A simpler layout may be slower than the fastest by this share: 0.03 is 3%."""
    time_limit_s: Annotated[float, Field(gt=0, le=60)] = 20.0
    """The longest time to search, for each item."""

    @property
    def lists(self) -> tuple[list[Any], ...]:
        """Returns the lists whose entries are combined, in the order of the fields of
        `Combination`."""
        return self.models, self.clusters, self.workloads, self.stacks, self.constraints

    @model_validator(mode="after")
    def _require_one_stack_source(self) -> Self:
        """Raises Invalid for a cluster with its own stack beside several listed stacks."""
        for i, cluster in enumerate(self.clusters):
            if cluster.stack is not None and len(self.stacks) > 1:
                rule = (
                    f"goes with one stack in stacks, not with {len(self.stacks)}: a cluster runs"
                    " either its own or those that are listed"
                )
                raise Invalid(f"clusters[{i}].stack", None, rule)
        return self

    @model_validator(mode="after")
    def _limit_combinations(self) -> Self:
        """Raises Invalid where the combinations are more than one sweep may have."""
        lengths = [len(combined) for combined in self.lists]
        if math.prod(lengths) > MAX_ITEMS:
            product = " x ".join(str(length) for length in lengths)
            rule = (
                f"{product} = {math.prod(lengths)} combinations of models, clusters, workloads,"
                f" stacks and constraints are more than the {MAX_ITEMS} of one sweep: send several"
            )
            raise Invalid("", None, rule)
        return self


class Combination(Document):
    """A combination has an index into each list of the request, from 0."""

    model: int
    cluster: int
    workload: int
    stack: int
    constraints: int


class SweptLayout(Document):
    """The recommended layout of an item, in brief. A recommendation of the same question has the
    rest."""

    layout: dict[str, Any]
    """The layout in the form that predictions take."""
    layout_summary: str
    """In one line."""
    chips_used: int
    step_time_s: float
    step_time_low_s: float
    """With `step_time_high_s` a central 80% interval."""
    step_time_high_s: float
    tokens_per_s: float
    mfu: ByConvention
    usd_per_million_tokens: float | None
    """At the price of the chip, where one is known."""
    needed_gib: float
    """The memory that the fullest device needs."""
    usable_gib: float
    fit_probability: float
    hours: float | None = None
    """For the objective's tokens, at the median, on the fastest layout, as a recommendation's
    `choices` have it. This and what follows is null without an objective."""
    hours_low: float | None = None
    """With `hours_high` a central 80% interval."""
    hours_high: float | None = None
    usd: float | None = None
    """The cost of all chips that are held, used or not."""
    meets: bool | None = None
    """Deadline and budget are kept, each with `objective.deadline_probability`."""
    meets_probability: float | None = None
    missing: str | None = None
    """The figure that the objective asks for and that is not known, such as a price."""
    pipelining: str
    """"yes" where a pipeline is needed, else "no", "undecided" or "unknown"."""
    exact: bool
    """The search came to its end."""


class ItemProblem(Document):
    """Why an item has no layout."""

    type: str
    """The problem type that a recommendation of the same question would be answered with."""
    detail: str


class SweepItem(Document):
    position: int
    """Among all combinations, from 0."""
    combination: Combination
    model: str
    chip: str
    num_chips: int
    seq_len: int
    global_batch: int
    stack: str
    outcome: ItemOutcome
    """"infeasible": no layout fits, which is an answer. "refused": the combination makes no sense,
    such as a stack that does not run on the chip. "failed": it could not be computed, and `retry`
    tries again."""
    recommended: SweptLayout | None
    """The recommended layout, where the outcome is "ok"."""
    problem: ItemProblem | None
    """The problem, where the outcome is "infeasible", "refused" or "failed"."""


class SweepAnswer(Document):
    id: str
    created_at: datetime
    location: str
    state: SweepState
    total: int
    """Items."""
    outcomes: dict[ItemOutcome, int]
    """Items by their outcome."""
    profile: ProfileUsed
    finished_at: datetime | None
    items: str
    """The path of the items, those already finished with their results."""
    events: str
    """The path of the event stream, which sends each result as it comes."""


class SweepDetails(SweepAnswer):
    waits_for: str | None = None
    """Why nothing of it is computed at present, such as workers that cannot be reached; null where
    it goes on, and where another process of the service computes it."""
    request: dict[str, Any]
    """The request, with every name pinned to its version."""


class SweepPage(Page):
    items: list[SweepAnswer]


class SweepItemPage(Page):
    items: list[SweepItem]


class SweepItemQuery(ListQuery):
    outcome: ItemOutcome | None = None
