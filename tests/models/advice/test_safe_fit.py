"""Layouts that fit as surely as was asked."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from models.advice.recommendation import recommend
from models.advice.safe_fit import SAFE_FIT_PROBABILITY
from models.errors import Infeasible
from models.spec.constraints import Constraints
from tests.benchmarks.problems import problem
from tests.models.advice.problems import PROFILE


def test_where_the_fastest_may_not_fit_something_surer_is_named() -> None:
    found = recommend(
        problem("llama-3.1-405b", ("h100", 2048), "megatron", seq_len=8192, global_batch=2048),
        PROFILE,
    )
    surer = [reason for reason in found.reasons if reason.startswith("surer to fit")]
    assert found.fastest.prediction.fit_probability < 0.9
    assert found.surer is not None
    named = found.surer.prediction
    assert named.layout.summary() in surer[0]
    assert named.fit_probability >= 0.9
    assert (
        found.fastest.prediction.step_time_s
        < named.step_time_s
        <= 1.03 * found.fastest.prediction.step_time_s
    )
    assert all(
        c.prediction.step_time_s >= named.step_time_s
        for c in found.ranked
        if c.prediction.fit_probability >= 0.9
    )


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
    st.sampled_from([1, 5, 50]),
    st.booleans(),
)
@example("qwen3-14b", ("h100", "megatron"), 96, 960, 0.03, 5, False)
@example("qwen3-30b-a3b", ("h100", "megatron"), 64, 192, 0.03, 50, True)
def test_the_surer_is_the_fastest_that_is_sure_to_fit(
    model: str,
    place: tuple[str, str],
    chips: int,
    batch: int,
    tolerance: float,
    top: int,
    again: bool,
) -> None:
    """Found whether or not the search for the fastest met it; and where layers are computed again,
    with more."""
    asked = problem(model, (place[0], chips), place[1], seq_len=4096, global_batch=batch)
    constraints = Constraints(
        allowed={"recompute": ("full",), "recompute_layers": tuple(range(80))} if again else {}
    )
    try:
        found = recommend(asked, PROFILE, constraints, tolerance=tolerance, top=top)
    except Infeasible:
        return
    best = found.fastest.prediction
    if best.fit_probability >= SAFE_FIT_PROBABILITY:
        assert found.surer is None
        return
    surely = replace(constraints, min_fit_probability=SAFE_FIT_PROBABILITY)
    try:
        sure = recommend(found.problem, PROFILE, surely).fastest.prediction
    except Infeasible:
        assert found.surer is None
        return
    if sure.step_time_s <= best.step_time_s * (1 + tolerance):
        assert found.surer is not None
        assert found.surer.prediction.step_time_s == pytest.approx(sure.step_time_s, rel=1e-9)
    else:
        assert found.surer is None


def test_what_surely_fits_can_be_asked_for() -> None:
    """Where nothing within the tolerance does, the constraint that the answer names finds it."""
    asked = problem("llama-3.1-70b", ("h100", 8), "torchtitan", seq_len=8192, global_batch=512)
    found = recommend(asked, PROFILE)
    assert found.surer is None
    told = next(reason for reason in found.reasons if "min_fit_probability" in reason)
    probability = float(told.split("min_fit_probability = ")[1].split(" ")[0])
    surely = recommend(asked, PROFILE, Constraints(min_fit_probability=probability))
    assert surely.fastest.prediction.fit_probability >= 0.899


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
        assert one.prediction.fit_probability >= probability - 2e-3
    assert found.ranked[0] == found.fastest
    assert found.simplest in found.front


def test_what_has_run_out_of_memory_is_left_out() -> None:
    asked = problem("llama-3-70b", ("h100", 64), "megatron", seq_len=8192, global_batch=256)
    first = recommend(asked, PROFILE).fastest.prediction
    again = recommend(asked, PROFILE, oom_gib=first.needed_gib)
    shown = (again.fastest, again.simplest, *again.ranked, *again.front)
    assert max(one.prediction.needed_gib for one in shown) < first.needed_gib
    assert again.fastest.prediction.step_time_s >= first.step_time_s
