"""Requests to find where a pipeline is needed, over a grid of clusters and models, and the
answers."""

from __future__ import annotations

import math
from typing import Annotated, Self

from pydantic import Field, model_validator

from models.advice.pipelining import Need, gap_interval
from models.advice.sweep import Point
from service.schemas.layout import ConstraintFields, LayoutFields
from service.schemas.micro_batch import ConstraintForm
from service.schemas.patience import Patience
from service.schemas.prediction import Grounds
from service.schemas.question import PinnedQuestion
from service.schemas.wire import Document, Wire

MAX_POINTS = 400  # each is a search of its own

Times = Annotated[
    list[Annotated[float, Field(gt=0, le=1024)]], Field(min_length=1, max_length=MAX_POINTS)
]
Chips = Annotated[
    list[Annotated[int, Field(ge=1, le=10**6)]], Field(min_length=1, max_length=MAX_POINTS)
]


class GridFields(Wire):
    """Axes to vary, and their values, each counted once; every combination is a point. Others stay
    as the question has them."""

    scale_up: Times | None = None
    """Times the bandwidth within a scale-up domain."""
    scale_out: Times | None = None
    """Times the bandwidth between them."""
    domain: Chips | None = None
    """Chips in a scale-up domain. A larger one may be slower, and ask for a pipeline: 72 chips
    divide otherwise than 64."""
    num_chips: Chips | None = None
    """Chips, the batch as it is."""
    layers: Times | None = None
    """Times the layers of the model, rounded to whole layers."""

    @model_validator(mode="after")
    def _limit_points(self) -> Self:
        """Raises ValueError for a grid without an axis, or with too many points."""
        sizes = [len(values) for values in self.axes().values()]
        if not sizes:
            raise ValueError("must vary at least one axis")
        if math.prod(sizes) > MAX_POINTS:
            raise ValueError(f"has {math.prod(sizes)} points, above {MAX_POINTS}")
        return self

    def axes(self) -> dict[str, list[float]]:
        """Returns the values of each axis that is varied, without repeats."""
        return {
            name: list(dict.fromkeys(values))
            for name in GridFields.model_fields
            if (values := getattr(self, name))
        }


class FrontierRequest(PinnedQuestion, Patience):
    grid: GridFields
    constraints: ConstraintForm = ConstraintFields()
    tolerance: Annotated[float, Field(ge=0, le=1)] = 0.03
    """A pipeline that is worth no more than this is not needed."""
    time_limit_s: Annotated[float, Field(gt=0, le=120)] = 60.0
    """Most seconds to search; points after that are the best so far."""


class PointAnswer(Document):
    """One exact search."""

    at: dict[str, float]
    without_s: float | None
    """Step time of the best layout without a pipeline; null where none is legal and fits."""
    with_s: float | None
    without: LayoutFields | None
    with_pp: LayoutFields | None
    gap: float | None
    """without_s / with_s - 1; null where a side is missing."""
    gap_low: float | None
    """With `gap_high` a central 80% interval."""
    gap_high: float | None
    pipeline_needed: Need
    """"yes": the gap is above the tolerance with its whole interval, or there is no layout without
    a pipeline among those that the constraints leave; "no": the reverse; "undecided": the tolerance
    lies in the interval; "unknown": there is no layout at all, or the point is not exact."""
    exact: bool
    refused: str | None
    chips_per_domain: int | None
    """Chips of each switched scale-up domain that its layouts use: 1,152 in domains of 108 are 12 x
    96."""

    @classmethod
    def of(cls, point: Point, tolerance: float, *, on_torus: bool) -> Self:
        """Returns a point of the frontier. The gap and its interval are None unless layouts with
        and without a pipeline exist."""
        has_both = point.gap is not None and None not in (point.without_s, point.with_s)
        gap = point.gap if has_both else None
        low, high = (None, None) if gap is None else gap_interval(gap, point.gap_spread)
        return cls.from_attributes(
            point,
            without=point.without and LayoutFields.shown(point.without, on_torus=on_torus),
            with_pp=point.with_pp and LayoutFields.shown(point.with_pp, on_torus=on_torus),
            gap=gap,
            gap_low=low,
            gap_high=high,
            pipeline_needed=point.need(tolerance),
        )


class CrossingAnswer(Document):
    """Between two neighbouring points along an axis, `above` the one and `below` the other, the gap
    crosses the tolerance."""

    axis: str
    at: dict[str, float]
    """Values of the other axes."""
    above: float
    below: float
    estimate: float
    """In between, in proportion to the gaps of the two; halfway where one of them lacks a side. Not
    a search."""


class FrontierAnswer(Grounds):
    points: list[PointAnswer]
    """The last axis of the grid fastest."""
    crossings: list[CrossingAnswer]
    """Places where the gap crosses the tolerance along each axis."""
    reasons: list[str]
