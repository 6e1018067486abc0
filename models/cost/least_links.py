"""The least that collectives cost over an axis in any placement.

The closest devices are not always the fastest (the rings of a torus, links between peers, a tree
over many domains). So every distance between neighbours is tried once, in every filling of a torus
and for every degree that there is.

The search uses these costs as lower bounds before it decides a *placement*, which is the order of
the axes over the devices. A *filling* is an order in which the devices of a torus are numbered
(models.spec.device_order).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from models.columns import Array
from models.compilation.compiled import compiled
from models.cost.collectives import (
    Cost,
    Links,
    context_exchange,
    dispatch_cost,
    gather,
    reduce,
    send,
)
from models.cost.facts import CoefficientRecord, Facts, ProblemRecords
from models.cost.rows import Row
from models.layouts.groups import EP, TP, Groups, devices_sharing_experts, set_group
from models.spec.layout import TORUS_AXES, TORUS_BLOCKS

GATHER, REDUCE, SEND, CONTEXT, DISPATCH = range(5)
"""Collectives, as rows of a table. The rows from DISPATCH on are exchanges of tokens, one for each
kind of layer."""
ANY_FILLING = len(TORUS_AXES) * len(TORUS_BLOCKS)
"""Stands in place of the number of a filling: each collective has the filling that serves it
best."""
UNPLACED = -1
"""Stands in place of a placement: each axis has the best links that any placement gives it."""
UNDECIDED = -2
"""Stands in place of a placement where data parallelism is not divided into shards and replicas
yet. Each axis has the best links that any placement gives it."""


class LeastLinks(NamedTuple):
    """Holds the least that collectives cost over an axis, wherever it lies."""

    degrees: Array
    """The degrees that axes may have, ascending, (d,). Distances between neighbours are among the
    same numbers."""
    costs: Array
    """Seconds for each byte and the latency, (fillings + 1, collectives, d, d + 1, 2). The first
    index is a filling of a torus; its last entry is for the best of all fillings. The third is the
    degree of the axis. The fourth is the distance between its neighbours; its last entry is for the
    best of all distances."""
    filling: Array
    """The row of `costs` for the number of a filling, (ANY_FILLING + 1,)."""
    domain: int
    """The largest number of devices that scale-up links join."""
    joins_axes: bool
    """True where two axes together gather no faster than one axis of their joint degree, as where
    links get slower outwards. On other fabrics, two axes may share links that are faster than
    one's."""


@compiled
def fill_least(
    question: ProblemRecords,
    fillings: Array,
    devices: int,
    coefficients: CoefficientRecord,
    groups: Groups,
    least: LeastLinks,
) -> None:
    """Fill the tables of `least` for a cluster: try each collective for every degree, distance
    between neighbours and filling of a torus (`fillings`, numbers), and keep the least cost.
    Distances at which an axis does not divide `devices` devices keep infinite costs."""
    facts = question.facts[0]
    dims = question.dims
    order = question.order
    least.costs[:] = np.inf
    for i in range(len(least.degrees)):
        degree = least.degrees[i]
        for j in range(len(least.degrees)):
            stride = least.degrees[j]
            # Direct neighbours are tried whatever the degree, so that every degree has some cost.
            if stride > 1 and (stride * degree > devices or devices % (stride * degree) != 0):
                continue
            for filling in fillings:
                # The rows TP and EP of `groups` stand for an axis of any name here.
                set_group(order, filling, stride, degree, groups, TP)
                cost = gather(facts, dims, coefficients, groups, TP)
                keep_least(least, filling, GATHER, i, j, cost)
                cost = reduce(facts, dims, coefficients, groups, TP)
                keep_least(least, filling, REDUCE, i, j, cost)
                keep_least(least, filling, SEND, i, j, send(dims, coefficients, groups, TP))
                cost = context_exchange(facts, dims, coefficients, groups, TP)
                keep_least(least, filling, CONTEXT, i, j, cost)
                set_group(order, filling, stride, degree, groups, EP)
                for kind in range(facts.kinds):
                    cost = dispatch_cost(facts, question.layers[kind], dims, coefficients, groups)
                    keep_least(least, filling, DISPATCH + kind, i, j, cost)


