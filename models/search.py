"""The best layouts of a problem, and the proof.

Branch and bound over meshes: every legal mesh gets a lower bound of its step time and of its memory under any policy
(models.bounds); meshes are opened in order of their bound, all policies of a batch of them are
evaluated at once, and the search closes when the next bound is no better than what is held. Within a mesh, a policy
that only adds work (recompute, offload) is dropped where the one without it fits: time is monotone in both.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from models.array import Array
from models.bounds import Bounds, Variants
from models.combine import Combiner
from models.complexity import complexity
from models.constraints import Constraints
from models.errors import Infeasible, Invalid
from models.hardware import GIB
from models.layout import PLACEMENTS, Layouts
from models.mesh_costs import MeshCosts
from models.problem import Problem
from models.profile import Coefficients, Profile
from models.space import Space, merge

_MOST_LAYOUTS = 4_000_000  # a search stops there with the best so far, marked as not exact
_BLOCK = 1 << 15  # meshes or layouts evaluated at once: arrays of this length stay in cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What the search looked at. Every layout of the space is in exactly one of the counts.

    `rejected` by rule (with "same_placement" for placements that cross the same links as an earlier one and
    "dominated" for policies that only add work to one that fits), `over_memory` evaluated and too large,
    `pruned_by_memory` and `pruned_by_bound` without evaluation, `evaluated` fully. `closing_bound_s` is the least
    bound of what was not opened; `exact` says that it is no better than the answer.
    """

    space: int
    cardinality: dict[str, int]
    rejected: dict[str, int]
    over_memory: int
    pruned_by_memory: int
    pruned_by_bound: int
    evaluated: int
    closing_bound_s: float | None
    exact: bool


