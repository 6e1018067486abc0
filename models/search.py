"""The best layouts of a problem, and the proof.

Branch and bound in the levels of models.space. Trunks are taken in order of a bound, crossed with expert degrees and
bounded again as cores; cores are split over replication and sharding, and bounded under every choice of sharding and
saver with groups as close as can be; what is left is placed on the fabric, bounded once more, and crossed with
schedules; what is still left is evaluated. Each level is a few vectorised passes, and a first handful of the most
promising meshes is evaluated early, so that the bounds have something to prune against.

What is opened is searched for all of the answer: the fastest, the best of the meshes that are asked for, the best
without and with a pipeline, and the front of time and complexity within the tolerance, from the simplest to the
fastest. Cores are opened in order of their bound while that may be among the fastest; then those that may only be
simple enough, in order of the complexity that they cannot get below.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace

import numpy as np

from models.array import Array, distinct, total
from models.bounds import Bounds, CoreBounds, Parts, Times, Variants, growth
from models.chains import Chains
from models.combine import Combiner
from models.communication import Cost
from models.complexity import of_degrees, of_mesh, of_policy
from models.errors import Infeasible, Invalid, OutOfTime, TooLarge
from models.exposure import update_seconds
from models.hardware import GIB
from models.layout import PLACEMENTS, Layout, Layouts
from models.memory_bounds import CoreMemory, Memory, MemoryBounds
from models.mesh import Groups, closest_groups
from models.mesh_costs import MeshCosts, ShardCosts, Tables, collectives, least_collectives
from models.pareto import staircase
from models.problem import Problem
from models.profile import Coefficients, Profile
from models.recompute import NONE, Repeated
from models.shard import Shards
from models.space import SAVER_KNOBS, SCHEDULE_KNOBS, SHARDING_KNOBS, Policies, Space, neutral, ragged, sharding_class

MOST_CORES = 30_000_000  # looked at in one search
_CORES = 16_000  # looked at together at first, later more
_PROBED = 1024  # cores opened together, at first
_MESHES = 1 << 14  # bounded together
_LEAVES = 1 << 13  # evaluated together, at most
_FIRST_LEAVES = 1 << 10
_MOST_LAYOUTS = 4_000_000  # a search stops there with the best so far, marked as not exact
_LAST_STEPS = 8  # that a search still takes when it has to stop and nothing fits yet
_DEGREES = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "etp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What an answer has to contain: the `top` fastest meshes, the simplest layout within the tolerance of the
    fastest, and, with `both_sides`, the best with and without a pipeline. Nothing is an answer that is not
    `faster_than` so many seconds."""

    tolerance: float = 0.0
    top: int = 1
    both_sides: bool = False
    faster_than: float = np.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What the search looked at. Every layout of the space is in exactly one of the counts.

    `rejected` by rule, where the search got as far as that rule (with "no_legal_schedule" where none of a schedule's
    rules lets any through, and "dominated" for policies that only add work to one that fits); `over_memory` evaluated
    and too large; `pruned_by_memory` by a bound of what a core needs; `evaluated` fully; `pruned_by_bound`
    all the rest, legal or not, below parts of the space whose bound is no better than the answer, or that only add
    work to what surely fits. `closing_bound_s` is the least of those bounds; `exact` says that the search came to its
    end, and `gap` by how much, at most, a layout that it did not look at is faster than the answer:
    (answer - that) / that.
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
    gap: float


@dataclass(frozen=True, slots=True)
class Answer:
    """Layouts in order of (step time, complexity), and how the search went: the `ranked` fastest meshes, each with its
    best policy and placement, the simplest of those that take equally long; `front`: the fastest of each complexity
    that is within the tolerance and faster than any simpler one, the `simplest` first; and the best `without` and
    `with_pp`. All as positions."""

    layouts: Layouts
    times: Array
    complexities: Array
    ranked: list[int]
    front: list[int]
    without: int | None
    with_pp: int | None
    certificate: Certificate

    @property
    def simplest(self) -> int:
        return self.front[0]

    def inexact(self) -> Answer:
        """The same, where there was no time for all of it."""
        return replace(self, certificate=replace(self.certificate, exact=False))


GoOn = Callable[[], bool]


def to_the_end() -> bool:
    return True


class NoLegalLayout(Exception):
    """No mesh obeys the rules; `rejected` counts layouts by the rule that refused them."""

    def __init__(self, rejected: Counter[str]) -> None:
        super().__init__("no legal layout")
        self.rejected = rejected


class NothingFaster(Exception):
    """No layout that fits is faster than the goal asks."""


def search(space: Space, profile: Profile, goal: Goal, go_on: GoOn = to_the_end) -> Answer:
    """The layouts of a space that reach the goal.

    `go_on` is asked now and then; once it says no, the search ends with the best so far, marked as not exact. Raises
    NoLegalLayout, NothingFaster, Infeasible if every legal layout needs more memory than there is, or OutOfTime.
    """
    coefficients, held = profile.coefficients(space.problem.scopes), _Held(goal)
    answer = _Search(space, coefficients, held, go_on).run()
    while answer.certificate.exact and held.short:
        held = held.again()
        try:
            again = _Search(space, coefficients, held, go_on).run()
        except OutOfTime:
            return answer.inexact()
        answer = again if again.certificate.exact else answer.inexact()
    return answer


@dataclass(frozen=True)
class _Cores:
    """Cores with dp undivided: which trunk and shard each has, and its bound."""

    layouts: Layouts
    trunk: Array
    shard: Array
    bound: Array

    def take(self, rows: Array) -> _Cores:
        return _Cores(self.layouts.take(rows), self.trunk[rows], self.shard[rows], self.bound[rows])

    @classmethod
    def joined(cls, parts: list[_Cores]) -> _Cores:
        return cls(
            Layouts.concatenate([p.layouts for p in parts]),
            *(np.concatenate([getattr(p, name) for p in parts]) for name in ("trunk", "shard", "bound")),
        )


