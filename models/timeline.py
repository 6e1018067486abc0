"""A step as it passes: which stage computes what when, by running its schedule operation by operation.

The closed forms of models.pipeline give the length of a step at once; here every forward, backward and weight gradient
has its place. Where stages differ the two may differ: 1F1B's closed form is an upper bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from models.array import Array
from models.exposure import Exposure
from models.layout import AFAB, DUALPIPE, INTERLEAVED, ONE_F_ONE_B, SCHEDULES, ZERO_BUBBLE_V, Layout, Layouts
from models.mesh_costs import MeshCosts
from models.pipeline import boundaries
from models.problem import Problem
from models.profile import Profile
from models.step import predict

MOST_OPERATIONS = 20_000
_AFTER = ("optimizer_s", "fixed_s", "jitter_s")


@dataclass(frozen=True, slots=True)
class Operation:
    """`kind` "F", "B" (all of backward, or of the inputs where W is apart) or "W", of a micro-batch on a chunk of the
    model; DualPipe's second `direction` runs from the last stage to the first."""

    kind: str
    micro_batch: int
    chunk: int
    direction: int = 0


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
    """`events` by stage and time. `micro_batches` of the step's `of_micro_batches` are shown. `pipeline_s`: from the
    first operation to the last; `closed_form_s` says the same of the prediction where all micro-batches are shown."""

    events: tuple[Event, ...]
    stages: int
    micro_batches: int
    of_micro_batches: int
    pipeline_s: float
    closed_form_s: float | None
    step_time_s: float


