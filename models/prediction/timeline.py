"""A step as it passes: which stage computes what when, by running its schedule operation by
operation.

The closed forms of models.cost.pipeline give the length of a step at once; here every forward,
backward and weight gradient has its place. Where stages differ the two may differ; under 1F1B,
ZB-H1 and with all forwards first only by sends, of which the closed form counts those of 1F1B's
longest path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from models.columns import Array
from models.cost.combine import Combiner, layers_of_chunks, partitions
from models.cost.mesh_costs import MeshCosts
from models.cost.overlap import Exposure
from models.cost.schedules import run
from models.cost.step import predict
from models.errors import Invalid
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import Profile

MOST_OPERATIONS = 20_000
MOST_NEEDED = 60_000  # for a schedule's fewest micro-batches
_AFTER = ("optimizer_s", "fixed_s", "jitter_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What one stage does from `start_s` to `end_s` of a step."""

    stage: int
    name: str
    start_s: float
    end_s: float
    micro_batch: int | None = None
    chunk: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """`events` by stage and time. `micro_batches` of the step's `of_micro_batches` are shown.
    `pipeline_s`: from the first operation to the last; `closed_form_s` says the same of the
    prediction where all micro-batches are shown."""

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
    """Of the first micro-batches: about as many as are asked for and make at most MOST_OPERATIONS,
    or the fewest that the schedule needs. Raises Invalid where those make more than MOST_NEEDED."""
    rows = Layouts.of([layout])
    predicted = predict(problem, rows, profile.coefficients(problem.scopes))
    time = {name: float(value[0]) for name, value in predicted.time.items()}
    every = int(rows.num_micro_batches(problem.workload.global_batch)[0])
    each = layout.pp * layout.virtual_stages * 3
    most = MOST_OPERATIONS // each
    shown = max(min(every, micro_batches or every, most), 1)
    least, whole = {"dualpipe": (2 * layout.pp, 2), "interleaved": (layout.pp, 1)}.get(
        layout.schedule, (1, 1)
    )
    shown = min(max(shown // whole * whole, least), every)
    if shown * each > MOST_NEEDED:
        rule = (
            f"makes a timeline of {shown * each} operations for {shown} micro-batches, above"
            f" {MOST_NEEDED}"
        )
        raise Invalid("layout.pp", layout.pp, rule)
    stages = partitions(problem, rows)
    once = float(Combiner(rows, predicted.meshes, stages.table.take(stages.code)).once_s[0])
    seconds = _seconds(problem, rows, predicted.meshes)
    done = run(layout, shown, seconds)
    events = [
        Event(
            stage=stage,
            name=_NAMES[op.kind],
            start_s=start,
            end_s=end,
            micro_batch=op.micro_batch,
            chunk=op.chunk,
        )
        for (op, stage), (start, end) in done.items()
    ]
    ends = max(event.end_s for event in events)
    events += _after(layout.pp, ends, {"data_s": once, **{name: time[name] for name in _AFTER}})
    events.sort(key=lambda event: (event.stage, event.start_s, event.end_s))
    return Timeline(
        events=tuple(events),
        stages=layout.pp,
        micro_batches=shown,
        of_micro_batches=every,
        pipeline_s=ends,
        closed_form_s=(
            sum(v for k, v in time.items() if k not in _AFTER) - once if shown == every else None
        ),
        step_time_s=float(predicted.step_time_s[0]),
    )


_NAMES = {"F": "forward", "B": "backward", "I": "input gradients", "W": "weight gradients"}


def _after(stages: int, start: float, time: dict[str, float]) -> Iterator[Event]:
    """What is left of a step once the pipeline has drained."""
    for name, seconds in time.items():
        if seconds > 0:
            yield from (
                Event(
                    stage=stage, name=name.removesuffix("_s"), start_s=start, end_s=start + seconds
                )
                for stage in range(stages)
            )
            start += seconds


# -- durations
# --------------------------------------------------------------------------------------------------


def _seconds(problem: Problem, rows: Layouts, meshes: MeshCosts) -> dict[str, Array]:
    """Of a micro-batch on each chunk, by kind of operation, with what it exposes there."""
    exposure, held = Exposure(rows, meshes), _held(problem, rows)
    parts = [(float(p.forward[0]), float(p.both[0])) for p in exposure.parts]
    weight = [float(seconds[0]) for seconds in exposure.weights()]
    passes = 2 * int(exposure.micro_batches[0]) * int(rows.virtual_stages[0])
    sends = float(np.ravel(exposure.sends())[0]) / passes
    forward = np.array([sum(parts[i][0] for i in chunk) for chunk in held])
    both = np.array([sum(parts[i][1] for i in chunk) for chunk in held])
    weights = np.maximum([sum(weight[i] for i in chunk) for chunk in held], 0.0)
    return {"F": forward + sends, "B": both - forward + sends, "W": weights}


def _held(problem: Problem, layouts: Layouts) -> list[list[int]]:
    """The parts of each chunk of one layout: kinds of its layers, and the ends of the model
    (models.cost.overlap)."""
    held, ends = layers_of_chunks(problem, layouts)[0], len(problem.architecture.kinds)
    held[0].append(ends)
    held[-1] += [problem.architecture.layer_runs[-1][0]] * problem.architecture.mtp_layers + [
        ends + 1
    ]
    return held


def chrome_trace(
    found: Timeline, name: Callable[[int], str] = "stage {}".format
) -> dict[str, object]:
    """For chrome://tracing and Perfetto: the Trace Event Format, microseconds, a thread for every
    stage. Viewers show the name of the process, which is how much of the step is drawn."""
    drawn = f"{found.micro_batches} of {found.of_micro_batches} micro-batches of a step"
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": drawn}},
        *(
            {
                "ph": "M",
                "name": "thread_name",
                "pid": 0,
                "tid": stage,
                "args": {"name": name(stage)},
            }
            for stage in range(found.stages)
        ),
    ]
    for event in found.events:
        which = {"micro_batch": event.micro_batch, "chunk": event.chunk}
        events.append(
            {
                "ph": "X",
                "name": (
                    event.name if event.micro_batch is None else f"{event.name} {event.micro_batch}"
                ),
                "cat": event.name,
                "pid": 0,
                "tid": event.stage,
                "ts": event.start_s * 1e6,
                "dur": (event.end_s - event.start_s) * 1e6,
                "args": {name: value for name, value in which.items() if value is not None},
            }
        )
    shown = {"micro_batches": found.micro_batches, "of_micro_batches": found.of_micro_batches}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": shown}