@dataclass(frozen=True)
class _Meshes:
    """Meshes to be placed, with their `costs` as close as can be: `fits` (shardings·savers, n) are legal, may fit, and
    may be of use; with no more than `needless` micro-batches in flight a variant only adds work to one that fits.
    `times` bounds them, `bound` is the least of that, of which `apart` is taken by what a placement may still make
    worse.
    """

    costs: MeshCosts
    trunk: Array
    fits: Array
    bound: Array
    apart: Array
    times: Times
    memory: Memory
    needless: Array

    @property
    def layouts(self) -> Layouts:
        return self.costs.layouts

    def take(self, rows: Array) -> _Meshes:
        return _Meshes(
            self.costs.take(rows),
            self.trunk[rows],
            self.fits[:, rows],
            self.bound[rows],
            self.apart[rows],
            self.times.take(rows),
            self.memory.take(rows),
            self.needless[:, rows],
        )


@dataclass(frozen=True)
class _Placed:
    """Meshes with their placement: costs, which of some meshes each is without it, chain and points of complexity;
    `time`: a bound of every variant so far."""

    costs: MeshCosts
    unplaced: Array
    chain: Array
    points: Array
    time: Array

    @property
    def piped(self) -> Array:
        return np.asarray(self.costs.layouts.pp > 1)

    def take(self, rows: Array) -> _Placed:
        return _Placed(
            self.costs.take(rows), self.unplaced[rows], self.chain[rows], self.points[rows], self.time[:, rows]
        )


@dataclass(frozen=True)
class _Leaves:
    """Layouts that may be evaluated: the placed mesh of each, its schedule, and its sharding with saver; a bound, and
    all its points of complexity."""

    mesh: Array
    schedule: Array
    variant: Array
    bound: Array
    points: Array

    def take(self, rows: Array) -> _Leaves:
        return _Leaves(*(getattr(self, f.name)[rows] for f in fields(self)))


@dataclass(frozen=True)
class _Outcome:
    """Of leaves: whether each is evaluated, with how many layers recomputed; and how many of the layouts that it stands
    for are too large, only add work to one that fits, and have more layers recomputed than there are."""

    evaluated: Array
    recompute_layers: Array
    over_memory: Array
    dominated: Array
    illegal: Array

    def take(self, rows: Array) -> _Outcome:
        return _Outcome(*(getattr(self, f.name)[rows] for f in fields(self)))


@dataclass
class _Held:
    """What the search holds: layouts that may be in the answer, and the limits that they set."""

    goal: Goal
    layouts: list[Layouts] = field(default_factory=list)
    times: list[Array] = field(default_factory=list)
    complexities: list[Array] = field(default_factory=list)
    best: float = np.inf
    sides: Array = field(default_factory=lambda: np.full(2, np.inf))
    fastest: dict[tuple[int, ...], float] = field(default_factory=dict)
    last: float = np.inf
    """Up to here the ranking is complete: the least that the last of as many as are asked for ever took."""
    front: tuple[Array, Array] = field(default_factory=lambda: (np.zeros(0, dtype=np.int64), np.zeros(0)))
    """Within the tolerance: complexities, and the least time with no more."""

    def add(self, layouts: Layouts, times: Array, complexities: Array) -> None:
        fast = times < self.goal.faster_than
        if not fast.all():
            layouts, times, complexities = layouts.take(fast), times[fast], complexities[fast]
        piped = (layouts.pp > 1).astype(int)
        for side in range(2):
            self.sides[side] = min(self.sides[side], float(times[piped == side].min(initial=np.inf)))
        self.best = min(self.best, float(times.min(initial=np.inf)))
        near = times <= np.maximum(self.limit(piped), self.tolerated)
        if not near.any():
            return
        layouts, times = layouts.take(near), times[near]
        self.layouts.append(layouts)
        self.times.append(times)
        self.complexities.append(complexities[near])
        self._rank(layouts, times)
        self._advance(complexities[near], times)

    def _rank(self, layouts: Layouts, times: Array) -> None:
        """Keep the fastest degrees, as many as make up `top` different times."""
        order = np.argsort(times, kind="stable")[: 64 * self.goal.top]
        degrees = np.stack([getattr(layouts, name)[order] for name in _DEGREES], axis=1).tolist()
        for key, time in zip(map(tuple, degrees), times[order].tolist(), strict=True):
            self.fastest[key] = min(time, self.fastest.get(key, np.inf))
        last = self._last()
        self.fastest = {key: time for key, time in self.fastest.items() if _told_apart(time) <= last}
        if np.isfinite(last):
            self.last = min(self.last, max(self.fastest.values()))

    def _advance(self, points: Array, times: Array) -> None:
        points, times = np.concatenate([self.front[0], points]), np.concatenate([self.front[1], times])
        near = times <= self.tolerated
        points, times = points[near], times[near]
        steps = staircase(times, points)
        self.front = points[steps], times[steps]

    @property
    def short(self) -> bool:
        """Whether meshes of the ranking became as fast as others: there may be slower ones to take their places."""
        return _told_apart(self.last) < min(self._last(), self.tolerated)

    def again(self) -> _Held:
        """To search once more with what is known of the fastest."""
        return _Held(self.goal, best=self.best, sides=self.sides.copy(), fastest=self.fastest.copy())

    def _last(self) -> float:
        """Of different times as many as are asked for, the last; infinite if there are fewer."""
        different = np.unique([_told_apart(time) for time in self.fastest.values()])
        return float(different[self.goal.top - 1]) if len(different) >= self.goal.top else np.inf

    @property
    def tolerated(self) -> float:
        """Layouts slower than this are no part of the ranking, nor simple enough to make up for it."""
        return self.best * (1 + self.goal.tolerance)

    def limit(self, piped: Array) -> Array:
        """Layouts slower than this, by whether they have a pipeline, are not among the fastest."""
        limits = np.full(2, max(min(self.last, self.tolerated), self.best))
        if self.goal.both_sides:
            limits = np.maximum(limits, self.sides)
        return np.asarray(limits[piped.astype(int)])

    def fast(self, bound: Array, piped: Array) -> Array:
        """Whether what has this least time may be among the fastest."""
        return np.asarray((bound <= self.limit(piped)) & (bound < self.goal.faster_than))

    def wanted(self, bound: Array, piped: Array, points: Array) -> Array:
        """Whether what has this least time and least complexity may be in the answer."""
        simpler = np.searchsorted(self.front[0], points, side="right")
        limits = np.concatenate([[np.nextafter(self.tolerated, np.inf)], self.front[1]])
        return self.fast(bound, piped) | ((bound < limits[simpler]) & (bound < self.goal.faster_than))