def timeline(problem: Problem, profile: Profile, layout: Layout, micro_batches: int | None = None) -> Timeline:
    """Of the first micro-batches: as many as are asked for and make at most MOST_OPERATIONS."""
    rows, c = Layouts.of([layout]), profile.coefficients(problem.scopes)
    predicted = predict(problem, rows, c)
    time = {name: float(value[0]) for name, value in predicted.time.items()}
    every = int(rows.num_micro_batches(problem.workload.global_batch)[0])
    most = MOST_OPERATIONS // (layout.pp * layout.virtual_stages * 3)
    shown = max(min(every, micro_batches or every, most), 1)
    if layout.schedule == "dualpipe":
        shown = min(max(shown // 2 * 2, 2), every)
    seconds, once = _seconds(problem, rows, MeshCosts.of(problem, rows, c))
    done = _run(layout, shown, seconds)
    events = [
        Event(stage=stage, name=_NAMES[op.kind], start_s=start, end_s=end, micro_batch=op.micro_batch, chunk=op.chunk)
        for (op, stage), (start, end) in done.items()
    ]
    ends = max(event.end_s for event in events)
    events += _after(layout.pp, ends, {"data_s": once, **{name: time[name] for name in _AFTER}})
    events.sort(key=lambda event: (event.stage, event.start_s))
    return Timeline(
        events=tuple(events),
        stages=layout.pp,
        micro_batches=shown,
        of_micro_batches=every,
        pipeline_s=ends,
        closed_form_s=sum(v for k, v in time.items() if k not in _AFTER) - once if shown == every else None,
        step_time_s=float(predicted.step_time_s[0]),
    )


_NAMES = {"F": "forward", "B": "backward", "W": "weight gradients"}


def _after(stages: int, start: float, time: dict[str, float]) -> Iterator[Event]:
    """What is left of a step once the pipeline has drained."""
    for name, seconds in time.items():
        if seconds > 0:
            yield from (
                Event(stage=stage, name=name.removesuffix("_s"), start_s=start, end_s=start + seconds)
                for stage in range(stages)
            )
            start += seconds


# -- durations ------------------------------------------------------------------------------------------------------


def _seconds(problem: Problem, rows: Layouts, meshes: MeshCosts) -> tuple[dict[str, Array], float]:
    """(of a micro-batch on each chunk, by kind of operation, with what it exposes there; what the slowest stage exposes
    of its data-parallel traffic once a step)."""
    exposure, held = Exposure(rows, meshes), _held(problem, rows)
    parts = [(float(p.forward[0]), float(p.both[0])) for p in exposure.parts]
    weight = [float(t.weight[0]) for t in meshes.times]
    once = [(float(np.ravel(gather)[0]), float(np.ravel(scatter)[0])) for gather, scatter in exposure.data_once()]
    passes = 2 * int(exposure.micro_batches[0]) * int(rows.virtual_stages[0])
    sends = float(np.ravel(exposure.sends()[0])[0]) / passes
    forward = np.array([sum(parts[i][0] for i in chunk) for chunk in held])
    both = np.array([sum(parts[i][1] for i in chunk) for chunk in held])
    gathers, scatters = (np.array([sum(once[i][k] for i in chunk) for chunk in held]) for k in range(2))
    exposed = []
    for stage in range(int(rows.pp[0])):
        of = [gathers, scatters, forward, both - forward]
        gather, scatter, ahead, back = (np.array([values[stage :: int(rows.pp[0])].sum()]) for values in of)
        exposed.append(float((exposure.hide(gather, ahead) + exposure.hide(scatter, back))[0]))
    weights = np.array([sum(weight[i] for i in chunk) for chunk in held])
    return {"F": forward + sends, "B": both - forward + sends, "W": weights}, max(exposed)


def _held(problem: Problem, rows: Layouts) -> list[list[int]]:
    """The parts of each chunk: kinds of its layers, and the ends of the model (models.exposure)."""
    architecture = problem.architecture
    kinds = np.repeat([kind for kind, _ in architecture.runs], [count for _, count in architecture.runs])
    weights, head = problem.forward_flops
    chunks, by_threshold = rows.pp * rows.virtual_stages, problem.stack.splits_by_threshold
    begin = boundaries(np.array(weights)[kinds], head, chunks, rows.balanced, by_threshold=by_threshold)[0]
    held = [kinds[a:b].tolist() for a, b in zip(begin, begin[1:], strict=False)]
    held[0].append(len(weights))
    held[-1].append(len(weights) + 1)
    return held


# -- schedules ------------------------------------------------------------------------------------------------------


def _run(layout: Layout, m: int, seconds: dict[str, Array]) -> dict[tuple[Operation, int], tuple[float, float]]:
    """(start, end) of every operation, with the stage that it runs on."""
    code = SCHEDULES.index(layout.schedule)
    pp, v = layout.pp, layout.virtual_stages
    if code in (ONE_F_ONE_B, AFAB, INTERLEAVED):
        orders = _interleaved(pp, m, v) if code == INTERLEAVED else _plain(pp, m, afab=code == AFAB)
        return _in_order(orders, pp * v, seconds)
    return _greedy(_Greedy(pp, m, code), seconds)


def _plain(pp: int, m: int, *, afab: bool) -> list[list[Operation]]:
    """1F1B: stage d starts pp - d forwards ahead, then alternates (arXiv 2006.09503); or all of them (GPipe)."""
    orders = []
    for d in range(pp):
        ahead = m if afab else min(pp - d, m)
        order = [Operation("F", i, d) for i in range(ahead)]
        for i in range(m):
            order.append(Operation("B", i, d))
            order += [Operation("F", ahead + i, d)] if ahead + i < m else []
        orders.append(order)
    return orders


def _interleaved(pp: int, m: int, v: int) -> list[list[Operation]]:
    """Groups of pp micro-batches pass all chunks of a stage in turn; the last group may be larger (Megatron-LM
    schedules.py)."""
    groups = [range(start, min(start + pp, m)) for start in range(0, m - m % pp or m, pp)]
    if m % pp and len(groups) > 1:
        groups[-1] = range(groups[-1].start, m)
    forwards = [(i, chunk) for group in groups for chunk in range(v) for i in group]
    backwards = [(i, v - 1 - chunk) for i, chunk in forwards]
    orders = []
    for d in range(pp):
        ahead = min(2 * (pp - d - 1) + (v - 1) * len(groups[0]), len(forwards))
        order = [Operation("F", i, chunk * pp + d) for i, chunk in forwards[:ahead]]
        for k, (i, chunk) in enumerate(backwards):
            if ahead + k < len(forwards):
                order.append(Operation("F", forwards[ahead + k][0], forwards[ahead + k][1] * pp + d))
            order.append(Operation("B", i, chunk * pp + d))
        orders.append(order)
    return orders


def _needs(op: Operation, chunks: int) -> list[Operation]:
    if op.kind == "F":
        return [Operation("F", op.micro_batch, op.chunk - 1, op.direction)] if op.chunk else []
    if op.kind == "W":
        return [Operation("B", op.micro_batch, op.chunk, op.direction)]
    last = op.chunk + 1 == chunks
    later = [] if last else [Operation("B", op.micro_batch, op.chunk + 1, op.direction)]
    return [Operation("F", op.micro_batch, op.chunk, op.direction), *later]


def _in_order(
    orders: Sequence[Sequence[Operation]], chunks: int, seconds: dict[str, Array]
) -> dict[tuple[Operation, int], tuple[float, float]]:
    """Every stage runs its list; an operation starts once the stage is free and what it needs is done."""
    ends: dict[Operation, float] = {}
    found: dict[tuple[Operation, int], tuple[float, float]] = {}
    position, clock = [0] * len(orders), [0.0] * len(orders)
    while len(found) < sum(map(len, orders)):
        before = len(found)
        for stage, order in enumerate(orders):
            while position[stage] < len(order):
                op = order[position[stage]]
                needs = _needs(op, chunks)
                if any(need not in ends for need in needs):
                    break
                start = max([clock[stage], *(ends[need] for need in needs)])
                clock[stage] = ends[op] = start + float(seconds[op.kind][op.chunk])
                found[op, stage] = start, clock[stage]
                position[stage] += 1
        if len(found) == before:
            raise RuntimeError("the schedule waits for itself")
    return found


@dataclass(frozen=True, slots=True)
class _Greedy:
    """A stage takes what it can start first, backward before forward before weight gradients, deep chunks before
    shallow. Zero-bubble keeps no more micro-batches in flight than 1F1B; the others let only so many enter."""

    pp: int
    m: int
    code: int

    @property
    def chunks(self) -> int:
        return self.pp * (2 if self.code == ZERO_BUBBLE_V else 1)

    def lanes(self, stage: int) -> Iterator[tuple[int, int, range]]:
        """(chunk, direction, micro-batches) that a stage runs."""
        last = self.pp - 1
        if self.code == DUALPIPE:
            yield stage, 0, range(self.m // 2)
            yield last - stage, 1, range(self.m // 2, self.m)
        else:
            yield stage, 0, range(self.m)
            if self.code == ZERO_BUBBLE_V:
                yield 2 * self.pp - 1 - stage, 0, range(self.m)

    def may_enter(self, chunk: int, forwards: int, backwards: int) -> bool:
        """Another forward, beside those without their backward on this chunk."""
        if self.code in (ZERO_BUBBLE_V, DUALPIPE):
            most = self.pp if self.code == ZERO_BUBBLE_V else self.pp // 2 + 1
            return chunk > 0 or forwards - backwards < most
        return forwards - backwards < self.pp - chunk


def _greedy(rules: _Greedy, seconds: dict[str, Array]) -> dict[tuple[Operation, int], tuple[float, float]]:
    inputs = {"F": seconds["F"], "B": seconds["B"] - seconds["W"], "W": seconds["W"]}
    ends: dict[Operation, float] = {}
    found: dict[tuple[Operation, int], tuple[float, float]] = {}
    clock = [0.0] * rules.pp
    lanes = [(stage, *lane) for stage in range(rules.pp) for lane in rules.lanes(stage)]
    count = {(stage, chunk, direction): dict.fromkeys("FBW", 0) for stage, chunk, direction, _ in lanes}
    total = 3 * sum(len(batches) for *_, batches in lanes)
    while len(found) < total:
        start, stage, _, _, op = min(_startable(rules, lanes, count, clock, ends), key=lambda choice: choice[:4])
        end = start + float(inputs[op.kind][op.chunk])
        found[op, stage], ends[op], clock[stage] = (start, end), end, end
        count[stage, op.chunk, op.direction][op.kind] += 1
    return found


def _startable(
    rules: _Greedy,
    lanes: Sequence[tuple[int, int, int, range]],
    count: dict[tuple[int, int, int], dict[str, int]],
    clock: Sequence[float],
    ends: dict[Operation, float],
) -> Iterator[tuple[float, int, int, int, Operation]]:
    """(when, stage, rank of the kind, shallowness, operation) of what could be next."""
    for stage, chunk, direction, batches in lanes:
        done = count[stage, chunk, direction]
        for rank, kind in enumerate("BFW"):
            if done[kind] == len(batches):
                continue
            if kind == "F" and not rules.may_enter(chunk, done["F"], done["B"]):
                continue
            op = Operation(kind, batches[done[kind]], chunk, direction)
            needs = _needs(op, rules.chunks)
            if all(need in ends for need in needs):
                yield max([clock[stage], *(ends[need] for need in needs)]), stage, rank, -chunk, op


def chrome_trace(found: Timeline, name: Callable[[int], str] = "stage {}".format) -> dict[str, object]:
    """For chrome://tracing and Perfetto: the Trace Event Format, microseconds, a thread for every stage."""
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": stage, "args": {"name": name(stage)}}
        for stage in range(found.stages)
    ]
    for event in found.events:
        which = {"micro_batch": event.micro_batch, "chunk": event.chunk}
        events.append(
            {
                "ph": "X",
                "name": event.name if event.micro_batch is None else f"{event.name} {event.micro_batch}",
                "cat": event.name,
                "pid": 0,
                "tid": event.stage,
                "ts": event.start_s * 1e6,
                "dur": (event.end_s - event.start_s) * 1e6,
                "args": {name: value for name, value in which.items() if value is not None},
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}
