"""The order of the operations of a pipeline schedule on each stage, and the time of each. Timelines
show it, and tests hold the closed forms of models.cost.pipeline.bubble against it.

A *chunk* is a run of layers of the model, of which a stage has one or several. Operations are named
"F" (forward), "B" (whole backward), "I" (input gradients) and "W" (weight gradients).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from models.columns import Array
from models.cost.pipeline.bubble import micro_batch_group
from models.spec.layout import (
    AFAB,
    DUALPIPE,
    INTERLEAVED,
    SCHEDULES,
    ZERO_BUBBLE,
    ZERO_BUBBLE_V,
    Layout,
)


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a micro-batch on a chunk of the model. Its `kind` is "F" or "B", or "I" and
    "W" where backward comes in two, input and weight gradients. DualPipe's second `direction` runs
    from the last stage to the first."""

    kind: str
    micro_batch: int
    chunk: int
    direction: int = 0


Block = tuple[Operation, ...]
"""Operations that a stage runs at the same time: one alone, or a forward and a backward that
overlap."""
Span = tuple[float, float]


def run_schedule(
    layout: Layout, m: int, seconds: dict[str, Array]
) -> dict[tuple[Operation, int], Span]:
    """Return the start and end, in seconds, of every operation of m micro-batches, by the operation
    and the stage that it runs on. `seconds` has the times of "F", "B" and "W" on each chunk,
    (chunks,). Chunks are numbered in the order of the model."""
    code = SCHEDULES.index(layout.schedule)
    pp = layout.pp
    v = layout.virtual_stages
    seconds = seconds | {"I": seconds["B"] - seconds["W"]}
    if code == INTERLEAVED:
        orders = _interleaved(pp, m, v)
    elif code == ZERO_BUBBLE:
        orders = [_alternating(m, stage, min(pp - stage, m), split=True) for stage in range(pp)]
    elif code == ZERO_BUBBLE_V:
        orders = [_zero_bubble_v(pp, m, stage) for stage in range(pp)]
    elif code == DUALPIPE:
        orders = [_DualPipe(pp, m, stage).order() for stage in range(pp)]
    elif code == AFAB:
        orders = [_alternating(m, stage, m) for stage in range(pp)]
    else:  # 1f1b
        orders = [_alternating(m, stage, min(pp - stage, m)) for stage in range(pp)]
    return _run_in_order(orders, pp * v, seconds)


def _alternating(m: int, stage: int, ahead: int, *, split: bool = False) -> list[Block]:
    """Return the operations of a stage in order, where it does `ahead` forwards first and then
    alternates backwards and forwards: with two ahead F0 F1 B0 F2 B1 F3 and so on. Under 1F1B, pp -
    stage forwards come first (arXiv 2006.09503), and under GPipe all of them.

    With `split`, backward comes in two (ZB-H1). The weight gradients of micro-batch i - stage
    follow the input gradients of micro-batch i, and the last `stage` ones come at the end (arXiv
    2401.10241 §3.1; ScheduleInterleavedZeroBubble of torch/distributed/pipelining/schedules.py).
    """
    order: list[Block] = [(Operation("F", i, stage),) for i in range(ahead)]
    for i in range(m):
        order.append((Operation("I" if split else "B", i, stage),))
        if split and i >= stage:
            order.append((Operation("W", i - stage, stage),))
        if ahead + i < m:
            order.append((Operation("F", ahead + i, stage),))
    if split:
        order += [(Operation("W", i, stage),) for i in range(max(m - stage, 0), m)]
    return order


def _interleaved(pp: int, m: int, v: int) -> list[list[Block]]:
    """Return, for each stage, its operations in order, under the interleaved schedule. A group of
    micro-batches passes the first chunk of a stage, then the group passes the second, and so on for
    all v chunks (arXiv 2104.04473 §2.2; Megatron-LM schedules.py)."""
    size = int(micro_batch_group(pp, m))
    groups = [range(start, min(start + size, m)) for start in range(0, m, size)]
    forwards = [(i, chunk) for group in groups for chunk in range(v) for i in group]
    backwards = [(i, v - 1 - chunk) for i, chunk in forwards]
    orders: list[list[Block]] = []
    for stage in range(pp):
        # Forwards before the first pair of a forward and a backward: a group's on all chunks of the
        # stage but the last, and two for each later stage.
        ahead = min(2 * (pp - stage - 1) + (v - 1) * size, len(forwards))
        first = forwards[:ahead]
        order: list[Block] = [(Operation("F", i, chunk * pp + stage),) for i, chunk in first]
        for k, (i, chunk) in enumerate(backwards):
            if ahead + k < len(forwards):
                forward, forward_chunk = forwards[ahead + k]
                order.append((Operation("F", forward, forward_chunk * pp + stage),))
            order.append((Operation("B", i, chunk * pp + stage),))
        orders.append(order)
    return orders


