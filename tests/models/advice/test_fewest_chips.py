"""The fewest chips for a job, against a search on every number there is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from models.advice.choice import Choice
from models.advice.cluster_choice import rank_clusters
from models.advice.fewest_chips import fewest_chips
from models.advice.objective import Objective, max_step_time_s
from models.advice.recommendation import recommend
from models.errors import Infeasible
from models.layouts.space import Space
from models.prediction.prediction import predict_layouts
from models.search.enumeration import search
from models.search.result import Goal
from models.search.tables import NoLegalLayout
from models.spec.constraints import Constraints
from models.spec.problem import Problem
from models.spec.profile import shipped_profile
from tests.benchmarks.problems import problem

PROFILE = shipped_profile()


def by_hand(asked: Problem, objective: Objective, numbers: Iterable[int]) -> int | None:
    for chips in numbers:
        tried = replace(asked, cluster=replace(asked.cluster, num_chips=chips))
        try:
            best = search(Space(tried, Constraints()), PROFILE, Goal()).layouts[0]
        except (NoLegalLayout, Infeasible):
            continue
        (fastest,) = predict_layouts(tried, [best], PROFILE)
        seconds = objective.step_time_to_keep_s(fastest.step_time_s, fastest.step_time_high_s)
        if seconds <= max_step_time_s(tried, objective):
            return chips
    return None


@pytest.mark.long
@pytest.mark.parametrize(
    "objective",
    [
        Objective(minimize="chips", tokens=1e11, deadline_hours=72),
        Objective(
            minimize="chips",
            tokens=1e11,
            deadline_hours=24,
            failures_per_chip_hour=1e-3,
            checkpoint_s=60,
        ),
        Objective(minimize="chips", tokens=1e11, deadline_hours=200, budget_usd=6000),
        Objective(minimize="chips", tokens=1e13, deadline_hours=1),
        Objective(minimize="chips", tokens=1e11, deadline_hours=1500),
    ],
)
def test_the_fewest_chips_are_those_that_trying_every_number_finds(objective: Objective) -> None:
    asked = problem("llama-3-8b", ("h100", 64), "megatron", seq_len=8192, global_batch=96)
    found = fewest_chips(asked, PROFILE, Constraints(), objective, 160)
    assert found.num_chips == by_hand(asked, objective, [1, 2, 4, *range(8, 161, 8)])


def test_a_part_of_a_rack_may_be_the_fewest() -> None:
    asked = problem("llama-3-8b", ("gb200", 64), "megatron", seq_len=8192, global_batch=96)
    asked = replace(asked, cluster=replace(asked.cluster, chips_per_domain=32))
    objective = Objective(minimize="chips", tokens=1e11, deadline_hours=400)
    found = fewest_chips(asked, PROFILE, Constraints(), objective, 144)
    whole = replace(asked, cluster=replace(asked.cluster, chips_per_domain=None))
    assert found.num_chips == by_hand(whole, objective, [1, 2, 3, 4, 6, 8, 9, 12, 16, 18, 24, 32])
    assert found.num_chips is not None
    assert found.num_chips < 8
    assert "(divisors of 72 and multiples of 72)" in found.reason


def test_beyond_one_rack_racks_are_whole() -> None:
    asked = problem("llama-3-70b", ("gb300", 72), "megatron", seq_len=8192, global_batch=512)
    objective = Objective(minimize="chips", tokens=1e12, deadline_hours=330)
    found = fewest_chips(asked, PROFILE, Constraints(), objective, 720)
    assert found.num_chips is not None
    assert found.num_chips > 72
    assert found.num_chips % 72 == 0
    racks = found.num_chips // 72

    def choice_on(chips: int) -> Choice:
        place = replace(asked, cluster=replace(asked.cluster, num_chips=chips))
        return rank_clusters({"place": place}, PROFILE, Constraints(), objective)[0]

    assert choice_on(racks * 72).meets
    assert not choice_on((racks - 1) * 72).meets


def test_only_multiples_are_tried_where_chips_come_in_lots() -> None:
    asked = problem("llama-3-8b", ("h100", 64), "megatron", seq_len=8192, global_batch=96)
    objective = Objective(minimize="chips", tokens=1e11, deadline_hours=100)
    free = fewest_chips(asked, PROFILE, Constraints(), objective, 160).num_chips
    found = fewest_chips(asked, PROFILE, Constraints(), objective, 160, multiple_of=20)
    assert free is not None
    assert found.num_chips is not None
    assert free <= found.num_chips < free + 40
    assert found.num_chips % 20 == 0
    assert "that were tried (multiples of 20)" in found.reason


def test_the_surer_a_deadline_has_to_be_kept_the_more_chips_it_takes() -> None:
    asked = problem("llama-3-8b", ("h100", 64), "megatron", seq_len=8192, global_batch=256)
    numbers = []
    for probability in (0.5, 0.9, 0.99):
        objective = Objective(tokens=1e12, deadline_hours=720, deadline_probability=probability)
        numbers.append(fewest_chips(asked, PROFILE, Constraints(), objective, 512).num_chips)
    assert numbers == sorted(numbers)
    assert numbers[0] < numbers[1] < numbers[2]


def test_the_fewest_chips_meet_the_limits() -> None:
    asked = problem("llama-3-8b", ("h100", 64), "megatron", seq_len=8192, global_batch=256)
    objective = Objective(minimize="chips", tokens=1e12, deadline_hours=720)
    found = fewest_chips(asked, PROFILE, Constraints(), objective, 512)
    assert found.num_chips is not None
    sized = replace(asked, cluster=replace(asked.cluster, num_chips=found.num_chips))
    assert rank_clusters({"fewest": sized}, PROFILE, Constraints(), objective)[0].meets


@pytest.mark.parametrize(
    ("minimize", "but"), [("chips", ""), ("time", "; others may have the shortest time")]
)
def test_the_fewest_chips_are_not_said_to_be_what_else_is_wanted(minimize: str, but: str) -> None:
    asked = problem("llama-3-8b", ("h100", 64), "megatron", seq_len=8192, global_batch=96)
    objective = Objective(minimize=minimize, tokens=1e11, deadline_hours=200)  # type: ignore[arg-type]
    reason = fewest_chips(asked, PROFILE, Constraints(), objective, 64).reason
    assert " chips are the fewest" in reason
    assert reason.partition(" that keep the limits")[2].startswith(but)
    assert ("alternatives.num_chips" in reason) == bool(but)


def test_a_job_that_no_chips_could_do_is_said_to_be_one() -> None:
    asked = problem("llama-3-8b", ("h100", 64), "megatron", seq_len=8192, global_batch=96)
    found = fewest_chips(
        asked, PROFILE, Constraints(), Objective(tokens=1e15, deadline_hours=1), 160
    )
    assert (found.num_chips, found.tried, found.exact) == (None, 0, True)
    assert "up to 160 chips not even the peak" in found.reason


def test_without_time_nothing_is_claimed() -> None:
    asked = problem("llama-3-8b", ("h100", 64), "megatron", seq_len=8192, global_batch=96)
    objective = Objective(minimize="chips", tokens=1e11, deadline_hours=72)
    found = fewest_chips(asked, PROFILE, Constraints(), objective, 160, lambda: False)
    assert found.num_chips is None
    assert not found.exact


def test_what_is_too_large_to_search_is_not_claimed_to_miss_the_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = problem("llama-3-8b", ("h100", 64), "megatron", seq_len=8192, global_batch=96)
    objective = Objective(minimize="chips", tokens=1e11, deadline_hours=72)
    monkeypatch.setattr("models.search.tables.MOST_CORES", 1)
    found = fewest_chips(asked, PROFILE, Constraints(), objective, 160)
    assert (found.num_chips, found.exact) == (None, False)
    assert "too large to search" in found.reason


@pytest.mark.parametrize("oom_gib", [60.0, 40.0, 10.0])
def test_where_all_need_what_failed_the_fewest_are_as_if_nothing_had(oom_gib: float) -> None:
    """As a direct question about that number answers."""
    asked = problem("llama-3-70b", ("h100", 64), "megatron", seq_len=8192, global_batch=96)
    objective = Objective(minimize="chips", tokens=1e10, deadline_hours=2000)
    found = fewest_chips(asked, PROFILE, Constraints(), objective, 64, oom_gib=oom_gib)
    assert found.num_chips == 8
    few = replace(asked, cluster=replace(asked.cluster, num_chips=8))
    fastest = recommend(few, PROFILE, oom_gib=oom_gib).fastest.prediction
    assert fastest.step_time_high_s <= max_step_time_s(few, objective)