class _Search:
    def __init__(self, space: Space, c: Coefficients, held: _Held, go_on: GoOn) -> None:
        self.space, self.c, self.held, self.go_on = space, c, held, go_on
        self.problem, constraints = space.problem, space.constraints
        self.capacity = space.problem.cluster.usable_bytes - constraints.memory_reserve_gib * GIB
        if self.capacity <= 0:
            rule = f"must leave some of the {space.problem.cluster.usable_bytes / GIB:.1f} usable GiB of a device"
            raise Invalid("constraints.memory_reserve_gib", constraints.memory_reserve_gib, rule)
        self.at_most = self.capacity * (1 + 1e-12)  # for bounds, which add up in another order
        self.rejected: Counter[str] = Counter()
        self.pruned_by_memory = 0
        self.evaluated, self.over_memory, self.looked_at = 0, 0, 0
        self.closing_bound = np.inf
        self.exact = True
        self.last_steps = 0 if np.isfinite(held.goal.faster_than) else _LAST_STEPS

    def run(self) -> Answer:
        self._prepare()
        cores = self._fastest()
        if not self.held.layouts:
            raise self._nothing()
        self._simplest(cores)
        return self._answer()

    # -- what every level looks up ------------------------------------------------------------------------------

    def _prepare(self) -> None:
        space = self.space
        self.trunks, rejected = space.trunks
        self.rejected = rejected.copy()
        self.experts, refused = space.experts
        self.policies, unwanted = space.offered
        rows = self.trunks.rows
        if not (len(rows) and len(self.experts) and len(self.policies)):
            raise NoLegalLayout(self.rejected + refused + unwanted)
        if (cores := len(rows) * len(self.experts)) > MOST_CORES:
            raise TooLarge(self.problem.cluster.num_chips, cores, "meshes with their expert degrees", MOST_CORES)
        self.splits = space.splits(rows) * len(PLACEMENTS)
        meshes, every = int(self.splits.sum()), len(space.policies)
        self.rejected += Counter({name: count * meshes * every for name, count in refused.items()})
        meshes *= len(self.experts)
        self.rejected += Counter({name: count * meshes for name, count in unwanted.items()})
        self._drop_schedules()
        self._drop_offload()
        bodies = Shards.of(rows, self.problem.workload.seq_len)
        self.body = bodies.code
        shards = _crossed(bodies.table, self.experts)
        self.shards = ShardCosts.of(self.problem, shards, self.c, self.policies.savers.recompute)
        self.bounds = CoreBounds(self.problem, self.shards, self.c)
        self.memory = CoreMemory(self.problem, self.shards, self.c, self.policies)
        device, host = update_seconds(self.problem, self.c)
        self.variants = Variants.of_policies(self.policies)
        self.lighter = _lighter(self.problem, self.policies, offload_pays=bool(host < device))
        z, r = len(self.policies.shardings), len(self.policies.savers)
        self.legal_shardings = np.repeat(space.legal_shardings, r, axis=1)
        self.sharding = np.repeat(np.arange(z), r)
        self.saver = np.tile(np.arange(r), z)
        self.on_host = self.policies.savers.offload_optimizer[self.saver]
        self._count_points()

    def _count_points(self) -> None:
        """Of complexity: of every schedule in a pipeline, of every variant, and the fewest of each of their keys."""
        schedules, n = self.policies.schedules, len(self.sharding)
        none = np.zeros(n, dtype=np.int64)
        self.schedule_points = of_policy(replace(schedules, pp=np.full(len(schedules), 2)))
        self.variant_points = of_policy(_with_policies(neutral(n), self.policies, none, self.sharding, self.saver))
        self.key_points = np.full(len(self.variants.keys), np.iinfo(np.int64).max)
        np.minimum.at(self.key_points, self.variants.of, self.variant_points)

    def _drop_schedules(self) -> None:
        """Those that no trunk may have."""
        used = np.asarray(self.trunks.legal.any(axis=0))
        meshes = int(self.splits.sum()) * len(self.experts)
        dropped = int((~used).sum()) * len(self.policies.shardings) * int(self.policies.counts.sum())
        self.rejected["no_legal_schedule"] += meshes * dropped
        schedules = self.policies.schedules.take(used)
        self.policies = replace(self.policies, schedules=schedules)
        x = self.trunks
        self.chains = Chains(self.problem, schedules, x.pp, x.micro_batches, x.legal[:, used])

    def _drop_offload(self) -> None:
        """Of the optimizer, where no host can hold it; but not all that there is, for the answer to say why."""
        savers = self.policies.savers
        kept = ~savers.offload_optimizer
        self.hosts_too_small = not kept.all() and not self._hosts_hold_states()
        if not (self.hosts_too_small and kept.any()):
            return
        left = self.policies.with_savers(kept)
        self.pruned_by_memory += int(self.splits.sum()) * len(self.experts) * (len(self.policies) - len(left))
        self.policies = left

    def _hosts_hold_states(self) -> bool:
        """Whether all hosts together could: some device has its share of the optimizer's states, or more, of what the
        layers and the embedding have."""
        problem, states = self.problem, self.problem.workload.optimizer_state
        count = problem.architecture.parameters
        least = count.total - count.lm_head - 2 * problem.architecture.hidden_size
        each = min(problem.master_bytes, states.master_bytes) + states.moment_bytes
        return least * each <= problem.cluster.host_bytes * problem.cluster.num_devices

    def _chain(self, trunk: Array) -> Array:
        return np.asarray(self.trunks.chains[trunk])

    def _costs(self, layouts: Layouts, shard: Array, placed: Groups, links: dict[str, Cost] | None) -> MeshCosts:
        return MeshCosts(Tables(self.problem, self.c, self.shards, links), layouts, shard, placed)

    # -- trunks and cores ---------------------------------------------------------------------------------------

    def _fastest(self) -> _Cores:
        """Open blocks of trunks in order of their bound: of each the best cores at once, the rest at the end, with what
        all of them together left to prune against. Returns the cores that are left."""
        rows, experts = self.trunks.rows, len(self.experts)
        m = rows.num_micro_batches(self.problem.workload.global_batch)
        least = self.bounds.passes.reshape(-1, experts).min(axis=1)[self.body]
        bound = self.bounds.time(least, rows.pp, m, self.chains.least_idle[self.trunks.chains])
        points = of_degrees(rows)
        order = np.argsort(bound, kind="stable")
        cores: _Cores | None = None
        opened = np.zeros(0, dtype=bool)
        for block, _ in _growing(order, max(_CORES // experts, 1), len(order)):
            wanted = self.held.wanted(bound[block], rows.pp[block] > 1, points[block])
            self._close(bound[block[~wanted]])
            if not self._may_go_on(float(bound[block[0]])):
                break
            if not wanted.any():
                continue
            more = self._crossed(block[wanted])
            cores = more if cores is None else _Cores.joined([cores, more])
            opened = np.concatenate([opened, np.zeros(len(more.trunk), dtype=bool)])
            opened[self._open_best(cores, opened, _PROBED)] = True
        if cores is None:
            raise NothingFaster
        size = _PROBED
        while len(best := self._open_best(cores, opened, size)):
            opened[best] = True
            size = min(2 * size, _MESHES)
        self._close(cores.bound[~opened])
        return cores.take(np.flatnonzero(~opened))

    def _open_best(self, cores: _Cores, opened: Array, count: int) -> Array:
        """Open the cores that promise most, on each side of pp = 1; returns which."""
        if not self._may_go_on(float(cores.bound[~opened].min(initial=np.inf))):
            return np.zeros(0, dtype=np.int64)
        piped = cores.layouts.pp > 1
        left = np.flatnonzero(~opened & self.held.fast(cores.bound, piped))
        left = left[np.argsort(cores.bound[left], kind="stable")]
        best = np.concatenate([self._first(cores, left[piped[left] == side], count // 2) for side in (False, True)])
        if len(best):
            meshes = self._split(cores.take(best))
            self._sweep(meshes, np.argsort(meshes.bound, kind="stable"))
        return best

    def _first(self, cores: _Cores, rows: Array, count: int) -> Array:
        """Of some rows the first, that together have not too many meshes."""
        rows = rows[:count]
        meshes = np.cumsum(self.splits[cores.trunk[rows]]) // len(PLACEMENTS)
        return rows[: max(int(np.searchsorted(meshes, _MESHES // 2, side="right")), 1)]

    def _crossed(self, trunks: Array) -> _Cores:
        """These trunks with every pair of expert degrees that may fold and fit."""
        n = len(self.experts)
        trunk, expert = np.repeat(trunks, n), np.tile(np.arange(n), len(trunks))
        rows = self.trunks.rows
        stage = self.problem.cluster.num_devices // rows.pp[trunk]
        folds = stage % (self.experts.ep * self.experts.etp)[expert] == 0
        self.rejected["experts_fold_over_dense_axes"] += int(self.splits[trunk[~folds]].sum()) * len(self.policies)
        trunk, expert = trunk[folds], expert[folds]
        layouts = replace(rows.take(trunk), ep=self.experts.ep[expert], etp=self.experts.etp[expert])
        shard = self.body[trunk] * n + expert
        m = layouts.num_micro_batches(self.problem.workload.global_batch)
        memory = self.memory.memory(shard, layouts, self.chains.least_flying[self._chain(trunk)])
        fits = memory <= self.at_most
        self.pruned_by_memory += int(self.splits[trunk[~fits]].sum()) * len(self.policies)
        layouts, trunk, shard = layouts.take(fits), trunk[fits], shard[fits]
        least_idle = self.chains.least_idle[self._chain(trunk)]
        bound = self.bounds.time(self.bounds.passes[shard], layouts.pp, m[fits], least_idle)
        return _Cores(layouts, trunk, shard, bound)

    # -- meshes -------------------------------------------------------------------------------------------------

    def _split(self, cores: _Cores) -> _Meshes:
        """The meshes of some cores that may be in the answer."""
        layouts, parent = self.space.split(cores.layouts)
        trunk, shard = cores.trunk[parent], cores.shard[parent]
        near = closest_groups(self.problem.cluster, layouts)
        costs = self._costs(layouts, shard, near, least_collectives(self.problem, near, self.c))
        chain, chains = self._chain(trunk), self.chains
        bounds = Bounds(costs, self.policies, chains.least_idle[chain])
        memory = self._least_memory(costs, chain)
        fits = (memory.least <= self.at_most) & self.legal_shardings[sharding_class(layouts)].T
        needless = self._room_of_lighter(memory.room)
        fits &= needless < chains.most_flying[chain]
        some = self.variants.any_of(fits)
        times, _ = bounds.time(self.variants, some, self.variants.least_of(memory.share))
        times.step[~some] = np.inf
        bound = times.step.min(axis=0, initial=np.inf)
        found = _Meshes(costs, trunk, fits, bound, bounds.apart(), times, memory, needless)
        wanted = self.held.wanted(bound, layouts.pp > 1, of_degrees(layouts))
        self._close(bound[~wanted])
        return found.take(np.flatnonzero(wanted))

    def _least_memory(self, costs: MeshCosts, chain: Array) -> Memory:
        """Bounds for meshes under every variant, whatever the schedule."""
        held = self.chains.least_flying[chain], self.chains.longest[chain]
        return MemoryBounds(costs, self.policies, *held, self.capacity).memory()

    def _room_of_lighter(self, room: Array) -> Array:
        """Of micro-batches in flight with which a variant fits, the most of any that takes less time."""
        of_savers = room.reshape(len(self.policies.shardings), len(self.policies.savers), -1)
        surely = self.lighter & (~self.policies.open | self.space.may_recompute_all)
        most = [of_savers[:, row].max(axis=1, initial=-np.inf) for row in surely]
        return np.stack(most, axis=1).reshape(room.shape)

    def _sweep(self, meshes: _Meshes, order: Array) -> None:
        """Open meshes, a few at a time."""
        points = of_degrees(meshes.layouts)
        for block, rest in _growing(order, 32, 1024):
            wanted = self.held.wanted(meshes.bound[block], meshes.layouts.pp[block] > 1, points[block])
            self._close(meshes.bound[block[~wanted]])
            if not self._may_go_on(float(meshes.bound[rest].min())):
                return
            if wanted.any():
                self._open(meshes.take(block[wanted]))

    def _open(self, meshes: _Meshes) -> None:
        """Place meshes; those that what their axes are apart leaves fast enough are bounded with all their links, the
        most promising first."""
        first, kind = distinct(*(getattr(meshes.layouts, name) for name in _DEGREES))
        placed, of_kind, links = self.space.placed(meshes.layouts.take(first))
        if not len(placed):
            return
        start = np.searchsorted(of_kind, np.arange(len(first) + 1))
        mesh, place = ragged(start[kind], np.diff(start)[kind])
        points, piped = of_mesh(self.problem, placed, links)[place], meshes.layouts.pp[mesh] > 1
        wanted = self.held.wanted(meshes.bound[mesh], piped, points)
        self._close(meshes.bound[mesh[~wanted]])
        some = np.flatnonzero(wanted)
        mesh, place, points, piped = mesh[some], place[some], points[some], piped[some]
        layouts = replace(meshes.layouts.take(mesh), placement=placed.placement[place])
        seconds = collectives(self.problem, links, self.c)
        costs = self._costs(layouts, meshes.costs.shard[mesh], links.take(place), seconds)
        chain = self._chain(meshes.trunk[mesh])
        least_idle = self.chains.least_idle[chain]
        apart = Bounds(costs, self.policies, least_idle).apart() - meshes.apart[mesh]
        bound = meshes.bound[mesh] + np.maximum(apart, 0.0)
        some = self.held.wanted(bound, piped, points)
        self._close(bound[~some])
        rows = np.flatnonzero(some)
        if len(rows):
            some, code = distinct(place[rows])
            used = place[rows[some]]
            any_shard = np.zeros(len(used), dtype=np.int64)
            far = self._costs(placed.take(used), any_shard, links.take(used), seconds)
            grown = growth(meshes.costs.take(first), far, of_kind[used])[:, code]
            near = meshes.times.take(mesh[rows])
            bounds = Bounds(costs.take(rows), self.policies, least_idle[rows])
            time = near.step + bounds.farther(self.variants, near, grown) + np.maximum(apart[rows], 0.0)
            self._closer(meshes, _Placed(bounds.costs, mesh[rows], chain[rows], points[rows], time))

    def _closer(self, meshes: _Meshes, placed: _Placed) -> None:
        """Of placed meshes a few at a time, the most promising first."""
        bound, piped = placed.time.min(axis=0), placed.piped
        for rows, _ in _growing(np.argsort(bound, kind="stable"), 64, _MESHES, times=4):
            wanted = self.held.wanted(bound[rows], piped[rows], placed.points[rows])
            self._close(bound[rows[~wanted]])
            if wanted.any():
                self._bounded(meshes, placed.take(rows[wanted]))

    def _bounded(self, meshes: _Meshes, placed: _Placed) -> None:
        """Bound every variant of placed meshes by its own links, then with every schedule."""
        of_keys = placed.points + self.key_points[:, None]
        some = self.held.wanted(placed.time, placed.piped, of_keys)
        self._close(placed.time[~some])
        bounds = Bounds(placed.costs, self.policies, self.chains.least_idle[placed.chain])
        share = self.variants.least_of(meshes.memory.share[:, placed.unplaced])
        times, parts = bounds.time(self.variants, some, share)
        wanted = self.held.wanted(times.step, placed.piped, of_keys)
        self._close(times.step[some & ~wanted])
        some &= wanted
        variant, mesh = np.nonzero(meshes.fits[:, placed.unplaced] & some[self.variants.of])
        leaves = self._wanted(placed, self._scheduled(meshes, placed, times, variant, mesh))
        beyond = self._beyond(placed, leaves, times, parts, bounds.hideable)
        leaves = self._wanted(placed, replace(leaves, bound=leaves.bound + beyond))
        for rows, _ in _growing(np.argsort(leaves.bound, kind="stable"), _FIRST_LEAVES, _LEAVES):
            left = self._wanted(placed, leaves.take(rows))
            if len(left.mesh):
                self._evaluate(placed, left)

    def _scheduled(self, meshes: _Meshes, placed: _Placed, times: Times, variant: Array, mesh: Array) -> _Leaves:
        """Variants of placed meshes with every schedule that is legal and under which they may fit."""
        chains, chain, memory = self.chains, placed.chain[mesh], meshes.memory
        pair, schedule = np.nonzero(chains.legal[chain])
        variant, mesh, chain = variant[pair], mesh[pair], chain[pair]
        more, unplaced = chains.flying[chain, schedule] - chains.least_flying[chain], placed.unplaced[mesh]
        fits = memory.layers[variant, unplaced] + more * memory.each[variant, unplaced] <= self.at_most
        fits &= meshes.needless[variant, unplaced] < chains.flying_first[chain, schedule]
        variant, mesh, chain, schedule = variant[fits], mesh[fits], chain[fits], schedule[fits]
        key, idle = self.variants.of[variant], chains.idle[chain, schedule] - chains.least_idle[chain]
        bound = times.step[key, mesh] + idle * times.pass_s[key, mesh]
        of_schedule = placed.piped[mesh] * self.schedule_points[schedule]
        return _Leaves(mesh, schedule, variant, bound, placed.points[mesh] + self.variant_points[variant] + of_schedule)

    def _beyond(self, placed: _Placed, leaves: _Leaves, times: Times, parts: Parts, hides: Array | float) -> Array:
        """What the heaviest stage, or an update on the host, adds to the bounds of leaves."""
        mesh, key = leaves.mesh, self.variants.of[leaves.variant]
        both, once = (values[:, key, mesh] for values in (parts.both, parts.once))
        beyond = self.chains.beyond(placed.chain[mesh], leaves.schedule, both, once, hides)
        return np.maximum(beyond, self.on_host[leaves.variant] * times.on_host[key, mesh])

    def _wanted(self, placed: _Placed, leaves: _Leaves) -> _Leaves:
        wanted = self.held.wanted(leaves.bound, placed.piped[leaves.mesh], leaves.points)
        self._close(leaves.bound[~wanted])
        return leaves.take(np.flatnonzero(wanted))

    # -- layouts ------------------------------------------------------------------------------------------------

    def _evaluate(self, placed: _Placed, leaves: _Leaves) -> None:
        first, same = distinct(placed.unplaced[leaves.mesh], leaves.schedule, leaves.variant)
        found = self._fitting(placed, leaves.take(first)).take(same)
        self._count(found)
        kept = np.flatnonzero(found.evaluated)
        if not len(kept):
            return
        leaves, mesh = leaves.take(kept), leaves.mesh[kept]
        layouts = replace(self._layouts(placed, leaves), recompute_layers=found.recompute_layers[kept])
        stages = self.chains.stages(placed.chain[mesh], leaves.schedule)
        time = Combiner(layouts, placed.costs.take(mesh), stages).time()
        self.held.add(layouts, total(time.values()), placed.points[mesh] + of_policy(layouts))

    def _layouts(self, placed: _Placed, leaves: _Leaves) -> Layouts:
        z, r = self.sharding[leaves.variant], self.saver[leaves.variant]
        return _with_policies(placed.costs.layouts.take(leaves.mesh), self.policies, leaves.schedule, z, r)

    def _fitting(self, placed: _Placed, leaves: _Leaves) -> _Outcome:
        """What becomes of the layouts that each leaf stands for. Placement is nothing to memory. Twins differ in
        recompute and offload only."""
        mesh, schedule, r = leaves.mesh, leaves.schedule, self.saver[leaves.variant]
        layouts = self._layouts(placed, leaves)
        legal, most = self._layers_again(layouts, r, np.iinfo(np.int64).max)
        layouts = replace(layouts, recompute_layers=most)

        def fit(rows: Array, layers: Array) -> Array:
            some = replace(layouts.take(rows), recompute_layers=layers)
            stages = self.chains.stages(placed.chain[mesh[rows]], schedule[rows])
            return Combiner(some, placed.costs.take(mesh[rows]), stages).fits(self.capacity)

        fits = fit(np.arange(len(mesh)), most) & (legal > 0)
        _, twin = distinct(placed.unplaced[mesh], schedule, self.sharding[leaves.variant])
        table = np.zeros((int(twin.max(initial=0)) + 1, len(self.policies.savers)), dtype=bool)
        table[twin, r] = fits
        evaluated = fits & ~(table[twin] & self.lighter[r]).any(axis=1)
        low, high = np.zeros(len(mesh), dtype=np.int64), np.maximum(legal - 1, 0)
        while len(rows := np.flatnonzero(evaluated & (low < high))):
            middle = (low[rows] + high[rows]) // 2
            enough = fit(rows, self._layers_again(layouts.take(rows), r[rows], middle)[1])
            low[rows], high[rows] = np.where(enough, low[rows], middle + 1), np.where(enough, middle, high[rows])
        over = np.where(evaluated, low, np.where(fits, 0, legal))
        least = np.where(evaluated, self._layers_again(layouts, r, low)[1], most)
        return _Outcome(evaluated, least, over, legal - over - evaluated, self.policies.counts[r] - legal)

    def _layers_again(self, layouts: Layouts, saver: Array, index: Array | int) -> tuple[Array, Array]:
        """Of how many layers recompute may be (1 where that is not open), and the number at an index, or the largest:
        those that are fewer than the layers of a chunk, and all of them (0)."""
        numbers, n = self.space.recompute_layers, self.problem.architecture.num_layers
        is_open, has_all = self.policies.open[saver], int(self.space.may_recompute_all)
        chunk = np.where(layouts.balanced, 1, n // (layouts.pp * layouts.virtual_stages))
        fewer = np.minimum(np.searchsorted(numbers, chunk), len(numbers) - has_all)
        legal = np.where(is_open, fewer + has_all, 1)
        at = np.minimum(index, np.maximum(legal - 1, 0))
        number = numbers[np.minimum(at, len(numbers) - 1)] if len(numbers) else at
        return legal, np.where(is_open & (at < fewer), number, 0)

    # -- the simplest -------------------------------------------------------------------------------------------

    def _simplest(self, cores: _Cores) -> None:
        """Open what may be simple enough to make up for its time."""
        points, piped = of_degrees(cores.layouts), cores.layouts.pp > 1
        order = np.lexsort((cores.bound, points))
        for start in range(0, len(order), _PROBED):
            block = order[start : start + _PROBED]
            if not self._may_go_on(float(cores.bound[block].min())):
                return
            block = block[self.held.wanted(cores.bound[block], piped[block], points[block])]
            if len(block):
                meshes = self._split(cores.take(block))
                self._sweep(meshes, np.lexsort((meshes.bound, of_degrees(meshes.layouts))))

    # -- counts -------------------------------------------------------------------------------------------------

    def _close(self, bounds: Array) -> None:
        self.closing_bound = min(self.closing_bound, float(bounds.min(initial=np.inf)))

    def _may_go_on(self, bound: float) -> bool:
        """Unless the caller stops the search or it has looked at too much; `bound`: of all that would be left."""
        if self.looked_at <= _MOST_LAYOUTS and self._has_time():
            return True
        self.exact = False
        self._close(np.array([bound]))
        return False

    def _has_time(self) -> bool:
        if self.go_on():
            return True
        self.last_steps -= 1
        return self.last_steps >= 0 and not np.isfinite(self.held.best)

    def _count(self, found: _Outcome) -> None:
        self.looked_at += len(found.evaluated)
        self.evaluated += int(found.evaluated.sum())
        self.over_memory += int(found.over_memory.sum())
        self.rejected["dominated"] += int(found.dominated.sum())
        self.rejected["recompute_layers_offered"] += int(found.illegal.sum())

    def _certificate(self) -> Certificate:
        rejected = {name: count for name, count in self.rejected.items() if count}
        size = self.space.size
        rest = size - sum(rejected.values()) - self.over_memory - self.pruned_by_memory - self.evaluated
        return Certificate(
            space=size,
            cardinality=self.space.cardinality,
            rejected=rejected,
            over_memory=self.over_memory,
            pruned_by_memory=self.pruned_by_memory,
            pruned_by_bound=rest,
            evaluated=self.evaluated,
            closing_bound_s=self.closing_bound if np.isfinite(self.closing_bound) else None,
            exact=self.exact,
            gap=max(self.held.best / self.closing_bound - 1, 0.0),
        )

    def _answer(self) -> Answer:
        held = self.held
        layouts = Layouts.concatenate(held.layouts)
        times, points = np.concatenate(held.times), np.concatenate(held.complexities)
        order = np.lexsort((*(getattr(layouts, name) for name in Layouts.__slots__), points, times))
        layouts, times, points = layouts.take(order), times[order], points[order]
        near = np.flatnonzero(times <= held.tolerated)
        best: dict[bool, int | None] = {}
        for piped in (False, True):
            mine = np.flatnonzero((layouts.pp > 1) == piped)
            best[piped] = int(mine[0]) if len(mine) and held.goal.both_sides else None
        return Answer(
            layouts,
            times,
            points,
            ranked=_distinct_meshes(layouts.take(near), times[near], held.goal.top, held.last),
            front=staircase(times[near], points[near]),
            without=best[False],
            with_pp=best[True],
            certificate=self._certificate(),
        )

    def _nothing(self) -> Exception:
        """Why there is no answer."""
        if np.isfinite(self.held.goal.faster_than):
            return NothingFaster()
        return self._out_of_memory() if self.exact else OutOfTime()

    def _out_of_memory(self) -> Infeasible:
        """The least any layout needs, found by opening cores, and of these their variants, in order of a bound."""
        least, layout, beyond_host, so_far = np.inf, None, False, ""
        for core_bound, cores in self._by_memory():
            if core_bound >= least or (beyond_host and layout is None and core_bound > self.at_most):
                break
            if not self._has_time():
                so_far = ", of those that there was time for,"
                break
            for bound, costs, trunk, variant in self._variants_by_memory(cores, least):
                if bound >= least:
                    break
                rows, needed = self._needed(costs, trunk, variant)
                beyond_host = beyond_host or bool(np.isinf(needed).any())
                if needed.min(initial=np.inf) < least:
                    least = float(needed.min())
                    layout = _simplest_of(rows.take(np.flatnonzero(needed <= least * (1 + 1e-9))))
        if layout is None and so_far:
            return Infeasible("memory", "no legal layout fits; by how much, there was no time to find")
        if layout is None and beyond_host:
            host = self.problem.cluster.host_bytes / GIB
            detail = f"all that may fit a device offloads more than the {host:.1f} GiB of host memory beside it"
            return Infeasible("memory", detail, available=host, unit="GiB")
        if layout is None:
            raise NoLegalLayout(self.rejected)
        detail = (
            f"the most frugal legal layout{so_far} needs {least / GIB:.1f} GiB on its fullest device, "
            f"{self.capacity / GIB:.1f} GiB are usable: {layout.summary()}"
        )
        if self.hosts_too_small:
            host = self.problem.cluster.host_bytes / GIB
            detail += f"; {host:.1f} GiB of host memory beside each are too few for the optimizer's states"
        return Infeasible("memory", detail, needed=least / GIB, available=self.capacity / GIB, unit="GiB")

    def _variants_by_memory(self, cores: _Cores, below: float) -> Iterator[tuple[float, MeshCosts, Array, Array]]:
        """The meshes of some cores, each under every legal variant, few at a time at first: what they need at least,
        in order of that and less than `below`, their costs, trunks and variants."""
        layouts, parent = self.space.split(cores.layouts)
        trunk, near = cores.trunk[parent], closest_groups(self.problem.cluster, layouts)
        chain, costs = self._chain(trunk), self._costs(layouts, cores.shard[parent], near, None)
        bounds = self._least_memory(costs, chain).least
        variant, mesh = np.nonzero((bounds < below) & self.legal_shardings[sharding_class(layouts)].T)
        bound = bounds[variant, mesh]
        for chosen, _ in _growing(np.argsort(bound, kind="stable"), _FIRST_LEAVES, _LEAVES):
            at = mesh[chosen]
            yield float(bound[chosen[0]]), costs.take(at), trunk[at], variant[chosen]

    def _needed(self, costs: MeshCosts, trunk: Array, variant: Array) -> tuple[Layouts, Array]:
        """Meshes with their variants under every legal schedule: bytes on the fullest device, infinite where the host
        has not as much as is offloaded."""
        mesh, schedule = np.nonzero(self.chains.legal[self._chain(trunk)])
        saver = self.saver[variant[mesh]]
        policies = schedule, self.sharding[variant[mesh]], saver
        rows = _with_policies(costs.layouts.take(mesh), self.policies, *policies)
        legal, most = self._layers_again(rows, saver, np.iinfo(np.int64).max)
        kept = np.flatnonzero(legal > 0)
        rows, mesh = replace(rows, recompute_layers=most).take(kept), mesh[kept]
        stages = self.chains.stages(self._chain(trunk[mesh]), schedule[kept])
        combiner = Combiner(rows, costs.take(mesh), stages)
        used, _ = combiner.memory()
        on_host = combiner.host() <= self.problem.cluster.host_bytes
        return rows, np.where(on_host, total(used.values()), np.inf)

    def _by_memory(self) -> Iterator[tuple[float, _Cores]]:
        """Cores, few at a time at first, in order of the memory that they need at least."""
        rows, n = self.trunks.rows, len(self.experts)
        every = np.arange(len(rows) * n)
        trunk, expert = every // n, every % n
        layouts = replace(rows.take(trunk), ep=self.experts.ep[expert], etp=self.experts.etp[expert])
        shard = self.body[trunk] * n + expert
        memory = self.memory.memory(shard, layouts, self.chains.least_flying[self._chain(trunk)])
        order = np.argsort(memory, kind="stable")
        for chosen, _ in _growing(order, 16, _PROBED):
            yield float(memory[chosen[0]]), _Cores(layouts.take(chosen), trunk[chosen], shard[chosen], memory[chosen])


def _simplest_of(layouts: Layouts) -> Layout:
    return layouts[int((of_degrees(layouts) + of_policy(layouts)).argmin())]


def _growing(order: Array, first: int, most: int, times: int = 2) -> Iterator[tuple[Array, Array]]:
    """Stretches of an order, each so many times as long as the one before; and all from its beginning on."""
    start, size = 0, first
    while start < len(order):
        yield order[start : start + size], order[start:]
        start, size = start + size, min(times * size, most)


def _crossed(bodies: Shards, experts: Layouts) -> Shards:
    """Every body with every pair of expert degrees, body by body."""
    n = len(experts)
    x = bodies.take(np.repeat(np.arange(len(bodies)), n))
    return replace(x, ep=np.tile(experts.ep, len(bodies)), etp=np.tile(experts.etp, len(bodies)))


def _with_policies(meshes: Layouts, policies: Policies, schedule: Array, sharding: Array, saver: Array) -> Layouts:
    parts = (
        (policies.schedules, SCHEDULE_KNOBS, schedule),
        (policies.shardings, SHARDING_KNOBS, sharding),
        (policies.savers, SAVER_KNOBS, saver),
    )
    return replace(meshes, **{name: getattr(rows, name)[at] for rows, names, at in parts for name in names})


def _lighter(problem: Problem, policies: Policies, offload_pays: bool) -> Array:
    """[r, q]: saver q takes no more time than r whatever the mesh, and is another.

    Recompute adds its own time and hides less traffic than that. Offloaded activations add what compute does not
    hide; beside them recompute may save time, since it leaves less to offload. A host updates more slowly than a
    device, unless its link is the faster one. How many layers an open saver recomputes depends on what it offloads.
    """
    savers = policies.savers
    does = [
        [problem.repeated(number, kind) for kind in problem.architecture.kinds] for number in savers.recompute.tolist()
    ]
    within = np.array([[all(map(_no_more, a, b)) for a in does] for b in does], dtype=bool)
    equal = savers.recompute[None, :] == savers.recompute[:, None]
    activations, optimizer = savers.offload_activations, savers.offload_optimizer.astype(int)
    less = ~activations[None, :] & within
    same = equal & (activations[None, :] == activations[:, None])
    updates = optimizer[None, :] == optimizer[:, None]
    if not offload_pays:
        updates = optimizer[None, :] <= optimizer[:, None]
    some = policies.open[:, None] & (savers.recompute != NONE)[None, :]  # of a few layers: only none is surely less
    return np.asarray((less | same) & updates & ~some & ~np.eye(len(savers), dtype=bool))


def _no_more(a: Repeated, b: Repeated) -> bool:
    return b.whole or (not a.whole and a.pieces <= b.pieces)


def _distinct_meshes(layouts: Layouts, times: Array, top: int, last: float) -> list[int]:
    """Positions of the fastest layout of each mesh up to the `last`, and of meshes that take equally long the first:
    variants would crowd a short list. `times` ascend."""
    first, _ = distinct(*(getattr(layouts, name)[::-1] for name in _DEGREES))  # names the last that it meets
    rows = np.sort(len(layouts) - 1 - first).tolist()
    seen: dict[float, int] = {}
    for row in rows:
        if _told_apart(times[row]) <= _told_apart(last):
            seen.setdefault(_told_apart(times[row]), row)
    return list(seen.values())[:top]


def _told_apart(time: float) -> float:
    """Step times that differ by rounding errors only are the same."""
    return float(f"{time:.9g}")
