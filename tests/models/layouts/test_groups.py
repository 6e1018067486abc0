"""Which devices are the groups of an axis: written down one by one, and counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, product
from math import lcm

import numpy as np
import pytest

from models.columns import Array
from models.cost.rows import rows_of
from models.layouts.groups import (
    GROUPS,
    TP,
    Groups,
    device_order,
    groups_for,
    set_group,
    set_groups,
)
from models.spec import catalogue
from models.spec.hardware import Cluster
from models.spec.layout import Layout, Layouts
from models.spec.recompute import NONE
from tests.long import one_in
from tests.models.cost.random_meshes import (
    EXPERTS,
    FABRICS,
    JOINED,
    clusters,
    random_meshes,
    straddles_stages,
    written_down,
)
from tests.oracles.random_problems import random_problem

SWITCHED = [name for name, (_, of) in FABRICS.items() if not of.torus]
TORI = [name for name, (_, of) in FABRICS.items() if of.torus]

MESHES = 3
"""On every cluster."""
MADE_UP = 40
"""Clusters of a seed."""
_MOST_DEVICES = 300


# -- the groups themselves


def groups_of(cluster: Cluster, layout: Layout) -> Groups:
    (row,) = rows_of(Layouts.of([layout]), np.array([NONE]), np.zeros(1))
    order = device_order(cluster.device_orders)
    groups = groups_for(order)
    set_groups(order, row, groups)
    return groups


def smallest_piece(members: Array, domain: int) -> int:
    """The fewest members of a group that are together in a domain of so many devices, of all groups
    and domains that have any."""
    group = np.arange(len(members))[:, None]
    _, count = np.unique(group * 2**32 + members // domain, return_counts=True)
    return int(count.min())


# -- switches


def some_clusters(name: str) -> Iterator[Cluster]:
    return (one for one in clusters(name) if 1 < one.num_devices <= _MOST_DEVICES)


def made_up_clusters(
    rng: np.random.Generator, chips: Sequence[int], *, torus: bool
) -> Iterator[Cluster]:
    for _ in range(MADE_UP):
        cluster = random_problem(rng, chips).cluster
        if cluster.is_torus == torus:
            yield cluster


def require_pieces(some: Iterable[Cluster], rng: np.random.Generator) -> int:
    """That no group has fewer members in a domain than is said of the worst, and some group has as
    many, where the cluster has enough groups for every way to lie on domains. Returns how often it
    had."""
    found = 0
    for cluster in some:
        for layout in random_meshes(cluster, rng, MESHES):
            groups = groups_of(cluster, layout)
            for group in range(GROUPS):
                if group in EXPERTS and straddles_stages(layout, group):
                    continue
                members = written_down(layout, group)
                assert groups.degree[group] == members.shape[1]
                found += _require_pieces(cluster, layout, group, members, groups.members[group])
    return found


def _require_pieces(
    cluster: Cluster, layout: Layout, group: int, members: Array, joined: Array
) -> int:
    found = 0
    steps = set(np.diff(members).flat)
    span = sum(steps) * members.shape[1]  # of numbers, where members are equally far apart
    for dim, together in zip(cluster.dims, np.cumprod(joined), strict=True):
        piece = smallest_piece(members, dim.domain)
        told = f"group {group} of {layout} in domains of {dim.domain}"
        assert together <= piece + 1e-9, told
        evenly = group not in JOINED and len(steps) == 1
        if evenly and cluster.num_devices % lcm(span, dim.domain) == 0:
            assert together == pytest.approx(piece), told
            found += 1
    return found


@pytest.mark.parametrize("name", one_in(4, SWITCHED))
def test_as_many_members_are_together_as_are_counted(name: str) -> None:
    rng = np.random.default_rng(len(name))
    require_pieces(some_clusters(name), rng)


@pytest.mark.parametrize("seed", range(3))
def test_as_many_members_are_together_as_are_counted_in_domains_that_do_not_divide_each_other(
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    some = made_up_clusters(rng, range(2, 192, 2), torus=False)
    assert require_pieces(some, rng) > 300


def test_one_of_eight_members_is_alone_where_groups_of_16_lie_on_racks_of_72() -> None:
    """Half of the group from 64 to 79 is in the second rack."""
    cluster = Cluster(
        chip=catalogue.chip("gb200"), fabric=catalogue.chip("gb200").fabric, num_chips=144
    )
    order = device_order(cluster.device_orders)
    groups = groups_for(order)
    set_group(order, 0, 1, 16, groups, TP)
    assert groups.members[TP].tolist() == [8, 2]


# -- tori


def places(cluster: Cluster, layout: Layout) -> Array:
    """Where along each dim every device is, (devices, dims), in the order in which it is
    counted."""
    domains = [dim.domain for dim in cluster.dims]
    lengths = [domain // inside for domain, inside in zip(domains, [1, *domains], strict=False)]
    ring_of = {dim.name: at for at, dim in enumerate(cluster.dims) if dim.kind == "ring"}
    torus = [ring_of[name] for name in layout.torus_axes if name in ring_of]
    block = layout.torus_block
    innermost_first = []
    for dim, length in enumerate(lengths):
        if dim not in torus:
            innermost_first.append((dim, range(length)))
        elif dim == min(torus):
            innermost_first += [(one, range(min(block, lengths[one]))) for one in torus]
            innermost_first += [(one, range(0, lengths[one], block)) for one in torus]
    steps = innermost_first[::-1]
    counted = np.array(list(product(*(values for _, values in steps))))
    return np.array(
        [
            sum((counted[:, i] for i, (of, _) in enumerate(steps) if of == dim), np.zeros(1))
            for dim in range(len(lengths))
        ]
    ).T.astype(int)


def is_nested(cluster: Cluster) -> bool:
    return all(outer.domain % inner.domain == 0 for inner, outer in pairwise(cluster.dims))


def box(at: Array) -> list[int] | None:
    """In how many places of each dim every group has members, where all are boxes of that shape;
    `at`: (groups, members, dims)."""
    counts = 1 + (np.diff(np.sort(at, axis=1), axis=1) > 0).sum(axis=1)
    if (counts == counts[0]).all() and np.prod(counts[0]) == at.shape[1]:
        return [int(count) for count in counts[0]]
    return None


def most_groups_on_a_link(at: Array, dim: int) -> int:
    """Of groups whose members are joined along the lines of one dim, how many use a link that most
    of them use."""
    group, place = np.repeat(np.arange(len(at)), at.shape[1]), at[:, :, dim].ravel()
    others = np.delete(at.reshape(-1, at.shape[2]), dim, axis=1)
    lines = np.unique(np.column_stack([others, group]), axis=0, return_inverse=True)[1].ravel()
    first = np.full(lines.max() + 1, place.max())
    last = np.zeros_like(first)
    np.minimum.at(first, lines, place)
    np.maximum.at(last, lines, place)
    line = np.unique(others, axis=0, return_inverse=True)[1].ravel()
    starts = np.zeros((line.max() + 1, place.max() + 2), int)
    where = np.zeros(len(first), int)
    where[lines] = line
    np.add.at(starts, (where, first), 1)
    np.add.at(starts, (where, last), -1)
    return int(np.cumsum(starts, axis=1).max())


def require_boxes(some: Iterable[Cluster], rng: np.random.Generator) -> int:
    """That a group which is a box has as many members along each dim as are counted, and that on
    links of rings it has as many others beside it. Returns how many were boxes."""
    found = 0
    for cluster in filter(is_nested, some):
        for layout in random_meshes(cluster, rng, MESHES):
            where, groups = places(cluster, layout), groups_of(cluster, layout)
            for group in range(GROUPS):
                if group in EXPERTS and straddles_stages(layout, group):
                    continue
                members = written_down(layout, group)
                assert np.prod(groups.members[group]) == pytest.approx(members.shape[1])
                axes = [written_down(layout, axis) for axis in JOINED.get(group, ())]
                shape = box(where[members])
                if shape and all(box(where[axis]) for axis in axes):
                    assert groups.members[group].tolist() == shape, layout
                    _require_strides(cluster, layout, group, where[members], groups.stride[group])
                    found += 1
    return found


def _require_strides(
    cluster: Cluster, layout: Layout, group: int, at: Array, stride: Array
) -> None:
    for index, dim in enumerate(cluster.dims):
        if dim.kind != "ring" or len(set(at[0, :, index])) == 1:
            continue
        told = f"group {group} of {layout} along {dim.name}"
        if group in JOINED:
            apart = min(np.diff(sorted(set(at[0, :, index]))))
            assert stride[index] == apart, told
        else:
            assert stride[index] == most_groups_on_a_link(at, index), told


@pytest.mark.parametrize("name", one_in(2, TORI))
def test_members_along_a_torus_are_those_that_are_counted(name: str) -> None:
    rng = np.random.default_rng(len(name))
    assert require_boxes(some_clusters(name), rng) > 100


@pytest.mark.parametrize("seed", range(3))
def test_members_along_a_torus_of_any_shape_are_those_that_are_counted(seed: int) -> None:
    rng = np.random.default_rng(seed)
    some = made_up_clusters(rng, (4, 8, 16, 32, 64, 128, 256), torus=True)
    assert require_boxes(some, rng) > 50
