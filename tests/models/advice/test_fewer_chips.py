"""Fewer chips than there are, where some stand in the way."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from models.advice.recommendation import recommend
from models.errors import Infeasible
from models.layouts.space import Space
from models.search.branch_and_bound import search
from models.search.result import Goal
from models.search.tables import NoLegalLayout
from models.spec.constraints import Constraints
from models.spec.problem import Problem
from tests.benchmarks.problems import problem
from tests.models.advice.problems import PROFILE, llama


def fastest(problem: Problem) -> float:
    try:
        return float(search(Space(problem, Constraints()), PROFILE, Goal()).times[0])
    except (NoLegalLayout, Infeasible):
        return np.inf


@pytest.mark.parametrize("chips", [37, 43])
def test_where_no_layout_uses_all_chips_the_fastest_of_fewer_does(chips: int) -> None:
    found = recommend(llama(chips, 48), PROFILE)
    assert found.fewer_chips is not None
    assert (
        found.fewer_chips.rule in found.fewer_chips.message or "batch" in found.fewer_chips.message
    )
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


@pytest.mark.parametrize("asked", [1, 20, 40, 60, 80, 120, 200])
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
def test_fewer_chips_are_named_where_they_are_faster(chips: int, cluster: str) -> None:
    problem = llama(chips, 144, cluster)
    best = fastest(problem)
    found = recommend(problem, PROFILE)
    named = [reason for reason in found.reasons if "chips would be faster" in reason]
    if found.faster_on_fewer:
        count = found.faster_on_fewer.num_chips
        assert named[0].startswith(f"{count} chips")
        assert fastest(llama(count, 144, cluster)) == found.faster_on_fewer.step_time_s < best
    else:
        assert not named
        assert fastest(llama(chips // 8 * 8, 144, cluster)) >= best


@pytest.mark.long
@pytest.mark.parametrize(("chips", "stack"), [(46, "torchtitan"), (22, "megatron")])
def test_of_few_chips_no_smaller_number_is_faster_than_the_one_that_is_named(
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
    assert found.faster_on_fewer
    named = found.faster_on_fewer
    assert (
        named.step_time_s
        == seconds(named.num_chips)
        == min(map(seconds, range(chips // 2, chips + 1)))
    )


def test_of_racks_that_experts_divide_badly_part_is_looked_at() -> None:
    """256 experts divide 64 chips of 72."""
    asked = problem(
        "deepseek-v3",
        ("gb200-nvl72", 1152),
        "megatron",
        seq_len=4096,
        global_batch=4608,
        precision="mxfp8",
    )
    found = recommend(asked, PROFILE)
    assert found.faster_on_fewer
    assert found.faster_on_fewer.num_chips == 1024
    assert found.faster_on_fewer.step_time_s < found.fastest.prediction.step_time_s


def test_fewer_chips_than_a_domain_is_to_hold_are_asked_for_with_smaller_domains() -> None:
    whole = llama(46, 144, "gb200")
    problem = replace(whole, cluster=replace(whole.cluster, chips_per_domain=46))
    found = recommend(problem, PROFILE)
    assert found.faster_on_fewer
    (named,) = (reason for reason in found.reasons if "chips would be faster" in reason)
    knobs = {knob: int(count) for knob, count in re.findall(r"cluster\.(\w+) = (\d+)", named)}
    other = replace(problem, cluster=replace(problem.cluster, **knobs))
    assert fastest(other) == found.faster_on_fewer.step_time_s


@pytest.mark.parametrize("asked", [8, 20, 32, 40, 48, 53, 60])
def test_that_there_was_no_time_for_fewer_chips_is_said(asked: int) -> None:
    """Unless there was: 20 chips are faster than 22."""
    left = iter(range(asked))
    found = recommend(llama(22, 144), PROFILE, should_continue=lambda: next(left, None) is not None)
    late = any(
        "ran out before it was known whether the job is faster on fewer" in reason
        for reason in found.reasons
    )
    assert late == (not found.tried_fewer and found.faster_on_fewer is None)
    assert late or found.faster_on_fewer is not None
