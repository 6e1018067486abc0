"""The compiled costs of collectives against those over arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from models.columns import Array
from models.cost import collectives as by_arrays
from models.cost.mesh_costs import collectives, dispatch_name
from models.kernel.collectives import Cost, domains_in_reach, links_of, time
from models.kernel.facts import (
    CONTEXT,
    DISPATCHERS,
    LayerFacts,
    coefficient_records,
    question,
    record_type,
)
from models.kernel.groups import groups_for
from models.kernel.rows import rows_of
from models.layouts.placement import Groups, groups
from models.spec import catalogue
from models.spec.architecture import Moe
from models.spec.hardware import Cluster
from models.spec.layout import Layouts
from models.spec.problem import Problem
from models.spec.profile import KINDS, Coefficients, shipped_profile
from models.spec.recompute import NONE
from models.spec.workload import Precision, Workload
from tests.models.kernel.random_meshes import FABRICS, clusters, random_meshes
from tests.oracles.random_problems import pick, random_problem

RELATIVE = 1e-9
MESHES = 15
"""On every cluster."""
MADE_UP = 15
"""Problems of a seed."""
MODELS = ("deepseek-v3", "mixtral-8x7b", "llama-3.1-70b", "qwen3-235b-a22b")
"""With experts in groups, with other experts, and without."""
AXES = {
    "tp": "tp",
    "tp_reduce": "tp",
    "etp": "etp",
    "cp": "cp",
    "send": "pp",
    "replicate": "dp_replicate",
    "edp": "edp",
    "sharding": "sharding",
    "replicas": "replicas",
}
"""The axis of every collective of Links."""

Named = dict[str, Array]


def question_on(cluster: Cluster, rng: np.random.Generator) -> Problem:
    """Of any model, with any way to exchange context and tokens."""
    precision: Precision = "bf16" if "bf16" in cluster.chip.peak_tflops else "fp16"
    exchanges: dict[str, Any] = {
        "context": pick(rng, CONTEXT),
        "dispatcher": pick(rng, DISPATCHERS),
        "node_limit": pick(rng, (None, 1, 2, 4)),
    }
    return Problem(
        architecture=catalogue.architecture(pick(rng, MODELS)),
        cluster=cluster,
        workload=Workload(seq_len=4096, global_batch=512, precision=precision),
        stack=replace(catalogue.stack("generic"), **exchanges),
    )


def random_coefficients(problem: Problem, rng: np.random.Generator) -> Coefficients:
    """Each up to ten times what the shipped profile says, or down to a tenth."""
    c = shipped_profile().coefficients(problem.scopes)
    factors = 10 ** rng.uniform(-1.0, 1.0, len(KINDS))
    changed = {name: getattr(c, name) * by for name, by in zip(KINDS, factors, strict=True)}
    return replace(c, **changed)


def compiled(problem: Problem, meshes: Layouts, c: Coefficients) -> Named:
    """By name: costs (n, 2), and single values (n,)."""
    q, of_c = question(problem, np.array([NONE])), coefficient_records(c)[0]
    room, dispatch = groups_for(q.order), np.full((len(q.layers), 2), np.nan)
    found, dispatched = [], []
    for row in rows_of(meshes, np.array([NONE]), np.zeros(len(meshes))):
        found.append(links_of(q.facts[0], q.layers, q.dims, q.order, row, of_c, room, dispatch))
        dispatched.append(dispatch.copy())
    named = {name: np.array([getattr(one, name) for one in found]) for name in found[0]._fields}
    kinds = np.array(dispatched)
    return named | {f"dispatch {kind}": kinds[:, kind] for kind in range(len(q.layers))}


def over_arrays(problem: Problem, meshes: Layouts, c: Coefficients) -> Named:
    """The same."""
    placed = groups(problem.cluster, meshes)
    costs = collectives(problem, placed, c)

    def cost(name: str, axis: str) -> Array:
        found = costs[name].take(getattr(placed, axis).code)
        return np.array([found.byte_s, found.latency_s]).T

    names = {"replicate": "dp_replicate"}
    named = {name: cost(names.get(name, name), axis) for name, axis in AXES.items()}
    for kind, layer in enumerate(problem.architecture.kinds):
        if layer.moe is None:
            named[f"dispatch {kind}"] = np.zeros((len(meshes), 2))
        else:
            gathers = problem.stack.dispatcher == "allgather"
            name = "ep" if gathers else dispatch_name(layer.moe)
            named[f"dispatch {kind}"] = cost(name, "ep")
    return named | {
        "dense_shards": degree(placed, "sharding"),
        "expert_shards": degree(placed, "edp"),
        "tensor_across_domains": crosses(problem, placed, "tp"),
        "expert_across_domains": crosses(problem, placed, "ep"),
    }


def degree(placed: Groups, axis: str) -> Array:
    of = getattr(placed, axis)
    return np.asarray(of.per_row(of.table.degree))


def crosses(problem: Problem, placed: Groups, axis: str) -> Array:
    of = getattr(placed, axis)
    return np.asarray(of.per_row(of.table.crosses(problem.cluster.scale_out_mask)))


def compare(problem: Problem, rng: np.random.Generator) -> None:
    meshes, c = random_meshes(problem.cluster, rng, MESHES), random_coefficients(problem, rng)
    expected, found = over_arrays(problem, meshes, c), compiled(problem, meshes, c)
    assert found.keys() == expected.keys()
    for name in expected:
        assert found[name].shape == expected[name].shape, name
        same = np.isclose(found[name], expected[name], rtol=RELATIVE, atol=0.0)
        wrong = np.argwhere(~same)
        if len(wrong):
            row = int(wrong[0, 0])
            raise AssertionError(
                f"{name} is {expected[name][row]}, found {found[name][row]}; {meshes[row]} on"
                f" {problem.cluster.dims} with {c}"
            )


@pytest.mark.parametrize("name", FABRICS)
def test_costs_on_the_catalogues_fabrics_are_those_over_arrays(name: str) -> None:
    rng = np.random.default_rng(len(name))
    for cluster in clusters(name):
        compare(question_on(cluster, rng), rng)


@pytest.mark.parametrize("seed", range(4))
def test_so_are_those_on_fabrics_that_are_made_up(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(MADE_UP):
        compare(random_problem(rng), rng)


@pytest.mark.parametrize("groups", [(1, 1), (8, 8), (8, 4), (8, 3), (4, 2), (6, 1)])
def test_groups_of_experts_reach_as_many_domains_as_those_over_arrays(
    groups: tuple[int, int],
) -> None:
    moe = Moe(
        num_experts=48,
        experts_per_token=4,
        intermediate_size=8,
        num_groups=groups[0],
        groups_per_token=groups[1],
    )
    layer = np.zeros(1, record_type(LayerFacts))[0]
    layer["num_groups"], layer["groups_per_token"] = groups
    domains = np.array([1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 8.0, 9.6, 12.0, 64.0])
    found = [domains_in_reach(layer, of) for of in domains]
    assert found == pytest.approx(moe.domains_in_reach(domains), rel=RELATIVE)


def test_time_is_that_of_the_bytes_and_of_the_first_byte() -> None:
    expected = by_arrays.Cost(np.array([2e-9]), np.array([3e-6])).time(1e6)
    assert time(Cost(2e-9, 3e-6), 1e6) == pytest.approx(expected[0], rel=RELATIVE)
