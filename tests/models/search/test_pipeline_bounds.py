"""What pipelines idle at least, against what models.cost.pipeline has them idle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.columns import Array
from models.cost.makespan import Chunks, Rounds
from models.cost.pipeline import StageTimes, bubble
from models.cost.stage_partition import Order, Stages, Steady, partition
from models.layouts.space import Space, default_layouts
from models.search.critical_path_bounds import Ways, has_ways
from models.search.pipeline_bounds import Chains, passes
from models.spec.constraints import Constraints
from models.spec.layout import SCHEDULES, Layouts
from tests.benchmarks.problems import problem

shares = st.floats(0.0, 1.0)
stage_times = st.lists(st.tuples(st.floats(0.01, 10.0), shares, shares), min_size=2, max_size=12)


@settings(max_examples=300)
@given(st.sampled_from(["1f1b", "afab"]), stage_times, st.integers(1, 40))
def test_a_step_is_no_shorter_than_any_stage_bounds(
    schedule: str, stages: list[tuple[float, float, float]], m: int
) -> None:
    both, forward, _ = np.array(stages).T
    pp, mean = len(both), both.mean()
    idle, longer = bound(schedule, pp, m)
    assert longer >= 0
    step = made(schedule, 1, both, forward * both, np.zeros(pp), m)
    assert ((m + idle) * mean + longer * np.maximum(both - mean, 0.0)).max() <= step * (1 + 1e-9)


@given(
    st.sampled_from(["1f1b", "afab"]), st.integers(2, 12), st.integers(1, 30), st.floats(0.0, 1.0)
)
def test_a_step_of_equal_stages_takes_what_bounds_it(
    schedule: str, pp: int, more: int, forward: float
) -> None:
    """With more micro-batches than stages."""
    one, m = np.ones(pp), pp + more
    step = made(schedule, 1, one, forward * one, np.zeros(pp), m)
    assert step == pytest.approx(m + bound(schedule, pp, m)[0])


@pytest.mark.long
@settings(max_examples=600)
@given(
    st.sampled_from(["1f1b", "zero_bubble", "zero_bubble_v", "dualpipe"]),
    stage_times,
    st.tuples(st.floats(0.0, 5.0), st.floats(0.0, 5.0)),
    st.integers(1, 40),
    shares,
)
def test_a_step_is_no_shorter_than_any_way_through_its_stages(
    name: str,
    stages: list[tuple[float, float, float]],
    ends: tuple[float, float],
    m: int,
    weights: float,
) -> None:
    """Each stage has layers that no other has, with their own share of weight gradients, up to the
    largest; the first has an embedding besides, the last a head."""
    mirrored = name == "dualpipe"
    if mirrored:
        stages += stages[::-1]
        m += 2 * len(stages)
    if name == "1f1b":
        m = min(m, len(stages))
    layers, forward, weight = np.array(stages).T
    each, pp = np.append(layers, ends), len(layers)
    amounts = np.concatenate([np.eye(pp), np.eye(pp)[[0, -1]]])
    weight = np.append(np.minimum(weights * weight, 1 - forward), (0.0, weights)) * each
    forward = np.append(forward, (0.5, 1 - weights)) * each
    if mirrored:
        amounts = (amounts + amounts[:, ::-1]) / 2
    both = each @ amounts
    step = made(name, 1 + (name == "zero_bubble_v"), both, forward @ amounts, weight @ amounts, m)
    ways = ways_of(name, amounts, each, m)
    assert ways.seconds(np.zeros(1, dtype=int), each[:, None], weight[:, None])[0] <= step * (
        1 + 1e-9
    )
    largest = weight / np.maximum(each, np.finfo(float).tiny)
    for more in (1.0, 1.1):
        share = np.array([more * weight.sum() / each.sum()])
        assert ways.mean_passes(share, largest)[0, 0] * both.mean() <= step * (1 + 1e-9)


@pytest.mark.long
@settings(max_examples=600)
@given(
    st.integers(2, 12),
    st.integers(2, 5),
    st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40)),
    st.booleans(),
    st.integers(0, 60),
    st.tuples(*[st.floats(0.0, 5.0)] * 4),
    st.tuples(*[shares] * 4),
)
def test_a_step_is_no_shorter_than_any_way_through_its_rounds(
    pp: int,
    v: int,
    counts: tuple[int, int, int],
    balanced: bool,
    more: int,
    seconds: tuple[float, float, float, float],
    ahead: tuple[float, float, float, float],
) -> None:
    """Whatever layers of two kinds, embedding and head take, and whatever the split was made
    for."""
    runs, m, row = tuple(zip((0, 1, 0), counts, strict=True)), pp + more, np.zeros(1, dtype=int)
    if sum(counts) < pp * v - 2 * balanced:
        return
    costs, no = np.array([1.0, 2.5, 0.0, 2.0]), np.array([False])
    shape = np.array([pp]), np.array([v]), np.array([balanced])
    stages = partition(runs, costs[:2], costs[-1], *shape, no, no)
    both, forward = np.array(seconds), np.array(seconds) * ahead
    first, last = stages.of_rounds(row)
    passes = [
        Chunks(*(np.tensordot(of, part, axes=1) for part in (stages.amounts, first, last)))
        for of in (forward, both - forward)
    ]
    whole = [
        np.array([np.tensordot(of, stages.amounts[:, stages.order.kind[:pp, 0], 0], axes=1).sum()])
        for of in (forward, both)
    ]
    nothing = np.zeros(1)
    rounds = Rounds(passes[0], passes[1], nothing, nothing, nothing)  # no path that wanders
    times = StageTimes(
        passes[0].whole, passes[1].whole, 0.0, *whole, 0.0, stages.order, row, rounds
    )
    code = np.array([SCHEDULES.index("interleaved")])
    idle = bubble(code, *shape[:2], np.array([m]), times)
    step = float((m * (passes[0].whole + passes[1].whole) + idle).max())
    ways = Ways.of(code, stages, costs, row, shape[0], np.array([m]))
    assert (ways.passes >= 0).all()  # so that more of any part is no less
    assert ways.seconds(row, both[:, None], np.zeros((4, 1)))[0] <= step * (1 + 1e-9)
    mean = both @ ways.mean[:, 0]
    assert ways.mean_passes(np.zeros(1), np.zeros(4))[0, 0] * mean <= step * (1 + 1e-9) + 1e-12


@given(st.integers(2, 12), st.integers(1, 30), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_a_step_of_equal_stages_takes_as_long_as_the_longest_way(
    pp: int, m: int, forward: float, weight: float
) -> None:
    """With weight gradients as long as forwards and input gradients at most."""
    weights, one = weight / 3, np.ones(pp)
    share = weights + forward * (1 - 3 * weights)
    for name, moved in (("1f1b", 0.0), ("zero_bubble", weights)):
        if name == "zero_bubble" or m <= pp:
            step = made(name, 1, one, share * one, moved * one, m)
            assert least(name, pp, m, weights) == pytest.approx(step)


@given(st.integers(1, 6), st.integers(0, 20), st.floats(0.0, 0.3))
def test_so_it_does_under_dualpipe_where_the_longer_of_two_ways_is_least(
    half: int, more: int, weights: float
) -> None:
    pp, one = 2 * half + 2, np.ones(2 * half + 2)
    m = 2 * pp + more
    forward = (1 - weights) * half / (2 * half + 1)
    step = made("dualpipe", 1, one, forward * one, weights * one, m)
    assert least("dualpipe", pp, m, weights) == pytest.approx(step)


@given(st.integers(2, 12), st.integers(0, 10), st.floats(0.2, 1 / 3))
def test_so_it_does_in_a_v_with_few_micro_batches(pp: int, fewer: int, weights: float) -> None:
    m, one = max(pp - fewer, 1), np.ones(pp)
    step = made("zero_bubble_v", 2, one, (1 - weights) / 2 * one, weights * one, m)
    assert least("zero_bubble_v", pp, m, weights) == pytest.approx(step)


@given(st.integers(0, 2**32 - 1), st.sampled_from([2, 4, 8]), st.sampled_from([1, 4, 64]))
def test_what_may_hide_more_is_bounded_by_no_more(seed: int, pp: int, m: int) -> None:
    """By its heaviest stage, or by its ways, under every schedule."""
    question = problem("deepseek-v3", ("h100", 64), "generic", seq_len=4096, global_batch=64)
    offered = Space(question, Constraints()).policies.schedules
    schedules = offered.take(
        offered.balanced & (pp * offered.virtual_stages <= question.architecture.num_layers)
    )
    legal = np.ones((1, len(schedules)), dtype=bool)
    parts, every = len(question.architecture.kinds) + 2, np.arange(len(schedules))
    chains = Chains(question, schedules, np.array([pp]), np.array([m]), legal, np.full(parts, 0.4))
    draw, row = np.random.default_rng(seed), np.zeros(len(schedules), dtype=int)
    both, once = draw.random((2, parts, len(schedules)))
    hides, more = np.sort(draw.random(2))
    work = row, every, row, both, 0.4 * both * draw.random(both.shape), once
    least = chains.beyond(*work, hides)
    assert (least >= 0).all()
    assert (chains.beyond(*work, more) <= least).all()


def made(
    name: str,
    virtual: int,
    both: Array,
    forward: Array,
    weight: Array,
    m: int,
    rounds: Rounds | None = None,
) -> float:
    """What a step takes of stages with such passes."""
    pp, one = np.array([len(both)]), np.array([m])
    code, v = np.array([SCHEDULES.index(name)]), np.array([virtual])
    whole = (np.array([part.sum()]) for part in (forward, both, weight))
    order = Order.of(np.arange(len(both))[None], pp), np.zeros(1, dtype=int)
    times = StageTimes(
        forward[:, None], (both - forward)[:, None], weight[:, None], *whole, *order, rounds
    )
    return float((m * both + bubble(code, pp, v, one, times)[:, 0]).max())


def bound(name: str, pp: int, m: int) -> tuple[float, float]:
    """Mean passes that are idle, and how often what a stage takes beyond the mean counts."""
    schedules: Layouts = default_layouts(1).with_columns(schedule=np.array([SCHEDULES.index(name)]))
    idle, longer = passes(schedules, np.array([pp]), np.array([m]))
    return float(idle[0, 0]), float(longer[0, 0])


def least(name: str, pp: int, m: int, weights: float) -> float:
    """Passes of one of so many equal stages, whose weight gradients are such a share of them."""
    amounts = np.concatenate([np.ones((1, pp)), np.eye(pp)[[0, -1]]])
    ways = ways_of(name, amounts, np.ones(3), m)
    without = Ways(
        ways.passes[:, [0, 0, 0]], ways.without[:, [0, 0, 0]], ways.mean[[0, 0, 0]], ways.together
    )
    return float(without.mean_passes(np.array([weights]), np.full(3, weights))[0, 0])


def ways_of(name: str, amounts: Array, weights: Array, m: int) -> Ways:
    """Of one pipeline, with amounts (parts, stages), whose heaviest stage is that by such weights
    of parts."""
    pp, one, code = np.array([amounts.shape[1]]), np.array([m]), np.array([SCHEDULES.index(name)])
    assert has_ways(code, pp, one).all()
    stage, row = np.arange(int(pp[0])), np.zeros(1, dtype=int)
    order, rounds = Order.of(stage[None], pp), np.zeros((2, *amounts.shape, 1))
    nowhere = Steady(np.zeros((3, len(amounts), 1)), np.zeros(1), np.zeros(1))
    stages = Stages(amounts[:, :, None], stage[:, None], order, rounds, nowhere, row)
    return Ways.of(code, stages, weights, row, pp, one)
