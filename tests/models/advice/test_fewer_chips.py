"""Fewer chips than there are, where some stand in the way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from models.advice.recommendation import recommend
from models.errors import Infeasible
from models.layouts.space import Space
from models.search.enumeration import search
from models.search.result import Goal
from models.search.tables import NoLegalLayout
from models.spec.constraints import Constraints
from models.spec.problem import Problem
from tests.benchmarks.problems import problem
from tests.long import one_in
from tests.models.advice.problems import PROFILE, llama
from tests.models.advice.told import told


def fastest(problem: Problem) -> float:
    try:
        return float(search(Space(problem, Constraints()), PROFILE, Goal()).times[0])
    except (NoLegalLayout, Infeasible):
        return np.inf


@pytest.mark.parametrize("chips", [37, 43])
def test_where_no_layout_uses_all_chips_the_fastest_of_fewer_does(chips: int) -> None:
    found = recommend(llama(chips, 48), PROFILE)
    assert found.fewer_chips is not None
    assert found.fewer_chips.rule is not None
    assert (
        found.fewer_chips.rule in found.fewer_chips.message or "batch" in found.fewer_chips.message
    )
    assert found.fewer_chips.all_chips_s is None
    assert found.reasons[0].sentence == found.fewer_chips.message
    times = {count: fastest(llama(count, 48)) for count in range(1, chips)}
    assert (
        found.chips_used
        == found.fewer_chips.num_chips
        == min(times, key=lambda count: times[count])
    )
    assert found.fastest.prediction.step_time_s == min(times.values())


def test_fewer_chips_need_no_more_racks_than_there_are() -> None:
    """63 racks of 72: 4,096 of the chips would be 64 of each of 64."""
    asked = problem(
        "kimi-k2", ("gb300", 4536), "megatron", seq_len=4096, global_batch=18432, precision="mxfp8"
    )
    used = recommend(asked, PROFILE).problem.cluster
    assert used.num_chips < 4536
    assert -(-used.num_chips // used.scale_up_domain_chips) <= 63


@pytest.mark.long
@pytest.mark.parametrize("allowed", [{"pp": (7,)}, {"pp": (9,)}, {"ep": (8,)}])
def test_what_constraints_leave_of_fewer_chips_is_no_faster(
    allowed: dict[str, tuple[int, ...]],
) -> None:
    """224 chips in seven stages, beside 240, which divide in more ways."""
    asked = problem("deepseek-v3", ("gb200", 250), "megatron", seq_len=4096, global_batch=9216)
    free, bound = recommend(asked, PROFILE), recommend(asked, PROFILE, Constraints(allowed=allowed))
    assert free.fastest.prediction.step_time_s <= bound.fastest.prediction.step_time_s


@pytest.mark.parametrize("asked", one_in(2, [1, 20, 40, 60, 80, 120, 200]))
def test_numbers_of_chips_that_there_was_no_time_for_are_owned_up_to(asked: int) -> None:
    whole, left = recommend(llama(37, 48), PROFILE), asked

    def should_continue() -> bool:
        nonlocal left
        left -= 1
        return left > 0

    found = recommend(llama(37, 48), PROFILE, should_continue=should_continue)
    assert found.fewer_chips is not None
    assert found.certificate.exact or left <= 0  # which may be when the proof is done
    best, most = whole.fastest.prediction.step_time_s, found.fastest.prediction.step_time_s
    assert best <= most <= best * (1 + found.certificate.gap) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("chips", "cluster"), [(9, "h100"), (10, "h100"), (14, "h100"), (138, "gb200"), (22, "h100")]
)
def test_fewer_chips_are_used_where_they_are_faster(chips: int, cluster: str) -> None:
    """Unless the constraints ask for all."""
    problem = llama(chips, 144, cluster)
    best = fastest(problem)
    found = recommend(problem, PROFILE)
    used = found.chips_used
    if found.fewer_chips:
        assert (found.fewer_chips.num_chips, found.fewer_chips.rule) == (used, None)
        assert found.reasons[0].sentence.startswith(
            f"{chips - used} of the {chips} chips are left out"
        )
        smaller = llama(used, 144, cluster)
        assert fastest(smaller) == found.fastest.prediction.step_time_s < best
        alone = recommend(smaller, PROFILE)
        assert [one.prediction.layout for one in found.layouts] == [
            one.prediction.layout for one in alone.layouts
        ]
        assert found.pipelining.gap == alone.pipelining.gap
    else:
        assert used == chips
        assert fastest(llama(chips // 8 * 8, 144, cluster)) >= best
    whole = recommend(problem, PROFILE, Constraints(use_all_chips=True))
    assert (whole.chips_used, whole.fewer_chips) == (chips, None)
    assert whole.fastest.prediction.step_time_s == best


def test_where_no_layout_uses_all_chips_that_is_refused_if_all_are_asked_for() -> None:
    with pytest.raises(Infeasible, match="no legal layout uses all 37 chips"):
        recommend(llama(37, 48), PROFILE, Constraints(use_all_chips=True))


@pytest.mark.long
@pytest.mark.parametrize(("chips", "stack"), [(46, "torchtitan"), (22, "megatron")])
def test_of_few_chips_no_smaller_number_is_faster_than_the_one_that_is_used(
    chips: int, stack: str
) -> None:
    """42 chips, of which no degree has a larger one's ways, but a pipeline of seven stages."""

    def asked(count: int) -> Problem:
        return problem("deepseek-v2-lite", ("gh200", count), stack, seq_len=4096, global_batch=144)

    def seconds(count: int) -> float:
        try:
            return fastest(asked(count))
        except (Infeasible, NoLegalLayout):
            return np.inf

    found = recommend(asked(chips), PROFILE)
    assert found.chips_used < chips
    assert (
        found.fastest.prediction.step_time_s
        == seconds(found.chips_used)
        == min(map(seconds, range(chips // 2, chips + 1)))
    )


def test_of_racks_that_experts_divide_badly_part_is_looked_at() -> None:
    """256 experts divide 64 chips of 72."""
    asked = problem(
        "deepseek-v3",
        ("gb200-nvl72", 1152),
        "megatron",
        seq_len=4096,
        global_batch=2304,
        precision="mxfp8",
    )
    found = recommend(asked, PROFILE)
    assert found.fewer_chips
    assert found.chips_used == 1024
    assert found.fastest.prediction.step_time_s < (found.fewer_chips.all_chips_s or 0.0)


def test_fewer_chips_than_a_domain_is_to_hold_are_used_of_one() -> None:
    whole = llama(46, 144, "gb200")
    problem = replace(whole, cluster=replace(whole.cluster, chips_per_domain=46))
    found = recommend(problem, PROFILE)
    assert found.chips_used < 46
    smaller = {"num_chips": found.chips_used, "chips_per_domain": found.chips_used}
    other = replace(problem, cluster=replace(problem.cluster, **smaller))
    assert fastest(other) == found.fastest.prediction.step_time_s


@pytest.mark.parametrize("asked", one_in(2, [8, 20, 32, 40, 48, 53, 60]))
def test_that_there_was_no_time_for_fewer_chips_is_said(asked: int) -> None:
    """Unless there was: 20 chips are faster than 22."""
    left = iter(range(asked))
    found = recommend(llama(22, 144), PROFILE, should_continue=lambda: next(left, None) is not None)
    late = any(
        "whether fewer of the chips are faster" in sentence
        for sentence in told(found.reasons, "stopped")
    )
    assert late == (not found.tried_fewer)
    assert late or found.chips_used == 20
