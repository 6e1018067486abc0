"""Collective times: conservation, placement, and published measurements."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.columns import Array
from models.cost.collectives import (
    Cost,
    all_to_all,
    collective_seconds,
    domains_in_reach,
    gather,
    links_of,
    reduce,
)
from models.cost.facts import LayerFacts, coefficient_records, record_type
from models.cost.problem_records import question
from models.cost.rows import rows_of
from models.cost.single_operations import collective_cost
from models.layouts.groups import DP_SHARD, TP, groups_for, set_group, set_groups
from models.spec import catalogue
from models.spec.hardware import Cluster
from models.spec.layout import AXES, Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import Coefficients, priors, shipped_profile
from models.spec.recompute import NONE
from models.spec.workload import Workload

C = shipped_profile().coefficients(("generation:hopper",))


def ideal(**changes: float) -> Coefficients:
    """Links at their rate, no latency."""
    perfect = dict.fromkeys(("scaleup", "scaleout", "alltoall"), 1.0)
    none = dict.fromkeys(("collective_s", "scaleup_hop_s", "scaleout_hop_s", "ring_step_s"), 0.0)
    rest = {name: getattr(C, name) for name in Coefficients.__slots__}
    return Coefficients(**{**rest, **perfect, **none, **changes})


def problem_on(cluster: Cluster) -> Problem:
    return Problem(
        architecture=catalogue.architecture("llama-3-8b"),
        cluster=cluster,
        workload=Workload(seq_len=4096, global_batch=cluster.num_devices),
        stack=catalogue.stack("generic"),
    )


def whole(cluster: Cluster, operation: str, c: Coefficients) -> Cost:
    """Over one group of all devices."""
    return collective_cost(problem_on(cluster), operation, c)


def seconds(cluster: Cluster, operation: str, c: Coefficients, size: float) -> float:
    """The same, of so many bytes."""
    return collective_seconds(whole(cluster, operation, c), size)


def rows(layouts: list[Layout]) -> Array:
    return rows_of(Layouts.of(layouts), np.array([NONE]), np.zeros(len(layouts)))


def test_a_gather_over_nodes_is_bound_by_the_network_cards_of_a_node_together() -> None:
    """Eight rings, of 50 GB/s where they leave a node, hand on all but a device's own part."""
    cluster = catalogue.cluster("dgx-h100-superpod", 256)
    time = seconds(cluster, "all_gather", ideal(), 32e9)
    assert time == pytest.approx(32e9 * (255 / 256) / (8 * 50e9))


@pytest.mark.parametrize(("nodes", "bus_gb_s"), [(4, 375.0), (8, 379.0), (16, 380.0), (128, 372.0)])
def test_bus_bandwidth_of_large_reductions_does_not_depend_on_nodes(
    nodes: int, bus_gb_s: float
) -> None:
    """nccl-tests of 16 GiB on DGX H100s (GTC 2024), against 94% of 400 Gb/s a device; bus bandwidth
    counts what a ring moves (nccl-tests doc/PERFORMANCE.md)."""
    cluster = catalogue.cluster("dgx-h100-superpod", 8 * nodes)
    ranks, size = 8 * nodes, 2.0**34
    time = seconds(cluster, "all_reduce", ideal(scaleout=0.94), size)
    assert size * 2 * (ranks - 1) / ranks / time / 1e9 == pytest.approx(bus_gb_s, rel=0.02)


def test_a_gather_within_a_node_is_bound_by_one_link() -> None:
    cluster = catalogue.cluster("h100", 8)
    time = seconds(cluster, "all_gather", ideal(), 8e9)
    assert time == pytest.approx(8e9 * (7 / 8) / 450e9)


def test_a_closed_torus_gathers_over_both_directions_of_all_its_dims() -> None:
    """The scaling book's rule: V / (2 directions x dims x link)."""
    cluster = catalogue.cluster("tpu-v5p", 512)
    time = seconds(cluster, "all_gather", ideal(), 512e9)
    assert time == pytest.approx(512e9 * (511 / 512) / (3 * 2 * 90e9))


