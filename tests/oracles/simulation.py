"""A discrete-event simulation of pipeline schedules: the oracle of models.cost.pipeline's closed
forms.

Every device runs its list of operations in order; an operation starts when the device is free and
what it needs is done. Nothing here knows a formula.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Op = tuple[
    str, int, int
]  # kind "F", "B", or "I" and "W" for a backward in two, micro-batch, chunk of the model


@dataclass(frozen=True)
class Result:
    makespan: float
    peak: list[int]  # forwards whose backward is not done, at most, per device


def simulate(
    orders: Sequence[Sequence[Op]], duration: Callable[[Op], float], chunks: int
) -> Result:
    """Run the orders."""
    done: dict[Op, float] = {}
    position, clock = [0] * len(orders), [0.0] * len(orders)
    held, peak = [0] * len(orders), [0] * len(orders)
    total = sum(map(len, orders))
    while len(done) < total:
        moved = False
        for device, order in enumerate(orders):
            while position[device] < len(order):
                op = order[position[device]]
                needed = needs(op, chunks)
                if any(need not in done for need in needed):
                    break
                begin = max([clock[device], *(done[need] for need in needed)])
                clock[device] = done[op] = begin + duration(op)
                held[device] += {"F": 1, "I": 0}.get(op[0], -1)
                peak[device] = max(peak[device], held[device])
                position[device] += 1
                moved = True
        if not moved:
            raise RuntimeError("the orders deadlock")
    return Result(max(clock), peak)


def needs(op: Op, chunks: int) -> list[Op]:
    """What has to be done first: before the forward of chunk c, the forward of c - 1; before its
    backward or its input gradient, that of c + 1; before a weight gradient, its input gradient."""
    kind, micro_batch, chunk = op
    if kind == "F":
        return [("F", micro_batch, chunk - 1)] if chunk else []
    if kind == "W":
        return [("I", micro_batch, chunk)]
    later = [(kind, micro_batch, chunk + 1)] if chunk + 1 < chunks else []
    return [("F", micro_batch, chunk), *later]


def afab(pp: int, m: int) -> list[list[Op]]:
    return [[("F", i, d) for i in range(m)] + [("B", i, d) for i in range(m)] for d in range(pp)]


def one_f_one_b(pp: int, m: int) -> list[list[Op]]:
    """Device d starts pp - d forwards ahead, then alternates (Narayanan et al., arXiv
    2006.09503)."""
    orders = []
    for d in range(pp):
        ahead = min(pp - d, m)
        order: list[Op] = [("F", i, d) for i in range(ahead)]
        for i in range(m):
            order.append(("B", i, d))
            if ahead + i < m:
                order.append(("F", ahead + i, d))
        orders.append(order)
    return orders


def interleaved(pp: int, m: int, v: int) -> list[list[Op]]:
    """Groups of micro-batches pass all chunks of a device in turn (Megatron-LM schedules.py): the
    smallest groups with which each, the last too, has one for every device."""
    size = next(g for g in range(pp, m + 1) if m % g == 0 or m % g >= pp)
    order = []
    for start in range(0, m, size):
        for chunk in range(v):
            order += [(i, chunk) for i in range(start, min(start + size, m))]
    orders = []
    for d in range(pp):
        forwards = [("F", i, chunk * pp + d) for i, chunk in order]
        backwards = [("B", i, (v - 1 - chunk) * pp + d) for i, chunk in order]
        ahead = min(2 * (pp - d - 1) + (v - 1) * size, m * v)
        steady = [op for pair in zip(forwards[ahead:], backwards, strict=False) for op in pair]
        orders.append([*forwards[:ahead], *steady, *backwards[m * v - ahead :]])
    return orders


def zero_bubble(pp: int, m: int) -> list[list[Op]]:
    """1F1B whose device d does the weight gradient of each micro-batch after d more input
    gradients, or at the end."""
    orders = []
    for d, order in enumerate(one_f_one_b(pp, m)):
        split: list[Op] = []
        for kind, i, _ in order:
            split.append(("I" if kind == "B" else kind, i, d))
            if kind == "B" and i >= d:
                split.append(("W", i - d, d))
        orders.append(split + [("W", i, d) for i in range(m) if ("W", i, d) not in split])
    return orders


def greedy_zero_bubble(pp: int, m: int, forward: float, to_input: float, to_weight: float) -> float:
    """The makespan of ZB-H1 (arXiv 2401.10241 §2.2) on equal stages: a device takes what it can
    start first, a backward before a forward before a weight gradient, with no more micro-batches in
    flight than under 1F1B."""
    clock, done = [0.0] * pp, dict[Op, float]()
    count = {kind: [0] * pp for kind in "FBW"}
    seconds = {"F": forward, "B": to_input, "W": to_weight}

    def ready(kind: str, d: int) -> float | None:
        i = count[kind][d]
        if kind == "W":
            return clock[d] if i < count["B"][d] else None
        if i == m or (kind == "F" and i - count["B"][d] >= pp - d):
            return None
        needed = [("F", i, d - 1)] if kind == "F" and d else []
        needed += [("F", i, d)] + ([("B", i, d + 1)] if d + 1 < pp else []) if kind == "B" else []
        return (
            max([clock[d], *(done[need] for need in needed)])
            if all(need in done for need in needed)
            else None
        )

    while sum(count["W"]) < pp * m:
        choices = [
            (at, rank, d, kind)
            for d in range(pp)
            for rank, kind in enumerate("BFW")
            if (at := ready(kind, d)) is not None
        ]
        at, _, d, kind = min(choices, key=lambda choice: (choice[0], choice[2], choice[1]))
        clock[d] = done[kind, count[kind][d], d] = at + seconds[kind]
        count[kind][d] += 1
    return max(clock)
