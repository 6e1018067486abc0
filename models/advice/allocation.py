"""Nodes that a scheduler already holds: the best use of exactly those, and which rank runs where.

Scale-up domains may be held in part and unevenly: 64 chips of one rack, 72 of another, 7 of a node
of 8. A job wants as many chips of every domain that it uses, so groups of many sizes u are tried,
of each octave some: a domain of c chips hosts c // u groups, the rest are spares. Ranks count
through groups of one domain, domains of one leaf, then leaves, so that neighbours in rank are
neighbours on the fabric.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

import numpy as np

from models.advice.fewer_chips import (
    FEW_DEVICES,
    clusters_with_devices,
    factorizations_by_devices,
    fastest_space,
    promise,
)
from models.errors import Infeasible, Invalid
from models.layouts.factors import divisors
from models.layouts.space import Space
from models.search.result import Goal, ShouldContinue
from models.spec.constraints import Constraints
from models.spec.hardware import Cluster
from models.spec.problem import Problem
from models.spec.profile import Profile

_EACH = 12  # groups and their number that are tried, of sizes within a factor of two of each other
_LARGEST = 256  # sizes from the largest domain down, and different domains whose divisors are tried
_NAMED = 3  # of the nodes of a domain that is too large


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """`chips` held of it; `domain`: its scale-up domain (itself, where nodes are domains); `leaf`:
    its switch."""

    name: str
    chips: int
    domain: str
    leaf: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """`ranks` from `first_rank` on run on so many `chips` of this node, one a device, in `group` of
    its domain."""

    node: str
    domain: str
    group: int
    first_rank: int
    ranks: int
    chips: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A cluster of equal groups out of the nodes: where its ranks run, and chips left over by node.
    `untried_bound_s`: what a step takes at least on groups that there was no time to try; infinite where
    there was."""

    cluster: Cluster
    hosts: tuple[Host, ...]
    spares: dict[str, int]
    untried_bound_s: float = math.inf

    @property
    def chips_per_group(self) -> int:
        return _group(self.cluster)


def allocate(
    problem: Problem,
    profile: Profile,
    constraints: Constraints,
    nodes: Sequence[Node],
    should_continue: ShouldContinue,
) -> Allocation:
    """The groups on which a step takes least, of those tried. `problem.cluster` says chip and
    fabric, how many chips to use at most, and perhaps how many of each domain; raises
    Infeasible."""
    _check_nodes(nodes)
    _check(problem.cluster, nodes)
    best, failure, in_time = fastest_space(
        _arrangements(problem, constraints, nodes, should_continue),
        profile,
        Goal(),
        should_continue,
    )
    if best is None:
        total = sum(node.chips for node in nodes)
        raise failure or Infeasible(
            "allocation", f"no legal layout runs on equal groups out of these {total} chips"
        )
    cluster = best.space.problem.cluster
    hosts, spares = _hosts(nodes, cluster)
    untried_bound_s = math.inf if in_time else problem.step_time_at_peak_s
    return Allocation(cluster=cluster, hosts=hosts, spares=spares, untried_bound_s=untried_bound_s)


def _check_nodes(nodes: Sequence[Node]) -> None:
    names, leaves = set[str](), dict[str, str]()
    for at, node in enumerate(nodes):
        if node.name in names:
            raise Invalid(
                f"allocation.nodes[{at}].name", node.name, "is the name of an earlier node too"
            )
        names.add(node.name)
        if (leaf := leaves.setdefault(node.domain, node.leaf)) != node.leaf:
            rule = (
                f"the nodes of one domain share a leaf, and an earlier one of {node.domain!r} hangs"
                f" from {leaf!r}"
            )
            raise Invalid(f"allocation.nodes[{at}].leaf", node.leaf, rule)


def _check(cluster: Cluster, nodes: Sequence[Node]) -> None:
    if cluster.fabric.torus is not None:
        raise Invalid(
            "allocation", None, f"fabric {cluster.fabric.id} is a torus: its slices are whole"
        )
    size = cluster.fabric.domain
    for name, members in _domains(nodes):
        chips = sum(node.chips for node in members)
        if size is not None and chips > size:
            some = ", ".join(node.name for node in members[:_NAMED]) + ", …" * (
                len(members) > _NAMED
            )
            rule = (
                f"a scale-up domain of {cluster.fabric.id} has {size} chips, but domain {name!r}"
                f" ({some}) has {chips}"
            )
            raise Invalid(
                "allocation.nodes", chips, f"{rule}: give every domain nodes and a name of its own"
            )
    held = sum(node.chips for node in nodes)
    if cluster.num_chips > held:
        rule = (
            f"more than the {held} chips of the allocation; leave it out to use as many as are"
            " fastest"
        )
        raise Invalid("cluster.num_chips", cluster.num_chips, rule)


