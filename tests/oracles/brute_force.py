"""Every legal layout of a problem, written down and predicted one block after the other, without a
bound.

Simple on purpose: what the search must agree with.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import NormalDist
from typing import Any

import numpy as np

from models.columns import Array
from models.cost.memory_uncertainty import MemoryUncertainty
from models.cost.predictions import Predictions, predict
from models.layouts.complexity import complexity
from models.layouts.factors import num_ordered_factorisations
from models.layouts.rule import Rule
from models.layouts.rules import RULES
from models.spec.constraints import EVEN_CHANCE, Constraints
from models.spec.hardware import GIB
from models.spec.layout import (
    AXES,
    PLACEMENTS,
    SCHEDULES,
    TORUS_AXES,
    TORUS_BLOCKS,
    Layout,
    Layouts,
)
from models.spec.problem import Problem
from models.spec.profile import Profile
from models.spec.recompute import RECOMPUTE

_OF_POLICY = (
    "layers_divide", "partition_offered", "schedule_shape", "schedule_offered",
    "virtual_stages_offered", "virtual_stages_searched", "sharding_searched",
    "balancing_needs_all_forwards_first", "sharding_shape", "sharding_offered", "reshard_offered",
    "recompute_offered", "modules_offered", "modules_exist", "recompute_layers_offered",
    "offload_offered", "offload_in_pipeline", "sharding_in_pipeline", "sharding_beside_experts",
    "sharding_in_context", "sharding_axes_need_zero_3", "muon_offered", "offload_needs_sharding",
    "states_offered",
)  # fmt: skip
_BLOCK = 100_000
_DEGREES = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "etp")


@dataclass(frozen=True)
class Found:
    """The layouts that fit: `layouts` with their step times and points of complexity."""

    layouts: Layouts
    times: Array
    points: Array

    def best(self, rows: Array) -> float:
        return float(self.times[rows].min(initial=np.inf))

    def ranked(self, top: int, tolerance: float) -> list[float]:
        """The `top` different times of the fastest meshes within the tolerance."""
        degrees = np.stack([getattr(self.layouts, name) for name in _DEGREES], axis=1)
        _, code = np.unique(degrees, axis=0, return_inverse=True)
        fastest = np.full(code.max() + 1, np.inf)
        np.minimum.at(fastest, code.ravel(), self.times)
        different = {f"{time:.9g}": float(time) for time in np.sort(fastest)[::-1]}
        return [
            time
            for time in sorted(different.values())[:top]
            if time <= fastest.min() * (1 + tolerance)
        ]


def fitting(problem: Problem, profile: Profile, constraints: Constraints) -> Found | None:
    """Every legal layout that fits into memory."""
    capacity = problem.cluster.usable_bytes - constraints.memory_reserve_gib * GIB
    parts = []
    for layouts in legal(problem, constraints):
        predictions = predict(problem, layouts, profile.coefficients(problem.scopes))
        on_host = predictions.host_bytes <= problem.cluster.host_bytes
        fit = (predictions.needed_bytes <= capacity) & on_host
        if constraints.min_fit_probability > EVEN_CHANCE:
            least = NormalDist().inv_cdf(constraints.min_fit_probability)
            fit &= _deviations(predictions, profile) >= least
        fits = np.flatnonzero(fit)
        layouts = layouts.take(fits)
        parts.append((layouts, predictions.step_time_s[fits], complexity(problem, layouts)))
    if not sum(len(layouts) for layouts, *_ in parts):
        return None
    rows, times, points = zip(*parts, strict=True)
    return Found(Layouts.concatenate(rows), np.concatenate(times), np.concatenate(points))


def surest(problem: Problem, profile: Profile, constraints: Constraints) -> float:
    """The highest probability with which any legal layout fits, whatever is to be left free."""
    most = -np.inf
    for layouts in legal(problem, constraints):
        predictions = predict(problem, layouts, profile.coefficients(problem.scopes))
        most = max(most, float(_deviations(predictions, profile).max(initial=-np.inf)))
    return NormalDist().cdf(most)


def _deviations(predictions: Predictions, profile: Profile) -> Array:
    """How many standard deviations each has left, of the device or of its host."""
    cluster, memory = predictions.problem.cluster, predictions.memory
    spread = MemoryUncertainty.of(predictions.problem, profile).spreads(predictions)
    with np.errstate(divide="ignore", invalid="ignore"):
        device = np.log(
            (cluster.usable_bytes - memory["context_bytes"]) / predictions.reserved_bytes
        )
        host = np.log(cluster.host_bytes / predictions.host_bytes)
    return np.asarray(np.minimum(device, host) / spread)


def legal(problem: Problem, constraints: Constraints) -> Iterator[Layouts]:
    """Every legal layout that the constraints allow, in blocks."""
    meshes, policies = _meshes(problem, constraints), _policies(problem, constraints)
    if not len(policies):
        return
    torus = problem.cluster.fabric.torus is not None
    fillings = list(product(range(len(TORUS_AXES)), TORUS_BLOCKS)) if torus else [(0, 1)]
    orders = [_legal_orders(problem, meshes, *filling) for filling in fillings]
    rules = [rule for rule in RULES if rule.name in _OF_POLICY]
    size = max(_BLOCK // len(policies), 1)
    for start in range(0, len(meshes), size):
        mesh, policy = np.indices((min(size, len(meshes) - start), len(policies))).reshape(2, -1)
        rows = replace(
            policies.take(policy),
            **{name: getattr(meshes, name)[start + mesh] for name in _OF_MESH},
        )
        ok = np.flatnonzero(_obeys(problem, rows, rules))
        for (axes, block), legal_orders in zip(fillings, orders, strict=True):
            row, order = np.nonzero(legal_orders[start + mesh[ok]])
            if len(row):
                filled = {
                    "torus_axes": np.full(len(row), axes),
                    "torus_block": np.full(len(row), block),
                }
                yield replace(rows.take(ok[row]), placement=order, **filled)


def _legal_orders(problem: Problem, meshes: Layouts, axes: int, block: int) -> Array:
    """(meshes, placements): those that a mesh may have in this filling of a torus, of placements
    with its axes in the same order the first."""
    used = np.stack([getattr(meshes, axis) > 1 for axis in AXES], axis=1)
    legal = np.zeros((len(meshes), len(PLACEMENTS)), dtype=bool)
    for some in np.unique(used, axis=0):
        mine = np.flatnonzero((used == some).all(axis=1))
        legal[
            np.ix_(
                mine, _orders([axis for axis, is_used in zip(AXES, some, strict=True) if is_used])
            )
        ] = True
    mesh, order = np.nonzero(legal)
    filled = {"torus_axes": np.full(len(mesh), axes), "torus_block": np.full(len(mesh), block)}
    placed = replace(meshes.take(mesh), placement=order, **filled)
    rules = [
        rule
        for rule in RULES
        if rule.field in ("layout.placement", "layout.torus_axes", "layout.torus_block")
    ]
    legal[mesh, order] = _obeys(problem, placed, rules)
    return legal


_OF_MESH = (*_DEGREES, "micro_batch", "sequence_parallel")


def written_down(problem: Problem, constraints: Constraints) -> tuple[int, int]:
    """How many meshes and how many policies are looked at, before any rule."""
    meshes = num_ordered_factorisations(problem.cluster.num_devices, len(AXES))
    meshes *= math.prod(map(len, _mesh_knobs(problem, constraints).values()))
    return meshes, math.prod(map(len, _policy_knobs(problem, constraints).values()))


def _mesh_knobs(problem: Problem, constraints: Constraints) -> dict[str, list[Any]]:
    """What a mesh may have beside the degrees of its axes."""
    moe = [kind.moe for kind in problem.architecture.kinds if kind.moe]
    free: dict[str, list[Any]] = {
        "sequence_parallel": [False, True],
        "ep": _divisors(moe[0].num_experts) if moe else [1],
        "etp": _divisors(moe[0].intermediate_size) if moe else [1],
        "micro_batch": _divisors(problem.workload.global_batch),
    }
    return _allowed(free, constraints)


def _meshes(problem: Problem, constraints: Constraints) -> Layouts:
    """Those that obey every rule that no policy changes."""
    batch = problem.workload.global_batch
    knobs = Layouts.of(
        Layout(**chosen) for chosen in _combinations(_mesh_knobs(problem, constraints))
    )
    rules = [
        rule for rule in RULES if rule.name not in _OF_POLICY and rule.field != "layout.placement"
    ]
    found = []
    for degrees in _factorisations(problem.cluster.num_devices, len(AXES)):
        mesh = dict(zip(AXES, degrees, strict=True))
        dp = mesh["dp_shard"] * mesh["dp_replicate"]
        given = {**mesh, "dp": dp}
        if batch % dp or any(
            v not in constraints.allowed.get(name, (v,)) for name, v in given.items()
        ):
            continue
        rows = knobs.take(batch // dp % knobs.micro_batch == 0)
        rows = replace(rows, **{axis: np.full(len(rows), degree) for axis, degree in mesh.items()})
        found.append(rows.take(_obeys(problem, rows, rules)))
    return Layouts.concatenate(found) if found else Layouts.of([])


def _obeys(problem: Problem, rows: Layouts, rules: Sequence[Rule]) -> Array:
    return np.asarray(np.all([rule.test(problem, rows) for rule in rules], axis=0), dtype=bool)


def _policy_knobs(problem: Problem, constraints: Constraints) -> dict[str, list[Any]]:
    longest = -(
        -problem.architecture.num_layers // min(constraints.allowed.get("pp", (1,)))
    )  # chunk
    free: dict[str, list[Any]] = {
        "schedule": list(SCHEDULES),
        "virtual_stages": list(range(1, max(problem.stack.max_virtual_stages, 2) + 1)),
        "balanced": [False, True],
        "zero_stage": [0, 1, 2, 3],
        "reshard": [True, False],
        "recompute": list(RECOMPUTE),
        "recompute_layers": [0] if "recompute" in constraints.allowed else list(range(longest)),
        "offload_activations": [False, True],
        "offload_optimizer": [False, True],
    }
    if "recompute_layers" in constraints.allowed:
        free["recompute_layers"] = list(range(longest))
    return _allowed(free, constraints)


def _policies(problem: Problem, constraints: Constraints) -> Layouts:
    every = _combinations(_policy_knobs(problem, constraints))
    some = (
        p
        for p in every
        if (p["reshard"] or p["zero_stage"] == 3)
        and (p["recompute"] == "full" or not p["recompute_layers"])
    )
    named = constraints.allowed.get("recompute_modules")
    sets = [
        problem.effective_modules(modules)
        for modules in ([named] if named else problem.stack.selective)
    ]
    rows = Layouts.of(
        Layout(**policy, recompute_modules=modules)
        for policy in some
        for modules in (sets if policy["recompute"] == "selective" else [()])
    )
    offered = (
        "recompute_offered", "modules_offered", "modules_exist", "recompute_layers_offered",
        "offload_offered", "reshard_offered",
    )  # fmt: skip
    return rows.take(_obeys(problem, rows, [rule for rule in RULES if rule.name in offered]))


def _allowed(free: dict[str, list[Any]], constraints: Constraints) -> dict[str, list[Any]]:
    return {
        knob: [v for v in values if v in constraints.allowed.get(knob, values)]
        for knob, values in free.items()
    }


def _combinations(knobs: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    return (dict(zip(knobs, values, strict=True)) for values in product(*knobs.values()))


def _orders(used: list[str]) -> list[int]:
    """Of placements that have these axes in the same order, the first."""
    first: dict[tuple[str, ...], int] = {}
    for code, order in enumerate(PLACEMENTS):
        first.setdefault(tuple(axis for axis in order if axis in used), code)
    return list(first.values())


def _factorisations(n: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (n,)
        return
    for d in _divisors(n):
        yield from ((d, *rest) for rest in _factorisations(n // d, parts - 1))


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]
