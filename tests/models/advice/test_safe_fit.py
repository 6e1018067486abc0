"""Layouts that fit as surely as was asked."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from models.advice.recommendation import recommend
from models.advice.safe_fit import LEAST_BOLDER_GAIN
from models.errors import Infeasible
from models.spec.constraints import EVEN_CHANCE, SAFE_FIT_PROBABILITY, Constraints
from tests.benchmarks.problems import NAMED, problem
from tests.models.advice.problems import PROFILE
from tests.models.advice.told import told

ROUNDING = 1e-9  # of a probability


def test_beside_the_fastest_that_is_sure_stands_what_is_faster_and_bolder() -> None:
    found = recommend(NAMED["llama-3.1-405b"](), PROFILE)
    best = found.fastest.prediction
    assert best.fit_probability >= SAFE_FIT_PROBABILITY
    for one in (found.simplest, *found.ranked, *found.front):
        assert one.prediction.fit_probability >= SAFE_FIT_PROBABILITY - ROUNDING
    assert found.bolder is not None
    assert found.bolder_gain is not None
    bolder = found.bolder.prediction
    assert 0.5 <= bolder.fit_probability < best.fit_probability
    assert found.bolder_gain == pytest.approx(best.step_time_s / bolder.step_time_s - 1)
    assert found.bolder_gain >= LEAST_BOLDER_GAIN


@pytest.mark.parametrize(
    ("model", "chips"),
    [("llama-3.1-8b", 64), ("llama-3.1-70b", 64), ("mixtral-8x7b", 64), ("qwen3-30b-a3b", 64)],
)
@pytest.mark.parametrize("stack", ["megatron", "torchtitan"])
def test_what_is_recommended_unless_told_otherwise_fits_surely(
    model: str, chips: int, stack: str
) -> None:
    found = recommend(
        problem(model, ("h100", chips), stack, seq_len=4096, global_batch=256), PROFILE
    )
    recommended = found.layouts[0]
    assert recommended.prediction.fit_probability >= SAFE_FIT_PROBABILITY - ROUNDING
    assert recommended == found.recommended
    # Doing without a pipeline whose worth is undecided may cost the tolerance twice.
    is_undecided = found.pipelining.needed == "undecided"
    most = 1.06 if is_undecided else 1.03
    assert recommended.prediction.step_time_s <= most * found.fastest.prediction.step_time_s
    assert recommended.complexity <= found.simplest.complexity
    assert is_undecided or recommended == found.simplest


@pytest.mark.long
@settings(max_examples=20)
@given(
    st.sampled_from(["qwen3-14b", "llama-3-70b", "qwen3-30b-a3b"]),
    st.sampled_from(
        [
            ("h100", "megatron"),
            ("h100", "torchtitan"),
            ("mi300x", "generic"),
            ("tpu-v5p", "maxtext"),
        ]
    ),
    st.sampled_from([32, 64, 96]),
    st.sampled_from([64, 192, 960]),
    st.sampled_from([0.01, 0.03, 0.2]),
    st.sampled_from([0.5, 0.7, 0.9, 0.99]),
    st.booleans(),
)
@example("qwen3-14b", ("h100", "megatron"), 96, 960, 0.03, 0.9, False)
@example("qwen3-30b-a3b", ("h100", "megatron"), 64, 192, 0.03, 0.9, True)
def test_the_bolder_is_the_fastest_that_fits_by_the_median(
    model: str,
    place: tuple[str, str],
    chips: int,
    batch: int,
    tolerance: float,
    probability: float,
    again: bool,
) -> None:
    """It is never slower, and never surer, than the fastest; and where layers are computed again,
    fewer may be."""
    asked = problem(model, (place[0], chips), place[1], seq_len=4096, global_batch=batch)
    allowed: dict[str, tuple[object, ...]] = (
        {"recompute": ("full",), "recompute_layers": tuple(range(80))} if again else {}
    )
    constraints = Constraints(allowed=allowed, min_fit_probability=probability)
    try:
        found = recommend(asked, PROFILE, constraints, tolerance=tolerance)
    except Infeasible:
        return
    best = found.fastest.prediction
    for one in (found.fastest, found.simplest, *found.ranked, *found.front):
        assert one.prediction.fit_probability >= probability - ROUNDING
    evenly = replace(constraints, min_fit_probability=EVEN_CHANCE)
    boldest = recommend(found.problem, PROFILE, evenly).fastest.prediction
    if best.step_time_s < boldest.step_time_s * (1 + LEAST_BOLDER_GAIN):
        assert found.bolder is None
        return
    assert found.bolder is not None
    bolder = found.bolder.prediction
    assert bolder.step_time_s == pytest.approx(boldest.step_time_s, rel=1e-9)
    assert bolder.step_time_s < best.step_time_s
    assert EVEN_CHANCE <= bolder.fit_probability < best.fit_probability


def test_what_surety_costs_is_told_where_it_is_much() -> None:
    asked = problem("mixtral-8x7b", ("h100", 16), "megatron", seq_len=8192, global_batch=128)
    found = recommend(asked, PROFILE)
    assert found.bolder is not None
    assert found.bolder_gain is not None
    assert found.bolder_gain > 0.1
    (sentence,) = told(found.reasons, "bolder")
    for one in (found.fastest.prediction, found.bolder.prediction):
        assert f"{one.step_time_s:.3g} s" in sentence
    assert found.bolder.prediction.layout.summary() in sentence


def test_where_surety_costs_little_nothing_is_said_of_it() -> None:
    asked = problem("llama-3.1-8b", ("h100", 64), "torchtitan", seq_len=8192, global_batch=128)
    found = recommend(asked, PROFILE)
    assert found.bolder_gain is None or found.bolder_gain < 0.1
    assert not told(found.reasons, "bolder")


def test_who_asks_for_even_chances_is_told_what_asks_for_more() -> None:
    asked = problem("llama-3.1-405b", ("h100", 2048), "megatron", seq_len=8192, global_batch=2048)
    found = recommend(asked, PROFILE, Constraints(min_fit_probability=EVEN_CHANCE), tolerance=0)
    assert found.fastest.prediction.fit_probability < SAFE_FIT_PROBABILITY
    assert found.bolder is None
    (sentence,) = told(found.reasons, "fit")
    probability = float(sentence.split("min_fit_probability = ")[1].split(",")[0])
    surely = recommend(asked, PROFILE, Constraints(min_fit_probability=probability))
    assert surely.fastest.prediction.fit_probability >= probability - ROUNDING


def test_without_time_it_is_told_that_something_bolder_was_not_looked_for() -> None:
    asked = problem("llama-3.1-405b", ("h100", 2048), "megatron", seq_len=8192, global_batch=2048)
    found = recommend(asked, PROFILE, should_continue=lambda: False)
    assert found.bolder is None
    assert any("less sure to fit" in sentence for sentence in told(found.reasons, "stopped"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("stack", "chip"),
    [
        ("megatron", "h100"),
        ("generic", "trainium2"),
        ("generic", "ascend-910c"),
        ("torchtitan", "b200"),
    ],
)
@pytest.mark.parametrize("probability", [0.5, 0.75, 0.95])
def test_what_is_recommended_fits_as_surely_as_was_asked(
    stack: str, chip: str, probability: float
) -> None:
    """Whether the runs of its kind were measured, or much is uncertain about them."""
    asked = problem("llama-3-70b", (chip, 64), stack, seq_len=8192, global_batch=256)
    found = recommend(
        asked, PROFILE, Constraints(min_fit_probability=probability), top=20, tolerance=0.2
    )
    sides = [one for one in (found.pipelining.without, found.pipelining.with_pp) if one]
    for one in (found.fastest, found.simplest, *found.ranked, *found.front, *sides):
        assert one.prediction.fit_probability >= probability - ROUNDING
    assert found.ranked[0] == found.fastest
    assert found.simplest in found.front


def test_what_has_run_out_of_memory_is_left_out() -> None:
    asked = problem("llama-3-70b", ("h100", 64), "megatron", seq_len=8192, global_batch=256)
    first = recommend(asked, PROFILE).fastest.prediction
    again = recommend(asked, PROFILE, oom_gib=first.needed_gib)
    shown = (again.fastest, again.simplest, *again.ranked, *again.front)
    assert max(one.prediction.needed_gib for one in shown) < first.needed_gib
    assert again.fastest.prediction.step_time_s >= first.step_time_s