@compiled
def keep_least(
    least: LeastLinks, filling: int, collective: int, degree: int, stride: int, cost: Cost
) -> None:
    """Lower four entries of `least.costs` for a collective to this cost, where it is less: those of
    its filling and of any filling, each at its distance and at any. A look-up may leave either
    open. `degree` and `stride` are positions in `least.degrees`."""
    for row in (least.filling[filling], least.filling[ANY_FILLING]):
        for column in (stride, len(least.degrees)):
            costs = least.costs[row, collective, degree, column]
            costs[0] = min(costs[0], cost.byte_s)
            costs[1] = min(costs[1], cost.latency_s)


@compiled
def least_cost(least: LeastLinks, filling: int, collective: int, degree: int) -> Cost:
    """Return the least cost of a collective over an axis of this degree, whatever the distance
    between its neighbours. `filling` is the number of a torus' filling, or ANY_FILLING, and
    `collective` a row such as GATHER."""
    if degree == 1:
        return Cost(0.0, 0.0)
    i = np.searchsorted(least.degrees, degree)
    any_distance = len(least.degrees)  # the column after those of each distance
    costs = least.costs[least.filling[filling], collective, i, any_distance]
    return Cost(costs[0], costs[1])


@compiled
def least_expert_cost(
    least: LeastLinks, row: Row, collective: int, stride: int, degree: int
) -> Cost:
    """Return the least cost of a collective over ep, etp or the devices that share experts. Its
    neighbours are `stride` apart within a stage; where a placement has the pipeline's axis inside,
    they are pp times that apart (models.layouts.groups.set_axes). The lesser of the two counts."""
    if degree == 1:
        return Cost(0.0, 0.0)
    i, filling = np.searchsorted(least.degrees, degree), least.filling[row.filling]
    inside = least.costs[filling, collective, i, np.searchsorted(least.degrees, stride)]
    across = least.costs[filling, collective, i, np.searchsorted(least.degrees, stride * row.pp)]
    return Cost(min(inside[0], across[0]), min(inside[1], across[1]))


@compiled
def least_links(facts: Facts, row: Row, least: LeastLinks, dispatch: Array) -> Links:
    """Return lower bounds of the costs of a layout's collectives, each in the placement that is
    best for its axis. Write those of exchanges of tokens into `dispatch` (kinds, 2). The bound is 0
    for collectives that depend on the division of data parallelism while it is UNDECIDED."""
    # The last two arguments of least_expert_cost: the distance between neighbours, and how many
    # devices take part. Ranks of ep are etp apart, since etp is inside.
    for kind in range(facts.kinds):
        cost = least_expert_cost(least, row, DISPATCH + kind, row.etp, row.ep)
        dispatch[kind, 0] = cost.byte_s
        dispatch[kind, 1] = cost.latency_s
    decided = row.placement != UNDECIDED
    sharding = row.dp_shard * row.cp
    replicas = sharding * row.dp_replicate
    routed = row.etp * row.ep  # the devices over which one copy of the experts is split
    experts = max(devices_sharing_experts(row) // routed, 1)
    # The table has costs of single axes. They bound a collective over several axes only where these
    # gather no faster than one (`joins_axes`); elsewhere its bound is 0.
    axes = (row.dp_shard > 1) + (row.cp > 1)
    knows_sharding = decided and (least.joins_axes or axes < 2)
    knows_replicas = decided and (least.joins_axes or axes + (row.dp_replicate > 1) < 2)
    none = Cost(0.0, 0.0)
    return Links(
        tp=least_cost(least, row.filling, GATHER, row.tp),
        tp_reduce=least_cost(least, row.filling, REDUCE, row.tp),
        etp=least_expert_cost(least, row, GATHER, 1, row.etp),
        cp=least_cost(least, row.filling, CONTEXT, row.cp),
        send=least_cost(least, row.filling, SEND, row.pp),
        replicate=least_cost(least, row.filling, REDUCE, row.dp_replicate) if decided else none,
        edp=least_expert_cost(least, row, GATHER, routed, experts) if decided else none,
        sharding=least_cost(least, row.filling, GATHER, sharding) if knows_sharding else none,
        replicas=least_cost(least, row.filling, REDUCE, replicas) if knows_replicas else none,
        dense_shards=float(sharding),
        expert_shards=float(experts),
        tensor_across_domains=row.tp > least.domain,
        expert_across_domains=row.ep > least.domain,
    )


NO_LINKS = LeastLinks(
    np.zeros(0, np.int64), np.zeros((0, 0, 0, 0, 2)), np.zeros(0, np.int64), 0, joins_axes=False
)
"""An empty table, for layouts that all have a placement and so the links of their own."""
