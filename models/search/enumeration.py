"""The best layouts of a problem, and the proof.

Layouts are enumerated in levels (models.layouts.space): trunks are crossed with expert degrees to
cores, cores divided into meshes, meshes given policies, and what is left is placed on the fabric.
At each level every row has a lower bound, which the cost model itself gives for what is fixed so
far (models.search.partial_sums). Rows are opened in order of their bound, a few at first, and those
that cannot be in the answer any more are dropped.

What is opened is searched for all of the answer: the fastest, the best of the meshes that are asked
for, the best without and with a pipeline, and the front of time and complexity within the
tolerance, from the simplest to the fastest.
"""

from __future__ import annotations

import numpy as np

from models.columns import Array, distinct, growing_slices
from models.errors import OutOfTime
from models.layouts.complexity import (
    MOST_POINTS,
    complexity,
    points_of_degrees,
)
from models.layouts.space import Space, variant_row
from models.search.incumbent import Incumbent
from models.search.leaves import Leaves, room_for_found
from models.search.mesh_policies import Count, Meshes, taken
from models.search.minimum_memory import MinimumMemory
from models.search.placements import Places, Unplaced
from models.search.result import (
    Answer,
    Certificate,
    Goal,
    NothingFaster,
    ShouldContinue,
    run_to_completion,
)
from models.search.tables import NoLegalLayout, SearchTables
from models.spec.device_order import filling_code
from models.spec.layout import DEGREES, TORUS_KNOBS, Layouts
from models.spec.profile import Profile

