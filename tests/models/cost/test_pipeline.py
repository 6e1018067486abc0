"""Closed forms of pipeline schedules against a discrete-event simulation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.cost.makespan import zero_bubble_v
from models.cost.pipeline import (
    holds_equal_micro_batches,
    in_flight,
    passes_alike,
)
from models.cost.schedules import run
from models.spec.layout import SCHEDULES, Layout
from tests.models.cost.pipelines import Pipeline, Seconds, model
from tests.oracles.simulation import (
    Op,
    Result,
    afab,
    greedy_zero_bubble,
    interleaved,
    one_f_one_b,
    simulate,
    zero_bubble,
)

SECONDS = st.tuples(*[st.floats(0.1, 3.0)] * 3)
STAGES = st.lists(SECONDS, min_size=1, max_size=8)
ONE_CHUNK = {"afab": afab, "1f1b": one_f_one_b, "zero_bubble": zero_bubble}
"""The orders of schedules with one chunk a stage."""


def length(schedule: str, stages: Sequence[Seconds], m: int, v: int = 1) -> float:
    """In closed form, of stages that all differ."""
    layout = Layout(pp=len(stages), schedule=schedule, virtual_stages=v)
    return Pipeline.of_stages(layout, stages, range(len(stages))).length(m)


def alike(schedule: str, pp: int, seconds: Seconds, m: int, v: int = 1) -> Pipeline:
    """Of stages that all take these seconds."""
    half = schedule == "dualpipe"
    layout = Layout(pp=pp, schedule=schedule, virtual_stages=v)
    return Pipeline.of_stages(layout, [seconds], [0] * (pp // 2 if half else pp))


def simulated(schedule: str, stages: Sequence[Seconds], m: int) -> Result:
    """Of one chunk a stage."""

    def duration(op: Op) -> float:
        forward, to_input, weight = stages[op[2]]
        return {"F": forward, "I": to_input, "W": weight, "B": to_input + weight}[op[0]]

    return simulate(ONE_CHUNK[schedule](len(stages), m), duration, len(stages))


# -- one chunk a stage


@settings(max_examples=300)
@given(st.sampled_from([*ONE_CHUNK]), STAGES, st.integers(1, 20))
def test_any_stages_take_what_the_simulation_takes(
    schedule: str, stages: list[Seconds], m: int
) -> None:
    made = simulated(schedule, stages, m).makespan
    assert made == pytest.approx(length(schedule, stages, m), rel=1e-12)


@settings(max_examples=300)
@given(
    st.sampled_from([*ONE_CHUNK]),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5)), min_size=1, max_size=4),
    st.integers(1, 24),
    st.lists(SECONDS, min_size=3, max_size=3),
)
def test_so_they_do_where_the_ends_of_stretches_of_stages_stand_for_the_rest(
    schedule: str, stretches: list[tuple[int, int]], m: int, seconds: list[Seconds]
) -> None:
    kinds = np.repeat(*np.array(stretches).T).tolist()
    found = Pipeline.of_stages(Layout(pp=len(kinds), schedule=schedule), seconds, kinds)
    made = simulated(schedule, [seconds[kind] for kind in kinds], m).makespan
    assert made == pytest.approx(found.length(m), rel=1e-12)
    if len(kinds) > 1:  # all stages end together
        assert (m * found.work + found.idle(m)).tolist() == pytest.approx([made] * len(kinds))


@given(st.integers(2, 8), st.integers(1, 24), st.sampled_from([1.0, 1.5, 2.0]))
def test_zero_bubble_takes_what_stages_take_that_do_what_they_can_start_first(
    pp: int, m: int, to_input: float
) -> None:
    """Equal ones with F = W, as in its paper."""
    made = greedy_zero_bubble(pp, m, 1.0, to_input, 1.0)
    found = alike("zero_bubble", pp, (1.0, to_input, 1.0), m)
    assert made == pytest.approx(found.length(m))


@given(st.integers(1, 8), st.integers(1, 16), SECONDS)
def test_with_equal_stages_it_idles_for_the_others(pp: int, m: int, seconds: Seconds) -> None:
    """As the papers of afab and 1F1B have it."""
    for schedule in ("afab", "1f1b"):
        made = alike(schedule, pp, seconds, m).length(m)
        assert made == pytest.approx((m + pp - 1) * sum(seconds))
        assert made == pytest.approx(passes_alike(pp, 1, m) * sum(seconds))


@given(STAGES, st.integers(1, 20))
def test_micro_batches_in_flight_are_those_the_simulation_holds(
    stages: list[Seconds], m: int
) -> None:
    pp = len(stages)
    for schedule in ONE_CHUNK:
        code = SCHEDULES.index(schedule)
        held = simulated(schedule, stages, m).peak
        assert held == [in_flight(code, stage, pp, 1, m) for stage in range(pp)]
        assert len(set(held)) == 1 or not holds_equal_micro_batches(code)


# -- chunks in rounds


@given(st.integers(2, 8), st.integers(2, 4), st.integers(0, 30), SECONDS)
def test_interleaving_divides_the_bubble_by_the_virtual_stages(
    pp: int, v: int, more: int, seconds: Seconds
) -> None:
    m = pp + more
    forward, to_input, weight = seconds
    each = {"F": forward / v, "B": (to_input + weight) / v}
    made = simulate(interleaved(pp, m, v), lambda op: each[op[0]], pp * v).makespan
    assert made == pytest.approx(alike("interleaved", pp, seconds, m, v).length(m))
    assert made == pytest.approx(passes_alike(pp, v, m) * sum(seconds))


@given(st.integers(2, 8), st.integers(2, 4), st.integers(0, 30))
def test_interleaved_chunks_in_flight_are_those_the_simulation_holds(
    pp: int, v: int, more: int
) -> None:
    m = pp + more
    held = simulate(interleaved(pp, m, v), lambda op: 1.0 if op[0] == "F" else 2.0, pp * v).peak
    code = SCHEDULES.index("interleaved")
    assert held == [in_flight(code, stage, pp, v, m) * v for stage in range(pp)]


@settings(max_examples=300)
@given(
    st.lists(SECONDS, min_size=2, max_size=8), st.booleans(), st.integers(2, 5), st.floats(0.0, 6.0)
)
def test_interleaved_stages_take_what_the_simulation_takes(
    stages: list[Seconds], proportional: bool, v: int, per_stage: float
) -> None:
    """Of equal chunks, with fewer micro-batches than two groups, whatever stages take of which
    backward is as large a share; else hardly longer, and never shorter."""
    pp = len(stages)
    m = int(pp * (1 + per_stage))
    if proportional:
        stages = [(forward, 2 * forward, 0.0) for forward, _, _ in stages]
    layout = Layout(pp=pp, schedule="interleaved", virtual_stages=v)
    found = Pipeline.of_stages(layout, stages, range(pp))
    closed, made = found.length(m), found.run(m)
    exact = proportional and m < 2 * pp
    assert closed * (1 - 1e-9) <= made <= closed * (1 + (1e-9 if exact else 0.08))


def dealt_out(layers: int, head: float, pp: int, v: int, *, balanced: bool) -> Pipeline:
    """Of layers that are alike and a head, so many of them long."""
    layout = Layout(pp=pp, virtual_stages=v, schedule="interleaved", balanced=balanced)
    seconds = np.array([1.0, 0.0, head])
    return Pipeline(layout, model([(0, layers)], head, [1.0]), seconds, 2 * seconds, 0 * seconds)


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
    found = dealt_out(each * pp * v, head, pp, v, balanced=False)
    assert found.run(pp + more) == pytest.approx(found.length(pp + more))


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
    m = pp + more_micro_batches
    found = dealt_out(pp * v + more_layers, head, pp, v, balanced=True)
    assert 0.94 * found.length(m) <= found.run(m) <= 1.1 * found.length(m)


# -- chunks that face each other


@given(st.integers(1, 6), st.integers(0, 20), SECONDS)
def test_dualpipe_takes_what_its_published_order_takes(
    half: int, more: int, seconds: Seconds
) -> None:
    pp, m = 2 * half, 4 * half + 2 * more
    found = alike("dualpipe", pp, seconds, m)
    assert found.run(m) == pytest.approx(found.length(m))


@settings(max_examples=200)
@given(st.integers(1, 10), st.integers(1, 32), st.tuples(*[st.floats(0.01, 3.0)] * 3))
def test_a_zero_bubble_v_takes_what_its_published_order_takes(
    pp: int, m: int, seconds: Seconds
) -> None:
    """Of chunks half a stage long."""
    found = alike("zero_bubble_v", pp, seconds, m, 2)
    assert found.run(m) == pytest.approx(found.length(m))


@pytest.mark.parametrize("pp", [*range(2, 9), pytest.param(13, marks=pytest.mark.long)])
def test_whatever_its_chunks_take(pp: int) -> None:
    """Each kind of operation nearly alone, two of them, and all: where one path after the other is
    the longest."""
    layout = Layout(pp=pp, schedule="zero_bubble_v", virtual_stages=2)
    seconds = [np.array([f, i, 4 - f - i]) / 4 + 1e-3 for f in range(5) for i in range(5 - f)]
    for m in range(1, 2 * pp + 1):
        for forward, to_input, weight in seconds:
            chunks = {"F": forward, "B": to_input + weight, "W": weight}
            spans = run(layout, m, {kind: np.full(2 * pp, of) for kind, of in chunks.items()})
            made = max(end for _, end in spans.values())
            work = 2 * m * (forward + to_input + weight)
            idle = zero_bubble_v(pp, m, forward, to_input, weight)
            assert made == pytest.approx(work + idle, rel=1e-12)
