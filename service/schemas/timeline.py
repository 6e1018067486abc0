"""Timelines: what each pipeline stage does during a step."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from models.prediction.timeline import Timeline
from service.schemas.layout_query import LayoutQuery, RecommendedLayoutQuery
from service.schemas.prediction import ProfileUsed
from service.schemas.wire import Document


class TimelineQuery(LayoutQuery):
    micro_batches: Annotated[int, Field(ge=1, le=10**6)] | None = None
    """Most micro-batches of the step to show; no fewer than the schedule needs."""
    format: Literal["json", "chrome"] = "json"
    """"chrome": the Trace Event Format, for chrome://tracing and Perfetto."""


class RecommendationTimelineQuery(RecommendedLayoutQuery, TimelineQuery):
    pass


class EventAnswer(Document):
    stage: int
    name: str
    """forward, backward (input gradients and weight gradients where a schedule runs them apart), or
    what follows the pipeline: data, optimizer, fixed, jitter, as the prediction has them
    exposed."""
    start_s: float
    end_s: float
    micro_batch: int | None
    chunk: int | None
    """Number of the chunk in the model, from 0."""


_NOT_COPIED = {"profile", "events"}  # all other fields are copied from the timeline by name


class TimelineAnswer(Document):
    profile: ProfileUsed
    """The profile that the answer was predicted with."""
    stages: int
    micro_batches: int
    """Shown, of those of the step."""
    of_micro_batches: int
    pipeline_s: float
    """From the first operation to the last, run one by one."""
    closed_form_s: float | None
    """Seconds of the pipeline by the closed form, as the prediction has them. Under 1f1b, afab and
    zero_bubble they differ from `pipeline_s` by sends only (2% at most), and so do interleaved ones
    whose layers come out even; where they do not, an interleaved schedule's may be some percent
    more or less, and a V's and DualPipe's a tenth (docs/model.md has figures). null where not all
    are shown."""
    step_time_s: float
    """The step time as predicted."""
    events: list[EventAnswer]
    """By stage, then by time."""

    @classmethod
    def document(cls, timeline: Timeline, profile: ProfileUsed) -> dict[str, Any]:
        """Returns the answer in its wire form. Its thousands of events are not validated:
        validation would hold the GIL, and they come from the models as they are."""
        events = [
            {name: getattr(event, name) for name in EventAnswer.model_fields}
            for event in timeline.events
        ]
        other_fields = {
            name: getattr(timeline, name) for name in cls.model_fields.keys() - _NOT_COPIED
        }
        answer = cls.model_validate({**other_fields, "profile": profile, "events": []})
        return {**answer.model_dump(mode="json"), "events": events}


class TraceEvent(Document):
    """An event of the Trace Event Format: a name (`ph` is M) of a thread, which is a stage, or of
    the process, which says how many of the step's micro-batches are drawn; or what a stage does
    (X)."""

    ph: Literal["M", "X"]
    name: str
    pid: int
    tid: int
    """The stage."""
    args: dict[str, str | int]
    cat: str | None = None
    """The name of an event of a timeline."""
    ts: float | None = None
    """Start in microseconds; with `dur` of what is done only."""
    dur: float | None = None


class ChromeTrace(Document):
    """The answer where `format` is chrome."""

    traceEvents: list[TraceEvent]  # noqa: N815 - as the format has it
    displayTimeUnit: Literal["ms"]  # noqa: N815 - likewise
    otherData: dict[str, int]  # noqa: N815 - likewise
    """`micro_batches` that are drawn, `of_micro_batches` of the step."""
