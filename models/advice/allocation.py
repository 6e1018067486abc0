"""An allocation is the nodes that a scheduler already holds. It is used as well as it can be: with
groups of equal size, and with ranks placed on nodes.

Scale-up domains may be held in part and unevenly: 64 chips of one rack, 72 of another, 7 of a node
of 8. A job wants as many chips of every domain that it uses. So groups of many sizes are tried,
some in each octave of sizes. With groups of u chips, a domain of c chips hosts c // u of them, and
the rest are spares. Ranks count through the groups of one domain, then the domains of one leaf,
then the leaves, so that neighbours in rank are neighbours on the fabric.

A *leaf* is a leaf switch of the network. An *arrangement* is a size of groups with a number of
devices, and an *octave* has the sizes within a factor of two.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import attrgetter, itemgetter

import numpy as np

from models.advice.chip_counts import clusters_with_devices
from models.advice.factorizations import factorizations_by_devices
from models.advice.fewer_chips import FastestAnswer, fastest_space
from models.advice.promising_counts import FEW_DEVICES, promise_score
from models.errors import Infeasible, Invalid, TooLarge
from models.layouts.factors import divisors
from models.layouts.space import Space
from models.search.enumeration import search, search_on
from models.search.result import Goal, NothingFaster, ShouldContinue
from models.search.tables import NoLegalLayout
from models.spec.constraints import Constraints
from models.spec.hardware import Cluster
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import Profile

# Arrangements that are tried within a factor of two in the size of a group. With so many, none of
# 228 random allocations was beaten by any other group (docs/lab/number-of-chips.md).
_MAX_PER_OCTAVE = 12
# Bounds the sizes of a group that are tried, from the largest domain down, and the kinds of domains
# whose divisors are tried.
_MAX_SIZES = 256
_MAX_NODES_NAMED = 3  # in a sentence about a domain that is too large


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of which `chips` are held. `domain` names its scale-up domain (the node itself, where
    nodes are domains), and `leaf` its leaf switch."""

    name: str
    chips: int
    domain: str
    leaf: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host runs `ranks` ranks, from `first_rank` on, on so many `chips` of a node, one rank a
    device. They are in one `group` of the node's domain."""

    node: str
    domain: str
    group: int
    first_rank: int
    ranks: int
    chips: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FasterGroups:
    """The groups with the shortest step of all that were tried, and the layout on them. The step
    takes `step_time_s` seconds."""

    num_chips: int
    chips_per_group: int
    layout: Layout
    step_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A cluster of equal groups out of the nodes.

    `hosts` say where its ranks run, and `spares` how many chips are left over, by node. `faster`
    has the fastest groups, if these groups were preferred for a simpler layout; None if these are
    the fastest. `untried_bound_s` is a lower bound of the step time on groups that there was no
    time to try; infinite where there was time for all.
    """

    cluster: Cluster
    hosts: tuple[Host, ...]
    spares: dict[str, int]
    faster: FasterGroups | None = None
    untried_bound_s: float = math.inf

    @property
    def chips_per_group(self) -> int:
        return _chips_per_group(self.cluster)


@dataclass(frozen=True, slots=True)
class _Arrangement:
    """A way to group the chips: groups of `chips_per_group` chips with `devices` devices in all.
    `promise` ranks arrangements (models.advice.promising_counts.promise_score)."""

    chips_per_group: int
    devices: int
    promise: float

    @property
    def rank(self) -> tuple[float, int]:
        """Return the key that sorts the most promising arrangements first, and equally promising
        ones by the size of their groups, the largest first."""
        return -self.promise, -self.chips_per_group


def allocate(
    problem: Problem,
    profile: Profile,
    constraints: Constraints,
    nodes: Sequence[Node],
    should_continue: ShouldContinue,
    tolerance: float = 0.0,
) -> Allocation:
    """Return the best equal groups out of the nodes. Among groups whose best layout is within the
    tolerance of the fastest, these are the groups with the simplest layout.

    `problem.cluster` says which chip and fabric the nodes have, how many chips to use at most, and
    perhaps how many of each domain. Raise Invalid where the nodes contradict it or each other, and
    Infeasible where no layout runs on equal groups.
    """
    _check_nodes(nodes)
    _check_against_cluster(problem.cluster, nodes)
    spaces = _spaces_to_try(problem, constraints, nodes, should_continue)
    best, failure, in_time = fastest_space(spaces, profile, Goal(), should_continue)
    if best is None:
        total = sum(node.chips for node in nodes)
        raise failure or Infeasible(
            "allocation", f"no legal layout runs on equal groups out of these {total} chips"
        )
    chosen = _simplest_space(best, spaces, profile, tolerance, should_continue)
    cluster = chosen.problem.cluster
    hosts, spares = _place_ranks(nodes, cluster)
    faster = None
    if chosen is not best.space:
        fastest = best.space.problem.cluster
        faster = FasterGroups(
            num_chips=fastest.num_chips,
            chips_per_group=_chips_per_group(fastest),
            layout=best.answer.layouts[best.answer.ranked[0]],
            step_time_s=best.step_time_s,
        )
    return Allocation(
        cluster=cluster,
        hosts=hosts,
        spares=spares,
        faster=faster,
        # No groups are faster than the peak of all chips.
        untried_bound_s=math.inf if in_time else problem.step_time_at_peak_s,
    )


def _simplest_space(
    best: FastestAnswer,
    spaces: Sequence[Space],
    profile: Profile,
    tolerance: float,
    should_continue: ShouldContinue,
) -> Space:
    """Return the space with the simplest layout within the tolerance of the fastest; among equally
    simple ones, the space with the shortest step. A simpler layout, such as one without a pipeline,
    may be worth a few percent more time."""
    if tolerance == 0:
        return best.space
    limit_s = best.step_time_s * (1 + tolerance)
    simplest = best.space
    least = (math.inf, math.inf)
    # The fastest comes first, so that it is not left out where time runs out.
    for space in [best.space, *(space for space in spaces if space is not best.space)]:
        if not should_continue():
            break
        complexity_and_time = _simplest_within(space, profile, limit_s, should_continue)
        if complexity_and_time < least:
            simplest, least = space, complexity_and_time
    return simplest


def _simplest_within(
    space: Space, profile: Profile, limit_s: float, should_continue: ShouldContinue
) -> tuple[float, float]:
    """Return (complexity, step time in seconds) of the simplest layout of a space whose step takes
    at most `limit_s`; both infinite where none is found, or the space is too large to search."""
    try:
        fastest = search(space, profile, Goal(faster_than=limit_s), should_continue)
        # The limit as a tolerance, which counts from the fastest of this space.
        slack = limit_s / float(fastest.times[0]) - 1
        known = fastest.layouts.take(np.array([0]))
        answer = search_on(fastest.tables, Goal(tolerance=slack), should_continue, known)
    except (NoLegalLayout, NothingFaster, TooLarge, Infeasible):
        return math.inf, math.inf
    return float(answer.complexities[answer.simplest]), float(answer.times[answer.simplest])


# -- checks
# --------------------------------------------------------------------------------------------------


def _check_nodes(nodes: Sequence[Node]) -> None:
    """Raise Invalid where two nodes have one name, or the nodes of a domain hang from different
    leaves."""
    names: set[str] = set()
    leaf_of_domain: dict[str, str] = {}
    for index, node in enumerate(nodes):
        if node.name in names:
            raise Invalid(
                f"allocation.nodes[{index}].name", node.name, "is the name of an earlier node too"
            )
        names.add(node.name)
        leaf = leaf_of_domain.setdefault(node.domain, node.leaf)
        if leaf != node.leaf:
            rule = (
                f"the nodes of one domain share a leaf, and an earlier one of {node.domain!r} hangs"
                f" from {leaf!r}"
            )
            raise Invalid(f"allocation.nodes[{index}].leaf", node.leaf, rule)


def _check_against_cluster(cluster: Cluster, nodes: Sequence[Node]) -> None:
    """Raise Invalid where the fabric is a torus, a domain has more chips than the fabric joins, or
    the nodes have fewer chips than the cluster asks for."""
    if cluster.fabric.torus is not None:
        raise Invalid(
            "allocation", None, f"fabric {cluster.fabric.id} is a torus: its slices are whole"
        )
    for name, members in _nodes_by_domain(nodes):
        _check_domain(cluster, name, members)
    held = sum(node.chips for node in nodes)
    if cluster.num_chips > held:
        rule = (
            f"more than the {held} chips of the allocation; leave it out to use as many as are"
            " fastest"
        )
        raise Invalid("cluster.num_chips", cluster.num_chips, rule)


def _check_domain(cluster: Cluster, name: str, members: Sequence[Node]) -> None:
    """Raise Invalid where the nodes of a domain have more chips than the fabric joins."""
    size = cluster.fabric.domain
    chips = sum(node.chips for node in members)
    if size is None or chips <= size:
        return
    nodes = ", ".join(node.name for node in members[:_MAX_NODES_NAMED])
    if len(members) > _MAX_NODES_NAMED:
        nodes += ", …"
    rule = (
        f"a scale-up domain of {cluster.fabric.id} has {size} chips, but domain {name!r} ({nodes})"
        f" has {chips}: give every domain nodes and a name of its own"
    )
    raise Invalid("allocation.nodes", chips, rule)


def _nodes_by_domain(nodes: Sequence[Node]) -> list[tuple[str, list[Node]]]:
    """Return the nodes of each domain by its name, leaf by leaf. Fuller domains of a leaf come
    first, so that a job that needs fewer leaves out the emptiest."""
    leaves: dict[str, dict[str, list[Node]]] = {}
    for node in nodes:
        leaves.setdefault(node.leaf, {}).setdefault(node.domain, []).append(node)

    def fullest_first(domain: tuple[str, list[Node]]) -> int:
        _, members = domain
        return -sum(node.chips for node in members)

    return [
        domain
        for domains in leaves.values()
        for domain in sorted(domains.items(), key=fullest_first)
    ]


# -- which groups are tried
# --------------------------------------------------------------------------------------------------


def _spaces_to_try(
    problem: Problem,
    constraints: Constraints,
    nodes: Sequence[Node],
    should_continue: ShouldContinue,
) -> list[Space]:
    """Return the spaces of the arrangements that have a legal layout, the most promising first.
    Each octave, a factor of two in the size of groups, has at most _MAX_PER_OCTAVE. Once time is
    up, only those found so far are returned, which are at least one if there is any."""
    ranked: list[tuple[tuple[float, int], Space]] = []
    for arrangement, space in _most_promising_of_octaves(problem, constraints, nodes):
        ranked.append((arrangement.rank, space))
        if not should_continue():
            break
    return [space for _, space in sorted(ranked, key=itemgetter(0))]


def _most_promising_of_octaves(
    problem: Problem, constraints: Constraints, nodes: Sequence[Node]
) -> Iterator[tuple[_Arrangement, Space]]:
    """Yield the most promising arrangements that have a legal layout, with their spaces: up to
    _MAX_PER_OCTAVE of each octave of group sizes."""
    for octave in _group_by_octave(_arrangements_to_try(problem, constraints, nodes)):
        legal = (
            (arrangement, space)
            for arrangement in octave
            for space in _legal_spaces(problem, constraints, arrangement)
        )
        yield from islice(legal, _MAX_PER_OCTAVE)


def _arrangements_to_try(
    problem: Problem, constraints: Constraints, nodes: Sequence[Node]
) -> list[_Arrangement]:
    """Return the arrangements worth a try. For each size of a group, these are the numbers of
    devices that divide in more ways than every larger number. On few devices, where searches are
    short, they are all numbers that divide at all."""
    cluster = problem.cluster
    devices_per_chip = cluster.chip.devices_per_chip
    most_chips = _most_chips_by_size(cluster, nodes)
    # Factorizations up to the most chips of any size of groups serve all sizes.
    largest = replace(problem, cluster=_with_groups(cluster, max(*most_chips.values(), 1), 1))
    factorizations = factorizations_by_devices(largest, constraints)
    takes_every = largest.cluster.num_devices <= FEW_DEVICES
    arrangements: list[_Arrangement] = []
    for size, chips in most_chips.items():
        most_ways = 0
        devices_per_group = size * devices_per_chip
        # From the largest number down: `most_ways` is then that of all larger ones.
        for devices in range(chips * devices_per_chip, 0, -devices_per_group):
            ways = factorizations.get(devices, 0)
            # With most_ways at 0, every number that divides at all is taken.
            if ways > most_ways:
                most_ways = 0 if takes_every else ways
                arrangements.append(_Arrangement(size, devices, promise_score(devices, ways)))
    return arrangements


def _most_chips_by_size(cluster: Cluster, nodes: Sequence[Node]) -> dict[int, int]:
    """Return the sizes of groups to try, in chips, each with the most chips that groups of this
    size can have together. Unless the cluster gives the size, these are the _MAX_SIZES largest that
    a domain can host, and all divisors of the job's chips and of the chips that the most common
    domains hold: such sizes leave few chips over."""
    domains_by_chips = Counter(
        sum(node.chips for node in members) for _, members in _nodes_by_domain(nodes)
    )
    domain_chips = np.array(list(domains_by_chips))
    num_domains = np.array(list(domains_by_chips.values()))  # that hold so many chips each
    limit = cluster.num_chips
    if cluster.chips_per_domain is not None:
        sizes = {cluster.chips_per_domain}
    else:
        largest = min(int(domain_chips.max()), limit)
        sizes = set(range(largest, max(largest - _MAX_SIZES, 0), -1))
        sizes.update(divisors(limit))
        for chips, _ in domains_by_chips.most_common(_MAX_SIZES):
            sizes.update(divisors(chips))
    most_chips = {}
    for size in sizes:
        groups = int((domain_chips // size * num_domains).sum())
        most_chips[size] = min(groups, limit // size) * size
    return most_chips


def _group_by_octave(arrangements: Sequence[_Arrangement]) -> Iterator[list[_Arrangement]]:
    """Yield lists of arrangements whose group sizes are within a factor of two of each other, the
    largest sizes first. In a list the most promising come first."""
    octaves = defaultdict[int, list[_Arrangement]](list)
    largest = max((arrangement.chips_per_group for arrangement in arrangements), default=1)
    for arrangement in arrangements:
        octaves[int(math.log2(largest / arrangement.chips_per_group))].append(arrangement)
    for _, octave in sorted(octaves.items()):
        yield sorted(octave, key=attrgetter("rank"))


def _legal_spaces(
    problem: Problem, constraints: Constraints, arrangement: _Arrangement
) -> Iterator[Space]:
    """Yield the space of an arrangement, or nothing where it has no legal layout."""
    chips = arrangement.devices // problem.cluster.chip.devices_per_chip
    groups = _with_groups(problem.cluster, chips, arrangement.chips_per_group)
    for cluster in clusters_with_devices(groups, [arrangement.devices]):
        space = Space(replace(problem, cluster=cluster), constraints)
        if space.has_legal():
            yield space


def _with_groups(cluster: Cluster, chips: int, chips_per_group: int) -> Cluster:
    """Return the cluster with this number of chips, in groups of `chips_per_group`."""
    return replace(cluster, num_chips=chips, chips_per_domain=chips_per_group, torus_shape=None)


def _chips_per_group(cluster: Cluster) -> int:
    return cluster.chips_per_domain or cluster.num_chips


# -- where ranks run
# --------------------------------------------------------------------------------------------------


def _place_ranks(
    nodes: Sequence[Node], cluster: Cluster
) -> tuple[tuple[Host, ...], dict[str, int]]:
    """Return the hosts of all ranks, in order of rank, and the number of unused chips by node."""
    size = _chips_per_group(cluster)
    spares = {node.name: node.chips for node in nodes}
    hosts: list[Host] = []
    first_chip = 0
    for domain, members in _nodes_by_domain(nodes):
        chips = sum(node.chips for node in members)
        # Chips of the domain beyond whole groups, or beyond the job's, are spares.
        groups = min(chips // size, (cluster.num_chips - first_chip) // size)
        of_domain = _hosts_in_domain(domain, members, groups, size, first_chip, cluster)
        for host in of_domain:
            spares[host.node] -= host.chips
        hosts += of_domain
        first_chip += groups * size
    return tuple(hosts), {name: chips for name, chips in spares.items() if chips}


def _hosts_in_domain(
    domain: str, nodes: Sequence[Node], groups: int, size: int, first_chip: int, cluster: Cluster
) -> list[Host]:
    """Return the hosts of a domain that `groups` groups of `size` chips fill, node by node. A node
    that lies in several groups has a host for each. `first_chip` is the number of the domain's
    first chip in the cluster."""
    devices_per_chip = cluster.chip.devices_per_chip
    hosts = []
    filled = 0  # chips of the domain
    for node in nodes:
        left = min(node.chips, groups * size - filled)  # chips that groups take
        while left > 0:
            group = filled // size
            chips = min(left, (group + 1) * size - filled)  # up to the end of this group
            hosts.append(
                Host(
                    node=node.name,
                    domain=domain,
                    group=group,
                    first_rank=(first_chip + filled) * devices_per_chip,
                    ranks=chips * devices_per_chip,
                    chips=chips,
                )
            )
            filled += chips
            left -= chips
    return hosts
