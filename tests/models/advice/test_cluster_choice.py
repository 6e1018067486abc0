"""Choices between clusters."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.advice.choice import Choice
from models.advice.choice_words import choice_reason
from models.advice.cluster_choice import rank_clusters, with_recommendation
from models.advice.objective import Objective
from models.advice.recommendation import recommend
from models.errors import Invalid
from models.spec.constraints import Constraints
from models.spec.layout import Layouts
from models.spec.problem import Problem
from models.spec.profile import shipped_profile
from tests.benchmarks import problems

PROFILE = shipped_profile()


def on(cluster: str, chips: int) -> Problem:
    return problems.problem(
        "llama-3-8b", (cluster, chips), "torchtitan", seq_len=4096, global_batch=64
    )


PLACES = {
    "small": on("h100", 8),
    "large": on("h100", 64),
    "old": on("a100", 64),
    "none": problems.problem(
        "llama-3.1-70b", ("h100", 4), "torchtitan", seq_len=4096, global_batch=64
    ),
}


def test_each_objective_puts_its_own_best_first() -> None:
    tokens = 1e11
    for minimize, figure in (
        ("step_time", "step_time_s"),
        ("time", "hours"),
        ("cost", "usd"),
        ("chips", "num_chips"),
    ):
        choices = rank_clusters(
            PLACES, PROFILE, Constraints(), Objective(minimize=minimize, tokens=tokens)
        )  # type: ignore[arg-type]
        answered = [choice for choice in choices if choice.refused is None]
        assert [choice.name for choice in choices[len(answered) :]] == ["none"]
        values = [getattr(choice, figure) for choice in answered]
        assert values == sorted(values)


def test_what_promises_most_is_searched_before_time_runs_out() -> None:
    """And what was not is neither counted nor called refused."""
    places = {f"{chips}": on("h100", chips) for chips in (8, 16, 32, 64)}
    for minimize, first in (("step_time", "64"), ("chips", "8")):
        objective = Objective(minimize=minimize)  # type: ignore[arg-type]
        best, *others = rank_clusters(places, PROFILE, Constraints(), objective, lambda: False)
        assert best.name == first
        assert not any(other.exact for other in others)
        assert choice_reason([best, *others], objective).endswith(
            "; time ran out before 3 others, of which any may be better"
        )
        assert "refused" not in choice_reason([best, *others], objective)


def test_the_smallest_cluster_that_keeps_the_deadline_comes_first() -> None:
    every = {
        choice.name: choice
        for choice in rank_clusters(PLACES, PROFILE, Constraints(), Objective(tokens=1e11))
    }
    between = (every["small"].hours + every["large"].hours) / 2  # type: ignore[operator]
    limited = Objective(minimize="chips", tokens=1e11, deadline_hours=between)
    first, *rest = rank_clusters(PLACES, PROFILE, Constraints(), limited)
    assert first.name == "large"
    assert first.meets
    assert not next(choice for choice in rest if choice.name == "small").meets


def test_hours_and_cost_can_be_redone_by_hand() -> None:
    chip = replace(PLACES["small"].cluster.chip, usd_per_chip_hour=2.0)
    priced = replace(PLACES["small"], cluster=replace(PLACES["small"].cluster, chip=chip))
    (choice,) = rank_clusters({"small": priced}, PROFILE, Constraints(), Objective(tokens=3e10))
    assert choice.hours == pytest.approx(3e10 / (64 * 4096 / choice.step_time_s) / 3600)  # type: ignore[operator]
    assert choice.usd == pytest.approx(choice.hours * 8 * 2.0)  # type: ignore[operator]
    assert choice.usd_per_million_tokens == pytest.approx(choice.usd / 3e4)  # type: ignore[operator]


@given(st.floats(1e-9, 1.0), st.floats(1e-3, 86400.0), st.floats(0.0, 1800.0))
def test_no_other_interval_between_checkpoints_loses_less(
    rate: float, checkpoint: float, restart: float
) -> None:
    objective = Objective(failures_per_chip_hour=rate, checkpoint_s=checkpoint, restart_s=restart)
    constraints = Constraints(allowed={"tp": (1,), "pp": (1,), "cp": (1,)})
    between = 3600 / (rate * 8)

    def kept(every: float) -> float:
        return every / (
            between * math.exp(restart / between) * math.expm1((every + checkpoint) / between)
        )

    try:
        (choice,) = rank_clusters({"small": PLACES["small"]}, PROFILE, constraints, objective)
    except Invalid:  # next to nothing is kept, however often
        assert all(kept(between * 2.0**power) < 1e-5 for power in range(-8, 4))
        return
    every = choice.checkpoint_every_s
    assert every is not None
    assert choice.goodput == pytest.approx(kept(every))
    assert all(
        kept(every * factor) <= kept(every) * (1 + 1e-9)
        for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0)
    )


def test_goodput_is_that_of_a_job_which_fails_now_and_then() -> None:
    """Failures at random, an hour of work between any two on average, drawn for a thousand
    hours."""
    rate, checkpoint, restart = 1 / 8, 60.0, 120.0
    objective = Objective(failures_per_chip_hour=rate, checkpoint_s=checkpoint, restart_s=restart)
    (choice,) = rank_clusters({"small": PLACES["small"]}, PROFILE, Constraints(), objective)
    assert choice.checkpoint_every_s is not None
    draw, now, saved = random.Random(0), 0.0, 0.0
    segment, ready = choice.checkpoint_every_s + checkpoint, 0.0
    while now < 2e4 * 3600:
        failure = now + draw.expovariate(1 / 3600)
        ready = max(ready, now)
        done = max(int((failure - ready) // segment), 0)
        saved += done * choice.checkpoint_every_s
        now, ready = failure, failure + restart
    assert choice.goodput == pytest.approx(saved / now, rel=0.01)


def test_where_failures_leave_no_time_to_work_it_is_said() -> None:
    objective = Objective(
        failures_per_chip_hour=1.0, checkpoint_s=1800.0, restart_s=1800.0, tokens=1e9
    )
    choices = rank_clusters(
        {"small": PLACES["small"], "large": PLACES["large"]}, PROFILE, Constraints(), objective
    )
    assert choices[0].name == "large"  # of nothing and next to nothing
    assert all(choice.goodput is not None and 0 < choice.goodput < 1e-3 for choice in choices)
    assert "of the time kept" in choice_reason(choices, objective)


def test_what_fails_before_any_work_is_kept_is_refused() -> None:
    never = Objective(failures_per_chip_hour=5.0, checkpoint_s=600.0, restart_s=3600.0, tokens=1e9)
    with pytest.raises(Invalid) as refused:
        rank_clusters({"large": PLACES["large"]}, PROFILE, Constraints(), never)
    assert (refused.value.field, refused.value.value) == ("objective.failures_per_chip_hour", 5.0)


def test_a_place_without_a_price_is_compared_by_hours_and_says_what_is_missing() -> None:
    chip = replace(PLACES["small"].cluster.chip, usd_per_chip_hour=None)
    priceless = replace(PLACES["small"], cluster=replace(PLACES["small"].cluster, chip=chip))
    places = {"unpriced": priceless, "priced": PLACES["small"], "large": priceless_on_64_chips()}
    cost = Objective(minimize="cost", tokens=1e11)
    choices = rank_clusters(places, PROFILE, Constraints(), cost)
    assert [choice.name for choice in choices] == ["priced", "large", "unpriced"]
    assert [choice.missing is None for choice in choices] == [True, False, False]
    assert choices[1].usd is None
    assert "compared by hours alone, since no price of h100" in choice_reason(choices, cost)
    alone = rank_clusters({"cluster": priceless}, PROFILE, Constraints(), cost)
    assert alone[0].hours
    assert rank_clusters(places, PROFILE, Constraints(), Objective())[0].missing is None


def priceless_on_64_chips() -> Problem:
    chip = replace(PLACES["large"].cluster.chip, usd_per_chip_hour=None)
    return replace(PLACES["large"], cluster=replace(PLACES["large"].cluster, chip=chip))


def test_a_budget_is_not_kept_where_the_price_is_not_known() -> None:
    """Such a place comes behind what keeps the budget, and before what breaks it."""
    priced = rank_clusters(PLACES, PROFILE, Constraints(), Objective(tokens=1e11))
    cost = {choice.name: choice.usd or 0.0 for choice in priced}
    places = {name: PLACES[name] for name in ("small", "old")} | {"new": priceless_on_64_chips()}
    assert cost["old"] > cost["small"]
    between = Objective(tokens=1e11, budget_usd=(cost["small"] * 1.5 + cost["old"]) / 2.5)
    between = replace(between, deadline_probability=0.5)
    choices = rank_clusters(places, PROFILE, Constraints(), between)
    assert [(choice.name, choice.meets) for choice in choices] == [
        ("small", True),
        ("new", False),
        ("old", False),
    ]
    assert choices[1].meets_probability is None


@given(st.floats(0.5, 0.999), st.floats(0.2, 5.0))
def test_limits_are_met_where_their_probability_is_what_is_asked_for(
    probability: float, share: float
) -> None:
    constraints = Constraints(allowed={"tp": (1,), "pp": (1,), "cp": (1,)})
    free = Objective(tokens=1e11)
    (median,) = rank_clusters({"small": PLACES["small"]}, PROFILE, constraints, free)
    assert (median.meets, median.meets_probability) == (True, None)
    asked = replace(free, deadline_hours=median.hours * share, deadline_probability=probability)
    (choice,) = rank_clusters({"small": PLACES["small"]}, PROFILE, constraints, asked)
    assert choice.meets_probability is not None
    assert choice.meets == (choice.meets_probability >= probability - 1e-9)


def test_the_end_of_the_80_percent_interval_is_kept_with_90_percent() -> None:
    free = Objective(tokens=1e11)
    (median,) = rank_clusters({"small": PLACES["small"]}, PROFILE, Constraints(), free)
    for end, kept in ((median.hours_high, 0.9), (median.hours, 0.5), (median.hours_low, 0.1)):
        asked = replace(free, deadline_hours=end)
        (choice,) = rank_clusters({"small": PLACES["small"]}, PROFILE, Constraints(), asked)
        assert choice.meets_probability == pytest.approx(kept, abs=1e-6)


def test_where_none_keeps_the_limits_the_nearest_leads() -> None:
    hopeless = Objective(minimize="chips", tokens=1e11, deadline_hours=1e-3)
    choices = rank_clusters(PLACES, PROFILE, Constraints(), hopeless)
    assert not any(choice.meets for choice in choices)
    hours = [choice.hours or math.inf for choice in choices]
    assert hours == sorted(hours)


def test_chips_that_are_held_are_paid_whether_or_not_they_are_used() -> None:
    odd = replace(PLACES["small"], cluster=replace(PLACES["small"].cluster, num_chips=67))
    (choice,) = rank_clusters({"odd": odd}, PROFILE, Constraints(), Objective(tokens=1e10))
    assert choice.chips_used is not None
    assert choice.chips_used < choice.num_chips == 67
    price = odd.cluster.chip.usd_per_chip_hour
    assert choice.usd == pytest.approx(choice.hours * 67 * price)  # type: ignore[operator]
    assert choice.usd_used == pytest.approx(choice.hours * choice.chips_used * price)  # type: ignore[operator]


@pytest.mark.parametrize("steps", [1, 3, 6, 12, 24])
def test_a_choice_is_no_worse_where_its_answer_is_cut_short(steps: int) -> None:
    """However far a first search came: the layout that it found is known to the second, which may
    improve on it."""
    objective, left = Objective(minimize="cost", tokens=1e11), iter(range(steps))
    choices = rank_clusters(
        PLACES, PROFILE, Constraints(), objective, lambda: next(left, None) is not None
    )
    best = choices[0]
    assert best.layout is not None
    asked, known = PLACES[best.name], Layouts.of([best.layout])
    found = recommend(asked, PROFILE, should_continue=lambda: False, known=known)
    assert found.fastest.prediction.step_time_s <= best.step_time_s * (1 + 1e-9)  # type: ignore[operator]
    same = with_recommendation(best, asked, objective, found)
    assert same.step_time_s == found.fastest.prediction.step_time_s
    assert same.usd == pytest.approx(same.hours * asked.cluster.usd_per_hour)  # type: ignore[operator]
    assert not same.exact


def test_a_place_that_is_looked_for_costs_the_others_no_time() -> None:
    """It is looked for once they are searched, and chosen among all."""
    order: list[str] = []

    def failed(problem: Problem) -> float:
        order.append(f"{problem.cluster.num_chips}")
        return math.inf

    def more() -> dict[str, Problem]:
        order.append("more")
        return {"found": on("h100", 16)}

    few = Objective(minimize="chips")
    choices = rank_clusters(
        {"own": on("h100", 64)}, PROFILE, Constraints(), few, oom_gib=failed, find_more=more
    )
    assert order == ["64", "more", "16"]
    assert [choice.name for choice in choices] == ["found", "own"]


def test_clusters_that_intervals_do_not_tell_apart_are_said_to_be_alike() -> None:
    either = "either may be the better"
    close = rank_clusters(
        {"a": on("h100", 64), "b": on("h200", 64)}, PROFILE, Constraints(), Objective()
    )
    assert close[0].step_time_high_s > close[1].step_time_low_s
    assert either in choice_reason(close, Objective())
    apart = rank_clusters(
        {"a": on("h100", 64), "b": on("h100", 128)}, PROFILE, Constraints(), Objective()
    )
    assert apart[0].step_time_high_s < apart[1].step_time_low_s
    assert either not in choice_reason(apart, Objective())
    assert either not in choice_reason(close, Objective(minimize="chips"))


def test_intervals_have_to_overlap_whichever_way_the_nearest_misses() -> None:
    """The nearest to its limits may cost more than the next, beyond doubt."""
    of = {
        "chip": "h100",
        "step_time_s": 5.0,
        "step_time_low_s": 4.9,
        "step_time_high_s": 5.1,
        "goodput": 1.0,
    }
    nearest = Choice(
        name="a",
        num_chips=64,
        hours=10.0,
        usd=200.0,
        usd_per_million_tokens=2.0,
        tokens_per_s=1e6,
        **of,
    )
    cheaper = replace(nearest, name="b", hours=20.0, usd=100.0, usd_per_million_tokens=1.0)
    cost = Objective(minimize="cost", tokens=1e8, deadline_hours=1.0)
    assert "80% intervals" not in choice_reason([nearest, cheaper], cost)
    assert "80% intervals" in choice_reason(
        [nearest, replace(cheaper, usd_per_million_tokens=1.95)], cost
    )


def test_what_costs_nothing_is_compared_too() -> None:
    free = [
        replace(
            at, cluster=replace(at.cluster, chip=replace(at.cluster.chip, usd_per_chip_hour=0.0))
        )
        for at in (on("h100", 64), on("h200", 64))
    ]
    cost = Objective(minimize="cost")
    choices = rank_clusters(dict(zip("ab", free, strict=True)), PROFILE, Constraints(), cost)
    assert "has the lowest cost: " in choice_reason(choices, cost)
    assert "80% intervals" not in choice_reason(choices, cost)
    assert choices[0].tokens_per_s >= choices[1].tokens_per_s  # type: ignore[operator]


def test_places_are_told_in_plain_words_and_numbers() -> None:
    objective = Objective(
        minimize="chips", tokens=1e12, deadline_hours=720, deadline_probability=0.5
    )
    of = {"chip": "h100", "step_time_s": 5.0, "step_time_low_s": 4.0, "step_time_high_s": 6.0}
    kept = [
        Choice(name=f"p{chips}", num_chips=chips, meets=True, hours=700.04, usd=24_983_210.4, **of)
        for chips in (64, 128)
    ]
    late = Choice(name="late", num_chips=8, hours=1e4, usd=0.00123, **of)
    figures = "5 s a step (4 to 6), 700 hours, 24,980,000 USD"
    assert (
        choice_reason([*kept, late], objective)
        == "where: 2 of 3 places keep deadline_hours = 720, and of those p64 (64 h100) has the"
        f" fewest chips: {figures}; then p128 (128 h100): {figures}"
    )
    broken = (
        "late (8 h100): 5 s a step (4 to 6), 10,000 hours, 0.00123 USD, which breaks deadline_hours"
        " = 720"
    )
    assert choice_reason([late], objective) == f"where: {broken}"
    surely = replace(objective, deadline_probability=0.9)
    assert "720 with a probability of 0.9, and of those" in choice_reason([*kept, late], surely)
    unsure = replace(late, hours=700.0, meets_probability=0.71)
    assert choice_reason([unsure], surely).endswith(
        ", which keeps deadline_hours = 720 with a probability of 0.71 only"
    )
    assert choice_reason(kept[:1], Objective()) == f"where: p64 (64 h100): {figures}"


def test_where_every_place_is_refused_that_is_told() -> None:
    refused = [
        Choice(name=f"p{chips}", chip="h100", num_chips=chips, refused="too little memory")
        for chips in (8, 16)
    ]
    told = choice_reason(refused, Objective(tokens=1e12, deadline_hours=1))
    assert told == (
        "where: none of 2 places has a layout that is known to fit; refused: p8 (8 h100), p16"
        " (16 h100)"
    )
