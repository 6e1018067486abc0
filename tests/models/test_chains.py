"""What pipelines idle at least, against what models.pipeline has them idle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.array import Array
from models.chains import passes
from models.few import Ways
from models.layout import SCHEDULES, Layouts
from models.partition import Order, Stages
from models.pipeline import StageTimes, bubble, waiting
from models.space import neutral

shares = st.floats(0.0, 1.0)


def schedules(name: str, virtual: int) -> Layouts:
    return neutral(1).having(schedule=np.array([SCHEDULES.index(name)]), virtual_stages=np.array([virtual]))


@settings(max_examples=300)
@given(
    st.sampled_from(
        [(name, v) for name in SCHEDULES for v in {"interleaved": (2, 3), "zero_bubble_v": (2,)}.get(name, (1,))]
    ),
    st.lists(st.tuples(st.floats(0.01, 10.0), shares, shares), min_size=2, max_size=12),
    st.integers(1, 40),
    shares,
)
def test_a_step_is_no_shorter_than_any_stage_bounds(
    schedule: tuple[str, int], stages: list[tuple[float, float, float]], m: int, weights: float
) -> None:
    """Each stage with its own pass, share of forward, and share of the largest weight gradients that there may be."""
    name, virtual = schedule
    if name == "dualpipe":
        stages += stages[::-1]
        m += 2 * len(stages)
    both, forward, weight = np.array(stages).T
    weight = np.minimum(weights * weight * both, both - forward * both)
    step, idle, longer = made_and_bound(schedule, both, forward * both, weight, m, weights)
    mean = both.mean()
    assert longer >= 0
    assert ((m + idle) * mean + longer * np.maximum(both - mean, 0.0)).max() <= step * (1 + 1e-9)


@given(
    st.sampled_from([("1f1b", 1), ("afab", 1), ("interleaved", 2), ("interleaved", 3), ("zero_bubble", 1)]),
    st.integers(2, 12),
    st.integers(1, 30),
    st.floats(0.0, 1.0),
    st.floats(0.0, 1.0),
)
def test_a_step_of_equal_stages_takes_what_bounds_it(
    schedule: tuple[str, int], pp: int, more: int, forward: float, weight: float
) -> None:
    """With more micro-batches than stages, and weight gradients as long as forwards and input gradients at most."""
    weights = weight / 3
    one = np.ones(pp)
    share = weights + forward * (1 - 3 * weights)
    step, idle, _ = made_and_bound(schedule, one, share * one, weights * one, pp + more, weights)
    assert step == pytest.approx(pp + more + idle)


@settings(max_examples=300)
@given(
    st.sampled_from(["1f1b", "zero_bubble"]),
    st.lists(st.tuples(st.floats(0.01, 10.0), shares, shares), min_size=2, max_size=12),
    st.integers(0, 11),
    shares,
)
def test_with_few_micro_batches_it_is_no_shorter_than_any_way(
    name: str, stages: list[tuple[float, float, float]], fewer: int, weights: float
) -> None:
    """Each stage has a part of the model that no other has."""
    pp, m = len(stages), max(len(stages) - fewer, 1)
    both, forward, weight = np.array(stages).T
    weight = np.minimum(weights * weight * both, both - forward * both)
    step, *_ = made_and_bound((name, 1), both, forward * both, weight, m, weights)
    ways = few_ways(name, np.eye(pp), int(both.argmax()), m, weights)
    assert (ways.passes[:, :, 0] @ both).max() <= step * (1 + 1e-9)
    assert ways.mean_passes[0] * both.mean() <= step * (1 + 1e-9)
    beyond = ways.longer_than(ways.mean_passes)[:, :, 0] @ both
    assert ways.mean_passes[0] * both.mean() + beyond == pytest.approx(ways.passes[:, :, 0] @ both)


@given(st.integers(2, 12), st.integers(0, 11), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_with_few_micro_batches_a_step_of_equal_stages_takes_what_bounds_it(
    pp: int, fewer: int, forward: float, weight: float
) -> None:
    m, weights, one = max(pp - fewer, 1), weight / 3, np.ones(pp)
    for name, moved in (("1f1b", 0.0), ("zero_bubble", weights)):
        share = weights + forward * (1 - 3 * weights)
        step, *_ = made_and_bound((name, 1), one, share * one, moved * one, m, weights)
        assert step == pytest.approx(few_ways(name, np.ones((1, pp)), 0, m, weights).mean_passes[0])


def few_ways(name: str, amounts: Array, heaviest: int, m: int, weights: float) -> Ways:
    """Of one pipeline, with amounts (parts, stages)."""
    pp = np.array([amounts.shape[1]])
    stage, rest = np.arange(int(pp[0])), np.zeros((len(amounts), 1))
    order = Order.of(stage[None], pp)
    stages = Stages(amounts[:, :, None], stage[:, None], order, np.zeros(1, dtype=int), rest, rest, rest)
    moved = np.array([name == "zero_bubble"])
    return Ways.of(stages, np.array([heaviest]), np.zeros(1, dtype=int), pp, np.array([m]), moved, weights)


@given(st.integers(1, 6), st.integers(0, 20), st.floats(0.0, 0.3))
def test_so_it_does_under_dualpipe_where_the_longer_of_two_ways_is_least(half: int, more: int, weights: float) -> None:
    pp, one = 2 * half + 2, np.ones(2 * half + 2)
    m = 2 * pp + more
    forward = (1 - weights) * half / (2 * half + 1)
    step, idle, _ = made_and_bound(("dualpipe", 1), one, forward * one, weights * one, m, weights)
    assert step == pytest.approx(m + idle)


@given(st.integers(2, 12), st.integers(0, 10), st.floats(0.2, 1 / 3))
def test_so_it_does_in_a_v_with_few_micro_batches(pp: int, fewer: int, weights: float) -> None:
    m, one = max(pp - fewer, 1), np.ones(pp)
    step, idle, _ = made_and_bound(("zero_bubble_v", 2), one, (1 - weights) / 2 * one, weights * one, m, weights)
    assert step == pytest.approx(m + idle)


def made_and_bound(
    schedule: tuple[str, int], both: Array, forward: Array, weight: Array, m: int, weights: float
) -> tuple[float, float, float]:
    """What a step takes of stages with such passes, and of its bound mean passes that are idle and how often what a
    stage takes beyond the mean counts."""
    name, virtual = schedule
    pp, one = np.array([len(both)]), np.array([m])
    code, v = np.array([SCHEDULES.index(name)]), np.array([virtual])
    whole = (np.array([part.sum()]) for part in (forward, both, weight))
    order = Order.of(np.arange(len(both))[None], pp), np.zeros(1, dtype=int)
    times = StageTimes(forward[:, None], (both - forward)[:, None], weight[:, None], *whole, *order)
    step = (m * both + bubble(code, pp, v, one, times, waiting(code, pp, one, times))[:, 0]).max()
    idle, longer = (float(of[0, 0]) for of in passes(schedules(name, virtual), pp, one, weights))
    return float(step), idle, longer