def _zero_bubble_v(pp: int, m: int, stage: int) -> list[Block]:
    """Return the operations of a stage in order, where micro-batches go down the stages and up
    again. The schedule is made for F = I = W (arXiv 2401.10241 §6; ScheduleZBVZeroBubble of
    torch/distributed/pipelining/schedules.py). A stage has one chunk on the way down (way 0) and
    one on the way up (way 1)."""
    chunks = (stage, 2 * pp - 1 - stage)
    done = {(k, way): 0 for k in "FIW" for way in (0, 1)}
    order = list[Block]()

    def take(way: int, *kinds: str) -> None:
        """Append the next operation of each of these kinds on the chunk of one way."""
        for kind in kinds:
            order.append((Operation(kind, done[kind, way], chunks[way]),))
            done[kind, way] += 1

    # The order is that of at least 2 pp - 1 micro-batches; those beyond m are dropped at the end.
    most = max(2 * pp - 1, m)
    # Warm-up: forwards on the way down alone, then both ways, then whole passes on the way up.
    for _ in range(2 * (pp - stage) - 1):
        take(0, "F")
    for _ in range(stage):
        take(1, "F")
        take(0, "F")
    for _ in range(pp - stage):
        take(1, "F", "I", "W")
    while done["F", 1] < done["F", 0] or done["F", 0] < most:
        if done["F", 0] < most:
            take(0, "F")
        take(0, "I", "W")
        take(1, "F", "I", "W")
    # Drain: input gradients without weight gradients first, since earlier stages wait for them.
    for _ in range(stage):
        take(0, "I")
        take(1, "I")
    for _ in range(pp - stage):
        take(0, "I", "W")
    for way in (1, 0):
        take(way, *["W"] * (done["I", way] - done["W", way]))
    return [block for block in order if block[0].micro_batch < m]