def _domains(nodes: Sequence[Node]) -> list[tuple[str, list[Node]]]:
    """Leaf by leaf, the fullest domain of each first, so that a smaller job leaves out the
    emptiest; otherwise in the order of the nodes."""
    leaves: dict[str, dict[str, list[Node]]] = {}
    for node in nodes:
        leaves.setdefault(node.leaf, {}).setdefault(node.domain, []).append(node)
    full = [
        sorted(domains.items(), key=lambda one: -sum(node.chips for node in one[1]))
        for domains in leaves.values()
    ]
    return [domain for domains in full for domain in domains]


def _group(cluster: Cluster) -> int:
    return cluster.chips_per_domain or cluster.num_chips


def _arrangements(
    problem: Problem,
    constraints: Constraints,
    nodes: Sequence[Node],
    should_continue: ShouldContinue,
) -> list[Space]:
    """On clusters of groups of as many chips as `chips_per_domain`: of groups of about one size the
    numbers that promise most, and of all these what promises most first."""
    octaves = _by_octave(_counts(problem, constraints, nodes))
    legal = (
        (
            (promised, space)
            for size, count, promised in alike
            for space in _of_groups(problem, constraints, size, count)
        )
        for alike in octaves
    )
    found: list[tuple[float, Space]] = []
    for one in chain.from_iterable(islice(spaces, _EACH) for spaces in legal):
        found.append(one)
        if not should_continue():
            break
    return [
        space
        for _, space in sorted(found, key=lambda one: (-one[0], -_group(one[1].problem.cluster)))
    ]


def _counts(
    problem: Problem, constraints: Constraints, nodes: Sequence[Node]
) -> list[tuple[int, int, float]]:
    """Sizes of a group, with numbers of devices in groups of that size that can be divided in more
    ways than all larger ones, of few devices all that can, and what each promises
    (models.advice.fewer_chips.promise)."""
    held = Counter(sum(node.chips for node in members) for _, members in _domains(nodes))
    domains, times = np.array(list(held)), np.array(list(held.values()))
    limit, devices = problem.cluster.num_chips, problem.cluster.chip.devices_per_chip
    largest = min(int(domains.max()), limit)
    sizes = set(range(largest, max(largest - _LARGEST, 0), -1))
    sizes |= {
        d
        for chips in (limit, *(chips for chips, _ in held.most_common(_LARGEST)))
        for d in divisors(chips)
    }
    if problem.cluster.chips_per_domain is not None:
        sizes = {problem.cluster.chips_per_domain}
    most = {size: min(int((domains // size * times).sum()), limit // size) * size for size in sizes}
    whole = replace(problem, cluster=_groups(problem.cluster, max(max(most.values()), 1), 1))
    ways, found = factorizations_by_devices(whole, constraints), list[tuple[int, int, float]]()
    every = whole.cluster.num_devices <= FEW_DEVICES
    for size in (size for size in sizes if most[size]):
        more_than = 0
        for count in range(most[size] * devices, 0, -size * devices):
            if (many := ways.get(count, 0)) > more_than:
                more_than = 0 if every else many
                found.append((size, count, promise(count, many)))
    return found


def _by_octave(counts: Sequence[tuple[int, int, float]]) -> Iterator[list[tuple[int, int, float]]]:
    """Of sizes within a factor of two of each other what promises most first."""
    octaves = defaultdict[int, list[tuple[int, int, float]]](list)
    largest = max((size for size, _, _ in counts), default=1)
    for one in counts:
        octaves[int(math.log2(largest / one[0]))].append(one)
    for _, alike in sorted(octaves.items()):
        yield sorted(alike, key=lambda one: (-one[2], -one[0]))


def _of_groups(
    problem: Problem, constraints: Constraints, size: int, devices: int
) -> Iterator[Space]:
    """On so many devices in groups of so many chips, if there is a legal layout."""
    cluster = _groups(problem.cluster, devices // problem.cluster.chip.devices_per_chip, size)
    for one in clusters_with_devices(cluster, np.array([devices])):
        space = Space(replace(problem, cluster=one), constraints)
        if space.has_legal():
            yield space


def _groups(cluster: Cluster, chips: int, size: int) -> Cluster:
    return replace(cluster, num_chips=chips, chips_per_domain=size, torus_shape=None)


def _hosts(nodes: Sequence[Node], cluster: Cluster) -> tuple[tuple[Host, ...], dict[str, int]]:
    size, devices = _group(cluster), cluster.chip.devices_per_chip
    hosts: list[Host] = []
    spares = {node.name: node.chips for node in nodes}
    chip = 0
    for domain, members in _domains(nodes):
        groups = min(
            sum(node.chips for node in members) // size, (cluster.num_chips - chip) // size
        )
        wanted, start = groups * size, chip
        for node in members:
            left = min(node.chips, wanted - (chip - start))
            while left > 0:
                group = (chip - start) // size
                taken = min(left, (group + 1) * size - (chip - start))
                ranks = {"first_rank": chip * devices, "ranks": taken * devices}
                hosts.append(Host(node=node.name, domain=domain, group=group, chips=taken, **ranks))
                spares[node.name] -= taken
                chip, left = chip + taken, left - taken
    return tuple(hosts), {name: count for name, count in spares.items() if count}
