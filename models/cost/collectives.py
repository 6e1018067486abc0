"""Costs of collectives on nested levels and tori: α + bytes / bandwidth, per level.

The cost of a collective is some seconds for each byte (β) and a latency (α). Bytes are those of the
whole tensor that a device ends up with (gather) or starts from (scatter, reduce).

`dims` are the links of a cluster, from the inside out: switched levels, and *rings*, which are the
dims of a torus. Those with `out` join scale-up domains. `g` has the groups of a layout, such as TP:
`g.members[group, d]` is how many members (devices, or domains of the level below) dim d joins
(models.layouts.groups). `f` are the facts of the problem and `c` the coefficients of its profile
(models.cost.facts).

Sources: bandwidth terms as in Thakur et al. 2005 (doi:10.1177/1094342005051521) per level; torus
terms from the public scaling book (jax-ml/scaling-book, sharding.md), where an axis gathers at the
sum of its link directions and an all-to-all takes a quarter of a gather on a closed ring.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from models.columns import Array
from models.compilation.compiled import compiled
from models.cost.facts import (
    ALLGATHER,
    DEDUPLICATED,
    ULYSSES,
    CoefficientRecord,
    DimFacts,
    Facts,
    LayerFacts,
)
from models.cost.rows import Row
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
    DeviceOrder,
    Groups,
    set_groups,
)

TREE_HOPS = 10.0
"""Hops of a ring that one pass over a tree between nodes costs for every doubling of nodes: 90 us
were measured there and back, where a hop takes 4.5 us."""
TREE_HOPS_INSIDE = 3.2
"""Hops of a ring that one pass over a tree within a scale-up domain costs for every doubling of
members. NCCL's tuning.cc has a tree's hop 0.66 times as long as a ring's within a domain, and 2.1
times as long between nodes."""


class Cost(NamedTuple):
    """The cost of a collective over a group: seconds for each byte, and the latency in seconds."""

    byte_s: float
    latency_s: float


class Links(NamedTuple):
    """Holds the costs of the collectives of a layout over its links. A Cost is that of a gather
    unless its docstring says otherwise. The exchange of tokens with experts is not here, since it
    has a cost for every kind of layer (Workspace.dispatch)."""

    tp: Cost
    tp_reduce: Cost
    """An all-reduce over tensor parallelism."""
    etp: Cost
    cp: Cost
    """A gather, or an all-to-all under Ulysses."""
    send: Cost
    """A send from one pipeline stage to the next."""
    replicate: Cost
    """An all-reduce over replicas."""
    edp: Cost
    sharding: Cost
    replicas: Cost
    """An all-reduce over all devices that hold the same parameters where nothing is sharded."""
    dense_shards: float
    """The number of devices that share dense parameters."""
    expert_shards: float
    """The number of devices that share an expert's parameters."""
    tensor_across_domains: bool
    expert_across_domains: bool


@compiled
def collective_seconds(cost: Cost, size: float) -> float:
    """Return the seconds of a collective of `size` bytes."""
    return size * cost.byte_s + cost.latency_s


@compiled
def links_of(
    f: Facts,
    layers: Array,
    dims: Array,
    order: DeviceOrder,
    row: Row,
    c: CoefficientRecord,
    g: Groups,
    dispatch: Array,
) -> Links:
    """Return the costs of a layout's collectives over the links that its placement gives them.
    Write the cost of an exchange of tokens in every kind of layer into `dispatch` (kinds, 2):
    seconds for each byte, and the latency. `g` is overwritten with the layout's groups."""
    set_groups(order, row, g)
    for kind in range(f.kinds):
        cost = dispatch_cost(f, layers[kind], dims, c, g)
        dispatch[kind, 0] = cost.byte_s
        dispatch[kind, 1] = cost.latency_s
    return Links(
        tp=gather(f, dims, c, g, TP),
        tp_reduce=reduce(f, dims, c, g, TP),
        etp=gather(f, dims, c, g, ETP),
        cp=context_exchange(f, dims, c, g, CP),
        send=send(dims, c, g, PP),
        replicate=reduce(f, dims, c, g, DP_REPLICATE),
        edp=gather(f, dims, c, g, EDP),
        sharding=gather(f, dims, c, g, SHARDING),
        replicas=reduce(f, dims, c, g, REPLICAS),
        dense_shards=float(g.degree[SHARDING]),
        expert_shards=float(g.degree[EDP]),
        tensor_across_domains=crosses_domains(dims, g, TP),
        expert_across_domains=crosses_domains(dims, g, EP),
    )