def test_an_all_to_all_on_a_closed_ring_takes_a_quarter_of_a_gather() -> None:
    """An array of V bytes over n chips: V / (4 W) against V / W, W both directions (scaling book,
    sharding.md)."""
    cluster = Cluster(
        chip=catalogue.chip("tpu-v5e"),
        fabric=catalogue.chip("tpu-v5e").fabric,
        num_chips=16,
        torus_shape=(1, 16),
    )
    gathered = seconds(cluster, "all_gather", ideal(), 16e9) / (15 / 16)
    exchanged = seconds(cluster, "all_to_all", ideal(), 16e9 / 16)
    assert exchanged == pytest.approx(gathered / 4)


@given(st.sampled_from([2, 8, 32, 128, 512]), st.sampled_from([0.0, 1e4, 1e7, 1e10]))
def test_a_larger_scale_up_domain_slows_no_collective(degree: int, size: float) -> None:
    times = []
    for domain in (4, 8, 16, 64, 256):
        cluster = catalogue.cluster("h100", 1024)
        inner, *outer = cluster.fabric.levels
        cluster = replace(
            cluster, fabric=replace(cluster.fabric, levels=(replace(inner, size=domain), *outer))
        )
        q, c = question(problem_on(cluster), np.array([NONE])), coefficient_records(C)[0]
        group = groups_for(q.order)
        set_group(q.order, 0, 1, degree, group, TP)
        costs = [of(q.facts[0], q.dims, c, group, TP) for of in (gather, reduce, all_to_all)]
        times.append([collective_seconds(cost, size) for cost in costs])
    assert (np.diff(times, axis=0) <= 1e-12).all()


def test_an_all_to_all_does_not_gather_network_cards() -> None:
    cluster = catalogue.cluster("dgx-h100-superpod", 64)
    time = seconds(cluster, "all_to_all", ideal(), 1e9)
    assert time == pytest.approx(1e9 * (56 / 64) / 50e9)


@pytest.mark.parametrize(
    ("chip", "bus_gb_s", "source"),
    [
        ("h200", 361.0, "nccl-tests all-gather, 8 x H200"),
        ("b200", 680.0, "nccl-tests ring, 8 x B200"),
        ("a100", 232.0, "nccl-tests all-reduce, 8 x A100"),
    ],
)
def test_large_gathers_reach_the_measured_bus_bandwidth(
    chip: str, bus_gb_s: float, source: str
) -> None:
    """With the priors' efficiencies, before any training run is looked at; within 15%."""
    cluster = catalogue.cluster(chip, 8)
    c = priors().coefficients((f"generation:{cluster.chip.generation}",))
    size = 8 * 2.0**30
    time = seconds(cluster, "all_gather", c, size)
    assert size * (7 / 8) / time / 1e9 == pytest.approx(bus_gb_s, rel=0.15), source


def test_a_call_is_paid_whole_and_a_send_between_nodes_takes_their_hop() -> None:
    cluster = catalogue.cluster("h100", 64)
    assert whole(cluster, "all_to_all", C).latency_s > C.collective_s
    layouts = [
        Layout(pp=8, dp_shard=8),
        Layout(tp=4, pp=2, dp_shard=8, placement=("tp", "pp", *AXES[1:4])),
    ]
    q, c = question(problem_on(cluster), np.array([NONE])), coefficient_records(C)[0]
    room, dispatch = groups_for(q.order), np.empty((len(q.layers), 2))
    outside, inside = (
        links_of(q.facts[0], q.layers, q.dims, q.order, row, c, room, dispatch).send.latency_s
        for row in rows(layouts)
    )
    assert (outside, inside) == (C.scaleout_hop_s, C.scaleup_hop_s)


