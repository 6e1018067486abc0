"""Pipelines that only the divisibility of chips and batch asks for."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from models.advice.divisibility import Lift, nearest_lifts
from models.advice.recommendation import recommend
from models.errors import Invalid
from models.layouts.space import Space
from models.spec import catalogue
from models.spec.constraints import Constraints
from models.spec.problem import Problem
from tests.benchmarks.problems import problem
from tests.models.advice.problems import PROFILE

ALL = Constraints(use_all_chips=True)


def with_lift(question: Problem, lift: Lift) -> Problem:
    if lift.field == "cluster.num_chips":
        return replace(question, cluster=question.cluster.with_num_chips(lift.value))
    workload = replace(question.workload, global_batch=lift.value)
    return replace(question, workload=workload)


@pytest.mark.parametrize(("chips", "batch"), [(72, 512), (12, 8), (100, 128)])
def test_neighbours_that_divide_better_are_named_and_need_no_pipeline(
    chips: int, batch: int
) -> None:
    question = problem("llama-3-8b", ("h100", chips), "megatron", seq_len=8192, global_batch=batch)
    found = recommend(question, PROFILE, ALL).pipelining
    assert found.needed == "undecided"
    assert found.lifted_by
    assert found.verdict.startswith("Only divisibility asks for a pipeline here: ")
    for lift in found.lifted_by:
        before = chips if lift.field == "cluster.num_chips" else batch
        assert abs(lift.value - before) <= before / 8
        assert f"{lift.field} = {lift.value}" in found.verdict
        there = recommend(with_lift(question, lift), PROFILE, ALL).pipelining
        assert there.gap is not None
        assert there.gap <= 0.03


def test_what_divides_in_every_way_has_no_neighbours_to_try() -> None:
    question = problem("llama-3.1-405b", ("h100", 1024), "megatron", seq_len=8192, global_batch=512)
    calls = []

    def should_continue() -> bool:
        calls.append(True)
        return True

    assert nearest_lifts(Space(question, Constraints()), PROFILE, 0.03, 1.0, should_continue) == ()
    assert not calls
    assert recommend(question, PROFILE).pipelining.needed == "yes"


def test_time_that_has_run_out_names_none() -> None:
    question = problem("llama-3-8b", ("h100", 72), "megatron", seq_len=8192, global_batch=512)
    assert nearest_lifts(Space(question, ALL), PROFILE, 0.03, 1.0, lambda: False) == ()
    fewer = replace(question, cluster=catalogue.cluster("h100", 64))
    assert nearest_lifts(Space(fewer, ALL), PROFILE, 0.03, 1.0, lambda: True) == ()


@pytest.mark.parametrize(("chips", "batch"), [(72, 512), (100, 128), (96, 100)])
def test_a_guess_of_the_time_with_a_pipeline_decides_nothing(chips: int, batch: int) -> None:
    question = problem("llama-3-8b", ("h100", chips), "megatron", seq_len=8192, global_batch=batch)
    space = Space(question, ALL)
    guesses = (1e-3, 0.5, 2.0, 1e3, math.inf)
    found = {nearest_lifts(space, PROFILE, 0.03, guess, lambda: True) for guess in guesses}
    assert len(found) == 1


def test_a_cluster_as_large_as_its_fabric_has_smaller_neighbours_alone() -> None:
    asked = problem("llama-3.1-8b", ("gb200", 72), "megatron", seq_len=4096, global_batch=50)
    fabric = asked.cluster.fabric
    alone = replace(fabric, levels=tuple(each for each in fabric.levels if each.scale == "up"))
    asked = replace(asked, cluster=replace(asked.cluster, fabric=alone))
    with pytest.raises(Invalid, match="joins at most 72 chips"):
        asked.cluster.with_num_chips(81)
    found = nearest_lifts(Space(asked, Constraints()), PROFILE, 0.03, math.inf, lambda: True)
    assert all(lift.field != "cluster.num_chips" or lift.value <= 72 for lift in found)