@compiled
def dispatch_cost(
    f: Facts, layer: LayerFacts, dims: Array, c: CoefficientRecord, g: Groups
) -> Cost:
    """Return the cost of sending tokens to experts over expert parallelism, in one direction. It is
    0 for a dense layer. Bytes are those of a device's tokens, once for each expert of a token."""
    if not layer.sparse or g.degree[EP] == 1:
        return Cost(0.0, 0.0)
    if f.dispatcher == ALLGATHER:
        return gather(f, dims, c, g, EP)
    slowest, inside = 0.0, 1.0  # inside: members in a domain of the levels so far
    for d in range(len(dims)):
        members = g.members[EP, d]
        if members > 1:
            copies = copies_crossing(f, layer, dims, g, d)
            slowest = max(slowest, copies * exchange_s(dims, c, g, EP, d, inside))
        inside *= members
    return Cost(slowest, c.collective_s + tree(f, dims, c, g, EP))


@compiled
def copies_crossing(f: Facts, layer: LayerFacts, dims: Array, g: Groups, d: int) -> float:
    """Return the share of a token's copies, one for each of its experts, that cross level d of the
    fabric (`dims[d]`). It is below 1 where the dispatcher sends one copy to each domain that holds
    some of the experts. Every copy crosses the innermost level and the dims of a torus, which have
    no domains inside.

    A token that picks k experts at random meets D(1 - (1 - 1/D)^k) of the D domains within reach of
    its groups; node-limited routing caps that at M (DeepSeek-V3 report §2.1.2).
    """
    if f.dispatcher != DEDUPLICATED or d == 0 or dims[d].ring:
        return 1.0
    domains = 1.0  # domains of the level below d that hold members of the EP group
    for beyond in range(d, len(dims)):
        domains *= g.members[EP, beyond]
    domains = domains_in_reach(layer, domains)
    met = domains * (1 - (1 - 1 / domains) ** layer.experts_per_token)
    if dims[d].out:
        met = min(met, f.node_limit)
    return min(met / layer.experts_per_token, 1.0)


@compiled
def domains_in_reach(layer: LayerFacts, domains: float) -> float:
    """Return the mean number of domains that hold experts a token may choose, out of `domains`
    that share all experts evenly. Group-limited routing lets a token choose from groups_per_token
    of the layer's num_groups expert groups."""
    groups = layer.num_groups
    # A token may choose from all groups, which are in all domains.
    if layer.groups_per_token == groups:
        return domains
    groups_per_domain = max(groups / domains, 1.0)
    # Each group is in one domain or spread over several, and no domain has two groups.
    if groups_per_domain <= 1:
        return layer.groups_per_token * max(domains / groups, 1.0)
    # The probability that a domain holds none of the groups, which are drawn one by one.
    missed = 1.0
    for drawn in range(layer.groups_per_token):
        left = groups - drawn
        missed *= min(max((left - groups_per_domain) / left, 0.0), 1.0)
    return domains * (1 - missed)


# -- collectives over a group


@compiled
def gather(f: Facts, dims: Array, c: CoefficientRecord, g: Groups, group: int) -> Cost:
    """Return the cost of an all-gather over a group, or of a reduce-scatter of the same size, which
    is its mirror image. `group` is a number such as TP; `g` has its members on each dim."""
    if g.degree[group] == 1:
        return Cost(0.0, 0.0)
    return Cost(transfer(f, dims, c, g, group), c.collective_s + ring(f, dims, c, g, group))


@compiled
def reduce(f: Facts, dims: Array, c: CoefficientRecord, g: Groups, group: int) -> Cost:
    """Return the cost of an all-reduce over a group: a reduce-scatter and a gather, with the lesser
    latency of a ring and a tree. `group` is a number such as TP."""
    if g.degree[group] == 1:
        return Cost(0.0, 0.0)
    path = min(ring(f, dims, c, g, group), tree(f, dims, c, g, group))
    return Cost(2 * transfer(f, dims, c, g, group), c.collective_s + 2 * path)


@compiled
def context_exchange(f: Facts, dims: Array, c: CoefficientRecord, g: Groups, group: int) -> Cost:
    """Return the cost of what context parallelism sends over a group: an all-to-all under Ulysses,
    and otherwise a gather. A ring of sends costs as much as a gather."""
    if f.context == ULYSSES:
        return all_to_all(f, dims, c, g, group)
    return gather(f, dims, c, g, group)


