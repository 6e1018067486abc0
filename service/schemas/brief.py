"""Answers in brief, for launchers that read no more than what to run."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from service.schemas.check import SettingChange, Verdict
from service.schemas.list_query import ViewName
from service.schemas.prediction import StoredAnswer
from service.schemas.wire import Document

MAX_REASONS = 3  # those that decide come first, and a brief has 4 KiB


class ViewQuery(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    view: ViewName | None = None
    """"brief": at most 4 KB of what a launcher needs. `Prefer: return=minimal` asks for the same
    where `view` is left out."""


class AnswerBrief(StoredAnswer):
    location: str
    """The full answer."""
    launch: str | None
    """Path of the layout in the words of the framework; null where these have none for it."""
    nodes: int | None
    """Machines, as Slurm is asked for them; null where no launch configuration says so."""
    devices_per_node: int | None
    notes: list[str]
    """Notes of the launch configuration, on what to know or do besides; the first three, each cut
    where it is long."""
    layout: dict[str, Any]
    """The layout without knobs that are 1, off, null or as usual: sent as a `layout`, it is the
    same. A `layers_per_chunk` of more than 128 chunks is in the full answer only."""
    layout_summary: str | None
    """In one line, as in `reasons`."""
    step_time_s: float
    step_time_low_s: float
    """With `step_time_high_s` a central 80% interval."""
    step_time_high_s: float
    needed_gib: float
    """GiB that the fullest device needs."""
    usable_gib: float
    fit_probability: float | None


class RecommendationBrief(AnswerBrief):
    """The recommended layout."""

    chips_used: int
    exact: bool
    """The search came to its end (`certificate.exact`)."""
    reasons: Annotated[list[str], Field(max_length=MAX_REASONS)]
    """The first reasons of the full answer: what to beware of, why this layout, and its memory.
    Each is cut where it is long."""


class PredictionBrief(AnswerBrief):
    """The layout of the request; of several the fastest of those that fit, or else of all."""

    rank: int
    """Position of the layout among those of the request, from 1."""
    of: int
    """Number of layouts in the request."""
    warnings: Annotated[list[str], Field(max_length=MAX_REASONS)]
    """The first of the full answer's, each cut where it is long."""


class CheckBrief(Document):
    """At most 4 KB of what a launcher needs."""

    id: str | None
    """Id of a check that was to be stored."""
    location: str | None
    """The full answer."""
    verdict: Verdict
    summary: str
    layout_summary: str | None
    step_time_s: float | None
    """With the next two: null where nothing is predicted of the layout."""
    step_time_low_s: float | None
    step_time_high_s: float | None
    fit_probability: float | None
    first_change: str | None
    """The first thing to change, in words."""
    settings: list[SettingChange]
    """The first change in the framework's own words."""
    problems: list[str]
    """Broken rules with their cures, or else what was not understood, or else warnings: the first
    three, each cut where it is long."""
