"""Closed forms of pipeline schedules against a discrete-event simulation, and partitions against
brute force."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.columns import Array
from models.cost.makespan import Chunks, Rounds, zero_bubble_v
from models.cost.pipeline import StageTimes, bubble, in_flight
from models.cost.schedules import run
from models.cost.stage_partition import Order, boundaries, partition
from models.spec.layout import SCHEDULES, Layout
from tests.oracles.simulation import (
    Op,
    afab,
    greedy_zero_bubble,
    interleaved,
    one_f_one_b,
    simulate,
    zero_bubble,
)

times = st.lists(st.floats(0.1, 3.0), min_size=1, max_size=8)


def alone(forward: Chunks, backward: Chunks) -> Rounds:
    """Of one pipeline, with paths that stay where they are."""
    nothing = np.zeros(1)
    return Rounds(forward, backward, nothing, nothing, nothing)


def closed_form(
    schedule: str,
    forward: Sequence[float],
    backward: Sequence[float],
    m: int,
    v: int = 1,
    weight: float | Sequence[float] = 0.0,
) -> float:
    f, b = np.array(forward)[:, None], np.array(backward)[:, None]
    both, weights = f + b, np.broadcast_to(np.atleast_2d(weight).T, f.shape)
    order = Order.of(np.arange(len(f))[None], np.array([len(f)])), np.zeros(1, dtype=int)
    rounds = alone(Chunks(f, f / v, f / v), Chunks(b, b / v, b / v))
    stages = StageTimes(
        f, b, weights, *(whole.sum(axis=0) for whole in (f, both, weights)), *order, rounds
    )
    code, *shape = (np.array([value]) for value in (SCHEDULES.index(schedule), len(f), v, m))
    return float((m * both + bubble(code, *shape, stages)).max())


@given(times, st.integers(1, 12), st.data())
def test_all_forward_all_backward_takes_what_the_simulation_takes(
    forward: list[float], m: int, data: st.DataObject
) -> None:
    backward = data.draw(
        st.lists(st.floats(0.1, 3.0), min_size=len(forward), max_size=len(forward))
    )

    def duration(op: Op) -> float:
        return forward[op[2]] if op[0] == "F" else backward[op[2]]

    result = simulate(afab(len(forward), m), duration, len(forward))
    assert result.makespan == pytest.approx(closed_form("afab", forward, backward, m))


@settings(max_examples=300)
@given(times, st.integers(1, 16), st.data())
def test_one_forward_one_backward_takes_what_the_simulation_takes(
    forward: list[float], m: int, data: st.DataObject
) -> None:
    backward = data.draw(
        st.lists(st.floats(0.1, 3.0), min_size=len(forward), max_size=len(forward))
    )

    def duration(op: Op) -> float:
        return forward[op[2]] if op[0] == "F" else backward[op[2]]

    made = simulate(one_f_one_b(len(forward), m), duration, len(forward)).makespan
    assert made == pytest.approx(closed_form("1f1b", forward, backward, m), rel=1e-12)


operations = st.tuples(*[st.floats(0.1, 3.0)] * 3)  # forward, input gradient, weight gradient


def simulated_orders(schedule: str, m: int, seconds: Sequence[tuple[float, float, float]]) -> float:
    """Of 1F1B or ZB-H1 on stages that take so long each."""
    orders = {"1f1b": one_f_one_b, "zero_bubble": zero_bubble}[schedule](len(seconds), m)

    def duration(op: Op) -> float:
        forward, to_input, weight = seconds[op[2]]
        return {"F": forward, "I": to_input, "W": weight, "B": to_input + weight}[op[0]]

    return simulate(orders, duration, len(seconds)).makespan


@settings(max_examples=500)
@given(st.lists(operations, min_size=1, max_size=8), st.integers(1, 20))
def test_zero_bubble_takes_what_the_simulation_takes(
    seconds: list[tuple[float, float, float]], m: int
) -> None:
    forward, to_input, weight = np.array(seconds).T
    closed = closed_form("zero_bubble", forward, to_input + weight, m, weight=weight)
    assert simulated_orders("zero_bubble", m, seconds) == pytest.approx(closed, rel=1e-12)


@settings(max_examples=500)
@given(
    st.sampled_from(["1f1b", "zero_bubble"]),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5)), min_size=1, max_size=4),
    st.integers(1, 24),
    st.lists(operations, min_size=3, max_size=3),
)
def test_so_they_do_where_the_ends_of_stretches_of_stages_stand_for_the_rest(
    schedule: str,
    stretches: list[tuple[int, int]],
    m: int,
    seconds: list[tuple[float, float, float]],
) -> None:
    kind = np.repeat(*np.array(stretches).T)
    pp, one = np.array([len(kind)]), np.array([m])
    forward, to_input, weight = (np.array(column)[:, None] for column in zip(*seconds, strict=True))
    both = forward + to_input + weight
    order = Order.of(kind[None], pp), np.zeros(1, dtype=int)
    whole = (part[kind].sum(axis=0) for part in (forward, both, weight))
    times = StageTimes(forward, to_input + weight, weight, *whole, *order)
    idle = bubble(np.array([SCHEDULES.index(schedule)]), pp, np.ones(1), one, times)
    made = simulated_orders(schedule, m, [seconds[of_stage] for of_stage in kind])
    assert len(kind) == 1 or made == pytest.approx(m * both[0] + idle[0], rel=1e-12)


@given(st.integers(1, 8), st.integers(1, 16), st.floats(0.5, 3.0))
def test_with_equal_stages_it_idles_for_the_others(pp: int, m: int, ratio: float) -> None:
    assert closed_form("1f1b", [1.0] * pp, [ratio] * pp, m) == pytest.approx(
        (m + pp - 1) * (1 + ratio)
    )


@given(st.integers(2, 8), st.integers(2, 4), st.integers(0, 30), st.floats(1.0, 3.0))
def test_interleaving_divides_the_bubble_by_the_virtual_stages(
    pp: int, v: int, more: int, ratio: float
) -> None:
    m = pp + more

    def duration(op: Op) -> float:
        return (1.0 if op[0] == "F" else ratio) / v

    result = simulate(interleaved(pp, m, v), duration, pp * v)
    expected = closed_form("interleaved", [1.0] * pp, [ratio] * pp, m, v)
    assert result.makespan == pytest.approx(expected)


@given(st.integers(2, 8), st.integers(1, 24), st.sampled_from([1.0, 1.5, 2.0]))
def test_zero_bubble_takes_what_stages_take_that_do_what_they_can_start_first(
    pp: int, m: int, to_input: float
) -> None:
    """Equal ones with F = W, as in its paper."""
    made = greedy_zero_bubble(pp, m, 1.0, to_input, 1.0)
    assert made == pytest.approx(
        closed_form("zero_bubble", [1.0] * pp, [to_input + 1.0] * pp, m, weight=1.0)
    )


def simulated(layout: Layout, m: int, forward: float, to_input: float, weight: float) -> float:
    """Of chunks that all take as long."""
    n = layout.pp * layout.virtual_stages
    seconds = {"F": forward, "B": to_input + weight, "W": weight}
    spans = run(layout, m, {kind: np.full(n, value) for kind, value in seconds.items()})
    return max(end for _, end in spans.values())


@given(st.integers(1, 6), st.integers(0, 20), operations)
def test_dualpipe_takes_what_its_published_order_takes(
    half: int, more: int, seconds: tuple[float, float, float]
) -> None:
    pp, m = 2 * half, 4 * half + 2 * more
    forward, to_input, weight = seconds
    made = simulated(Layout(pp=pp, schedule="dualpipe"), m, forward, to_input, weight)
    closed = closed_form("dualpipe", [forward] * pp, [to_input + weight] * pp, m, weight=weight)
    assert made == pytest.approx(closed)


@settings(max_examples=300)
@given(st.integers(1, 10), st.integers(1, 32), st.tuples(*[st.floats(0.01, 3.0)] * 3))
def test_a_zero_bubble_v_takes_what_its_published_order_takes(
    pp: int, m: int, seconds: tuple[float, float, float]
) -> None:
    """Of chunks half a stage long."""
    forward, to_input, weight = seconds
    made = simulated(
        Layout(pp=pp, schedule="zero_bubble_v", virtual_stages=2), m, forward, to_input, weight
    )
    stages = [2 * forward] * pp, [2 * (to_input + weight)] * pp
    closed = closed_form("zero_bubble_v", *stages, m, 2, weight=2 * weight)
    assert made == pytest.approx(closed)


@pytest.mark.parametrize("pp", [*range(2, 9), pytest.param(13, marks=pytest.mark.long)])
def test_whatever_its_chunks_take(pp: int) -> None:
    """Each kind of operation nearly alone, two of them, and all: where one path after the other is
    the longest."""
    seconds = [np.array([f, i, 4 - f - i]) / 4 + 1e-3 for f in range(5) for i in range(5 - f)]
    for m in range(1, 2 * pp + 1):
        paths = zero_bubble_v(np.array([pp]), np.array([m]))[:, :, 0]
        for each in seconds:
            made = simulated(Layout(pp=pp, schedule="zero_bubble_v", virtual_stages=2), m, *each)
            assert made == pytest.approx(((2 * m + paths) @ each).max(), rel=1e-12)


@given(st.integers(1, 8), st.integers(1, 40))
def test_a_zero_bubble_v_holds_no_more_than_one_forward_one_backward(pp: int, m: int) -> None:
    spans = run(
        Layout(pp=pp, schedule="zero_bubble_v", virtual_stages=2),
        m,
        {kind: np.full(2 * pp, value) for kind, value in {"F": 1.0, "B": 2.0, "W": 1.0}.items()},
    )
    for stage in range(pp):
        changes = [
            (start, 1) for (op, at), (start, _) in spans.items() if at == stage and op.kind == "F"
        ]
        changes += [
            (end, -1) for (op, at), (_, end) in spans.items() if at == stage and op.kind == "I"
        ]
        held = np.cumsum([change for _, change in sorted(changes)]).max() / 2
        one, code = np.array(1), np.array(SCHEDULES.index("zero_bubble_v"))
        most = float(in_flight(code, np.array(stage), np.array(pp), 2 * one, np.array(m)))
        assert held <= most
        assert held == most or m < 2 * pp - 1


@given(st.integers(1, 8), st.integers(1, 20))
def test_micro_batches_in_flight_are_those_the_simulation_holds(pp: int, m: int) -> None:
    for schedule, orders in (
        ("1f1b", one_f_one_b(pp, m)),
        ("afab", afab(pp, m)),
        ("zero_bubble", zero_bubble(pp, m)),
    ):
        held = simulate(orders, lambda op: 1.0 if op[0] == "F" else 2.0, pp).peak
        code, one = np.array(SCHEDULES.index(schedule)), np.array(1)
        expected = [
            float(in_flight(code, np.array(d), np.array(pp), one, np.array(m))) for d in range(pp)
        ]
        assert held == expected


@given(st.integers(2, 8), st.integers(2, 4), st.integers(0, 30))
def test_interleaved_chunks_in_flight_are_those_the_simulation_holds(
    pp: int, v: int, more: int
) -> None:
    m = pp + more
    held = simulate(interleaved(pp, m, v), lambda op: 1.0 if op[0] == "F" else 2.0, pp * v).peak
    code = np.array(SCHEDULES.index("interleaved"))
    expected = [
        float(in_flight(code, np.array(d), np.array(pp), np.array(v), np.array(m))) * v
        for d in range(pp)
    ]
    assert held == expected


@settings(max_examples=300)
@given(
    st.lists(operations, min_size=2, max_size=8),
    st.booleans(),
    st.integers(2, 5),
    st.floats(0.0, 6.0),
)
def test_interleaved_stages_take_what_the_simulation_takes(
    stages: list[tuple[float, float, float]], alike: bool, v: int, per_stage: float
) -> None:
    """Of equal chunks, with fewer micro-batches than two groups, whatever stages take of which
    backward is as large a share; else hardly longer, and never shorter."""
    forward, backward, _ = np.array(stages).T
    backward = 2 * forward if alike else backward
    m = int(len(stages) * (1 + per_stage))
    chunks = {
        "F": np.tile(forward, v) / v,
        "B": np.tile(backward, v) / v,
        "W": np.zeros(len(stages) * v),
    }
    made = length(Layout(pp=len(stages), schedule="interleaved", virtual_stages=v), m, chunks)
    closed = closed_form("interleaved", forward.tolist(), backward.tolist(), m, v)
    assert (
        closed * (1 - 1e-9)
        <= made
        <= closed * (1 + (1e-9 if alike and m < 2 * len(stages) else 0.08))
    )


def length(layout: Layout, m: int, chunks: dict[str, Array]) -> float:
    return max(end for _, end in run(layout, m, chunks).values())


def dealt_out(
    layers: int, head: float, pp: int, v: int, m: int, *, balanced: bool
) -> tuple[float, float]:
    """Of layers that are alike and a head, so many of them long, in closed form and operation by
    operation."""
    no, rows = np.array([False]), (np.array([pp]), np.array([v]), np.array([balanced]))
    begin = boundaries(np.ones(layers), head, *rows, no)[0]
    seconds = np.diff(begin).astype(float)
    seconds[-1] += head
    chunks = {"F": seconds, "B": 2 * seconds, "W": 0 * seconds}
    found = partition(((0, layers),), np.array([1.0]), head, *rows, no, no)
    costs = np.array([1.0, 0.0, head])
    whole, first, last = (np.tensordot(costs, of, axes=1) for of in (found.amounts, *found.rounds))
    out, back, down = (costs @ passes for passes in found.steady.passes)
    rounds = Rounds(
        Chunks(whole, first, last),
        Chunks(2 * whole, 2 * first, 2 * last),
        *(out + 2 * back, 3 * down, found.steady.last),
    )
    model = np.array([layers + head])
    times = StageTimes(
        whole, 2 * whole, 0.0, model, 3 * model, 0.0, found.order, found.code, rounds
    )
    idle = bubble(np.array([SCHEDULES.index("interleaved")]), *rows[:2], np.array([m]), times)
    made = length(Layout(pp=pp, schedule="interleaved", virtual_stages=v), m, chunks)
    return float((3 * m * whole + idle).max()), made


@given(
    st.integers(2, 12),
    st.integers(2, 6),
    st.integers(1, 3),
    st.integers(0, 60),
    st.floats(0.0, 6.0),
)
def test_even_chunks_and_a_head_take_what_the_simulation_takes(
    pp: int, v: int, each: int, more: int, head: float
) -> None:
    closed, made = dealt_out(each * pp * v, head, pp, v, pp + more, balanced=False)
    assert made == pytest.approx(closed)


@given(
    st.integers(2, 12),
    st.integers(2, 6),
    st.integers(0, 90),
    st.integers(-2, 24),
    st.sampled_from([0.5, 1.0, 2.0, 4.0]),
)
def test_dealt_out_in_rounds_chunks_take_about_as_long_as_the_closed_form(
    pp: int, v: int, more_micro_batches: int, more_layers: int, head: float
) -> None:
    """Longer ones in some rounds, on some stages or with the head; and a last group of more
    micro-batches or fewer."""
    closed, made = dealt_out(
        pp * v + more_layers, head, pp, v, pp + more_micro_batches, balanced=True
    )
    assert 0.94 * closed <= made <= 1.1 * closed
