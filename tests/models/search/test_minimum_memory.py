"""Where nothing fits: how much is missing, and how many chips would do."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from models.advice.recommendation import Recommendation, recommend
from models.cost.predictions import predict
from models.errors import Infeasible, OutOfTime
from models.layouts.rules import require_legal
from models.layouts.space import Space
from models.prediction.prediction import predict_layouts
from models.search.enumeration import search
from models.search.result import Goal
from models.spec.constraints import (
    EVEN_CHANCE,
    MAX_FIT_PROBABILITY,
    SAFE_FIT_PROBABILITY,
    Constraints,
)
from models.spec.hardware import GIB
from models.spec.problem import Problem
from models.spec.profile import Profile, shipped_profile
from tests.benchmarks.problems import NAMED, problem
from tests.oracles.brute_force import legal, surest

PROFILE = shipped_profile()


def with_memory(question: Problem, usable_gib: float, host_gb: float | None = None) -> Problem:
    chip = replace(question.cluster.chip, usable_memory_gib=usable_gib, host_memory_gb=host_gb)
    return replace(question, cluster=replace(question.cluster, chip=chip))


EVENLY = Constraints(min_fit_probability=EVEN_CHANCE)
SMALL = {"seq_len": 4096, "global_batch": 16}
SHORT = {
    "dense": with_memory(problem("llama-3-8b", ("h100", 4), "megatron", **SMALL), 7.0),
    "with a small host": with_memory(
        problem("llama-3-8b", ("h100", 4), "megatron", **SMALL), 7.0, 20.0
    ),
    "with a host that just does": with_memory(
        problem("llama-3-8b", ("h100", 4), "megatron", **SMALL), 5.0, 25.0
    ),
    "FSDP": with_memory(problem("llama-3-8b", ("h100", 8), "torchtitan", **SMALL), 6.0),
    "sparse": with_memory(problem("mixtral-8x7b", ("h100", 8), "megatron", **SMALL), 9.0, 40.0),
    "on a torus": with_memory(problem("llama-3-8b", ("tpu-v5e", 4), "maxtext", **SMALL), 5.0),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "on a torus" else pytest.mark.long) for name in SHORT],
)
def test_the_most_frugal_layout_is_that_of_brute_force(name: str) -> None:
    question, most = SHORT[name], SHORT[name].cluster.host_bytes
    with pytest.raises(Infeasible) as refused:
        search(Space(question, EVENLY), PROFILE, Goal())
    least = np.inf
    for layouts in legal(question, EVENLY):
        found = predict(question, layouts, PROFILE.coefficients(question.scopes))
        least = min(least, float(found.needed_bytes[found.host_bytes <= most].min(initial=np.inf)))
    assert refused.value.needed == pytest.approx(least / GIB, rel=1e-9)
    assert ("host memory" in refused.value.detail) == (name in ("with a small host", "sparse"))


UNSURE = PROFILE.with_terms(
    {
        (name, "all"): replace(PROFILE.by_key[name, "all"], runs=0, spread=spread)
        for name, spread in {"activation_memory": 0.3, "logit_memory": 0.5}.items()
    }
)
"""Layouts are as unsure to fit as the parts of their memory are large that these scale."""


@pytest.mark.parametrize(
    "profile",
    [pytest.param(PROFILE, marks=pytest.mark.long), UNSURE],
    ids=["sure", "unsure"],
)
@pytest.mark.parametrize(
    "spare",
    [1.1, *(pytest.param(spare, marks=pytest.mark.long) for spare in (0.97, 1.02, 1.25))],
)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "on a torus" else pytest.mark.long) for name in SHORT],
)
def test_the_surest_layout_is_that_of_brute_force(
    name: str, spare: float, profile: Profile
) -> None:
    """With somewhat less and somewhat more memory than the most frugal layout needs. To a
    thousandth, as only layouts that recompute as many layers as they can are looked at."""
    question = SHORT[name]
    with pytest.raises(Infeasible) as refused:
        search(Space(question, EVENLY), profile, Goal())
    surely = Constraints(min_fit_probability=MAX_FIT_PROBABILITY)
    needed = refused.value.needed
    assert needed is not None
    question = with_memory(question, spare * needed, _host_gb(question))
    try:
        search(Space(question, surely), profile, Goal())
    except Infeasible as error:
        found = error.surest
    else:
        assert surest(question, profile, surely) >= MAX_FIT_PROBABILITY
        return
    assert found is not None
    require_legal(question, found.layout)
    (predicted,) = predict_layouts(question, [found.layout], profile)
    assert predicted.fit_probability == pytest.approx(found.fit_probability, rel=1e-9)
    most = surest(question, profile, surely)
    if most >= EVEN_CHANCE or profile is PROFILE:
        assert found.fit_probability == pytest.approx(most, abs=1e-3)
    if found.min_fit_probability is None:
        assert most < EVEN_CHANCE
        return
    assert found.min_fit_probability <= found.fit_probability
    again = Constraints(min_fit_probability=found.min_fit_probability)
    search(Space(question, again), profile, Goal())


def _host_gb(question: Problem) -> float | None:
    return question.cluster.chip.host_memory_gb


def test_what_leaves_too_little_free_is_not_to_be_asked_for_again() -> None:
    """The surest layout would surely fit; it is the memory to leave free that is too much."""
    question = problem("llama-3-8b", ("h100", 4), "megatron", **SMALL)
    with pytest.raises(Infeasible) as refused:
        search(Space(question, Constraints(memory_reserve_gib=70)), PROFILE, Goal())
    found = refused.value.surest
    assert found is not None
    assert found.fit_probability > SAFE_FIT_PROBABILITY
    assert found.min_fit_probability is None


@pytest.mark.parametrize(
    "question",
    [
        problem("llama-3.1-70b", ("h100", 4), "torchtitan", seq_len=8192, global_batch=512),
        problem("deepseek-v3", ("h100", 8), "megatron", seq_len=4096, global_batch=512),
        problem("llama-3.1-405b", ("tpu-v5p", 16), "maxtext", seq_len=8192, global_batch=512),
    ],
)
def test_as_many_chips_as_are_said_to_do_will_do_and_half_of_them_will_not(
    question: Problem,
) -> None:
    with pytest.raises(Infeasible) as refused:
        recommend(question, PROFILE)
    enough = refused.value.enough_chips
    assert enough is not None
    assert (
        f"{enough} chips, {enough // question.cluster.num_chips} times as many"
        in refused.value.detail
    )
    assert on(question, enough).fastest.prediction.fits
    with pytest.raises(Infeasible):
        on(question, enough // 2)


def test_of_twice_an_odd_number_of_chips_some_may_be_enough() -> None:
    """7 H100 cannot hold it, and no layout uses 14; 8 of those can."""
    question = problem("llama-3.1-70b", ("h100", 7), "fsdp", seq_len=8192, global_batch=1024)
    with pytest.raises(
        Infeasible, match="8 of 14 chips, 2 times as many, have a layout that fits"
    ) as refused:
        recommend(question, PROFILE, EVENLY)
    assert refused.value.enough_chips == 8
    assert on(question, 8, EVENLY).fastest.prediction.fits


def on(question: Problem, chips: int, constraints: Constraints | None = None) -> Recommendation:
    cluster = replace(question.cluster, num_chips=chips, torus_shape=None)
    return recommend(replace(question, cluster=cluster), PROFILE, constraints)


def test_what_no_number_of_chips_can_hold_is_told() -> None:
    """One sequence of two million tokens on a stack without context parallelism."""
    question = problem("llama-3-8b", ("h100", 8), "fsdp", seq_len=2**21, global_batch=64)
    with pytest.raises(Infeasible, match="64 times as many chips would not help") as refused:
        recommend(question, PROFILE)
    assert refused.value.enough_chips is None


@pytest.mark.parametrize(
    ("usable_gib", "steps", "there_may_be_one"),
    [pytest.param(2.0, 1000, False, marks=pytest.mark.long), (3.6, 2, True)],
)
def test_where_nothing_fits_a_search_ends_when_it_is_told_to(
    usable_gib: float, steps: int, there_may_be_one: bool
) -> None:
    """The most frugal layout needs 3.8 GiB; near that bounds refuse little, and a whole search
    takes half a minute. Well below it that none fits is known at once, and the time goes into how
    much is missing."""
    question, asked = with_memory(NAMED["kimi-k2 gb300"](), usable_gib), count()
    with pytest.raises(Infeasible) as refused:
        recommend(question, PROFILE, should_continue=lambda: next(asked) < steps)
    assert next(asked) < steps + 30
    assert (refused.value.needed is None) == there_may_be_one
    assert isinstance(refused.value, OutOfTime) == there_may_be_one


def test_a_search_that_has_to_stop_at_once_still_finds_what_fits() -> None:
    for question in (NAMED["llama-3.1-405b"](), NAMED["megatron-1t"]()):
        found = recommend(question, PROFILE, should_continue=lambda: False)
        assert found.fastest.prediction.fits
        assert not found.certificate.exact
