"""The best layouts of a problem, and the proof.

Branch and bound in the levels of models.layouts.space. Trunks are taken in order of a bound,
crossed with expert degrees and bounded again as cores; cores are split over replication and
sharding, and bounded under every choice of sharding and memory policy with groups as close as can
be; what is left is placed on the fabric, bounded once more, and crossed with schedules; what is
still left is evaluated. Each level is a few vectorised passes, and a first handful of the most
promising meshes is evaluated early, so that the bounds have something to prune against.

What is opened is searched for all of the answer: the fastest, the best of the meshes that are asked
for, the best without and with a pipeline, and the front of time and complexity within the
tolerance, from the simplest to the fastest. Cores are opened in order of their bound while that may
be among the fastest, with those that may only be simple enough where there is room; the rest of
these then in order of the complexity that they cannot get below.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np

from models.columns import Array, distinct, expand_ranges, growing_slices, take_at, total
from models.cost.combine import Combiner
from models.cost.mesh_costs import collectives
from models.errors import OutOfTime
from models.layouts.complexity import (
    complexity,
    points_of_degrees,
    points_of_mesh,
    points_of_policy,
)
from models.layouts.placement import closest_groups
from models.layouts.space import Space
from models.search.bounds import Bounds, Parts, Times
from models.search.incumbent import Incumbent
from models.search.minimum_memory import MinimumMemory
from models.search.nodes import Cores, Leaves, Meshes, Outcome, Room
from models.search.result import (
    Answer,
    Certificate,
    Goal,
    NothingFaster,
    ShouldContinue,
    run_to_completion,
)
from models.search.tables import NoLegalLayout, SearchTables
from models.spec.layout import DEGREES, TORUS_KNOBS, Layouts
from models.spec.profile import Profile

_CORES = 16_000  # looked at together at first, later more
_MOST_CORES = 1 << 19  # at a time
_PROBED = 1024  # cores opened together, at first
_MESHES = 1 << 14  # bounded together
_FIRST_MESHES = 1 << 12
_FIRST_FREE = 1 << 9  # of those that are placed in many ways
_PLACED = 1 << 11
_FIRST_LIMITED = 1 << 9  # while there is but a time that an answer may be far below
_FIRST_PLACED = 1 << 5  # while there is nothing to prune against
_LEAVES = 1 << 13  # evaluated together, at most
_FIRST_LEAVES = 1 << 9
_MOST_LAYOUTS = 4_000_000  # a search stops there with the best so far, marked as not exact
_LAST_STEPS = 8  # that a search still takes when it has to stop and nothing fits yet

Bounded = TypeVar("Bounded", Cores, Meshes, Leaves)


def search(
    space: Space,
    profile: Profile,
    goal: Goal,
    should_continue: ShouldContinue = run_to_completion,
    known: Layouts | None = None,
) -> Answer:
    """The layouts of a space that reach the goal.

    `should_continue` is asked now and then; once it says no, the search ends with the best so far,
    marked as not exact: with no worse than those of the `known` layouts, which are in the space,
    that fit. Raises NoLegalLayout, NothingFaster, Infeasible if every legal layout needs more
    memory than there is, or OutOfTime.
    """
    return search_on(SearchTables(space, profile), goal, should_continue, known)


def search_on(
    tables: SearchTables, goal: Goal, should_continue: ShouldContinue, known: Layouts | None = None
) -> Answer:
    """The same on what is known of a space."""
    incumbent = Incumbent(goal)
    if known is not None:
        incumbent.knowing(*_reached(tables, known))
    answer = _Search(tables, incumbent, should_continue).run()
    while answer.certificate.exact and incumbent.short:
        incumbent = incumbent.again()
        try:
            again = _Search(tables, incumbent, should_continue).run()
        except (OutOfTime, NothingFaster):  # time ended before the best was met again
            return answer.inexact()
        answer = again if again.certificate.exact else answer.inexact()
    return answer


def search_all(
    tables: SearchTables, limits: Array, most: int, should_continue: ShouldContinue
) -> tuple[Layouts, Array] | None:
    """All layouts that fit and take no longer than the limit for those without and with a pipeline,
    and how complex each is; None if there are none, if it had to look at more than `most` for that,
    or if there was no time."""
    exact, incumbent = _within(tables, limits, most, should_continue)
    if not (exact and incumbent.layouts):
        return None
    return Layouts.concatenate(incumbent.layouts), np.concatenate(incumbent.complexities)


def finds_any(tables: SearchTables, limits: Array, should_continue: ShouldContinue) -> bool | None:
    """Whether any layout fits and takes no longer than the limit for those without and with a
    pipeline; None if there was no time to tell."""
    exact, incumbent = _within(tables, limits, _MOST_LAYOUTS, should_continue)
    return bool(incumbent.layouts) if exact or incumbent.layouts else None


def _within(
    tables: SearchTables, limits: Array, most: int, should_continue: ShouldContinue
) -> tuple[bool, Incumbent]:
    """Whether a search of all that take no longer than the limits came to its end, and what it
    holds."""
    incumbent = Incumbent(Goal(both_sides=True), best=float(limits.max()), all_within=limits)
    search = _Search(tables, incumbent, should_continue, most)
    search.fastest()
    return search.exact, incumbent


def _reached(tables: SearchTables, known: Layouts) -> tuple[Layouts, Array, Array]:
    """Those that fit, with the step time and the complexity of each."""
    found = tables.predict(known)
    fits = np.flatnonzero(tables.fits(found.memory, found.host_bytes))
    layouts = known.take(fits)
    return layouts, found.step_time_s[fits], complexity(tables.problem, layouts)


class _Search:
    def __init__(
        self,
        tables: SearchTables,
        incumbent: Incumbent,
        should_continue: ShouldContinue,
        most: int = _MOST_LAYOUTS,
    ) -> None:
        self.tables, self.incumbent, self.should_continue, self.most = (
            tables,
            incumbent,
            should_continue,
            most,
        )
        self.rejected, self.pruned_by_memory = tables.rejected.copy(), tables.pruned_by_memory
        self.evaluated, self.over_memory, self.looked_at = 0, 0, 0
        self.closing_bound = np.inf
        self.exact = True
        self.last_steps = 0 if self._knows_limit else _LAST_STEPS

    def run(self) -> Answer:
        cores = self.fastest()
        if not self.incumbent.layouts:
            raise self._nothing()
        if cores is not None:
            self._simplest(cores)
        return self.incumbent.answer(self._certificate(), self.tables)

    # -- trunks and cores
    # ---------------------------------------------------------------------------------------

    def fastest(self) -> Cores | None:
        """Cross blocks of trunks in order of their bound. The best cores are opened at once until
        there is a time to prune against; the others at the end. Returns those that are left, of
        those that may be in the answer."""
        tables = self.tables
        rows, experts = tables.trunks.rows, len(tables.experts)
        bounds, body = tables.bounds, tables.body
        least = np.minimum.reduceat(bounds.passes, tables.first_shard)[body] + tables.context
        weights = np.maximum.reduceat(bounds.weights, tables.first_shard)[body]
        row, chain = tables.chains.row(weights, least), tables.trunks.chains
        idle, window = tables.chains.least_idle[row, chain], tables.chains.window[row, chain]
        bound = bounds.time(least, rows, idle, window, bounds.dense[tables.first_shard][body])
        points = points_of_degrees(rows)
        order = np.argsort(bound, kind="stable")
        cores: Cores | None = None
        opened = np.zeros(0, dtype=bool)
        most = max(_MOST_CORES // experts, 1)
        for block, _ in growing_slices(
            order, most if self._knows_limit else max(_CORES // experts, 1), most
        ):
            wanted = self.incumbent.wanted(bound[block], rows.pp[block] > 1, points[block])
            self._close(bound[block[~wanted]])
            if not self._may_go_on(float(bound[block[0]])):
                break
            if not wanted.any():
                continue
            more = self._crossed(block[wanted])
            cores = more if cores is None else Cores.joined([cores, more])
            opened = np.concatenate([opened, np.zeros(len(more.trunk), dtype=bool)])
            if not self._is_limited:
                opened[self._open_best(cores, opened, _PROBED)] = True
        if cores is None:
            return None
        size = _MESHES if self._knows_limit else _PROBED
        while len(best := self._open_best(cores, opened, size)):
            opened[best] = True
            size = min(2 * size, _MESHES)
        self._close(cores.bound[~opened])
        return cores.take(np.flatnonzero(~opened))

    @property
    def _knows_limit(self) -> bool:
        """Whether there was one to begin with."""
        return bool(np.isfinite(self.incumbent.goal.faster_than))

    @property
    def _is_limited(self) -> bool:
        """Whether there is a time to prune against."""
        return bool(np.isfinite(min(self.incumbent.best, self.incumbent.goal.faster_than)))

    def _first_placed(self, piped: Array) -> int:
        """Of meshes that are placed, with or without a pipeline, how many are bounded together at
        first."""
        if np.isfinite(self.incumbent.limit(piped)).all():
            return _PLACED
        return _FIRST_LIMITED if self._is_limited else _FIRST_PLACED

    @property
    def _first_leaves(self) -> int:
        return _LEAVES if self._knows_limit else _FIRST_LEAVES

    def _open_best(self, cores: Cores, opened: Array, count: int) -> Array:
        """Open the cores that promise most, on each side of pp = 1, and beside them what may be
        simple enough; returns which."""
        if not self._may_go_on(float(cores.bound[~opened].min(initial=np.inf))):
            return np.zeros(0, dtype=np.int64)
        piped = cores.piped
        left = np.flatnonzero(~opened & self.incumbent.wanted(cores.bound, piped, cores.points))
        fast = self.incumbent.fast(cores.bound[left], piped[left])
        left = left[np.lexsort((cores.bound[left], ~fast))] if fast.any() else left[:0]
        best = np.concatenate(
            [self._first(cores, left[piped[left] == side], count // 2) for side in (False, True)]
        )
        if len(best):
            meshes = self._split(cores.take(best))
            self._sweep(meshes, np.argsort(meshes.bound, kind="stable"))
        return best

    def _first(self, cores: Cores, rows: Array, count: int) -> Array:
        """Of some rows the first, that together have not too many meshes."""
        rows = rows[:count]
        meshes = (
            np.cumsum(self.tables.splits[cores.trunk[rows]]) // self.tables.space.allowed_placements
        )
        most = _MESHES if self._knows_limit and not self.tables.places_freely else _MESHES // 2
        return rows[: max(int(np.searchsorted(meshes, most, side="right")), 1)]

    def _crossed(self, trunks: Array) -> Cores:
        """These trunks with every pair of expert degrees that may fold and fit, where that may be
        in the answer."""
        tables = self.tables
        trunk, expert = tables.pairs(trunks)
        crossed = int(tables.splits[trunks].sum()) * len(tables.experts)
        folding = int(tables.splits[trunk].sum())
        self.rejected["experts_fold_over_dense_axes"] += (crossed - folding) * len(tables.policies)
        layouts, shard, memory = tables.cores(trunk, expert)
        fits = memory <= tables.at_most
        self.pruned_by_memory += int(tables.splits[trunk[~fits]].sum()) * len(tables.policies)
        layouts, trunk, shard = layouts.take(fits), trunk[fits], shard[fits]
        bounds, chains = tables.bounds, tables.chains
        least = bounds.passes[shard] + tables.context[trunk]
        row, chain = chains.row(bounds.weights[shard], least), tables.chain(trunk)
        idle, window = chains.least_idle[row, chain], chains.window[row, chain]
        bound = bounds.time(least, layouts, idle, window, bounds.dense[shard], bounds.expert[shard])
        found = self._wanted(Cores(layouts, trunk, shard, bound))
        return replace(
            found, layouts=tables.layouts(found.trunk, found.shard)
        )  # those of the others can go

    # -- meshes
    # ----------------------------------------------------------------------------------------------

    def _split(self, cores: Cores) -> Meshes:
        """The meshes of some cores that may be in the answer, with groups as close as can be."""
        tables = self.tables
        layouts, parent = tables.space.split(cores.layouts)
        near = closest_groups(tables.problem.cluster, layouts)
        links = partial(tables.least.collectives, near, layouts)
        costs = tables.costs(layouts, cores.shard[parent], near, links)
        chain = tables.chain(cores.trunk[parent])
        rows = np.arange(len(layouts))
        return self._wanted(
            Meshes(costs, rows, chain, points_of_degrees(layouts), tables.bounded(costs, chain))
        )

    def _sweep(self, meshes: Meshes, order: Array) -> None:
        """Open meshes, a few at a time."""
        for block, rest in growing_slices(
            order, _FIRST_FREE if self.tables.places_freely else _FIRST_MESHES, _MESHES
        ):
            if not self._may_go_on(float(meshes.bound[rest].min())):
                return
            left = self._wanted(meshes.take(block))
            if len(left) and self.tables.places_freely:
                left = self._fitting_meshes(left)
            if len(left):
                (self._fill if self.tables.space.has_torus_choice else self._open)(left)

    def _fill(self, meshes: Meshes) -> None:
        """Open meshes in every filling of a torus, bounded each."""
        tables, layouts = self.tables, meshes.layouts
        fillings = tables.space.fillings
        near = closest_groups(tables.problem.cluster, layouts)
        links = partial(tables.least.collectives, near, layouts, apart=True)
        rows = np.tile(np.arange(len(meshes)), len(fillings))
        axes, block = np.repeat(fillings, len(meshes), axis=0).T
        layouts = layouts.take(rows).with_columns(torus_axes=axes, torus_block=block)
        costs = tables.costs(layouts, meshes.costs.shard[rows], near.times(len(fillings)), links)
        filled = meshes.take(rows)
        bound = np.maximum(filled.bound, tables.bounded(costs, filled.chain))
        filled = self._wanted(replace(filled, costs=costs, bound=bound))
        for some, _ in growing_slices(
            np.argsort(filled.bound, kind="stable"), _FIRST_FREE, _MESHES
        ):
            if len(left := self._wanted(filled.take(some))):
                self._open(left)

    def _fitting_meshes(self, meshes: Meshes) -> Meshes:
        """Of meshes that are not placed those that may be in the answer with a policy that fits,
        which placement is nothing to."""
        leaves = self._leaves(meshes)
        if not len(leaves):
            return meshes.take(leaves.mesh)
        leaves = leaves.take(np.flatnonzero(self._fitting(meshes, leaves).evaluated))
        bound = np.full(len(meshes), np.inf)
        np.minimum.at(bound, leaves.mesh, leaves.bound)
        return replace(meshes, bound=bound).take(np.unique(leaves.mesh))

    def _open(self, meshes: Meshes) -> None:
        """Place meshes, and bound them by their own links; the most promising first."""
        tables = self.tables
        first, kind = distinct(
            *(getattr(meshes.layouts, name) for name in (*DEGREES, *TORUS_KNOBS))
        )
        placed, of_kind, links = tables.space.placed(meshes.layouts.take(first))
        if not len(placed):
            return
        start = np.searchsorted(of_kind, np.arange(len(first) + 1))
        mesh, place = expand_ranges(start[kind], np.diff(start)[kind])
        points, piped = points_of_mesh(tables.problem, placed, links)[place], meshes.piped[mesh]
        wanted = self.incumbent.wanted(meshes.bound[mesh], piped, points)
        self._close(meshes.bound[mesh[~wanted]])
        mesh, place, points = mesh[wanted], place[wanted], points[wanted]
        layouts = meshes.layouts.take(mesh).with_columns(placement=placed.placement[place])
        seconds = partial(collectives, tables.problem, links, tables.c)
        costs = tables.costs(layouts, meshes.costs.shard[mesh], links.take(place), seconds)
        chain = meshes.chain[mesh]
        found = Meshes(costs, mesh, chain, points, tables.bounded(costs, chain))
        for rows, rest in growing_slices(
            np.argsort(found.bound, kind="stable"), self._first_placed(piped[wanted]), _MESHES
        ):
            if self._is_stopped(found.bound, rest):
                return
            if len(left := self._wanted(found.take(rows))):
                self._bounded(left)

    def _bounded(self, meshes: Meshes) -> None:
        """Bound every variant of placed meshes, then with every schedule."""
        leaves = self._leaves(meshes)
        for rows, rest in growing_slices(
            np.argsort(leaves.bound, kind="stable"), self._first_leaves, _LEAVES
        ):
            if self._is_stopped(leaves.bound, rest):
                return
            if len(left := self._wanted(leaves.take(rows))):
                self._evaluate(meshes, left)

    def _leaves(self, meshes: Meshes) -> Leaves:
        """Variants of meshes with schedules that may be in the answer."""
        tables = self.tables
        room = tables.room(meshes)
        fits, share = room.fits[:, room.of], tables.variants.least_of(room.memory.share)[:, room.of]
        bounds = Bounds(meshes.costs, tables.policies, tables.chains, meshes.chain)
        some = tables.variants.any_of(fits)
        times, parts = bounds.time(tables.variants, some, share)
        wanted = self.incumbent.wanted(
            times.step, meshes.piped, meshes.points + tables.key_points[:, None]
        )
        self._close(times.step[some & ~wanted])
        variant, mesh = np.nonzero(fits & (some & wanted)[tables.variants.of])
        leaves = self._wanted(self._scheduled(meshes, room, times, variant, mesh))
        beyond = self._beyond(meshes, leaves, times, parts, bounds.hideable)
        return self._wanted(leaves.with_columns(bound=leaves.bound + beyond))

    def _scheduled(
        self, meshes: Meshes, room: Room, times: Times, variant: Array, mesh: Array
    ) -> Leaves:
        """Variants of placed meshes with every schedule that is legal and under which they may
        fit."""
        tables = self.tables
        chains, chain = tables.chains, meshes.chain[mesh]
        pair, schedule = np.nonzero(chains.legal[chain])
        variant, mesh, chain = variant[pair], mesh[pair], chain[pair]
        more = (
            take_at(chains.in_flight_by_schedule, chain, schedule) - chains.least_in_flight[chain]
        )
        fits = room.fit(variant, mesh, more, tables.at_most)
        variant, mesh, chain, schedule = variant[fits], mesh[fits], chain[fits], schedule[fits]
        key = tables.variants.of[variant]
        row = take_at(times.row, key, mesh)
        idle = chains.idle[row, chain, schedule] - chains.least_idle[row, chain]
        bound = take_at(times.step, key, mesh) + idle * take_at(times.pass_s, key, mesh)
        points = meshes.points[mesh] + tables.variant_points[variant]
        points += meshes.piped[mesh] * tables.schedule_points[schedule]
        return Leaves(mesh, schedule, variant, meshes.piped[mesh], points, bound)

    def _beyond(
        self, meshes: Meshes, leaves: Leaves, times: Times, parts: Parts, hides: Array | float
    ) -> Array:
        """What the heaviest stage, or an update on the host, adds to the bounds of leaves."""
        tables = self.tables
        mesh, key = leaves.mesh, tables.variants.of[leaves.variant]
        row, both, once = (take_at(of, key, mesh) for of in (times.row, parts.both, parts.once))
        weights = parts.weights.take(mesh, axis=1)
        beyond = tables.chains.beyond(
            meshes.chain[mesh], leaves.schedule, row, both, weights, once, hides
        )
        return np.maximum(
            beyond, tables.on_host[leaves.variant] * take_at(times.on_host, key, mesh)
        )

    # -- layouts
    # ----------------------------------------------------------------------------------------------

    def _evaluate(self, meshes: Meshes, leaves: Leaves) -> None:
        first, same = distinct(meshes.unplaced[leaves.mesh], leaves.schedule, leaves.variant)
        found = self._fitting(meshes, leaves.take(first)).take(same)
        self._count(found)
        kept = np.flatnonzero(found.evaluated)
        if not len(kept):
            return
        leaves, mesh = leaves.take(kept), leaves.mesh[kept]
        layouts = self._layouts(meshes, leaves).with_columns(
            recompute_layers=found.recompute_layers[kept]
        )
        stages = self.tables.chains.stages(meshes.chain[mesh], leaves.schedule)
        time = Combiner(layouts, meshes.costs.take(mesh), stages).time()
        self.incumbent.add(
            layouts, total(time.values()), meshes.points[mesh] + points_of_policy(layouts)
        )

    def _layouts(self, meshes: Meshes, leaves: Leaves) -> Layouts:
        return self.tables.with_policies(
            meshes.layouts.take(leaves.mesh), leaves.schedule, leaves.variant
        )

    def _fitting(self, meshes: Meshes, leaves: Leaves) -> Outcome:
        """What becomes of the layouts that each leaf stands for. Placement is nothing to memory."""
        tables = self.tables
        mesh, schedule, r = leaves.mesh, leaves.schedule, tables.memory_policy[leaves.variant]
        layouts = self._layouts(meshes, leaves)
        legal, most = tables.layers_again(layouts, r, np.iinfo(np.int64).max)
        layouts = layouts.with_columns(recompute_layers=most)

        def fit(rows: Array, layers: Array) -> Array:
            some = layouts.take(rows).with_columns(recompute_layers=layers)
            stages = tables.chains.stages(meshes.chain[mesh[rows]], schedule[rows])
            return Combiner(some, meshes.costs.take(mesh[rows]), stages).fits(
                tables.capacity, tables.memory_uncertainty
            )

        evaluated = fit(np.arange(len(mesh)), most) & (legal > 0)
        low, high = np.zeros(len(mesh), dtype=np.int64), np.maximum(legal - 1, 0)
        while len(rows := np.flatnonzero(evaluated & (low < high))):
            middle = (low[rows] + high[rows]) // 2
            enough = fit(rows, tables.layers_again(layouts.take(rows), r[rows], middle)[1])
            low[rows], high[rows] = (
                np.where(enough, low[rows], middle + 1),
                np.where(enough, middle, high[rows]),
            )
        over = np.where(evaluated, low, legal)
        least = np.where(evaluated, tables.layers_again(layouts, r, low)[1], most)
        return Outcome(
            evaluated, least, over, legal - over - evaluated, tables.policies.counts[r] - legal
        )

    # -- the simplest
    # -------------------------------------------------------------------------------------------

    def _simplest(self, cores: Cores) -> None:
        """Open what may be simple enough to make up for its time."""
        points, piped = cores.points, cores.piped
        left = np.lexsort((cores.bound, points))
        while len(
            left := left[self.incumbent.wanted(cores.bound[left], piped[left], points[left])]
        ):
            if not self._may_go_on(float(cores.bound[left].min())):
                return
            meshes = self._split(cores.take(left[:_PROBED]))
            self._sweep(meshes, np.lexsort((meshes.bound, meshes.points)))
            left = left[_PROBED:]

    # -- counts
    # ----------------------------------------------------------------------------------------------

    def _wanted(self, rows: Bounded) -> Bounded:
        """Of cores, meshes or leaves those that may be in the answer."""
        wanted = self.incumbent.wanted(rows.bound, rows.piped, rows.points)
        self._close(rows.bound[~wanted])
        return rows.take(np.flatnonzero(wanted))

    def _close(self, bounds: Array) -> None:
        self.closing_bound = min(self.closing_bound, float(bounds.min(initial=np.inf)))

    def _may_go_on(self, bound: float) -> bool:
        """Unless the caller stops the search or it has looked at too much; `bound`: of all that
        would be left."""
        if self.looked_at <= self.most and self._has_time():
            return True
        self.exact = False
        self._close(np.array([bound]))
        return False

    def _is_stopped(self, bounds: Array, rest: Array) -> bool:
        """Whether, with a time to prune against, the search ends within a sweep; `rest`: what would
        be left of it."""
        return self._is_limited and not self._may_go_on(float(bounds[rest].min()))

    def _has_time(self) -> bool:
        if self.should_continue():
            return True
        self.last_steps -= 1
        return self.last_steps >= 0 and not self._is_limited

    def _count(self, found: Outcome) -> None:
        self.looked_at += len(found.evaluated)
        self.evaluated += int(found.evaluated.sum())
        self.over_memory += int(found.over_memory.sum())
        self.rejected["dominated"] += int(found.dominated.sum())
        self.rejected["recompute_layers_offered"] += int(found.illegal.sum())

    def _certificate(self) -> Certificate:
        tables = self.tables
        rejected = {name: count for name, count in self.rejected.items() if count}
        size = tables.space.size
        rest = (
            size
            - sum(rejected.values())
            - self.over_memory
            - self.pruned_by_memory
            - self.evaluated
        )
        return Certificate(
            space=size,
            cardinality=tables.space.cardinality,
            rejected=rejected,
            over_memory=self.over_memory,
            pruned_by_memory=self.pruned_by_memory,
            pruned_by_bound=rest,
            evaluated=self.evaluated,
            closing_bound_s=self.closing_bound if np.isfinite(self.closing_bound) else None,
            exact=self.exact,
            gap=max(self.incumbent.best / self.closing_bound - 1, 0.0),
        )

    def _nothing(self) -> Exception:
        """Why there is no answer."""
        if self._knows_limit:
            return NothingFaster()
        if not self.exact:
            return OutOfTime()
        return MinimumMemory(self.tables, self._has_time).error() or NoLegalLayout(self.rejected)
