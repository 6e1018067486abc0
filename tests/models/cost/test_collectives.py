"""What collectives cost, against a count of the bytes on every link and of the hops of a message.

Each test writes down who sends what to whom, lays it over links, and takes the busiest of them.
Links of nested levels are nested too: what leaves a domain passes the links of all levels inside
that join members of the group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, permutations, product
from math import log2, prod

import numpy as np
import pytest

from models.columns import Array
from models.cost.collectives import Cost, Links, collective_seconds, links_of
from models.cost.facts import coefficient_records
from models.cost.problem_records import question
from models.cost.rows import rows_of
from models.layouts.groups import (
    CP,
    DP_REPLICATE,
    EDP,
    EP,
    ETP,
    PP,
    REPLICAS,
    SHARDING,
    TP,
    groups_for,
)
from models.spec import catalogue
from models.spec.hardware import Cluster, Level
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import Coefficients, shipped_profile
from models.spec.recompute import NONE
from models.spec.workload import Workload
from tests.models.cost.random_meshes import (
    EXPERTS,
    JOINED,
    random_meshes,
    straddles_stages,
    written_down,
)

UP, OUT, CALL, HOP, FAR_HOP, STEP, EXCHANGED = 0.8, 0.6, 7e-6, 1e-6, 5e-6, 2e-6, 0.7
"""Coefficients that can be told apart."""
TOLD_APART = {
    "scaleup": UP,
    "scaleout": OUT,
    "collective_s": CALL,
    "scaleup_hop_s": HOP,
    "scaleout_hop_s": FAR_HOP,
    "ring_step_s": STEP,
    "alltoall": EXCHANGED,
}
MESHES = 12
"""On every cluster."""

Flow = tuple[int, int, float]
"""Who sends how much to whom."""


def close(expected: object) -> object:
    """What differs from it by rounding; a second a byte is little."""
    return pytest.approx(expected, rel=1e-9, abs=0.0)


# -- clusters of few devices


def switched(*levels: tuple[int, float], peer_gb_s: float | None = None) -> Cluster:
    """Nested levels, from the inside out: devices that they join, and GB/s of one. The innermost
    has scale-up links, perhaps without a switch."""
    of = [
        Level(
            name=f"level {index}",
            gb_s_per_chip=gb_s,
            size=size,
            scale="out" if index else "up",
            peer_gb_s=None if index else peer_gb_s,
        )
        for index, (size, gb_s) in enumerate(levels)
    ]
    chip = catalogue.chip("h100")
    fabric = replace(chip.fabric, levels=tuple(of))
    return Cluster(chip=chip, fabric=fabric, num_chips=levels[-1][0])


def torus(*shape: int, closed: bool, slices: int = 1) -> Cluster:
    """Links of 10 GB/s, and 5 GB/s between slices."""
    chip = catalogue.chip("tpu-v5p")
    assert chip.fabric.torus
    wrap_length = 1 if closed else 10**6
    of = replace(chip.fabric.torus, gb_s_per_link=10.0, wrap="cubes", wrap_length=wrap_length)
    network = Level(name="network", gb_s_per_chip=5.0)
    return Cluster(
        chip=chip,
        fabric=replace(chip.fabric, torus=of, levels=(network,)),
        num_chips=prod(shape) * slices,
        torus_shape=shape,
    )


SWITCHED = {
    "one switch": switched((8, 100.0)),
    "nodes": switched((4, 100.0), (16, 10.0)),
    "a network that is faster": switched((4, 30.0), (24, 400.0)),
    "nodes in racks": switched((2, 90.0), (12, 20.0), (24, 5.0)),
    "racks on a faster spine": switched((2, 20.0), (8, 4.0), (32, 40.0)),
}


def problem_on(cluster: Cluster, model: str = "mixtral-8x7b", **switches: object) -> Problem:
    return Problem(
        architecture=catalogue.architecture(model),
        cluster=cluster,
        workload=Workload(seq_len=4096, global_batch=cluster.num_devices),
        stack=replace(catalogue.stack("generic"), **switches),  # type: ignore[arg-type]
    )


def costs(problem: Problem, layout: Layout, **changes: float) -> tuple[Links, Cost]:
    """Of all axes, and of an exchange of tokens in the first sparse kind of layer."""
    c = Coefficients(
        **{
            name: {**TOLD_APART, **changes}.get(name, value)
            for name, value in _shipped_coefficients().items()
        }
    )
    q, dispatch = question(problem, np.array([NONE])), np.empty((8, 2))
    (row,) = rows_of(Layouts.of([layout]), np.array([NONE]), np.zeros(1))
    room, of_c = groups_for(q.order), coefficient_records(c)[0]
    links = links_of(q.facts[0], q.layers, q.dims, q.order, row, of_c, room, dispatch)
    return links, Cost(*dispatch[list(q.layers["sparse"]).index(True)])


def _shipped_coefficients() -> dict[str, float]:
    c = shipped_profile().coefficients(())
    return {name: getattr(c, name) for name in Coefficients.__slots__}


# -- a fabric of nested switches


def efficiency(scale: str) -> float:
    return UP if scale == "up" else OUT


def outermost(cluster: Cluster, one: int, other: int) -> int:
    """The level that joins two devices."""
    return next(
        at for at, dim in enumerate(cluster.dims) if one // dim.domain == other // dim.domain
    )


def busiest_switched_link(cluster: Cluster, groups: Iterable[Iterable[Flow]]) -> float:
    """Seconds until the link of a device with most to carry for its rate has carried it, where
    these are the messages of each group."""
    sent, received = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for flows in map(list, groups):
        joining = {outermost(cluster, one, other) for one, other, _ in flows}
        for one, other, size in flows:
            for level in joining:
                if level <= outermost(cluster, one, other):
                    sent[one, level] += size
                    received[other, level] += size
    return max(
        size / (cluster.dims[level].gb_s * 1e9 * efficiency(cluster.dims[level].scale))
        for (_, level), size in (*sent.items(), *received.items())
    )


def is_even(cluster: Cluster, members: Array) -> bool:
    """Whether every domain that has members of a group has as many as any other."""
    for dim in cluster.dims:
        group = np.arange(len(members))[:, None]
        _, count = np.unique(group * 2**32 + members // dim.domain, return_counts=True)
        if len(set(count)) > 1:
            return False
    return True


def rings(cluster: Cluster, members: Sequence[int], level: int) -> list[list[int]]:
    """As many rings as there are members, each of which enters and leaves every domain once, and
    by another member."""
    if len(members) == 1:
        return [list(members)]
    inside = cluster.dims[level - 1].domain if level else 1
    parts = [
        rings(cluster, [rank for rank in members if rank // inside == domain], level - 1)
        for domain in sorted({rank // inside for rank in members})
    ]
    turned = [parts[first:] + parts[:first] for first in range(len(parts))]
    return [
        [rank for part in turn for rank in part[which]]
        for turn in turned
        for which in range(len(parts[0]))
    ]


def ring_gather(cluster: Cluster, members: Sequence[int]) -> Iterator[Flow]:
    """Every ring hands on its share of all parts but one over every hop."""
    found = rings(cluster, members, len(cluster.dims) - 1)
    n = len(members)
    for ring in found:
        for one, other in pairwise([*ring, ring[0]]):
            yield one, other, (n - 1) / n / len(found)


def exchange(members: Sequence[int]) -> Iterator[Flow]:
    for one, other in permutations(members, 2):
        yield one, other, 1 / len(members)


def switched_groups(name: str, layout: Layout, group: int) -> list[list[int]] | None:
    """None where there is one member, or where groups, or those of an axis of several, are not
    spread evenly over domains."""
    if group in EXPERTS and straddles_stages(layout, group):
        return None
    members = written_down(layout, group)
    axes = [members, *(written_down(layout, axis) for axis in JOINED.get(group, ()))]
    if members.shape[1] == 1 or not all(is_even(SWITCHED[name], axis) for axis in axes):
        return None
    return [sorted(one) for one in members.tolist()]


GATHERED = {"tp": TP, "etp": ETP, "cp": CP, "edp": EDP, "sharding": SHARDING}
REDUCED = {"tp_reduce": TP, "replicate": DP_REPLICATE, "replicas": REPLICAS}


@pytest.mark.parametrize("name", SWITCHED)
def test_gathers_and_reductions_are_as_busy_as_their_rings(name: str) -> None:
    cluster, found = SWITCHED[name], 0
    for layout in random_meshes(cluster, np.random.default_rng(len(name)), MESHES):
        links, _ = costs(problem_on(cluster, context="ring"), layout)
        for term, group in (*GATHERED.items(), *REDUCED.items()):
            groups = switched_groups(name, layout, group)
            if groups:
                flows = [ring_gather(cluster, one) for one in groups]
                times = 2 if term in REDUCED else 1
                expected = times * busiest_switched_link(cluster, flows)
                assert getattr(links, term).byte_s == close(expected), (term, layout)
                found += 1
    assert found > MESHES


@pytest.mark.parametrize("name", SWITCHED)
def test_exchanges_are_as_busy_as_all_their_messages(name: str) -> None:
    cluster, found = SWITCHED[name], 0
    for layout in random_meshes(cluster, np.random.default_rng(len(name)), MESHES):
        switches = {"context": "ulysses", "dispatcher": "alltoall"}
        links, dispatch = costs(problem_on(cluster, **switches), layout)
        for cost, group in ((links.cp, CP), (dispatch, EP)):
            groups = switched_groups(name, layout, group)
            if groups:
                flows = [exchange(one) for one in groups]
                expected = busiest_switched_link(cluster, flows) / EXCHANGED
                assert cost.byte_s == close(expected), layout
                found += 1
    assert found > MESHES / 2


@pytest.mark.parametrize("name", SWITCHED)
def test_a_ring_has_the_hops_that_are_walked(name: str) -> None:
    """From the first member to the last; the network adds to every step of a ring between
    domains."""
    cluster = SWITCHED[name]
    for layout in random_meshes(cluster, np.random.default_rng(len(name)), MESHES):
        links, _ = costs(problem_on(cluster, context="ring"), layout)
        for term, group in GATHERED.items():
            groups = switched_groups(name, layout, group)
            if groups:
                walked = ring_s(cluster, groups[0])
                assert getattr(links, term).latency_s == close(CALL + walked)


def ring_s(cluster: Cluster, members: Sequence[int]) -> float:
    far = [
        cluster.dims[outermost(cluster, one, other)].scale == "out"
        for one, other in pairwise(members)
    ]
    step = STEP if any(far) else 0.0
    return sum((FAR_HOP if is_far else HOP) + step for is_far in far)


def tree_s(cluster: Cluster, members: Sequence[int]) -> float:
    """10 hops for every doubling of nodes; within a node 3.2 for every doubling of members, or a
    chain where that is shorter."""
    domain = max(dim.domain for dim in cluster.dims if dim.scale == "up")
    nodes = len({rank // domain for rank in members})
    inside = len(members) / nodes
    return min(inside - 1, 3.2 * log2(inside)) * HOP + 10 * log2(nodes) * FAR_HOP


@pytest.mark.parametrize("name", SWITCHED)
def test_reductions_and_exchanges_wait_for_a_tree(name: str) -> None:
    """There and back, unless a ring is shorter; or once."""
    cluster = SWITCHED[name]
    for layout in random_meshes(cluster, np.random.default_rng(len(name)), MESHES):
        switches = {"context": "ulysses", "dispatcher": "alltoall"}
        links, dispatch = costs(problem_on(cluster, **switches), layout)
        for term, group in REDUCED.items():
            groups = switched_groups(name, layout, group)
            if groups:
                path = min(ring_s(cluster, groups[0]), tree_s(cluster, groups[0]))
                assert getattr(links, term).latency_s == close(CALL + 2 * path)
        for cost, group in ((links.cp, CP), (dispatch, EP)):
            groups = switched_groups(name, layout, group)
            if groups:
                assert cost.latency_s == close(CALL + tree_s(cluster, groups[0]))


@pytest.mark.parametrize("name", SWITCHED)
def test_a_send_is_as_slow_as_the_slowest_between_neighbours(name: str) -> None:
    cluster = SWITCHED[name]
    for layout in random_meshes(cluster, np.random.default_rng(len(name)), MESHES):
        groups = switched_groups(name, layout, PP)
        if groups:
            links, _ = costs(problem_on(cluster), layout)
            joins = {
                cluster.dims[outermost(cluster, one, other)]
                for members in groups
                for one, other in pairwise(members)
            }
            slowest = max(1 / (dim.gb_s * 1e9 * efficiency(dim.scale)) for dim in joins)
            hop = max(FAR_HOP if dim.scale == "out" else HOP for dim in joins)
            assert links.send == close((slowest, hop))


@pytest.mark.parametrize("name", SWITCHED)
def test_an_axis_crosses_domains_where_some_members_are_in_others(name: str) -> None:
    cluster = SWITCHED[name]
    domain = max(dim.domain for dim in cluster.dims if dim.scale == "up")
    for layout in random_meshes(cluster, np.random.default_rng(len(name)), MESHES):
        links, _ = costs(problem_on(cluster), layout)
        crossing = ((links.tensor_across_domains, TP), (links.expert_across_domains, EP))
        for crosses, group in crossing:
            if not (group in EXPERTS and straddles_stages(layout, group)):
                assert crosses == (np.ptp(written_down(layout, group) // domain, axis=1) > 0).any()
        assert links.dense_shards == layout.dp_shard * layout.cp
        assert links.expert_shards == written_down(layout, EDP).shape[1]


@pytest.mark.parametrize(("members", "gb_s"), [(2, 70.0), (4, 70.0), (8, 70.0), (8, 40.0)])
def test_without_a_switch_each_pair_has_a_link_of_its_own(members: int, gb_s: float) -> None:
    """Of 10 GB/s, between eight devices; together they carry no more than a device can send."""
    cluster = switched((8, gb_s), peer_gb_s=10.0)
    whole = Layout(tp=members, cp=8 // members)
    exchanged = Layout(cp=members, tp=8 // members, placement=_CP_FIRST)
    pair = 1 / members / (10e9 * UP)
    device = (members - 1) / members / (gb_s * 1e9 * UP)
    problem = problem_on(cluster, context="ulysses")
    assert costs(problem, whole)[0].tp.byte_s == close(max(pair, device))
    found = costs(problem, exchanged)[0].cp.byte_s
    assert found == close(max(pair, device) / EXCHANGED)
    stages = Layout(pp=members, tp=8 // members)
    assert costs(problem, stages)[0].send.byte_s == close(1 / (10e9 * UP))


_CP_FIRST = ("cp", "tp", "dp_shard", "dp_replicate", "pp")


# -- a torus


Place = tuple[int, ...]
TorusLink = tuple[Place, int, int]
"""From a place, along a dim, one way or the other."""


class TorusFabric:
    """The links of a torus and what they carry, one device after the other along the last of its
    dims first."""

    def __init__(self, cluster: Cluster) -> None:
        self.lengths = [length for length, _ in cluster.slice_dims if length > 1]
        self.closed = any(closes for _, closes in cluster.slice_dims)

    def place(self, rank: int) -> Place:
        return tuple(int(x) for x in np.unravel_index(rank, self.lengths))

    def walk(self, start: Place, dim: int, steps: int) -> Iterator[TorusLink]:
        """The links of so many steps along a dim, forwards or backwards."""
        at, way = list(start), 1 if steps > 0 else -1
        for _ in range(abs(steps)):
            yield tuple(at), dim, way
            at[dim] = (at[dim] + way) % self.lengths[dim]

    def exchange(self, members: Sequence[int]) -> Counter[TorusLink]:
        """Each message goes dim by dim, the shorter way round, or half of it each way."""
        load = Counter[TorusLink]()
        places = [self.place(rank) for rank in members]
        covers = [len({at[dim] for at in places}) for dim in range(len(self.lengths))]
        for start, end in permutations(places, 2):
            at = list(start)
            for dim, length in enumerate(self.lengths):
                steps = end[dim] - at[dim]
                ways = [steps]
                if self.closed and length % covers[dim] == 0 and self.covers(places, dim):
                    other = steps - length if steps > 0 else steps + length
                    nearest = min(abs(steps), abs(other))
                    ways = [way for way in (steps, other) if abs(way) == nearest]
                for way in ways:
                    for link in self.walk(tuple(at), dim, way):
                        load[link] += 1 / len(members) / len(ways)
                at[dim] = end[dim]
        return load

    def covers(self, places: Sequence[Place], dim: int) -> bool:
        """Whether equally far steps from member to member come round a closed ring."""
        along = sorted({at[dim] for at in places})
        apart = {b - a for a, b in pairwise([*along, along[0] + self.lengths[dim]])}
        return self.closed and len(apart) == 1

    def gather(self, members: Sequence[int]) -> list[Counter[TorusLink]]:
        """Phase by phase. Each dim begins with a part of its own, and goes on along the next; over
        a closed ring half of what a member has goes each way, over a line all of it both ways."""
        places = [self.place(rank) for rank in members]
        used = [dim for dim in range(len(self.lengths)) if len({at[dim] for at in places}) > 1]
        phases = [Counter[TorusLink]() for _ in used]
        for first in range(len(used)):
            size = 1 / len(used) / len(members)
            for phase, load in enumerate(phases):
                dim = used[(first + phase) % len(used)]
                for line in self.lines(places, dim):
                    self.gather_line(line, dim, size, self.covers(places, dim), load)
                size *= len({at[dim] for at in places})
        return phases

    def lines(self, places: Sequence[Place], dim: int) -> list[list[Place]]:
        others = {at[:dim] + at[dim + 1 :] for at in places}
        return [
            sorted(at for at in places if at[:dim] + at[dim + 1 :] == other) for other in others
        ]

    def gather_line(
        self, line: list[Place], dim: int, size: float, closed: bool, load: Counter[TorusLink]
    ) -> None:
        for start in line:
            along = [at[dim] - start[dim] for at in line]
            if closed:
                apart = self.lengths[dim] // len(line)
                ways = [(apart * (len(line) - 1), size / 2), (-apart * (len(line) - 1), size / 2)]
            else:
                ways = [(max(along), size), (min(along), size)]
            for steps, sent in ways:
                for link in self.walk(start, dim, steps):
                    load[link] += sent


def together(loads: Iterable[Counter[TorusLink]]) -> float:
    """Seconds of the busiest link of all groups at once."""
    return max(sum(loads, Counter[TorusLink]()).values(), default=0.0) / (10e9 * UP)


TORI = {
    "a closed ring": (torus(1, 1, 8, closed=True), Layout(cp=8)),
    "a line": (torus(1, 1, 8, closed=False), Layout(cp=8)),
    "a piece of a closed ring": (torus(1, 1, 8, closed=True), Layout(cp=4, dp_shard=2)),
    "two groups on a ring": (torus(1, 1, 8, closed=True), Layout(tp=2, cp=4)),
    "four groups on a line": (torus(1, 1, 8, closed=False), Layout(tp=4, cp=2)),
    "a square": (torus(1, 4, 4, closed=True), Layout(cp=16)),
    "an open square": (torus(1, 4, 4, closed=False), Layout(cp=16)),
    "a cube": (torus(4, 4, 4, closed=True), Layout(cp=64)),
    "every other device of a cube": (torus(2, 4, 4, closed=True), Layout(tp=2, cp=4, dp_shard=4)),
    "columns": (torus(4, 4, 4, closed=True), Layout(tp=16, cp=4)),
    "planes": (torus(4, 4, 4, closed=True), Layout(tp=4, cp=16)),
}


@pytest.mark.parametrize("name", TORI)
def test_a_torus_exchanges_as_fast_as_its_busiest_link(name: str) -> None:
    cluster, layout = TORI[name]
    fabric = TorusFabric(cluster)
    loads = (fabric.exchange(one) for one in written_down(layout, CP).tolist())
    found = costs(problem_on(cluster, context="ulysses"), layout)[0].cp.byte_s
    assert found == close(together(loads) / EXCHANGED)


@pytest.mark.parametrize("shape", [(2, 4, 8), (1, 8, 4), (8, 2, 2)])
@pytest.mark.parametrize("closed", [True, False])
def test_an_exchange_takes_as_long_as_along_the_longest_dim(
    shape: tuple[int, ...], closed: bool
) -> None:
    cluster = torus(*shape, closed=closed)
    layout, fabric = Layout(cp=prod(shape)), TorusFabric(cluster)
    found = costs(problem_on(cluster, context="ulysses"), layout)[0].cp.byte_s
    busiest = together([fabric.exchange(range(prod(shape)))])
    assert found == close(busiest / EXCHANGED)


@pytest.mark.parametrize("name", TORI)
def test_a_torus_gathers_over_all_dims_at_once(name: str) -> None:
    cluster, layout = TORI[name]
    fabric = TorusFabric(cluster)
    groups = [fabric.gather(one) for one in written_down(layout, CP).tolist()]
    seconds = sum(together(phase) for phase in zip(*groups, strict=True))
    found = costs(problem_on(cluster, context="ring"), layout)[0].cp.byte_s
    assert found == close(seconds)


@pytest.mark.parametrize("closed", [True, False])
def test_no_torus_gathers_faster_than_links_bring_what_a_device_lacks(closed: bool) -> None:
    """Of dims of different lengths too; on a line over one link of each, at its ends."""
    cluster = torus(2, 4, 8, closed=closed)
    found = costs(problem_on(cluster, context="ring"), Layout(cp=64))[0].cp.byte_s
    assert found == close(63 / 64 / ((6 if closed else 3) * 10e9 * UP))


@pytest.mark.parametrize("slices", [2, 4])
def test_between_slices_a_gather_takes_its_time_apart(slices: int) -> None:
    """Devices in the same place of all slices gather first, 1/64 of everything to each."""
    one, several = (torus(4, 4, 4, closed=True, slices=n) for n in (1, slices))
    within, both = (
        costs(problem_on(cluster, context="ring"), Layout(cp=cluster.num_devices))[0].cp
        for cluster in (one, several)
    )
    between = (slices - 1) / slices / 64 / (5e9 * OUT)
    whole_ring = 1 / (6 * 10e9 * UP)
    assert within.byte_s + between <= both.byte_s <= whole_ring + between
    assert both.latency_s - within.latency_s == close((slices - 1) * FAR_HOP)


def test_messages_go_half_way_round_the_longest_ring() -> None:
    """From every device of a line to its end; over a tree of slices, or from slice to slice."""
    for closed, hops in ((True, 3.5), (False, 7.0)):
        cluster = torus(1, 4, 8, closed=closed, slices=2)
        links, _ = costs(problem_on(cluster, context="ulysses"), Layout(cp=64))
        assert links.cp.latency_s == close(CALL + hops * HOP + 10 * FAR_HOP)
        links, _ = costs(problem_on(cluster, context="ring"), Layout(cp=64))
        assert links.cp.latency_s == close(CALL + hops * HOP + FAR_HOP)
        links, _ = costs(problem_on(cluster), Layout(dp_replicate=64))
        assert links.replicate.latency_s == close(CALL + 2 * (hops * HOP + FAR_HOP))
    strided, _ = costs(problem_on(torus(1, 1, 8, closed=True)), Layout(tp=2, dp_replicate=4))
    assert strided.replicate.latency_s == close(CALL + 2 * 3 * HOP)


# -- tokens for experts


def routed(problem: Problem, **changes: int) -> Problem:
    """With other experts in every sparse layer."""
    layers = [
        replace(layer, feed_forward=replace(layer.moe, **changes)) if layer.moe else layer
        for layer in problem.architecture.layers
    ]
    return replace(problem, architecture=replace(problem.architecture, layers=tuple(layers)))


def mean_domains(domains: int, chosen: int) -> float:
    """Over all choices of domains, one for every expert that a token chooses, and all as likely."""
    return float(np.mean([len(set(choice)) for choice in product(range(domains), repeat=chosen)]))


@pytest.mark.parametrize("nodes", [2, 3, 6])
@pytest.mark.parametrize("chosen", [1, 2, 4])
@pytest.mark.parametrize("limit", [None, 1, 2])
def test_a_token_is_sent_once_to_each_node_that_has_experts_of_it(
    nodes: int, chosen: int, limit: int | None
) -> None:
    """Or to no more nodes than it may choose; and within its node once to each expert."""
    ranks = 4 * nodes
    cluster = switched((4, 100.0), (ranks, 1.0))
    layout = Layout(dp_shard=ranks, ep=ranks)
    all_copies, once = (
        costs(
            routed(problem_on(cluster, dispatcher=dispatcher, node_limit=limit),
                   num_experts=ranks, experts_per_token=chosen, num_groups=1, groups_per_token=1),
            layout,
        )[1]
        for dispatcher in ("alltoall", "deduplicated")
    )  # fmt: skip
    copies = min(mean_domains(nodes, chosen), limit or nodes, chosen)
    within = (1 - 1 / ranks) / (100e9 * UP * EXCHANGED)
    expected = max(all_copies.byte_s * copies / chosen, within)
    assert all_copies.byte_s == close((1 - 1 / nodes) / (1e9 * OUT * EXCHANGED))
    assert once == close((expected, all_copies.latency_s))


def test_each_level_of_domains_receives_a_token_once() -> None:
    """Racks of three nodes of two: of six nodes, and of two racks. Racks limit routing as nodes
    do."""
    cluster, layout = switched((2, 1e4), (6, 1e4), (12, 1.0)), Layout(dp_shard=12, ep=12)
    for slow, domains in ((1, 6), (2, 2)):
        levels = [(2, 1e4), (6, 1e4), (12, 1e4)]
        levels[slow] = (levels[slow][0], 1.0)
        cluster = switched(*levels)
        one, other = (
            costs(routed(problem_on(cluster, dispatcher=dispatcher, node_limit=None),
                         num_experts=12, experts_per_token=3), layout)[1].byte_s
            for dispatcher in ("alltoall", "deduplicated")
        )  # fmt: skip
        assert other / one == close(mean_domains(domains, 3) / 3)


@pytest.mark.parametrize("shape", [(1, 4, 8), (1, 8, 4)])
def test_dims_of_a_torus_are_no_domains(shape: tuple[int, ...]) -> None:
    cluster, layout = torus(*shape, closed=True), Layout(dp_shard=32, ep=32)
    one, other = (
        costs(routed(problem_on(cluster, dispatcher=dispatcher), num_experts=32), layout)[1]
        for dispatcher in ("alltoall", "deduplicated")
    )
    assert one == other


def test_nodes_are_limited_and_not_what_scale_up_links_join() -> None:
    """Trays of two chips, on slower links within a rack of eight."""
    inner, outer = switched((2, 100.0), (8, 1.0)).fabric.levels
    cluster = switched((2, 100.0), (8, 1.0))
    rack = replace(cluster.fabric, levels=(inner, replace(outer, scale="up")))
    one, other = (
        costs(
            routed(
                problem_on(on, dispatcher="deduplicated", node_limit=1),
                num_experts=8,
                experts_per_token=4,
            ),
            Layout(dp_shard=8, ep=8),
        )[1].byte_s
        for on in (cluster, replace(cluster, fabric=rack))
    )
    assert one == close(1 / 4 * (1 - 2 / 8) / (1e9 * OUT * EXCHANGED))
    assert other == close(mean_domains(4, 4) / 4 * (1 - 2 / 8) / (1e9 * UP * EXCHANGED))


def test_a_dispatcher_may_gather_all_tokens() -> None:
    cluster = SWITCHED["nodes"]
    layout = Layout(dp_shard=16, ep=16)
    dispatch = costs(problem_on(cluster, dispatcher="allgather"), layout)[1]
    assert dispatch == costs(problem_on(cluster), Layout(tp=16))[0].tp


# -- of any collective


def test_one_member_waits_for_nobody() -> None:
    for cluster in (SWITCHED["nodes in racks"], torus(2, 4, 4, closed=True)):
        for context in ("ring", "ulysses"):
            alone = Layout(dp_replicate=cluster.num_devices)
            links, dispatch = costs(problem_on(cluster, context=context), alone)
            costly = {
                name
                for name, of in links._asdict().items()
                if isinstance(of, tuple) and max(of) > 0
            }
            assert costly == {"replicate", "replicas", "edp"}
            assert dispatch == (0.0, 0.0)


def test_layers_without_experts_exchange_no_tokens() -> None:
    problem = problem_on(SWITCHED["nodes"], model="deepseek-v3")
    q, dispatch = question(problem, np.array([NONE])), np.full((2, 2), np.nan)
    (row,) = rows_of(Layouts.of([Layout(dp_shard=16, ep=16)]), np.array([NONE]), np.zeros(1))
    c = coefficient_records(shipped_profile().coefficients(()))[0]
    links_of(q.facts[0], q.layers, q.dims, q.order, row, c, groups_for(q.order), dispatch)
    assert ((dispatch > 0).all(axis=1) == q.layers["sparse"]).all()
    assert (dispatch[~q.layers["sparse"]] == 0).all()


def test_bytes_come_after_the_first() -> None:
    assert collective_seconds(Cost(byte_s=2e-9, latency_s=3e-6), 1e3) == close(5e-6)
