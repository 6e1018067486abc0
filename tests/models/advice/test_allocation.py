"""Nodes that are held already."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.advice.allocation import Node, allocate
from models.advice.recommendation import recommend
from models.errors import Infeasible, Invalid
from models.layouts.space import Space
from models.search.enumeration import search
from models.search.result import Goal
from models.spec import catalogue
from models.spec.constraints import Constraints
from models.spec.hardware import Cluster
from models.spec.problem import Problem
from models.spec.profile import shipped_profile
from tests.benchmarks import problems

PROFILE = shipped_profile()


def problem(cluster: str, chips: int) -> Problem:
    return problems.problem(
        "llama-3-8b", (cluster, chips), "megatron", seq_len=4096, global_batch=64
    )


def racks(*chips: int) -> list[Node]:
    """Racks of 18 trays of 4, holding so many chips."""
    return [
        Node(
            name=f"r{rack}n{tray}",
            chips=min(4, held - 4 * tray),
            domain=f"r{rack}",
            leaf=f"l{rack // 2}",
        )
        for rack, held in enumerate(chips)
        for tray in range(-(-held // 4))
    ]


@settings(max_examples=8)
@given(st.lists(st.integers(1, 8), min_size=1, max_size=5), st.integers(1, 2))
def test_every_rank_has_one_device_and_no_node_more_than_it_has(
    held: list[int], devices: int
) -> None:
    nodes = [Node(name=f"n{i}", chips=chips, domain=f"n{i}") for i, chips in enumerate(held)]
    asked = problem("h100", sum(held))
    chip = replace(asked.cluster.chip, devices_per_chip=devices)
    asked = replace(asked, cluster=replace(asked.cluster, chip=chip))
    found = allocate(asked, PROFILE, Constraints(), nodes, lambda: True)
    ranks = [
        rank
        for host in found.hosts
        for rank in range(host.first_rank, host.first_rank + host.ranks)
    ]
    assert ranks == list(range(found.cluster.num_devices))
    assert all(host.ranks == devices * host.chips for host in found.hosts)
    used: Counter[str] = Counter()
    for host in found.hosts:
        used[host.node] += host.chips
    for node in nodes:
        assert used[node.name] + found.spares.get(node.name, 0) == node.chips
    sizes: Counter[tuple[str, int]] = Counter()
    for host in found.hosts:
        sizes[host.domain, host.group] += host.chips
    assert set(sizes.values()) == {found.chips_per_group}


def test_whole_nodes_are_used_as_they_are() -> None:
    nodes = [Node(name=f"n{i}", chips=8, domain=f"n{i}") for i in range(4)]
    asked = problem("h100", 32)
    found = allocate(asked, PROFILE, Constraints(), nodes, lambda: True)
    plain = float(search(Space(asked, Constraints()), PROFILE, Goal()).times[0])
    there = float(
        search(Space(replace(asked, cluster=found.cluster), Constraints()), PROFILE, Goal()).times[
            0
        ]
    )
    assert there <= plain
    assert found.spares == {} or there < plain


def test_of_uneven_racks_as_many_chips_each_are_used() -> None:
    found = allocate(problem("gb200", 136), PROFILE, Constraints(), racks(72, 64), lambda: True)
    assert found.cluster.num_chips == 128
    assert found.chips_per_group in (64, 32)
    assert found.spares == {"r0n16": 4, "r0n17": 4}


@pytest.mark.parametrize("nested", ["dgx-gb200-superpod", "gb200"])
def test_trays_that_share_a_rack_are_one_domain_and_others_are_not(nested: str) -> None:
    """Whether the fabric has trays as a level of their own or not."""
    asked, trays = problem(nested, 288), [4] * 72
    apart = [Node(name=f"n{i}", chips=chips, domain=f"n{i}") for i, chips in enumerate(trays)]
    found = [
        allocate(asked, PROFILE, Constraints(), nodes, lambda: True)
        for nodes in (apart, racks(72, 72, 72, 72))
    ]
    assert [one.cluster.scale_up_domain for one in found] == [4, 64]


def test_ranks_count_through_nodes_in_the_order_of_the_request() -> None:
    """Not of their names, in which n10 comes before n2."""
    leaves = {"n9": "b", "n10": "b", "n2": "a", "n1": "b"}
    nodes = [Node(name=name, chips=8, domain=name, leaf=leaf) for name, leaf in leaves.items()]
    found = allocate(problem("h100", 32), PROFILE, Constraints(), nodes, lambda: True)
    assert list(dict.fromkeys(host.node for host in found.hosts)) == ["n9", "n10", "n1", "n2"]


def step_time(asked: Problem, cluster: Cluster) -> float:
    return float(
        search(Space(replace(asked, cluster=cluster), Constraints()), PROFILE, Goal()).times[0]
    )


@pytest.mark.long
@pytest.mark.parametrize("held", [(72,), (72, 64)])
@pytest.mark.parametrize("limit", [16, 32, 64])
def test_a_limit_on_chips_is_kept_within_one_domain(held: tuple[int, ...], limit: int) -> None:
    asked = problem("gb200", limit)
    found = allocate(asked, PROFILE, Constraints(), racks(*held), lambda: True)
    assert found.cluster.num_chips <= limit
    assert step_time(asked, found.cluster) <= step_time(asked, asked.cluster) * (1 + 1e-9)


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "held", "group", "chips"),
    [
        ("qwen3-30b-a3b", (70, 60), 48, 96),
        ("llama-3-8b", (60, 68, 70), 48, 144),
        ("qwen3-30b-a3b", (56, 60, 71, 36), 48, 144),
    ],
)
def test_small_groups_of_more_chips_hide_no_large_ones(
    model: str, held: tuple[int, ...], group: int, chips: int
) -> None:
    asked = problems.problem(
        model, ("gb200", sum(held)), "megatron", seq_len=4096, global_batch=144
    )
    asked = replace(asked, cluster=replace(asked.cluster, chips_per_domain=None))
    found = allocate(asked, PROFILE, Constraints(), racks(*held), lambda: True)
    large = replace(asked.cluster, num_chips=chips, chips_per_domain=group)
    assert step_time(asked, found.cluster) <= step_time(asked, large) * (1 + 1e-9)


def test_what_time_left_untried_is_no_faster_than_said() -> None:
    asked, nodes = problem("gb200", 136), racks(72, 64)
    best = step_time(asked, allocate(asked, PROFILE, Constraints(), nodes, lambda: True).cluster)
    for asked_often in (1, 3, 10, 30):
        answers = iter([True] * asked_often)
        found = allocate(
            asked, PROFILE, Constraints(), nodes, lambda answers=answers: next(answers, False)
        )
        assert found.untried_bound_s <= best
        there = replace(asked, cluster=found.cluster)
        told = recommend(there, PROFILE, untried_bound_s=found.untried_bound_s)
        assert not told.certificate.exact
        assert told.fastest.prediction.step_time_s <= best * (1 + told.certificate.gap)


def test_what_cannot_be_is_refused() -> None:
    many = [Node(name=f"n{i}", chips=8, domain="a") for i in range(1, 5)]
    with pytest.raises(Invalid, match=r"has 8 chips, but domain 'a' \(n1, n2, n3, …\) has 32"):
        allocate(problem("h100", 32), PROFILE, Constraints(), many, lambda: True)
    with pytest.raises(Invalid, match="more than the 8 chips of the allocation"):
        allocate(
            problem("h100", 16),
            PROFILE,
            Constraints(),
            [Node(name="a", chips=8, domain="a")],
            lambda: True,
        )
    torus = replace(
        problem("h100", 16),
        stack=catalogue.stack("maxtext"),
        cluster=catalogue.cluster("tpu-v5p", 16),
    )
    with pytest.raises(Invalid):
        allocate(torus, PROFILE, Constraints(), [Node(name="a", chips=4, domain="a")], lambda: True)
    one = [Node(name="a", chips=1, domain="a")]
    with pytest.raises(Infeasible):
        allocate(problem("h100", 1), PROFILE, Constraints(allowed={"tp": (8,)}), one, lambda: True)


@pytest.mark.long
def test_of_few_nodes_one_more_is_not_slower() -> None:
    """42 of 44 chips, though 44 and 40 can be divided in more ways."""

    def seconds(held: int) -> float:
        asked = problems.problem(
            "deepseek-v2-lite", ("gh200", held), "megatron", seq_len=4096, global_batch=144
        )
        nodes = [Node(name=f"n{i}", chips=1, domain=f"n{i}") for i in range(held)]
        found = allocate(asked, PROFILE, Constraints(), nodes, lambda: True)
        return step_time(asked, found.cluster)

    times = [seconds(held) for held in (40, 42, 44, 46, 52)]
    assert times == sorted(times, reverse=True)


@pytest.mark.long
def test_of_groups_within_the_tolerance_those_with_the_simplest_layout_are_taken() -> None:
    asked = problems.problem(
        "llama-3.1-70b", ("gb200", 216), "megatron", seq_len=8192, global_batch=512
    )
    nodes = racks(72, 72, 36, 36)
    fastest = allocate(asked, PROFILE, Constraints(), nodes, lambda: True)
    simple = allocate(asked, PROFILE, Constraints(), nodes, lambda: True, tolerance=0.03)
    assert fastest.faster is None
    assert simple.faster is not None
    assert simple.faster.num_chips == fastest.cluster.num_chips
    whole = Constraints(use_all_chips=True)
    answers = [
        recommend(replace(asked, cluster=one.cluster), PROFILE, whole, tolerance=0.03)
        for one in (fastest, simple)
    ]
    assert answers[1].simplest.complexity < answers[0].simplest.complexity
    best_s = answers[0].fastest.prediction.step_time_s
    assert simple.faster.step_time_s == best_s
    assert best_s < answers[1].fastest.prediction.step_time_s <= 1.03 * best_s