@compiled
def transfer(f: Facts, dims: Array, c: CoefficientRecord, g: Groups, group: int) -> float:
    """Return the seconds for each byte of a gather. Over switched levels, devices pass data on in
    rings.

    A ring passes on all but a member's own part over every link. Each member of a domain carries a
    ring of its own out of it, so a domain of n members sends at n times the rate of one, and the
    bus bandwidth of large messages does not depend on the number of nodes. Levels work at the same
    time on different pieces, so the slowest one counts.
    """
    if f.is_torus:
        return torus_transfer(dims, c, g, group)
    missing = 1 - 1 / g.degree[group]  # all but the member's own part
    slowest, inside = 0.0, 1.0  # inside: members in a domain of the levels so far
    for d in range(len(dims)):
        members = g.members[group, d]
        if members > 1:
            slowest = max(slowest, missing / (inside * switch_rate(dims[d], c, members)))
        inside *= members
    return slowest


@compiled
def torus_transfer(dims: Array, c: CoefficientRecord, g: Groups, group: int) -> float:
    """Return the seconds for each byte of a gather on a torus.

    The group gathers level by level: each member receives all that its own domain of the level
    below does not have yet. All dims of the torus are one level, at the sum of their links' rates.
    Traffic between slices, each a torus, is a collective of its own, before or after the one within
    them, so its time is added.
    """
    slowest = 0.0
    between = 0.0
    inside = 1.0  # members in a domain of the levels so far
    beyond = float(g.degree[group])  # how many such domains the group has
    ring_members = 1.0
    ring_rate = 0.0
    for d in range(len(dims)):
        dim, members = dims[d], g.members[group, d]
        if dim.ring:
            ring_rate += ring_gather_rate(dims, c, g, group, d)
            ring_members *= members
            if d + 1 < len(dims) and dims[d + 1].ring:
                continue  # The next dim of the torus is part of the same level.
            members, rate = ring_members, ring_rate
        else:
            rate = switch_rate(dim, c, members)
        # All that a domain lacks comes in over this level, a part of it to each member inside.
        seconds = (1 - 1 / beyond) / (inside * rate) if members > 1 else 0.0
        if dim.out:
            between += seconds
        else:
            slowest = max(slowest, seconds)
        inside *= members
        beyond /= members
    return slowest + between


@compiled
def ring_gather_rate(dims: Array, c: CoefficientRecord, g: Groups, group: int, d: int) -> float:
    """Return the bytes a second that a device gathers over the links of dim d of a torus; 0 where
    the group has one member along it. Where members are `stride` devices apart, `stride` groups
    share each link. Both directions of a ring work where it closes and the group goes all round
    it."""
    dim, members, stride = dims[d], g.members[group, d], g.stride[group, d]
    if members == 1:
        return 0.0
    # `domain` counts devices up to a dim, so `below` are those at one position along dim d.
    below = dims[d - 1].domain if d > 0 else 1
    covers = members * stride * below == dim.domain
    directions = (2.0 if dim.wraps and covers else 1.0) / stride
    return directions * link_rate(dim, c)


@compiled
def all_to_all(f: Facts, dims: Array, c: CoefficientRecord, g: Groups, group: int) -> Cost:
    """Return the cost of an all-to-all, in which every device sends its bytes spread evenly over
    the group."""
    if g.degree[group] == 1:
        return Cost(0.0, 0.0)
    slowest, inside = 0.0, 1.0  # inside: members in a domain of the levels so far
    for d in range(len(dims)):
        members = g.members[group, d]
        if members > 1:
            slowest = max(slowest, exchange_s(dims, c, g, group, d, inside))
        inside *= members
    return Cost(slowest, c.collective_s + tree(f, dims, c, g, group))


@compiled
def exchange_s(
    dims: Array, c: CoefficientRecord, g: Groups, group: int, d: int, inside: float
) -> float:
    """Return the seconds for each byte of an all-to-all over level d of the fabric (`dims[d]`),
    where `inside` members of the group share each domain of the levels below.

    On switched levels, what a device sends out of its domain crosses that device's NIC alone (no
    aggregation). A ring of n devices passes n/8 of a device's bytes over each one-way link where it
    closes, and n/4 where it is open.
    """
    dim, members = dims[d], g.members[group, d]
    if dim.ring:
        spans = members * g.stride[group, d]
        below = dims[d - 1].domain if d > 0 else 1  # devices at one position along the ring
        closed = dim.wraps and spans * below == dim.domain
        return spans / ((8 if closed else 4) * link_rate(dim, c) * c.alltoall)
    rate = link_rate(dim, c) * c.alltoall
    # Without a switch a device drives only the links to other members.
    if dim.peer_gb_s > 0:
        rate *= min((members - 1) * dim.peer_gb_s / dim.gb_s, 1.0)
    # At least 1 byte/s, so that the quotient is finite.
    return (1 - inside / g.degree[group]) / max(rate, 1.0)


