"""The space of layouts: every factorisation of the devices over the axes, times every knob.

A layout is a *mesh* (degrees, expert degrees, placement, sequence parallelism, micro-batch) and a *policy*
(schedule, partition, recompute, sharding, offload). Meshes are enumerated in stages, and after each stage the rules
that can already be decided throw out rows; what a row would still have grown to is counted against that rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from models.array import Array
from models.constraints import Constraints
from models.errors import Invalid
from models.layout import AXES, PLACEMENTS, RECOMPUTE, SCHEDULES, Layout, Layouts
from models.mesh import groups
from models.mesh_costs import MESH_FIELDS, distinct
from models.problem import Problem
from models.rules import RULES

_RULES = {rule.name: rule for rule in RULES}
MOST_MESHES = 3_000_000  # held at a time
MOST_CHECKED = 10_000_000  # block by block
_ROWS = 1 << 16  # looked at together
_DEGREE_RULES = ("degrees_offered", "tensor_divides_heads", "tensor_divides_widths", "sequence_divides",
                 "context_divides_heads", "sequence_parallel_offered", "batch_divides")  # fmt: skip
_EXPERT_RULES = ("degrees_offered", "experts_divide", "tensor_divides_widths", "moe_needs_sequence_parallel",
                 "experts_fold_over_dense_axes")  # fmt: skip
_POLICY_RULES = ("schedule_offered", "sharding_offered", "sharding_shape", "schedule_shape", "partition_offered",
                 "layers_divide", "balancing_needs_all_forwards_first")  # fmt: skip


@dataclass(frozen=True)
class Space:
    """The layouts of a problem. `cardinality` names the knobs and how many values each has."""

    problem: Problem
    constraints: Constraints

    @cached_property
    def cardinality(self) -> dict[str, int]:
        n = self.problem.cluster.num_devices
        return {
            "mesh": ordered_factorisations(n, len(AXES)),
            "ep": len(self._expert_degrees),
            "etp": len(divisors(n)) if self.problem.architecture.is_moe else 1,
            "sequence_parallel": 2,
            "placement": len(PLACEMENTS),
            "micro_batch": len(divisors(self.problem.workload.global_batch)),
            "policy": len(self.policies),
        }

    @property
    def size(self) -> int:
        """How many layouts there are before any rule."""
        size = 1
        for count in self.cardinality.values():
            size *= count
        return size

    @cached_property
    def policies(self) -> Layouts:
        """Every combination of the knobs that are not the mesh's."""
        most = max(self.problem.stack.max_virtual_stages, 2)
        chunks = [(s, v, b) for s in SCHEDULES for v in range(1, most + 1) for b in (False, True)]
        sharding = [(z, r) for z in range(4) for r in ((True, False) if z == 3 else (True,))]
        rows = [
            Layout(
                schedule=s,
                virtual_stages=v,
                balanced=b,
                recompute=r,
                zero_stage=z,
                reshard=g,
                offload_activations=oa,
                offload_optimizer=oo,
            )
            for (s, v, b), (z, g), r, oa, oo in product(chunks, sharding, RECOMPUTE, (False, True), (False, True))
        ]
        return Layouts.of(rows)

    @cached_property
    def meshes(self) -> tuple[Layouts, Counter[str]]:
        """The legal meshes, placement and policy neutral, and the layouts thrown out so far by rule."""
        rejected: Counter[str] = Counter()
        after = self.cardinality
        self._bound(after["mesh"] * 2, MOST_MESHES, "factorisations of the devices over the axes")
        rows = self._degrees(rejected)
        self._bound(len(rows) * after["ep"] * after["etp"], MOST_CHECKED, "meshes with their expert degrees")
        factor = after["placement"] * after["micro_batch"] * after["policy"]
        rows = self._filter(rows, _EXPERT_RULES, self._cross_experts, rejected, factor)
        rows = self._cross_micro_batches(rows, rejected, after["placement"] * after["policy"])
        return rows, rejected

    def _bound(self, rows: int, most: int, what: str) -> None:
        """Refuse before growing to more rows than a search may look at."""
        if rows > most:
            rule = f"gives {rows} {what}, above the {most} of one search; constrain some degrees, or take fewer chips"
            raise Invalid("cluster.num_chips", self.problem.cluster.num_chips, rule)

    def _degrees(self, rejected: Counter[str]) -> Layouts:
        rows = self._all_degrees()
        c = self.cardinality
        factor = c["ep"] * c["etp"] * c["placement"] * c["micro_batch"] * c["policy"]
        rows = self._constrained(
            rows, ("pp", "dp_replicate", "dp_shard", "dp", "cp", "tp", "sequence_parallel"), rejected, factor
        )
        return self._ruled(rows, _DEGREE_RULES, rejected, factor)

    def _all_degrees(self) -> Layouts:
        n = self.problem.cluster.num_devices
        table = np.array(list(_factorisations(n, 5)), dtype=np.int64).reshape(-1, 5)
        both = np.repeat(table, 2, axis=0)
        base = _neutral(len(both))
        columns = dict(zip(("pp", "tp", "cp", "dp_replicate", "dp_shard"), both.T, strict=True))
        flags = np.tile(np.array([False, True]), len(table))
        return replace(base, **columns, sequence_parallel=flags)

    @cached_property
    def _expert_degrees(self) -> list[int]:
        counts = [layer.moe.num_experts for layer in self.problem.architecture.kinds if layer.moe]
        return divisors(int(np.gcd.reduce(counts))) if counts else [1]

    def _cross_experts(self, rows: Layouts) -> Layouts:
        n = self.problem.cluster.num_devices
        etps = divisors(n) if self.problem.architecture.is_moe else [1]
        pairs = np.array(list(product(self._expert_degrees, etps)))
        repeated = rows.take(np.repeat(np.arange(len(rows)), len(pairs)))
        tiled = np.tile(pairs, (len(rows), 1))
        return replace(repeated, ep=tiled[:, 0], etp=tiled[:, 1])

    def _filter(self, rows: Layouts, rules: Sequence[str], grow: Any, rejected: Counter[str], factor: int) -> Layouts:
        """Grow the rows block by block, so that what rules throw out at once is never all in memory."""
        kept = []
        for start in range(0, len(rows), 4096):
            block = grow(rows.take(np.arange(start, min(start + 4096, len(rows)))))
            block = self._constrained(block, ("ep", "etp"), rejected, factor)
            kept.append(self._ruled(block, rules, rejected, factor))
        return Layouts.concatenate(kept) if kept else rows

    def placed(self, meshes: Layouts) -> tuple[Layouts, Array, Array]:
        """`meshes` under every placement that puts some axis on different links, the first of equal ones.

        Returns them, the position of each one's mesh, and how many placements of each mesh a torus forbids.
        """
        first, same = distinct(meshes, _DEGREES)
        placement, start, forbidden = self._placements(meshes.take(first))
        counts = np.diff(start)[same]
        parent = np.repeat(np.arange(len(meshes)), counts)
        row = np.arange(len(parent)) + np.repeat(start[same] - (np.cumsum(counts) - counts), counts)
        return replace(meshes.take(parent), placement=placement[row]), parent, forbidden[same]

    def _placements(self, meshes: Layouts) -> tuple[Array, Array, Array]:
        """Placement codes of all meshes in a row, where each mesh's start (and the end), and how many are forbidden."""
        active = np.stack([getattr(meshes, axis) > 1 for axis in AXES], axis=1)
        code = active @ (1 << np.arange(len(AXES)))
        parts, parents, weights = [], [], []
        for pattern in np.unique(code):
            mine = np.flatnonzero(code == pattern)
            orders = _orders([a for i, a in enumerate(AXES) if pattern >> i & 1])
            parts.append(np.tile(orders, len(mine)))
            parents.append(np.repeat(mine, len(orders)))
            weights.append(np.full(len(parents[-1]), len(PLACEMENTS) // len(orders)))
        parent = np.concatenate(parents)
        order = np.argsort(parent, kind="stable")
        parent, weight = parent[order], np.concatenate(weights)[order]
        grown = replace(meshes.take(parent), placement=np.concatenate(parts)[order])
        legal = np.asarray(_RULES["placement_fits_torus"].test(self.problem, grown), dtype=bool)
        forbidden = np.bincount(parent[~legal], weights=weight[~legal], minlength=len(meshes)).astype(np.int64)
        grown, parent = grown.take(legal), parent[legal]
        kept = _first_distinct(self.problem, grown, parent)
        start = np.searchsorted(parent[kept], np.arange(len(meshes) + 1))
        return grown.placement[kept], start, forbidden

    def _cross_micro_batches(self, rows: Layouts, rejected: Counter[str], factor: int) -> Layouts:
        sizes = np.array(divisors(self.problem.workload.global_batch))
        share = self.problem.workload.global_batch // rows.dp
        each, rows_with = np.unique(share, return_counts=True)
        counts = [int(n) * int((value % sizes == 0).sum()) for value, n in zip(each, rows_with, strict=True)]
        self._bound(sum(counts), MOST_MESHES, "meshes with their micro-batches")
        row, size = np.nonzero(share[:, None] % sizes[None, :] == 0)
        grown = replace(rows.take(row), micro_batch=sizes[size])
        rejected["batch_divides"] += (len(rows) * len(sizes) - len(grown)) * factor
        return self._constrained(grown, ("micro_batch",), rejected, factor)

    def _constrained(self, rows: Layouts, knobs: Sequence[str], rejected: Counter[str], factor: int) -> Layouts:
        for knob in knobs:
            if knob in self.constraints.allowed:
                ok = np.isin(getattr(rows, knob), _codes(knob, self.constraints.allowed[knob]))
                rejected[f"constraints.{knob}"] += int((~ok).sum()) * factor
                rows = rows.take(ok)
        return rows

    def _ruled(self, rows: Layouts, names: Sequence[str], rejected: Counter[str], factor: int) -> Layouts:
        for name in names:
            ok = np.asarray(_RULES[name].test(self.problem, rows), dtype=bool)
            if not ok.all():
                rejected[name] += int((~ok).sum()) * factor
                rows = rows.take(ok)
        return rows

    @cached_property
    def _offered(self) -> tuple[Layouts, Counter[str]]:
        """Policies that the constraints and the stack allow on some mesh, and what the others were refused by."""
        rejected: Counter[str] = Counter()
        rows = self._constrained(self.policies, _POLICY_KNOBS, rejected, 1)
        names = ("reshard_offered", "recompute_offered", "offload_offered")
        return self._ruled(rows, names, rejected, 1), rejected

    def legal_policies(self, meshes: Layouts) -> tuple[Array, list[Array], Counter[str]]:
        """Which policies each mesh may have.

        Legality depends on few numbers of a mesh (stages, micro-batches, sharded and replicated or not), so it is
        decided once for each distinct set of them: returns the class of each mesh, the positions in `offered`
        of every class's legal policies, and the layouts refused by rule.
        """
        offered, refused = self._offered
        rejected = Counter({name: count * len(meshes) * len(PLACEMENTS) for name, count in refused.items()})
        m = meshes.num_micro_batches(self.problem.workload.global_batch)
        traits = ((meshes.pp * (int(m.max()) + 1) + m) * 2 + (meshes.dp_shard > 1)) * 2 + (meshes.dp_replicate > 1)
        _, first, classes = np.unique(traits, return_index=True, return_inverse=True)
        members = np.bincount(classes.ravel(), minlength=len(first))
        ok = np.ones((len(first), len(offered)), dtype=bool)
        block = max(_ROWS // max(len(offered), 1), 1)
        for start in range(0, len(first), block):
            mine = slice(start, start + block)
            self._decide(meshes.take(first[mine]), offered, ok[mine], members[mine], rejected)
        return classes.ravel(), [np.flatnonzero(row) for row in ok], rejected

    def _decide(self, meshes: Layouts, offered: Layouts, ok: Array, members: Array, rejected: Counter[str]) -> None:
        """Clear `ok` (meshes, policies) where a rule refuses; each mesh stands for so many members."""
        rows = merge(
            meshes.take(np.repeat(np.arange(len(meshes)), len(offered))),
            offered.take(np.tile(np.arange(len(offered)), len(meshes))),
        )
        for name in _POLICY_RULES:
            passed = np.asarray(_RULES[name].test(self.problem, rows), dtype=bool).reshape(ok.shape)
            rejected[name] += int((members @ (ok & ~passed).sum(axis=1)) * len(PLACEMENTS))
            ok &= passed

    def has_legal(self) -> bool:
        meshes, _ = self.meshes
        return bool(len(meshes)) and any(len(rows) for rows in self.legal_policies(meshes)[1])

    @property
    def offered(self) -> Layouts:
        return self._offered[0]


def merge(meshes: Layouts, policies: Layouts) -> Layouts:
    """The mesh fields of one and the policy fields of the other, row by row."""
    return replace(policies, **{name: getattr(meshes, name) for name in MESH_FIELDS})


_DEGREES = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "etp")  # what a placement places
_POLICY_KNOBS = ("schedule", "virtual_stages", "balanced", "recompute", "zero_stage", "reshard", "offload_activations",
                 "offload_optimizer")  # fmt: skip


def divisors(n: int) -> list[int]:
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return small + [n // d for d in reversed(small) if d * d != n]


def ordered_factorisations(n: int, parts: int) -> int:
    """Ways to write n as an ordered product of `parts` factors: a product of binomials over its prime powers."""
    count, rest, prime = 1, n, 2
    while rest > 1:
        power = 0
        while rest % prime == 0:
            rest //= prime
            power += 1
        for i in range(parts - 1):
            count = count * (power + i + 1)
        divisor = 1
        for i in range(parts - 1):
            divisor *= i + 1
        count //= divisor
        prime += 1
        if prime * prime > rest > 1:
            prime = rest
    return count


def _factorisations(n: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (n,)
        return
    for d in divisors(n):
        for rest in _factorisations(n // d, parts - 1):
            yield (d, *rest)


def _neutral(rows: int) -> Layouts:
    one = Layouts.of([Layout()])
    return Layouts(**{f.name: np.repeat(getattr(one, f.name), rows) for f in fields(Layouts)})


def _orders(active: list[str]) -> Array:
    """Placement codes, one for each order of the active axes: the first that has it, wherever idle axes stand."""
    first: dict[tuple[str, ...], int] = {}
    for code, order in enumerate(PLACEMENTS):
        first.setdefault(tuple(axis for axis in order if axis in active), code)
    return np.sort(np.array(list(first.values())))


def _first_distinct(problem: Problem, layouts: Layouts, parent: Array) -> Array:
    """Positions of the first of all placements of a parent mesh whose axes cross the same links."""
    if not len(parent):
        return np.arange(0)
    g = groups(problem.cluster, layouts)
    rings = np.array([dim.kind == "ring" for dim in problem.cluster.dims] or [False])
    names = ("tp", "cp", "dp_shard", "dp_replicate", "pp", "ep", "etp", "edp")
    links = [np.concatenate([getattr(g, name).members, getattr(g, name).stride[rings]]) for name in names]
    columns = np.concatenate([parent[None, :], *links]).astype(float).view(np.int64)
    columns = columns[(columns != columns[:, :1]).any(axis=1)]
    odd = np.random.default_rng(0).integers(1, 2**62, size=(len(columns), 1)) * 2 + 1
    mixed = (columns * odd).sum(axis=0)  # wraps around; equal columns mix to equal numbers
    _, first, same = np.unique(mixed, return_index=True, return_inverse=True)
    distinct = (columns == columns[:, first[same]]).all(axis=0)
    if not distinct.all():  # two that differ mixed to the same number: compare them whole
        _, first = np.unique(columns, axis=1, return_index=True)
    return np.sort(first)


def _codes(knob: str, values: Sequence[Any]) -> list[Any]:
    tables: dict[str, Sequence[Any]] = {"schedule": SCHEDULES, "recompute": RECOMPUTE}
    return [tables[knob].index(v) for v in values] if knob in tables else list(values)