@dataclass
class Found:
    """Layouts held while searching, with their predictions; the best of each mesh."""

    layouts: list[Layouts] = field(default_factory=list)
    times: list[Array] = field(default_factory=list)
    complexities: list[Array] = field(default_factory=list)

    def add(self, layouts: Layouts, times: Array, complexities: Array) -> None:
        self.layouts.append(layouts)
        self.times.append(times)
        self.complexities.append(complexities)

    def merged(self) -> tuple[Layouts, Array, Array]:
        return (
            Layouts.concatenate(self.layouts),
            np.concatenate(self.times),
            np.concatenate(self.complexities),
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """Held layouts in order of (step time, complexity), and how the search went.

    `layouts` contains the fastest and every layout within the tolerance that could be the simplest.
    """

    layouts: Layouts
    times: Array
    complexities: Array
    certificate: Certificate

    @property
    def simplest(self) -> int:
        """Position of the simplest within the tolerance the search was run with; the first is the fastest."""
        return int(np.lexsort((self.times, self.complexities))[0])


class NoLegalLayout(Exception):
    """No mesh obeys the rules; `rejected` counts layouts by the rule that refused them."""

    def __init__(self, rejected: Counter[str]) -> None:
        super().__init__("no legal layout")
        self.rejected = rejected


def search(problem: Problem, profile: Profile, constraints: Constraints, tolerance: float) -> Answer:
    """The fastest layout, and all others that may be simplest within `tolerance` of it.

    Raises NoLegalLayout, or Infeasible if every legal layout needs more memory than there is.
    """
    return _Search(problem, profile.coefficients(problem.scopes), constraints, tolerance).run()


class _Search:
    def __init__(self, problem: Problem, c: Coefficients, constraints: Constraints, tolerance: float) -> None:
        self.problem, self.c, self.tolerance = problem, c, tolerance
        self.space = Space(problem, constraints)
        self.capacity = problem.cluster.usable_bytes - constraints.memory_reserve_gib * GIB
        if self.capacity <= 0:
            rule = f"must leave some of the {problem.cluster.usable_bytes / GIB:.1f} usable GiB of a device"
            raise Invalid("constraints.memory_reserve_gib", constraints.memory_reserve_gib, rule)
        self.rejected: Counter[str] = Counter()
        self.over_memory = self.evaluated = self.pruned_by_memory = self.pruned_by_bound = 0
        self.best = self.closing_bound = np.inf
        self.found = Found()

    def run(self) -> Answer:
        meshes, refused = self.space.meshes
        self.rejected += refused
        if not len(meshes):
            raise NoLegalLayout(self.rejected)
        classes, legal, refused = self.space.legal_policies(meshes)
        self.rejected += refused
        self.variants = Variants.of(self.space.offered)
        self.twins, self.weights = _twins(self.space.offered)
        self.counts = np.array(
            [np.bincount(self.variants.of_policy[rows], minlength=len(self.variants)) for rows in legal]
        )
        self.classes, self.legal = classes, legal
        sizes = self.counts.sum(axis=1)[classes]
        if not sizes.any():
            raise NoLegalLayout(self.rejected)
        bound, memory = self._bounds(meshes)
        order = np.flatnonzero((memory <= self.capacity) & (sizes > 0))
        self.pruned_by_memory += int(sizes[memory > self.capacity].sum()) * len(PLACEMENTS)
        order = order[np.argsort(bound[order], kind="stable")]
        opened = self._open(meshes, order, bound)
        if not np.isfinite(self.best):
            raise self._out_of_memory(meshes, memory)
        unopened = order[opened:]
        self.pruned_by_bound += int(sizes[unopened].sum()) * len(PLACEMENTS)
        if len(unopened):
            self.closing_bound = min(self.closing_bound, float(bound[unopened[0]]))
        return self._answer(self._certificate())

    def _certificate(self) -> Certificate:
        return Certificate(
            space=self.space.size,
            cardinality=self.space.cardinality,
            rejected={name: count for name, count in self.rejected.items() if count},
            over_memory=self.over_memory,
            pruned_by_memory=self.pruned_by_memory,
            pruned_by_bound=self.pruned_by_bound,
            evaluated=self.evaluated,
            closing_bound_s=self.closing_bound if np.isfinite(self.closing_bound) else None,
            exact=self.looked_at <= _MOST_LAYOUTS,
        )

    @property
    def looked_at(self) -> int:
        return self.evaluated + self.over_memory

    @property
    def limit(self) -> float:
        """Layouts slower than this can be neither fastest nor simplest within the tolerance."""
        return self.best * (1 + self.tolerance)

    def _bounds(self, meshes: Layouts) -> tuple[Array, Array]:
        """The first bounds, one per mesh: the best of every placement and policy, every axis as close as it can be."""
        time, memory = np.empty(len(meshes)), np.empty(len(meshes))
        for start in range(0, len(meshes), _BLOCK):
            rows = np.arange(start, min(start + _BLOCK, len(meshes)))
            costs = MeshCosts.unplaced(self.problem, meshes.take(rows), self.c)
            bounds = Bounds(self.problem, costs, self.c)
            time[rows], memory[rows] = bounds.least_time(), bounds.least_memory()
        return time, memory

    def _open(self, meshes: Layouts, order: Array, bound: Array) -> int:
        """Open meshes in order of their bound; returns how many were."""
        opened, batch_size = 0, 64
        while opened < len(order) and bound[order[opened]] <= self.limit and self.looked_at <= _MOST_LAYOUTS:
            batch = order[opened : opened + batch_size]
            batch = batch[bound[batch] <= self.limit]
            opened += len(batch)
            batch_size = min(2 * batch_size, 4096)
            batch = self._promising(meshes, batch)
            for start in range(0, len(batch), 256):
                part = batch[start : start + 256]
                self._open_batch(*self._placed(meshes.take(part), self.classes[part]))
        return opened

    def _promising(self, meshes: Layouts, batch: Array) -> Array:
        """Those of the batch with a variant that may still fit and be fast under the best of placements."""
        costs = MeshCosts.unplaced(self.problem, meshes.take(batch), self.c)
        time, memory, _ = Bounds(self.problem, costs, self.c).per_variant(self.variants)
        counts = self.counts[self.classes[batch]]
        hope = ((memory <= self.capacity) & (time <= self.limit) & (counts > 0)).any(axis=1)
        self._prune(time[~hope], memory[~hope], counts[~hope] * len(PLACEMENTS))
        return batch[hope]

    def _prune(self, time: Array, memory: Array, counts: Array) -> Array:
        """Count the layouts that a bound rules out; returns which of them are left."""
        fits, quick = memory <= self.capacity, time <= self.limit
        slow = fits & ~quick & (counts > 0)
        self.pruned_by_memory += int(counts[~fits].sum())
        self.pruned_by_bound += int(counts[slow].sum())
        self.closing_bound = min(self.closing_bound, float(np.min(time[slow], initial=np.inf)))
        return fits & quick

    def _placed(self, meshes: Layouts, classes: Array) -> tuple[Layouts, Array]:
        """The batch under its distinct placements, and their classes of policies."""
        placed, parent, forbidden = self.space.placed(meshes)
        sizes = self.counts.sum(axis=1)[classes]
        distinct = np.bincount(parent, minlength=len(meshes))
        self.rejected["placement_fits_torus"] += int((forbidden * sizes).sum())
        self.rejected["same_placement"] += int(((len(PLACEMENTS) - forbidden - distinct) * sizes).sum())
        return placed, classes[parent]

    def _open_batch(self, meshes: Layouts, classes: Array) -> None:
        """The second bounds, per mesh and variant; what they leave is evaluated."""
        if not len(meshes):
            return
        costs = MeshCosts.of(self.problem, meshes, self.c)
        bounds = Bounds(self.problem, costs, self.c)
        time, memory, idle = bounds.per_variant(self.variants)
        wanted = self._prune(time, memory, self.counts[classes])
        rows, policies = self._expand(classes, wanted)
        variant = self.variants.of_policy[policies]
        chosen = self.space.offered.take(policies)
        extra = bounds.extra_idle(rows, chosen.schedule, chosen.virtual_stages)
        least = time[rows, variant] + idle[rows, variant] * extra
        quick = self._prune(least, np.zeros_like(least), np.ones_like(rows))
        rows, policies = rows[quick], policies[quick]
        for start in range(0, len(rows), _BLOCK):
            block = slice(start, start + _BLOCK)
            self._evaluate(meshes, costs, rows[block], policies[block])

    def _expand(self, classes: Array, wanted: Array) -> tuple[Array, Array]:
        """(mesh, policy) pairs of the wanted variants; the twins of a mesh stay together."""
        rows, policies = [], []
        for kind in np.unique(classes):
            mine = np.flatnonzero(classes == kind)
            legal = self.legal[kind]
            mesh, policy = np.nonzero(wanted[mine][:, self.variants.of_policy[legal]])
            rows.append(mine[mesh])
            policies.append(legal[policy])
        return np.concatenate(rows), np.concatenate(policies)

    def _evaluate(self, meshes: Layouts, costs: MeshCosts, rows: Array, policies: Array) -> None:
        layouts = merge(meshes.take(rows), self.space.offered.take(policies))
        used, _ = Combiner(self.problem, layouts, costs, rows, self.c).memory()
        fits = np.sum(list(used.values()), axis=0) <= self.capacity
        self.over_memory += int((~fits).sum())
        kept = fits & ~self._dominated(rows, policies, fits)
        self.rejected["dominated"] += int((fits & ~kept).sum())
        self.evaluated += int(kept.sum())
        if not kept.any():
            return
        layouts = layouts.take(kept)
        time = Combiner(self.problem, layouts, costs, rows[kept], self.c).time()
        step = np.sum(list(time.values()), axis=0)
        self.best = min(self.best, float(step.min()))
        near = step <= self.limit
        chosen = layouts.take(near)
        self.found.add(chosen, step[near], complexity(self.problem, chosen))

    def _dominated(self, rows: Array, policies: Array, fits: Array) -> Array:
        """Policies with a lighter twin on the same mesh that fits.

        Twins differ in recompute and offload only; lighter is less or equal in each. Both only add time.
        """
        first = int(rows.min())
        groups = int(self.twins.max(initial=0)) + 1
        key = (rows - first) * groups + self.twins[policies]
        weight = self.weights[policies]
        table = np.zeros(((int(rows.max()) - first + 1) * groups, _WEIGHTS), dtype=bool)
        table[key, weight] = fits
        return np.asarray((table[key] & _LIGHTER[weight]).any(axis=1))

    def _answer(self, certificate: Certificate) -> Answer:
        layouts, times, complexities = self.found.merged()
        near = times <= self.best * (1 + self.tolerance)
        layouts, times, complexities = layouts.take(near), times[near], complexities[near]
        order = np.lexsort((complexities, times))
        return Answer(layouts.take(order), times[order], complexities[order], certificate)

    def _out_of_memory(self, meshes: Layouts, bound: Array) -> Infeasible:
        """The least any layout needs, found by opening meshes in order of their memory bound."""
        least, layout = np.inf, None
        order = np.argsort(bound, kind="stable")
        everything = np.ones((64, len(self.variants)), dtype=bool)
        for start in range(0, len(order), 64):
            batch = order[start : start + 64]
            if bound[batch[0]] >= least:
                break
            rows, policies = self._expand(self.classes[batch], everything[: len(batch)])
            if not len(rows):
                continue
            local = meshes.take(batch)
            layouts = merge(local.take(rows), self.space.offered.take(policies))
            costs = MeshCosts.of(self.problem, local, self.c)
            used, _ = Combiner(self.problem, layouts, costs, rows, self.c).memory()
            total = np.sum(list(used.values()), axis=0)
            if total.min() < least:
                least, layout = float(total.min()), layouts[int(total.argmin())]
        detail = (
            f"the most frugal legal layout needs {least / GIB:.1f} GiB on its fullest device, "
            f"{self.capacity / GIB:.1f} GiB are usable: {layout.summary() if layout else 'none'}"
        )
        return Infeasible("memory", detail, needed=least / GIB, available=self.capacity / GIB, unit="GiB")


def _twins(policies: Layouts) -> tuple[Array, Array]:
    """(group of policies that differ in recompute and offload only, weight of each within its group)."""
    group = np.zeros(len(policies), dtype=np.int64)
    for name in ("schedule", "virtual_stages", "balanced", "zero_stage", "reshard"):
        group = group * 64 + getattr(policies, name)
    _, group = np.unique(group, return_inverse=True)
    weight = policies.recompute * 4 + policies.offload_activations * 2 + policies.offload_optimizer
    return group, weight


_WEIGHTS = 3 * 2 * 2  # recompute, activation offload, optimizer offload


def _lighter_table() -> Array:
    """[w, v]: weight v is lighter than w in every one of recompute and the two offloads, and not equal."""
    levels = [(w // 4, w // 2 % 2, w % 2) for w in range(_WEIGHTS)]
    return np.array([[v != w and all(a <= b for a, b in zip(v, w, strict=True)) for v in levels] for w in levels])


_LIGHTER = _lighter_table()