@compiled
def send(dims: Array, c: CoefficientRecord, g: Groups, group: int) -> Cost:
    """Return the cost of a send between neighbours in a group. The slowest links between any two
    neighbours count."""
    seconds = hop = 0.0
    for d in range(len(dims)):
        if g.members[group, d] > 1:
            dim = dims[d]
            rate = link_rate(dim, c)
            # Without a switch a send has the link to one peer.
            if dim.peer_gb_s > 0:
                rate *= dim.peer_gb_s / dim.gb_s
            seconds = max(seconds, 1 / rate)
            hop = max(hop, c.scaleout_hop_s if dim.out else c.scaleup_hop_s)
    return Cost(seconds, hop)


@compiled
def crosses_domains(dims: Array, g: Groups, group: int) -> bool:
    """Say whether some members of a group are in different scale-up domains."""
    for d in range(len(dims)):
        if dims[d].out and g.members[group, d] > 1:
            return True
    return False


# -- rates and latencies


@compiled
def link_rate(dim: DimFacts, c: CoefficientRecord) -> float:
    """Return the bytes a second that a device reaches over its links of a dim."""
    # The coefficients are the shares of the links' own rate that collectives reach.
    return dim.gb_s * 1e9 * (c.scaleout if dim.out else c.scaleup)


@compiled
def switch_rate(dim: DimFacts, c: CoefficientRecord, members: float) -> float:
    """Return the bytes a second that a device reaches in a group with `members` on a dim. Without a
    switch, which `peer_gb_s` shows, it drives only the links to the other members."""
    rate = link_rate(dim, c)
    if dim.peer_gb_s > 0:
        # A group with one member on the dim drives no link; 1e-9 keeps its rate above 0.
        rate *= min(max((members - 1) * dim.peer_gb_s / dim.gb_s, 1e-9), 1.0)
    return rate


@compiled
def ring(f: Facts, dims: Array, c: CoefficientRecord, g: Groups, group: int) -> float:
    """Return the seconds of one message once round a ring of the group. It passes every member,
    over slow hops between domains and fast ones within. Where the group has members in several
    domains, every hop takes `ring_step_s` longer.

    Source: NCCL src/graph/tuning.cc has (ranks - nodes) and (nodes - 1) hops, and a network's
    overhead in every step of a ring between nodes. It takes the larger of a hop and this overhead,
    where here they add up. It has no tree for gathers and scatters. The rings of a torus run at the
    same time, both ways round.
    """
    members_per_domain, domains = members_and_domains(dims, g, group)
    if f.is_torus:
        return ring_hops(dims, g, group) * c.scaleup_hop_s + (domains - 1) * c.scaleout_hop_s
    step = c.ring_step_s if domains > 1 else 0.0
    fast, slow = c.scaleup_hop_s + step, c.scaleout_hop_s + step
    return (members_per_domain - 1) * domains * fast + (domains - 1) * slow


@compiled
def tree(f: Facts, dims: Array, c: CoefficientRecord, g: Groups, group: int) -> float:
    """Return the seconds of one message down a tree over a group. Hops grow with the logarithm of
    the number of domains, and of the members within a domain; within small domains the tree is a
    chain, whose hops grow with its members."""
    members_per_domain, domains = members_and_domains(dims, g, group)
    fast_hops = min(members_per_domain - 1, TREE_HOPS_INSIDE * doublings(members_per_domain))
    # Within a torus there are no switches: messages go round its rings.
    if f.is_torus:
        fast_hops = ring_hops(dims, g, group)
    return fast_hops * c.scaleup_hop_s + TREE_HOPS * doublings(domains) * c.scaleout_hop_s


@compiled
def ring_hops(dims: Array, g: Groups, group: int) -> float:
    """Return the hops of a message round the longest ring that a group has on a torus. A closed
    ring counts half, since messages go both ways."""
    hops = 0.0
    for d in range(len(dims)):
        if dims[d].ring:
            # `stride` is the distance between neighbours of the group along the dim.
            length = (g.members[group, d] - 1) * g.stride[group, d]
            hops = max(hops, length / 2 if dims[d].wraps else length)
    return hops


@compiled
def members_and_domains(dims: Array, g: Groups, group: int) -> tuple[float, float]:
    """Return how a group is spread: the number of its members within each scale-up domain, and the
    number of domains. Hops within a domain are faster than those between domains."""
    members_per_domain = domains = 1.0
    for d in range(len(dims)):
        if dims[d].out:
            domains *= g.members[group, d]
        else:
            members_per_domain *= g.members[group, d]
    return members_per_domain, domains


@compiled
def doublings(count: float) -> float:
    """Return how often 1 must be doubled to reach `count`, as the members of a tree double with
    every level; 0 for less than 1."""
    return math.log2(max(count, 1.0))
