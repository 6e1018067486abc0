"""A timeline shows which stage of a pipeline computes what, and when, during one step. The schedule
is run operation by operation.

The closed forms of models.cost.pipeline.bubble give the length of a step at once; here every
forward, backward and weight gradient has its place. Where stages are unequal the two lengths may
differ. Under 1F1B, ZB-H1 and all-forward-all-backward they differ only by sends: the closed form
counts those on the longest path of 1F1B. A *chunk* is a run of layers, of which a stage has one or
several; a *part* is a layer of one kind, the embedding or the head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from models.columns import Array
from models.cost.layout_parts import LayoutParts
from models.cost.pipeline.schedules import run_schedule
from models.cost.pipeline.stage_partition import layers_of_chunks
from models.cost.predictions import predict
from models.errors import Invalid
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import Coefficients, Profile

MAX_OPERATIONS = 20_000  # operations shown, unless the fewest micro-batches of a schedule make more
MAX_REQUIRED_OPERATIONS = 60_000  # where a schedule needs more, a layout has no timeline
_KINDS_OF_OPERATION = 3  # forward, backward, weight gradient
# These terms come once the pipeline has drained.
_AFTER_PIPELINE = ("optimizer_s", "fixed_s", "jitter_s")
_NAMES = {"F": "forward", "B": "backward", "I": "input gradients", "W": "weight gradients"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The work of one stage from `start_s` to `end_s` of a step."""

    stage: int
    name: str
    start_s: float
    end_s: float
    micro_batch: int | None = None
    chunk: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The events of a step, by stage and then by time.

    `micro_batches` of the step's `of_micro_batches` are shown. `pipeline_s` is the time from the
    first operation to the last. `closed_form_s` is the prediction's own figure for that time, and
    is None unless all micro-batches are shown.
    """

    events: tuple[Event, ...]
    stages: int
    micro_batches: int
    of_micro_batches: int
    pipeline_s: float
    closed_form_s: float | None
    step_time_s: float


def timeline(
    problem: Problem, profile: Profile, layout: Layout, micro_batches: int | None = None
) -> Timeline:
    """Return the timeline of the first micro-batches of a step.

    It shows `micro_batches` of them, or all where that is None, but no more than MAX_OPERATIONS
    allow and no fewer than the schedule needs. Raise Invalid where the schedule needs more than
    MAX_REQUIRED_OPERATIONS.
    """
    rows = Layouts.of([layout])
    coefficients = profile.coefficients(problem.scopes)
    predicted = predict(problem, rows, coefficients)
    time = {name: float(seconds[0]) for name, seconds in predicted.time.items()}
    all_micro_batches = int(rows.num_micro_batches(problem.workload.global_batch)[0])
    shown = _micro_batches_shown(layout, all_micro_batches, micro_batches)
    data_parallel_s = float(predicted.once_s[0])
    operations = run_schedule(layout, shown, _operation_seconds(problem, layout, coefficients))
    events = [
        Event(
            stage=stage,
            name=_NAMES[operation.kind],
            start_s=start,
            end_s=end,
            micro_batch=operation.micro_batch,
            chunk=operation.chunk,
        )
        for (operation, stage), (start, end) in operations.items()
    ]
    pipeline_s = max(event.end_s for event in events)
    time_after = {"data_s": data_parallel_s} | {name: time[name] for name in _AFTER_PIPELINE}
    events += _events_after_pipeline(layout.pp, pipeline_s, time_after)
    events.sort(key=lambda event: (event.stage, event.start_s, event.end_s))
    closed_form_s = None
    if shown == all_micro_batches:
        # The prediction's own figure for pipeline_s, to compare: its terms without those of what
        # follows the pipeline once a step.
        in_pipeline = [seconds for name, seconds in time.items() if name not in _AFTER_PIPELINE]
        closed_form_s = sum(in_pipeline) - data_parallel_s
    return Timeline(
        events=tuple(events),
        stages=layout.pp,
        micro_batches=shown,
        of_micro_batches=all_micro_batches,
        pipeline_s=pipeline_s,
        closed_form_s=closed_form_s,
        step_time_s=float(predicted.step_time_s[0]),
    )


def _micro_batches_shown(layout: Layout, of_micro_batches: int, requested: int | None) -> int:
    """Return how many micro-batches a timeline draws: as many as were requested (all where that is
    None) and as MAX_OPERATIONS allow, but no fewer than the schedule needs. Raise Invalid where
    those needed make more than MAX_REQUIRED_OPERATIONS."""
    operations_each = layout.pp * layout.virtual_stages * _KINDS_OF_OPERATION
    affordable = MAX_OPERATIONS // operations_each
    shown = max(min(of_micro_batches, requested or of_micro_batches, affordable), 1)
    least, multiple = _required_micro_batches(layout)
    shown = min(max(shown // multiple * multiple, least), of_micro_batches)
    operations = shown * operations_each
    if operations > MAX_REQUIRED_OPERATIONS:
        rule = (
            f"makes a timeline of {operations} operations for {shown} micro-batches, above"
            f" {MAX_REQUIRED_OPERATIONS}"
        )
        raise Invalid("layout.pp", layout.pp, rule)
    return shown


def _required_micro_batches(layout: Layout) -> tuple[int, int]:
    """Return the fewest micro-batches that the layout's schedule runs with, and a number of which
    the micro-batches must be a multiple."""
    if layout.schedule == "dualpipe":  # sends micro-batches in pairs, one from either end
        return 2 * layout.pp, 2
    if layout.schedule == "interleaved":  # Micro-batches pass a chunk in groups of pp or more.
        return layout.pp, 1
    return 1, 1


def _events_after_pipeline(stages: int, start: float, time: dict[str, float]) -> Iterator[Event]:
    """Yield what every stage does after the pipeline has drained at `start`. For each entry of
    `time`, which has seconds by name, there is an event on all stages at once. The next entry
    begins where it ends."""
    for name, seconds in time.items():
        if seconds > 0:
            end = start + seconds
            for stage in range(stages):
                yield Event(stage=stage, name=name.removesuffix("_s"), start_s=start, end_s=end)
            start = end


# -- durations


def _operation_seconds(
    problem: Problem, layout: Layout, coefficients: Coefficients
) -> dict[str, Array]:
    """Return the seconds of one micro-batch on each chunk, (chunks,), by kind of operation: "F",
    "B" (weight gradients included) and "W" (weight gradients alone). They include the communication
    that is exposed there."""
    parts = LayoutParts.of(problem, layout, coefficients)
    chunks = _parts_of_chunks(problem, Layouts.of([layout]))
    forward = np.array([parts.forward_s[chunk].sum() for chunk in chunks])
    forward_backward = np.array([parts.both_s[chunk].sum() for chunk in chunks])
    weights = np.array([parts.weights_s[chunk].sum() for chunk in chunks])
    return {
        "F": forward + parts.send_s,
        "B": forward_backward - forward + parts.send_s,
        "W": np.maximum(weights, 0.0),  # a difference of two sums, which rounding may turn negative
    }


def _parts_of_chunks(problem: Problem, layouts: Layouts) -> list[list[int]]:
    """Return the parts of the model that each chunk of a layout holds, as indices into the arrays
    of LayoutParts: for each layer its kind, then numbers beyond the kinds for the embedding and the
    head. `layouts` must be one layout."""
    architecture = problem.architecture
    embedding = len(architecture.kinds)
    head = embedding + 1
    # Layers of multi-token prediction are like the last layer, and run before the head.
    last_kind = architecture.layer_runs[-1][0]
    chunks = layers_of_chunks(problem, layouts)[0]
    chunks[0].append(embedding)
    chunks[-1] += [last_kind] * architecture.mtp_layers + [head]
    return chunks


def chrome_trace(timeline: Timeline) -> dict[str, object]:
    """Return the timeline in the Trace Event Format, for chrome://tracing and Perfetto: times in
    microseconds, and a thread for every stage. Viewers show the name of the process, so it says how
    much of the step is drawn."""
    drawn = f"{timeline.micro_batches} of {timeline.of_micro_batches} micro-batches of a step"
    metadata = [("process_name", 0, drawn)]
    metadata += [("thread_name", stage, f"stage {stage}") for stage in range(timeline.stages)]
    # Events of phase "M" name things, and those of phase "X" have a start and a duration.
    events: list[dict[str, object]] = [
        {"ph": "M", "name": kind, "pid": 0, "tid": thread, "args": {"name": name}}
        for kind, thread, name in metadata
    ]
    for event in timeline.events:
        numbers = {"micro_batch": event.micro_batch, "chunk": event.chunk}
        label = event.name if event.micro_batch is None else f"{event.name} {event.micro_batch}"
        events.append(
            {
                "ph": "X",
                "name": label,
                "cat": event.name,
                "pid": 0,
                "tid": event.stage,
                "ts": event.start_s * 1e6,
                "dur": (event.end_s - event.start_s) * 1e6,
                "args": {name: value for name, value in numbers.items() if value is not None},
            }
        )
    shown = {
        "micro_batches": timeline.micro_batches,
        "of_micro_batches": timeline.of_micro_batches,
    }
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": shown}