def test_a_ring_waits_at_every_hop_and_a_tree_at_every_doubling() -> None:
    """NCCL has rings for gathers and trees too for all-reduces (src/graph/tuning.cc)."""
    c = ideal(collective_s=0.0, scaleup_hop_s=1e-6, scaleout_hop_s=1e-5)
    nodes = catalogue.cluster("dgx-h100-superpod", 8 * 64)
    gathered = seconds(nodes, "all_gather", c, 0.0)
    assert gathered == pytest.approx(64 * 7 * 1e-6 + 63 * 1e-5)
    assert seconds(nodes, "all_reduce", c, 0.0) < 2 * gathered
    small = catalogue.cluster("h100", 2)
    assert seconds(small, "all_reduce", c, 0.0) == pytest.approx(2e-6)


@pytest.mark.parametrize("step", [0.0, 4e-6, 2e-5])
def test_every_step_of_a_ring_that_leaves_a_node_takes_what_its_network_needs(step: float) -> None:
    """NCCL src/graph/tuning.cc; and no group is faster for being spread over more nodes."""
    c = ideal(scaleup_hop_s=1e-6, scaleout_hop_s=1e-5, ring_step_s=step)
    node, nodes = (catalogue.cluster("dgx-h100-superpod", chips) for chips in (8, 64))
    expected = 8 * 7 * (1e-6 + step) + 7 * (1e-5 + step)
    assert seconds(nodes, "all_gather", c, 0.0) == pytest.approx(expected)
    assert seconds(node, "all_gather", c, 0.0) == pytest.approx(7e-6)
    q, of_c = question(problem_on(nodes), np.array([NONE])), coefficient_records(c)[0]
    layouts = [Layout(tp=tp, dp_shard=8, dp_replicate=8 // tp) for tp in (1, 2, 4, 8)]
    spread, groups = [], groups_for(q.order)
    for row in rows(layouts):
        set_groups(q.order, row, groups)
        spread.append(gather(q.facts[0], q.dims, of_c, groups, DP_SHARD).latency_s)
    assert (np.diff(spread) >= 0).all()


@pytest.mark.parametrize(
    ("cluster", "chips", "dtype", "tokens", "printed"),
    [
        (
            "tpu-v5p",
            512,
            "bf16",
            850,
            "jax-ml/scaling-book training.md: 2550 / 3 axes, B/X for FSDP on v5p",
        ),
        (
            "dgx-h100-superpod",
            2048,
            "bf16",
            2475,
            "jax-ml/scaling-book gpus.md: 990e12 / 400e9 tokens per GPU on H100",
        ),
        ("b200", 2048, "bf16", 5625, "the same rule: 2250e12 / 400e9 on nodes of 8 B200"),
    ],
)
def test_fsdp_turns_communication_bound_where_the_scaling_book_says(
    cluster: str, chips: int, dtype: str, tokens: float, printed: str
) -> None:
    """Gathering a bf16 matrix of P parameters takes as long as 2 P FLOPs for each of so many tokens
    a chip."""
    where = catalogue.cluster(cluster, chips)
    parameters = 1e12
    gathering = seconds(where, "all_gather", ideal(), 2 * parameters)
    assert gathering * where.peak_flops(dtype) / (2 * parameters) == pytest.approx(
        tokens, rel=0.01
    ), printed


def test_tensor_parallelism_turns_communication_bound_where_the_scaling_book_says() -> None:
    """At Y = F · W / C on one closed axis (training.md): activations of B x D gathered and
    scattered against the 4 B D F / Y FLOPs of a feed-forward of width F; C / W = 1.97e14 / 9e10 on
    v5e."""
    chip = catalogue.chip("tpu-v5e")
    cluster = Cluster(chip=chip, fabric=chip.fabric, num_chips=16, torus_shape=(1, 16))
    tokens, hidden, width = 1e6, 8192, 16 * 1.97e14 / 9e10
    moved = 2 * seconds(cluster, "all_gather", ideal(), 2 * tokens * hidden) / (15 / 16)
    computed = 4 * tokens * hidden * width / 16 / cluster.peak_flops("bf16")
    assert moved == pytest.approx(computed, rel=0.01)


@pytest.mark.parametrize("chips", [4, 100, 256, 288, 1024])
def test_trays_within_a_rack_are_nothing_to_the_rack(chips: int) -> None:
    """dgx-gb200-superpod has both as levels, gb200 the rack alone."""
    nested, plain = (catalogue.cluster(name, chips) for name in ("dgx-gb200-superpod", "gb200"))
    for change in (
        {},
        {"domain": 8},
        {"domain": 36},
        {"domain": 144},
        {"scale_up": 2.0},
        {"scale_out": 0.5},
    ):
        links = [
            [(dim.domain, dim.gb_s) for dim in one.with_changes(**change).dims]
            for one in (nested, plain)
        ]
        assert links[0] == links[1]


def test_a_network_as_fast_as_scale_up_links_is_a_network_still() -> None:
    cluster = catalogue.cluster("h100", 64)
    up, out = cluster.fabric.levels
    alike = replace(
        cluster,
        fabric=replace(cluster.fabric, levels=(up, replace(out, gb_s_per_chip=up.gb_s_per_chip))),
    )
    assert [(dim.scale, dim.domain) for dim in alike.dims] == [("up", 8), ("out", 64)]


@pytest.mark.parametrize("groups", [(8, 4), (8, 3), (4, 2), (1, 1)])
@pytest.mark.parametrize("domains", [1, 2, 4, 8, 16])
def test_groups_of_experts_reach_as_many_domains_as_their_choices_do(
    groups: tuple[int, int], domains: int
) -> None:
    """The mean over every choice of groups, experts dealt out to groups and to domains in a row."""
    count, chosen = groups
    layer = np.zeros(1, record_type(LayerFacts))[0]
    layer["num_groups"], layer["groups_per_token"] = count, chosen
    expert = np.arange(64)
    group, domain = expert * count // 64, expert * domains // 64
    reached = [
        len(set(domain[np.isin(group, some)])) for some in combinations(range(count), chosen)
    ]
    assert domains_in_reach(layer, float(domains)) == pytest.approx(np.mean(reached))


def test_a_token_of_few_groups_is_sent_to_fewer_nodes() -> None:
    """DeepSeek-V3's 8 experts of 4 of 8 groups, on 8 nodes: 4 (1 - (3/4)^8) of them, not 8 (1 -
    (7/8)^8)."""
    model = catalogue.architecture("deepseek-v3")
    (moe,) = {layer.moe for layer in model.kinds if layer.moe}
    free = replace(moe, num_groups=1, groups_per_token=1)
    everywhere = [
        replace(layer, feed_forward=free) if layer.moe else layer for layer in model.layers
    ]
    (row,) = rows([Layout(ep=64, dp_shard=64, zero_stage=1)])
    costs = []
    for architecture in (model, replace(model, layers=tuple(everywhere))):
        problem = Problem(
            architecture=architecture,
            cluster=catalogue.cluster("h100", 64),
            workload=Workload(seq_len=4096, global_batch=64),
            stack=catalogue.stack("megatron"),
        )
        q = question(problem, np.array([NONE]))
        c = coefficient_records(shipped_profile().coefficients(problem.scopes))[0]
        dispatch = np.empty((len(q.layers), 2))
        links_of(q.facts[0], q.layers, q.dims, q.order, row, c, groups_for(q.order), dispatch)
        (byte_s,) = {float(dispatch[i, 0]) for i, of in enumerate(architecture.kinds) if of.moe}
        costs.append(byte_s)
    met = [4 * (1 - 0.75**8), 8 * (1 - 0.875**8)]
    assert costs[0] / costs[1] == pytest.approx(met[0] / met[1])


@pytest.mark.parametrize("nodes", [2, 16])
def test_twice_the_nodes_lengthen_a_tree_by_what_was_measured(nodes: int) -> None:
    """Over hops of 4.5 us an all-reduce took 90 us more, there and back, for twice the nodes: 45 us
    one way, which an all-to-all pays."""
    c = ideal(scaleout_hop_s=4.5e-6)

    def latency(count: int) -> float:
        cluster = catalogue.cluster("h100", 8 * count)
        return whole(cluster, "all_to_all", c).latency_s

    assert latency(2 * nodes) - latency(nodes) == pytest.approx(45e-6)
