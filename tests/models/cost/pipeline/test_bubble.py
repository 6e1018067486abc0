"""Closed forms of pipeline schedules against a discrete-event simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.columns import Array
from models.cost.pipeline.bubble import (
    ends_together,
    holds_equal_micro_batches,
    in_flight,
    length_of_equal_stages,
    micro_batch_group,
    moves_weight_gradients,
)
from models.cost.pipeline.makespan import ChunkSeconds, zero_bubble_v
from models.cost.pipeline.schedules import run_schedule
from models.spec.layout import SCHEDULES, Layout
from tests.long import examples
from tests.models.cost.pipelines import Pipeline, Seconds, model
from tests.oracles.simulation import (
    Op,
    Result,
    afab,
    greedy_zero_bubble,
    interleaved,
    needs,
    one_f_one_b,
    simulate,
    zero_bubble,
)

SECONDS = st.tuples(*[st.sampled_from([0.1, 3.0]) | st.floats(0.1, 3.0)] * 3)
STAGES = st.lists(SECONDS, min_size=1, max_size=8)
ONE_CHUNK = {"afab": afab, "1f1b": one_f_one_b, "zero_bubble": zero_bubble}
"""The orders of schedules with one chunk a stage."""


def length(schedule: str, stages: Sequence[Seconds], m: int) -> float:
    """In closed form, of one chunk a stage, which all differ."""
    layout = Layout(pp=len(stages), schedule=schedule)
    return Pipeline.of_stages(layout, stages, range(len(stages))).length(m)


def alike(schedule: str, pp: int, seconds: Seconds, v: int = 1) -> Pipeline:
    """Of stages that all take these seconds."""
    stages = pp // 2 if schedule == "dualpipe" else pp
    layout = Layout(pp=pp, schedule=schedule, virtual_stages=v)
    return Pipeline.of_stages(layout, [seconds], [0] * stages)


def simulated(schedule: str, stages: Sequence[Seconds], m: int) -> Result:
    """Of one chunk a stage."""

    def duration(op: Op) -> float:
        forward, to_input, weight = stages[op[2]]
        return {"F": forward, "I": to_input, "W": weight, "B": to_input + weight}[op[0]]

    return simulate(ONE_CHUNK[schedule](len(stages), m), duration, len(stages))


# -- one chunk a stage


@settings(max_examples=examples(300))
@given(st.sampled_from([*ONE_CHUNK]), STAGES, st.integers(1, 20))
def test_any_stages_take_what_the_simulation_takes(
    schedule: str, stages: list[Seconds], m: int
) -> None:
    made = simulated(schedule, stages, m).makespan
    assert made == pytest.approx(length(schedule, stages, m), rel=1e-12)


@settings(max_examples=examples(300))
@given(
    st.sampled_from([*ONE_CHUNK]),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5)), min_size=1, max_size=4),
    st.integers(1, 24),
    st.lists(SECONDS, min_size=3, max_size=3),
)
def test_stretches_of_equal_stages_take_what_the_simulation_takes(
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
    found = alike("zero_bubble", pp, (1.0, to_input, 1.0))
    assert made == pytest.approx(found.length(m))


@given(st.integers(1, 8), st.integers(1, 16), SECONDS)
def test_with_equal_stages_it_idles_for_the_others(pp: int, m: int, seconds: Seconds) -> None:
    """As the papers of afab and 1F1B have it."""
    for schedule in ("afab", "1f1b"):
        made = alike(schedule, pp, seconds).length(m)
        assert made == pytest.approx((m + pp - 1) * sum(seconds))
        assert made == pytest.approx(length_of_equal_stages(pp, 1, m) * sum(seconds))


@given(STAGES, st.integers(1, 20))
def test_micro_batches_in_flight_are_those_the_simulation_holds(
    stages: list[Seconds], m: int
) -> None:
    pp = len(stages)
    for schedule in ONE_CHUNK:
        code = SCHEDULES.index(schedule)
        held = simulated(schedule, stages, m).peak
        assert held == [in_flight(code, stage, pp, 1, m) for stage in range(pp)]
        if pp > 1 and m > 1:
            assert holds_equal_micro_batches(code) == (len(set(held)) == 1)


# -- chunks in rounds


@given(st.integers(2, 8), st.integers(2, 4), st.integers(0, 30), SECONDS)
def test_interleaving_divides_the_bubble_by_the_virtual_stages(
    pp: int, v: int, more: int, seconds: Seconds
) -> None:
    m = pp + more
    forward, to_input, weight = seconds
    each = {"F": forward / v, "B": (to_input + weight) / v}
    made = simulate(interleaved(pp, m, v), lambda op: each[op[0]], pp * v).makespan
    assert made == pytest.approx(alike("interleaved", pp, seconds, v).length(m))
    assert made == pytest.approx(length_of_equal_stages(pp, v, m) * sum(seconds))


@given(st.integers(1, 12), st.integers(1, 60))
def test_groups_are_the_smallest_of_which_no_stage_waits_for_the_last(pp: int, m: int) -> None:
    """Of fewer micro-batches than stages there is one group."""
    sizes = [size for size in range(pp, m + 1) if m % size == 0 or m % size >= pp]
    assert micro_batch_group(pp, m) == min(sizes, default=pp)


@given(st.integers(2, 8), st.integers(2, 4), st.integers(0, 30))
def test_interleaved_chunks_in_flight_are_those_the_simulation_holds(
    pp: int, v: int, more: int
) -> None:
    m = pp + more
    held = simulate(interleaved(pp, m, v), lambda op: 1.0 if op[0] == "F" else 2.0, pp * v).peak
    code = SCHEDULES.index("interleaved")
    assert held == [in_flight(code, stage, pp, v, m) * v for stage in range(pp)]


def of_equal_chunks(rng: np.random.Generator, *, proportional: bool) -> tuple[Pipeline, int]:
    """Of stretches of three kinds of stages, with a number of micro-batches. Backward may take as
    large a share of every stage."""
    pp, v = int(rng.integers(2, 11)), int(rng.integers(2, 5))
    stages = rng.uniform(0.1, 3.0, (3, 3))
    if proportional:
        stages[:, 1:] = stages[:, :1]
    kinds = rng.permutation(3)[np.sort(rng.integers(0, 3, pp))]
    layout = Layout(pp=pp, schedule="interleaved", virtual_stages=v)
    return Pipeline.of_stages(layout, stages.tolist(), kinds.tolist()), int(pp * rng.uniform(1, 5))


def test_interleaved_stages_of_equal_chunks_take_what_the_simulation_takes() -> None:
    """Nearly all do, and all with fewer micro-batches than two groups where backward takes as large
    a share of every stage; others take hardly longer, and none is shorter."""
    longer = []
    for seed in range(80):
        rng = np.random.default_rng([11, seed])
        proportional = seed % 2 == 0
        found, m = of_equal_chunks(rng, proportional=proportional)
        longer.append(found.run(m) / found.length(m) - 1)
        exact = proportional and m < 2 * found.layout.pp
        assert -1e-9 <= longer[-1] <= (1e-9 if exact else 0.03)
    assert np.mean(np.array(longer) < 1e-9) > 0.95


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


def uneven_rounds(seed: int, heads: Sequence[float]) -> tuple[Pipeline, int]:
    """Of layers of which some chunks have one more, with a number of micro-batches that are one
    group, or several of as many as stages."""
    rng = np.random.default_rng([15, seed])
    pp, v = int(rng.integers(2, 9)), int(rng.integers(2, 5))
    one_group = int(rng.integers(pp, 2 * pp))
    several = pp * int(rng.integers(2, 8))
    layers = pp * v + int(rng.integers(0, 2 * pp))
    found = dealt_out(layers, float(rng.choice(heads)), pp, v, balanced=True)
    return found, one_group if seed % 2 else several


def test_where_the_head_is_long_uneven_rounds_take_what_the_simulation_takes() -> None:
    """Nearly all do; others take hardly longer, and none is shorter."""
    longer = []
    for seed in range(80):
        found, m = uneven_rounds(seed, [2.0, 3.0, 4.0])
        longer.append(found.run(m) / found.length(m) - 1)
    assert min(longer) > -1e-12
    assert max(longer) < 0.02
    assert np.mean(np.array(longer) < 1e-12) > 0.95


def test_where_it_is_short_they_take_about_as_long() -> None:
    off = []
    for seed in range(80):
        found, m = uneven_rounds(seed, [0.5, 1.0])
        off.append(found.run(m) / found.length(m) - 1)
    assert -0.015 < min(off) <= max(off) < 0.05
    assert np.abs(off).mean() < 0.006


def test_with_less_than_two_groups_uneven_rounds_take_no_longer_and_hardly_less() -> None:
    """Where the head is long."""
    longer = []
    for seed in range(40):
        found, _ = uneven_rounds(seed, [2.0, 3.0, 4.0])
        pp = found.layout.pp
        m = 2 * pp + 1 + seed % pp
        longer.append(found.run(m) / found.length(m) - 1)
    assert -0.05 < min(longer) <= max(longer) < 0.02


def in_turns(rng: np.random.Generator, pp: int, v: int) -> Pipeline:
    """Two kinds of layers that take turns, and a head."""
    turns = [(kind, int(rng.integers(1, 4))) for kind in (0, 1)]
    costs = rng.uniform(0.5, 3.0, 2).tolist()
    head = float(rng.uniform(0.0, 6.0))
    layout = Layout(pp=pp, virtual_stages=v, schedule="interleaved", balanced=True)
    seconds = np.array([*costs, 0.0, head])
    layers = model(turns * (pp * v), head, costs)
    return Pipeline(layout, layers, seconds, 2 * seconds, 0 * seconds)


def test_where_kinds_of_layers_take_turns_the_simulation_takes_about_as_long() -> None:
    off = []
    for seed in range(60):
        rng = np.random.default_rng([12, seed])
        found = in_turns(rng, int(rng.integers(2, 8)), int(rng.integers(2, 5)))
        m = found.layout.pp + int(rng.integers(0, 40))
        off.append(found.run(m) / found.length(m) - 1)
    assert np.abs(off).max() < 0.02
    assert np.abs(off).mean() < 0.0025


def forwards_between(pp: int, v: int) -> Array:
    """Of which round the forwards of a group are that a stage does while its backwards are of one
    round: how many of each, (stages, rounds of backwards, rounds of forwards), as parts of the
    group. Of the third of six groups in the simulation's order."""
    shares = np.zeros((pp, v, v))
    for stage, order in enumerate(interleaved(pp, 6 * pp, v)):
        for (_, _, forward), (kind, i, backward) in pairwise(order):
            if kind == "B" and 2 * pp <= i < 3 * pp:
                shares[stage, backward // pp, forward // pp] += 1 / pp
    return shares


def alternating(found: Pipeline) -> Array:
    """Seconds that a micro-batch has on each stage while backwards are of one round after the
    other, from the last one back, (rounds, stages)."""
    pp, v = found.layout.pp, found.layout.virtual_stages
    forward, backward = (found.chunks[kind].reshape(v, pp) for kind in "FB")
    between = np.einsum("srf,fs->rs", forwards_between(pp, v), forward)
    return (between + backward)[::-1]


@pytest.mark.parametrize(("pp", "v"), [(2, 2), (3, 2), (4, 2), (5, 2), (2, 3), (3, 3), (2, 4)])
def test_the_path_that_alternates_is_the_longest_from_stage_to_stage(pp: int, v: int) -> None:
    """Against all of two times the rounds, of which the last ones count. It misses a mean chunk of
    a micro-batch for every stage that it goes down."""
    wander = 0
    paths = np.array([*product(range(pp), repeat=2 * v)])
    for seed in range(12):
        found = in_turns(np.random.default_rng([13, seed, pp, v]), pp, v)
        tables, backward = found.tables, found.to_input + found.weight
        seconds = alternating(found)
        missed = found.work.sum() / (pp * v) / pp
        lengths = seconds[np.arange(2 * v) % v, paths].sum(axis=1)
        lengths -= missed * np.maximum(np.diff(paths, axis=1), 0).sum(axis=1)
        best = paths[lengths > lengths.max() * (1 - 1e-9)][:, v:]
        if not tables.path_ahead.any():
            assert (best == best[:, :1]).all(axis=1).any()
            continue
        wander += 1
        moves = np.maximum(best - np.roll(best, 1, axis=1), 0).sum(axis=1)
        expected = seconds[np.arange(v), best].sum(axis=1) - missed * moves
        made = tables.path_out[0] @ found.forward + tables.path_back[0] @ backward
        made -= missed * tables.path_moves[0]
        assert np.abs(expected - made).min() < 1e-9 * made
    assert wander > 0


def wandering(found: Pipeline, m: int) -> float:
    """Seconds of the path that alternates but for a group of micro-batches, of which all forwards
    come first, and that waits for half of the first round or, with one group, for what comes before
    the stage where it ends."""
    pp, v = found.layout.pp, found.layout.virtual_stages
    group = next(size for size in range(pp, m + 1) if m % size == 0 or m % size >= pp)
    tables, backward = found.tables, found.to_input + found.weight
    both = found.forward + backward
    missed = tables.path_moves[0] / (group * pp * v) * found.held.sum(axis=0)
    steady = np.maximum(tables.path_out[0] - missed, 0) @ found.forward
    steady += np.maximum(tables.path_back[0] - missed, 0) @ backward
    before = (found.held[: pp - 1] @ both).sum()
    waits = 0.5 if m > group else tables.path_last[0] / (pp - 1)
    return float(group * tables.path_ahead[0] @ both + (m - group) * steady + waits * before)


def test_a_pipeline_takes_as_long_as_the_path_that_stays_or_the_one_that_wanders() -> None:
    """Whatever its parts take."""
    longer = 0
    for seed in range(60):
        rng = np.random.default_rng([14, seed])
        forward, to_input, weight = rng.uniform(0.1, 3.0, (3, 4))
        found = in_turns(rng, int(rng.integers(2, 7)), int(rng.integers(2, 5)))
        found = replace(found, forward=forward, to_input=to_input, weight=weight)
        m = found.layout.pp + int(rng.integers(0, 4 * found.layout.pp))
        wanders = wandering(found, m)
        stays = replace(found, layers=found.layers._replace(take_turns=False)).length(m)
        assert found.length(m) == pytest.approx(max(stays, wanders))
        longer += wanders > stays
    assert 0 < longer < 60


# -- chunks that face each other


@given(st.integers(1, 6), st.integers(0, 20), SECONDS)
def test_dualpipe_takes_what_its_published_order_takes(
    half: int, more: int, seconds: Seconds
) -> None:
    pp, m = 2 * half, 4 * half + 2 * more
    found = alike("dualpipe", pp, seconds)
    assert found.run(m) == pytest.approx(found.length(m))


@given(st.lists(SECONDS, min_size=2, max_size=5), st.integers(1, 12))
def test_dualpipe_stages_that_differ_are_idle_as_among_those_that_take_the_mean_of_the_others(
    half: list[Seconds], m: int
) -> None:
    pp = 2 * len(half)
    m = 2 * (pp + m)
    idle = Pipeline.of_stages(Layout(pp=pp, schedule="dualpipe"), half, range(len(half))).idle(m)
    for stage in range(len(half)):
        forward, to_input, weight = np.delete(half, stage, axis=0).mean(axis=0).tolist()
        made = alike("dualpipe", pp, (forward, to_input, weight), 1).run(m)
        expected = made - m * (forward + to_input + weight)
        assert idle[stage] == pytest.approx(expected, abs=1e-9 * made)
        assert idle[-1 - stage] == idle[stage]


@given(
    st.lists(SECONDS, min_size=2, max_size=6),
    st.lists(SECONDS, min_size=6, max_size=6),
    st.integers(1, 20),
)
def test_no_pass_that_takes_longer_makes_a_zero_bubble_v_shorter(
    stages: list[Seconds], longer_by: list[Seconds], m: int
) -> None:
    layout = Layout(pp=len(stages), schedule="zero_bubble_v", virtual_stages=2)
    longer = np.add(stages, longer_by[: len(stages)]).tolist()
    before, after = (
        Pipeline.of_stages(layout, each, range(len(stages))) for each in (stages, longer)
    )
    ends_before = before.idle(m) + m * before.work
    ends_after = after.idle(m) + m * after.work
    assert (ends_after >= ends_before * (1 - 1e-12)).all()


@given(st.integers(1, 10), st.integers(1, 32), SECONDS)
def test_a_zero_bubble_v_takes_what_its_published_order_takes(
    pp: int, m: int, seconds: Seconds
) -> None:
    """Of chunks half a stage long."""
    found = alike("zero_bubble_v", pp, seconds, 2)
    assert found.run(m) == pytest.approx(found.length(m))


def operation_by_operation(layout: Layout, m: int, seconds: dict[str, Array]) -> Array:
    """Seconds that the published order of the schedule takes for each of many times of its
    operations, which are those of every chunk."""
    chunks = layout.pp * layout.virtual_stages
    same = np.ones(chunks)
    spans = run_schedule(layout, m, {"F": same, "B": 2 * same, "W": same})
    done: dict[Op, Array] = {}
    clock = [np.zeros(len(seconds["F"]))] * layout.pp
    for operation, stage in sorted(spans, key=lambda of: spans[of]):
        op = operation.kind, operation.micro_batch, operation.chunk
        for need in needs(op, chunks):
            clock[stage] = np.maximum(clock[stage], done[need])
        clock[stage] = done[op] = clock[stage] + seconds[op[0]]
    return np.max(clock, axis=0)


@pytest.mark.parametrize(
    "pp", [*range(2, 11), *(pytest.param(n, marks=pytest.mark.long) for n in (13, 16))]
)
def test_zero_bubble_v_idles_as_the_operations_do_whatever_its_chunks_take(pp: int) -> None:
    """Of forwards, input gradients and weight gradients one or two often take hardly any time, so
    that one path after the other is the longest."""
    layout = Layout(pp=pp, schedule="zero_bubble_v", virtual_stages=2)
    each = np.random.default_rng(pp).dirichlet([0.4] * 3, 300)
    for m in range(1, 2 * pp + 1):
        made = operation_by_operation(layout, m, dict(zip("FIW", each.T, strict=True)))
        idle = [zero_bubble_v(pp, m, ChunkSeconds(*of), ChunkSeconds(*of)) for of in each.tolist()]
        assert made - 2 * m == pytest.approx(np.array(idle), abs=1e-9)


def most_held(layout: Layout, m: int) -> list[float]:
    """The most micro-batches that stages hold in the published order, of which two chunks of a
    stage are one."""
    chunks = np.ones(layout.pp * layout.virtual_stages)
    spans = run_schedule(layout, m, {"F": chunks, "B": 2 * chunks, "W": chunks})
    held = []
    for stage in range(layout.pp):
        changes = [(0.0, 0)]
        for (op, at), (start, end) in spans.items():
            if at == stage and op.kind == "F":
                changes.append((start, 1))
            elif at == stage and op.kind in "IB":
                changes.append((end, -1))
        held.append(float(np.cumsum([change for _, change in sorted(changes)]).max()))
    return [of / layout.virtual_stages for of in held]


@given(st.integers(1, 8), st.integers(1, 40))
def test_a_zero_bubble_v_holds_no_more_than_one_forward_one_backward(pp: int, m: int) -> None:
    held = most_held(Layout(pp=pp, schedule="zero_bubble_v", virtual_stages=2), m)
    for stage in range(pp):
        most = in_flight(SCHEDULES.index("zero_bubble_v"), stage, pp, 2, m)
        assert held[stage] <= most
        assert held[stage] == most or m < 2 * pp - 1


@given(st.integers(1, 4), st.integers(0, 8))
def test_dualpipe_holds_one_micro_batch_more_than_it_has_stages(half: int, more: int) -> None:
    pp, m = 2 * half, 4 * half + 2 * more
    held = most_held(Layout(pp=pp, schedule="dualpipe"), m)
    assert max(held) == in_flight(SCHEDULES.index("dualpipe"), 0, pp, 1, m)


# -- all schedules


SMALL = {
    "1f1b": Layout(pp=2, schedule="1f1b"),
    "afab": Layout(pp=2, schedule="afab"),
    "zero_bubble": Layout(pp=2, schedule="zero_bubble"),
    "interleaved": Layout(pp=2, schedule="interleaved", virtual_stages=2),
    "zero_bubble_v": Layout(pp=2, schedule="zero_bubble_v", virtual_stages=2),
    "dualpipe": Layout(pp=4, schedule="dualpipe"),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_stages_end_together_or_by_themselves(schedule: str) -> None:
    stages = [(1.0, 1.5, 0.5), (2.0, 1.0, 1.0)]
    found = Pipeline.of_stages(SMALL[schedule], stages, range(2))
    ends = 8 * found.work + found.idle(8)
    assert ends_together(SCHEDULES.index(schedule)) == (np.ptp(ends) < 1e-9)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_that_move_weight_gradients_have_them_apart(schedule: str) -> None:
    layout = SMALL[schedule]
    chunks = np.ones(layout.pp * layout.virtual_stages)
    spans = run_schedule(layout, 8, {"F": chunks, "B": 2 * chunks, "W": chunks})
    apart = any(op.kind == "W" for op, _ in spans)
    assert moves_weight_gradients(SCHEDULES.index(schedule)) == apart
