"""The compiled groups of axes against those over arrays."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from models.columns import Array
from models.kernel.facts import device_order
from models.kernel.groups import GROUPS, groups_for, set_groups
from models.kernel.rows import rows_of
from models.layouts import placement as by_arrays
from models.spec.hardware import Cluster
from models.spec.layout import Layouts
from models.spec.recompute import NONE
from tests.models.kernel.random_meshes import FABRICS, clusters, random_meshes
from tests.oracles.random_questions import random_problem

NAMES = by_arrays.Groups.__slots__
MESHES = 25
"""On every cluster."""
MADE_UP = 15
"""Clusters of a seed."""


def compiled(cluster: Cluster, meshes: Layouts) -> tuple[Array, Array, Array]:
    """Degrees (n, groups), members and strides (n, groups, dims)."""
    order = device_order(cluster.device_orders)
    found = []
    for row in rows_of(meshes, np.array([NONE]), np.zeros(len(meshes))):
        groups = groups_for(order)
        set_groups(order, row, groups)
        found.append(groups)
    degree, members, stride = zip(*found, strict=True)
    return np.array(degree), np.array(members), np.array(stride)


def over_arrays(cluster: Cluster, meshes: Layouts) -> tuple[Array, Array, Array]:
    """The same."""
    found = by_arrays.groups(cluster, meshes, shared=False)
    shared = [getattr(found, name) for name in NAMES]
    tables = [one.table.take(one.code) for one in shared]
    return (
        np.array([table.degree for table in tables]).T,
        np.array([table.members for table in tables]).transpose(2, 0, 1),
        np.array([table.stride for table in tables]).transpose(2, 0, 1),
    )


def compare(some: Iterable[Cluster], rng: np.random.Generator) -> None:
    for cluster in some:
        meshes = random_meshes(cluster, rng, MESHES)
        if not cluster.device_orders.has_choice:  # fillings are alike, up to the names of dims
            meshes = meshes.with_columns(
                torus_axes=np.zeros_like(meshes.pp), torus_block=np.ones_like(meshes.pp)
            )
        expected, found = over_arrays(cluster, meshes), compiled(cluster, meshes)
        joins = expected[1] > 1  # how far apart single members are is nobody's business
        for field, of_arrays, own in zip(
            ("degree", "members", "stride"), expected, found, strict=True
        ):
            off = np.abs(own - of_arrays) > 1e-9 * np.abs(of_arrays)
            wrong = np.argwhere(off & joins if field == "stride" else off)
            if len(wrong):
                row, group, *_ = wrong[0].tolist()
                raise AssertionError(
                    f"{field} of {NAMES[group]} is {of_arrays[row, group]}, found"
                    f" {own[row, group]}; {meshes[row]} on {cluster.dims}"
                )


def test_groups_are_numbered_as_arrays_name_them() -> None:
    assert len(NAMES) == GROUPS


@pytest.mark.parametrize("name", FABRICS)
def test_groups_on_the_catalogues_fabrics_are_those_over_arrays(name: str) -> None:
    compare(clusters(name), np.random.default_rng(len(name)))


@pytest.mark.parametrize("seed", range(4))
def test_so_are_those_on_fabrics_that_are_made_up(seed: int) -> None:
    rng = np.random.default_rng(seed)
    compare((random_problem(rng).cluster for _ in range(MADE_UP)), rng)