_FIRST_CORES, _CORES = 1 << 8, 1 << 11  # opened together
_CROSSED = 1 << 14  # cores bounded together at first, later all
_FIRST_MESHES, _MESHES = 1 << 4, 1 << 10  # given policies together
_FIRST_PLACED, _PLACED = 1 << 4, 1 << 8  # meshes placed together
_FOUND = 1 << 14  # layouts but for their placement, found together
_MOST_LAYOUTS = 4_000_000  # a search stops there with the best so far, marked as not exact
_LAST_STEPS = 8  # that a search still takes when it has to stop and nothing fits yet


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
    search.open_all()
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
        self.tables, self.incumbent = tables, incumbent
        self.should_continue, self.most = should_continue, most
        self.rejected, self.pruned_by_memory = tables.rejected.copy(), tables.pruned_by_memory
        self.evaluated = self.over_memory = 0
        self.closing_bound = np.inf
        self.exact = True
        self.found = room_for_found(_FOUND)
        self.last_steps = 0 if np.isfinite(incumbent.goal.faster_than) else _LAST_STEPS

    def run(self) -> Answer:
        self.open_all()
        if not self.incumbent.layouts:
            raise self._nothing()
        return self.incumbent.answer(self._certificate(), self.tables)

    # -- trunks and cores

    def open_all(self) -> None:
        """Open the trunks of the lowest bounds, to have a time to prune against, then all others
        that may be in the answer."""
        tables = self.tables
        trunks = tables.trunks.rows
        points = points_of_degrees(trunks)
        if len(tables.experts) == 1:
            bound = np.zeros(len(trunks))
        else:
            bound = tables.bound_trunks(tables.undivided_rows(trunks), tables.trunks.chains)
        order = np.argsort(bound, kind="stable")
        first = max(_CROSSED // len(tables.experts), 1)
        for block in (order[:first], order[first:]):
            wanted = self._wanted(bound[block], trunks.pp[block] > 1, points[block])
            if len(wanted):
                self._open_cores(*self._crossed(block[wanted]))

    def _crossed(self, trunks: Array) -> tuple[Array, Array]:
        """Trunks with every pair of expert degrees that may fold over their stages."""
        tables = self.tables
        trunk, pair = tables.pairs(trunks)
        every = int(tables.splits[trunks].sum()) * len(tables.experts)
        folding = int(tables.splits[trunk].sum())
        self.rejected["experts_fold_over_dense_axes"] += (every - folding) * len(tables.policies)
        return trunk, pair

    def _open_cores(self, trunk: Array, pair: Array) -> None:
        """Open cores, those that promise most on each side of pp = 1 first."""
        tables = self.tables
        cores = tables.cores(trunk, pair)
        order = np.lexsort(
            (cores.pp, cores.etp, cores.ep, cores.sequence_parallel, cores.cp, cores.tp,
             cores.micro_batch)
        )  # fmt: skip
        points, piped = points_of_degrees(cores), cores.pp > 1
        rows, chain = tables.undivided_rows(cores.take(order)), tables.trunks.chains[trunk]
        bound = np.empty(len(order))
        bound[order], _ = tables.bound(rows, chain[order])
        order = _alternating(bound, piped)
        for some, rest in growing_slices(order, _FIRST_CORES, _CORES):
            if not self._may_go_on(float(bound[rest].min())):
                return
            wanted = some[self._wanted(bound[some], piped[some], points[some])]
            if len(wanted):
                self._open_meshes(cores.take(wanted), chain[wanted])

    # -- meshes

    def _open_meshes(self, cores: Layouts, chain: Array) -> None:
        """Open the meshes of some cores, bounded under the best policy that may fit."""
        tables = self.tables
        layouts, parent = tables.space.split(cores)
        if not len(layouts):
            return
        legal = tables.legal_variants[variant_row(layouts)]
        points, piped = points_of_degrees(layouts), layouts.pp > 1
        meshes = Meshes(tables.rows(layouts), chain[parent], legal, points)
        bound = tables.bound_meshes(meshes)
        if tables.space.has_torus_choice:
            kept = self._wanted(bound, piped, points)
            layouts, parent = self._filled(layouts.take(kept))
            meshes = taken(meshes, kept[parent])
            meshes.rows["filling"] = filling_code(layouts.torus_axes, layouts.torus_block)
            points, piped = meshes.points, layouts.pp > 1
            bound = tables.bound_meshes(meshes)
        order = _alternating(bound, piped)
        order = order[np.isfinite(bound[order])]
        for some, rest in growing_slices(order, _FIRST_MESHES, _MESHES):
            if not self._may_go_on(float(bound[rest].min())):
                return
            wanted = some[self._wanted(bound[some], piped[some], points[some])]
            if len(wanted):
                self._give_policies(layouts.take(wanted), taken(meshes, wanted))

    def _give_policies(self, layouts: Layouts, meshes: Meshes) -> None:
        """Give meshes every variant of sharding and memory policy, and every schedule."""
        tables, start = self.tables, 0
        while start < len(layouts):
            left = taken(meshes, np.arange(start, len(layouts)))
            count = tables.give_policies(left, self._limits(), self.found)
            self._count(count)
            leaves = Leaves.of(self.found, count.found, start)
            start += count.meshes
            for some in leaves.by_mesh(_FIRST_PLACED, _PLACED):
                points = meshes.points[some.mesh] + some.points(tables)
                wanted = self._wanted(some.seconds, some.piped, points)
                if len(wanted):
                    self._place(layouts, meshes.chain, some.take(wanted))

    def _limits(self) -> Array:
        """The longest step that may be in the answer, without and with a pipeline, by points of
        complexity."""
        fast = self.incumbent.limit(np.array([0, 1]))
        simple = self.incumbent.simple_enough(np.arange(MOST_POINTS))
        return np.minimum(np.maximum(fast[:, None], simple), self.incumbent.goal.faster_than)

    def _count(self, count: Count) -> None:
        self.over_memory += count.over_memory
        self.rejected["dominated"] += count.dominated
        self.closing_bound = min(self.closing_bound, count.closing_bound)

    # -- placements

    def _place(self, meshes: Layouts, chain: Array, leaves: Leaves) -> None:
        """Place what is left on the fabric in every legal way, and predict it. The leaves of each
        mesh follow each other."""
        tables = self.tables
        first_leaf = np.flatnonzero(np.diff(leaves.mesh, prepend=-1))
        used = leaves.mesh[first_leaf]
        first, kind = distinct(*(getattr(meshes, name)[used] for name in (*DEGREES, *TORUS_KNOBS)))
        placed, of_kind, points = tables.placed(meshes.take(used[first]))
        start = np.searchsorted(of_kind, np.arange(len(first) + 1))
        filling = filling_code(placed.torus_axes, placed.torus_block)
        of_policy = leaves.points(tables)
        leaf, place, seconds, evaluated, closing_bound = tables.place(
            Unplaced(
                np.append(first_leaf, len(leaves)), chain[used],
                np.minimum.reduceat(of_policy, first_leaf),
                leaves.rows, leaves.schedule, of_policy, leaves.seconds,
            ),
            Places(start[kind], start[kind + 1], placed.placement, filling, points),
            self._limits(),
        )  # fmt: skip
        self.evaluated += evaluated
        self.closing_bound = min(self.closing_bound, closing_bound)
        points = points[place] + of_policy[leaf]
        kept = self._wanted(seconds, leaves.piped[leaf], points)
        leaf, place = leaf[kept], place[kept]
        chosen = meshes.take(leaves.mesh[leaf]).with_columns(
            placement=placed.placement[place],
            torus_axes=placed.torus_axes[place],
            torus_block=placed.torus_block[place],
        )
        layouts = tables.with_policies(
            chosen, leaves.schedule[leaf], leaves.variant[leaf]
        ).with_columns(recompute_layers=leaves.rows["recompute_layers"][leaf].astype(np.int64))
        self.incumbent.add(layouts, seconds[kept], points[kept])

    def _filled(self, meshes: Layouts) -> tuple[Layouts, Array]:
        """Meshes in every filling of a torus, and the mesh of each."""
        fillings = self.tables.space.fillings
        mesh = np.repeat(np.arange(len(meshes)), len(fillings))
        axes, block = np.tile(fillings, (len(meshes), 1)).T
        return meshes.take(mesh).with_columns(torus_axes=axes, torus_block=block), mesh

    # -- what is left out

    def _wanted(self, bound: Array, piped: Array, points: Array) -> Array:
        """The positions of rows that may be in the answer."""
        wanted = self.incumbent.wanted(bound, piped, points)
        self.closing_bound = min(self.closing_bound, float(bound[~wanted].min(initial=np.inf)))
        return np.flatnonzero(wanted)

    def _may_go_on(self, bound: float) -> bool:
        """Unless the caller stops the search or it has looked at too much; `bound`: of all that
        would be left."""
        if self.evaluated <= self.most and self._has_time():
            return True
        self.exact = False
        self.closing_bound = min(self.closing_bound, bound)
        return False

    def _has_time(self) -> bool:
        if self.should_continue():
            return True
        self.last_steps -= 1
        limited = np.isfinite(min(self.incumbent.best, self.incumbent.goal.faster_than))
        return self.last_steps >= 0 and not limited

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
        if np.isfinite(self.incumbent.goal.faster_than):
            return NothingFaster()
        if not self.exact:
            return OutOfTime()
        return MinimumMemory(self.tables, self._has_time).error() or NoLegalLayout(self.rejected)


def _alternating(bound: Array, piped: Array) -> Array:
    """Positions in order of the bound among those with and among those without a pipeline, in
    turns."""
    order = np.argsort(bound, kind="stable")
    turn = np.empty(len(order), dtype=np.int64)
    for side in (False, True):
        mine = order[piped[order] == side]
        turn[mine] = np.arange(len(mine))
    return np.lexsort((bound, turn))