class _DualPipe:
    """Makes the order of one stage under DualPipe: both directions of micro-batches, and forwards
    that overlap backwards of the other direction (arXiv 2412.19437 figure 5; dualpipe.py of
    github.com/deepseek-ai/DualPipe). Micro-batches of way 0 enter at the end of the pipeline that
    is nearer to the stage, those of way 1 at the farther end."""

    def __init__(self, pp: int, m: int, stage: int) -> None:
        self.pp = pp
        self.m = m
        self.stage = stage
        self.half = pp // 2
        self.from_end = min(stage, pp - 1 - stage)  # stages between this one and the nearer end
        self.mirrored = stage >= self.half  # The last stage is at the nearer end.
        # operations so far: forwards ("F") and backwards ("B") of each way
        self.done = {(kind, way): 0 for kind in "FB" for way in (0, 1)}
        self.apart: list[Operation] = []  # weight gradients that run apart from input gradients
        self.blocks: list[Block] = []

    def order(self) -> list[Block]:
        """Return the blocks that the stage runs, in order."""
        to_middle = self.half - self.from_end - 1  # stages between this one and the middle
        up_to_here = self.from_end + 1  # stages from the nearer end up to this one
        # Warm-up: forwards from the nearer end, then from both.
        for _ in range(2 * to_middle):
            self._append(self._forward(0))
        for _ in range(up_to_here):
            self._append(self._forward(0))
            self._append(self._forward(1))
        # The first backwards are of micro-batches from the farther end, which end nearer to here.
        for _ in range(to_middle):
            self._append(self._backward(1, apart=True))
            self._append_weights()
            self._append(self._forward(1))
        # Steady state: each forward overlaps a backward of the other direction. Warm-up has done
        # pp - up_to_here of the m // 2 forwards from the nearer end, and this does the others.
        for i in range(self.m // 2 - self.pp + up_to_here):
            # The first backward of a middle stage has no forward of the other direction to overlap.
            if i == 0 and to_middle == 0:
                self._append(self._forward(0))
                self._append(self._backward(1))
            else:
                self._append(self._forward(0), self._backward(1))
            self._append(self._forward(1), self._backward(0))
        # Only forwards from the farther end are left, so every second backward runs alone.
        for _ in range(to_middle):
            self._append(self._backward(1))
            self._append(self._forward(1), self._backward(0))
        self._drain(to_middle, up_to_here)
        return self.blocks

    def _drain(self, to_middle: int, up_to_here: int) -> None:
        """Append the last backwards: `2 * up_to_here` from both ends in turn, then `to_middle` from
        the nearer end. The later ones are input gradients alone (`apart`), whose weight gradients
        come where the stage would wait. `to_middle` is the number of stages between this one and
        the middle, and `up_to_here` that from the nearer end up to this one."""
        for k in range(2 * up_to_here):
            way = 1 - k % 2
            self._append(self._backward(way, apart=k >= up_to_here))
        for _ in range(to_middle):
            self._append_weights()
            self._append(self._backward(0, apart=True))
        while self.apart:
            self._append_weights()

    def _append(self, *block: Operation) -> None:
        self.blocks.append(block)

    def _forward(self, way: int) -> Operation:
        return self._operation("F", "F", way)

    def _backward(self, way: int, *, apart: bool = False) -> Operation:
        """Return the next backward from one way. If `apart`, it is of input gradients alone, and
        its weight gradients are put in the queue `self.apart`."""
        op = self._operation("I" if apart else "B", "B", way)
        if apart:
            self.apart.append(Operation("W", op.micro_batch, op.chunk, op.direction))
        return op

    def _operation(self, kind: str, counted_as: str, way: int) -> Operation:
        """Return the operation of this kind on the next micro-batch from one way. Micro-batches
        are counted apart for forwards ("F") and backwards ("B"); input gradients ("I") are counted
        as backwards."""
        # Ways count from the end nearer to the stage, directions from the first stage.
        direction = way ^ self.mirrored
        index = self.done[counted_as, way]
        self.done[counted_as, way] += 1
        chunk = self.pp - 1 - self.stage if direction else self.stage
        # The first half of the micro-batches go in direction 0, the second half in direction 1.
        return Operation(kind, direction * (self.m // 2) + index, chunk, direction)

    def _append_weights(self) -> None:
        """Append the oldest weight gradients that wait in the queue `self.apart`, if any do."""
        if self.apart:
            self._append(self.apart.pop(0))


def _prerequisites(op: Operation, chunks: int) -> list[Operation]:
    """Return the operations that must end before this one starts. A whole backward goes by the name
    of its input gradients, "I" (`_awaited_operation`)."""
    if op.kind == "F":
        return [Operation("F", op.micro_batch, op.chunk - 1, op.direction)] if op.chunk else []
    if op.kind == "W":
        return [Operation("I", op.micro_batch, op.chunk, op.direction)]
    last = op.chunk + 1 == chunks
    later = [] if last else [Operation("I", op.micro_batch, op.chunk + 1, op.direction)]
    return [Operation("F", op.micro_batch, op.chunk, op.direction), *later]


def _awaited_operation(op: Operation) -> Operation:
    """Return the operation under the name by which others wait for it. They wait for input
    gradients "I" whether these run alone or in a whole backward "B"."""
    return Operation("I", op.micro_batch, op.chunk, op.direction) if op.kind == "B" else op


def _run_in_order(
    orders: Sequence[Sequence[Block]], chunks: int, seconds: dict[str, Array]
) -> dict[tuple[Operation, int], Span]:
    """Return the start and end, in seconds, of every operation, by the operation and its stage.
    `orders` has each stage's blocks (one operation, or two that overlap) in order. A block starts
    once the stage is free and the operations that it needs are done. Raise RuntimeError where
    stages wait for each other for ever. `seconds` are by kind of operation and chunk."""
    ends: dict[Operation, float] = {}
    spans: dict[tuple[Operation, int], Span] = {}
    position, clock = [0] * len(orders), [0.0] * len(orders)
    moved = True
    # Each stage in turn runs until it waits for another. That is repeated while any stage moves.
    while moved:
        moved = False
        for stage, order in enumerate(orders):
            while position[stage] < len(order):
                block = order[position[stage]]
                needs = [need for op in block for need in _prerequisites(op, chunks)]
                if any(need not in ends for need in needs):
                    break
                start = max([clock[stage], *(ends[need] for need in needs)])
                clock[stage] = start + sum(float(seconds[op.kind][op.chunk]) for op in block)
                for op in block:
                    ends[_awaited_operation(op)] = clock[stage]
                    spans[op, stage] = start, clock[stage]
                position[stage] += 1
                moved = True
    if position != [len(order) for order in orders]:
        raise RuntimeError("the schedule waits for itself")
    return spans
