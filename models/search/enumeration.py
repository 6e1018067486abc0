"""The best layouts of a problem, and the proof.

Layouts are enumerated in levels (models.layouts.space). Trunks (pp, tp, cp and micro-batch) are
crossed with expert degrees to make cores, cores are divided into meshes (all degrees), meshes are
given policies, and the layouts that are left are placed on the fabric. At each level every row (a
layout decided so far) has a lower bound, which the cost model itself gives for what is fixed so far
(models.search.partial_sums). Rows are *opened*, which makes the rows of the next level from them,
in order of their bound, a few at first, and those that cannot be in the answer any more are
dropped.

One search looks for all parts of the answer: the fastest layout, the best of the meshes that are
asked for, the best without and with a pipeline, and the front of time and complexity within the
tolerance, from the simplest to the fastest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from models.columns import Array, growing_slices
from models.errors import OutOfTime
from models.layouts.complexity import complexity
from models.layouts.space import Space
from models.search.compiled_tables import Meshes, Progress, empty_found, new_counts, take_meshes
from models.search.cores import Cores, cross_all
from models.search.incumbent import Incumbent
from models.search.mesh_policies import bound_meshes
from models.search.minimum_memory import MinimumMemory
from models.search.opening import open_meshes
from models.search.result import (
    Certificate,
    Goal,
    NothingFaster,
    SearchAnswer,
    ShouldContinue,
    run_to_completion,
)
from models.search.tables import NoLegalLayout, SearchTables
from models.spec.layout import Layouts
from models.spec.profile import Profile

# Cores that are opened together: at first, to find a time to prune against soon, and later at most.
# With 64 at first DeepSeek-V3 took 5 to 20% less time, and Llama-3.1-405B 25% more
# (docs/lab/search-speed.md).
_FIRST_CORES, _CORES = 1 << 8, 1 << 11
# Cores that are bounded together at first; afterwards all others are. With a quarter as many no
# search took more or less time by more than 5% (docs/lab/search-speed.md).
_CROSSED = 1 << 14
# Meshes and places that are bounded between two looks at the clock, so that a time limit is kept.
_STEPS = 1 << 13
# Layouts that the buffers hold between two looks at the clock; they grow where one mesh has more.
_FOUND = 1 << 12
# Layouts that a search evaluates at most. It then stops with the best so far, marked as not exact.
# This bounds the time of a search whose bounds are loose.
_MOST_LAYOUTS = 4_000_000
# Blocks of work that a search still does when its time is over and nothing fits yet. With so many
# each of ten named problems finds a layout that fits, even under a limit of 1 ms
# (docs/lab/search-speed.md).
_LAST_STEPS = 8


def search(
    space: Space,
    profile: Profile,
    goal: Goal,
    should_continue: ShouldContinue = run_to_completion,
    known: Layouts | None = None,
) -> SearchAnswer:
    """Return the layouts of a space that reach the goal.

    `should_continue` is asked now and then. Once it says no, the search ends with the best so far,
    marked as not exact. `known` layouts of the space are candidates from the start, so the answer
    is no worse than those of them that fit.

    Raise NoLegalLayout; NothingFaster; Infeasible if every legal layout needs more memory than
    there is; OutOfTime; and TooLarge or Invalid as SearchTables does.
    """
    return search_on(SearchTables(space, profile), goal, should_continue, known)


def search_on(
    tables: SearchTables,
    goal: Goal,
    should_continue: ShouldContinue,
    known: Layouts | None = None,
    among: Sequence[Meshes] | None = None,
) -> SearchAnswer:
    """Return the layouts that reach the goal, from the tables of a space. `known` layouts are
    candidates from the start. Raises what `search` does.

    If `among` is given, only its meshes are searched. They must be those that an exact answer
    `opened`, and the goal must ask for something faster than that answer: no other mesh has it,
    even where layouts have to fit with less certainty.
    """
    incumbent = Incumbent(goal)
    if known is not None:
        incumbent.add_known(*_known_that_fit(tables, known))
    answer = _Search(tables, incumbent, should_continue).run(among)
    # The ranking may lack meshes that were dropped before a faster layout of another mesh was
    # found. A search that starts from the times found adds them.
    while answer.certificate.exact and incumbent.may_lack_meshes:
        incumbent = incumbent.for_second_search()
        try:
            again = _Search(tables, incumbent, should_continue).run()
        except (OutOfTime, NothingFaster):  # Time ended before the best layout was met again.
            return answer.inexact()
        answer = again if again.certificate.exact else answer.inexact()
    return answer


def search_all(
    tables: SearchTables, limits: Array, max_evaluated: int, should_continue: ShouldContinue
) -> tuple[Layouts, Array] | None:
    """Return all layouts that fit in memory and take no longer than `limits` (2,), the seconds
    allowed without a pipeline and with one; and their points of complexity. A sweep over links
    needs them, since any may be the best somewhere between two places. Return None if there are
    none, if the search evaluated `max_evaluated` layouts before its end, or if time ended."""
    incumbent = Incumbent(Goal(both_sides=True), all_within=limits)
    search = _Search(tables, incumbent, should_continue, max_evaluated)
    search.open_all()
    if not (search.exact and incumbent.layouts):
        return None
    return Layouts.concatenate(incumbent.layouts), np.concatenate(incumbent.complexities)


def finds_any(tables: SearchTables, limits: Array, should_continue: ShouldContinue) -> bool | None:
    """Say whether any layout fits in memory and takes no longer than `limits` (2,), the seconds
    allowed without a pipeline and with one; -inf allows none. Advice uses it to prove that a
    pipeline is, or is not, needed. The search ends at the first such layout. Return None if time
    ended before that was known."""
    incumbent = Incumbent(Goal(both_sides=True), all_within=limits)
    search = _Search(tables, incumbent, lambda: not incumbent.layouts and should_continue())
    search.found = empty_found(1)  # The first layout fills the buffer, which ends the loop.
    search.open_all()
    return bool(incumbent.layouts) if search.exact or incumbent.layouts else None


def _known_that_fit(tables: SearchTables, known: Layouts) -> tuple[Layouts, Array, Array]:
    """Return the known layouts that fit, with the seconds of a step and the points of complexity of
    each, (n,)."""
    predictions = tables.predict(known)
    fits = np.flatnonzero(tables.fits(predictions))
    layouts = known.take(fits)
    return layouts, predictions.step_time_s[fits], complexity(tables.problem, layouts)


class _Search:
    """Runs one search: it opens trunks, cores and meshes in order of their bounds, keeps layouts in
    an incumbent (the answer so far), and counts what it looks at. It stops once it has evaluated
    more than `max_evaluated` layouts."""

    def __init__(
        self,
        tables: SearchTables,
        incumbent: Incumbent,
        should_continue: ShouldContinue,
        max_evaluated: int = _MOST_LAYOUTS,
    ) -> None:
        self.tables, self.incumbent = tables, incumbent
        self.should_continue, self.max_evaluated = should_continue, max_evaluated
        self.rejected, self.pruned_by_memory = tables.rejected.copy(), tables.pruned_by_memory
        self.counts = new_counts()
        self.exact = True
        self.found = empty_found(_FOUND)
        # A later search for layouts that are less sure to fit may go on with these.
        self.opened: list[Meshes] = []
        # Blocks of work that may still be done when time is over, so that there is some answer. Who
        # asks for something faster has an answer already.
        self.last_steps = 0 if np.isfinite(incumbent.goal.faster_than) else _LAST_STEPS

    def run(self, among: Sequence[Meshes] | None = None) -> SearchAnswer:
        """Search all meshes, or only `among` if they are given, and return the answer. Raise
        NothingFaster, OutOfTime, Infeasible or NoLegalLayout where there is none."""
        if among is None:
            self.open_all()
        else:
            for meshes in among:
                self._open_meshes(meshes)
        if not self.incumbent.layouts:
            raise self._why_no_answer()
        return self.incumbent.answer(self._certificate(), self.tables, self.opened)

    # -- trunks and cores

    def open_all(self) -> None:
        """Search all trunks (pp, tp, cp and micro-batch): cross them with the degrees of experts,
        and open the cores that this makes. The trunks with the lowest bounds come first: the times
        found there prune the others."""
        tables, crossing = self.tables, self.tables.crossing
        with_pipeline = crossing.rows["pp"] > 1
        # With one pair of expert degrees each trunk makes one core, which is bounded anyway.
        if len(tables.experts) == 1:
            bound = np.zeros(len(with_pipeline))
        else:
            bound = tables.bound_trunks(crossing.rows, crossing.chain)
        order = np.argsort(bound, kind="stable")
        first = max(_CROSSED // len(tables.experts), 1)
        for block in (order[:first], order[first:]):
            promising = self._promising_positions(
                bound[block], with_pipeline[block], crossing.points[block]
            )
            if len(promising):
                self._open_cores(self._cross_with_experts(block[promising]))
            if not self.exact and self.incumbent.limits.is_fixed:
                # More layouts are of no use: search_all discards what a search that was cut short
                # has found, and finds_any cuts its search short itself, at the first layout.
                return

    def _cross_with_experts(self, trunks: Array) -> Cores:
        """Return the cores made of the trunks at these positions and every pair of expert degrees.
        Pairs whose product ep · etp does not divide a stage's devices are counted as rejected.
        Cores whose bound is beyond the limits are left out."""
        tables = self.tables
        before = int(self.counts[0]["placed_meshes"])
        limits = self.incumbent.limits
        cores = cross_all(tables.compiled, tables.crossing, trunks, limits, self.counts)
        # A placed mesh is a mesh in one placement. cross_all has counted those under the pairs that
        # divide a stage's devices.
        under_all_pairs = int(tables.placed_meshes[trunks].sum()) * len(tables.experts)
        not_dividing = under_all_pairs - (int(self.counts[0]["placed_meshes"]) - before)
        self.rejected["experts_fold_over_dense_axes"] += not_dividing * len(tables.policies)
        return cores

    def _open_cores(self, cores: Cores) -> None:
        """Open cores in growing blocks: divide their data parallelism and open the meshes. Cores
        with and without a pipeline take turns, the lowest bounds first. Stop where time is over."""
        crossing = self.tables.crossing
        bound, with_pipeline = cores.bound, crossing.rows["pp"][cores.trunk] > 1
        order = _order_alternating_sides(bound, with_pipeline)
        # `rest` is the block and all cores after it, which are left out if the search ends here.
        for block, rest in growing_slices(order, _FIRST_CORES, _CORES):
            if not self._may_go_on(float(bound[rest].min())):
                return
            promising = block[
                self._promising_positions(bound[block], with_pipeline[block], cores.points[block])
            ]
            if len(promising):
                meshes = self._bounded_meshes(cores.trunk[promising], cores.pair[promising])
                self.opened.append(meshes)
                self._open_meshes(meshes)

    # -- meshes

    def _bounded_meshes(self, trunk: Array, pair: Array) -> Meshes:
        """Return the meshes of some cores that may be in the answer. `trunk` and `pair` are the
        positions of the cores' trunks and pairs of expert degrees. Meshes with and without a
        pipeline take turns, the lowest bounds first.

        A bound is over the policies that may fit with an even chance. A later search that asks for
        less certainty can therefore go on with these meshes.
        """
        meshes = self.tables.meshes_of_cores(trunk, pair)
        bound_meshes(self.tables.at_even_chance.compiled, meshes)
        with_pipeline = meshes.rows["pp"] > 1
        promising = self._promising_positions(meshes.bound, with_pipeline, meshes.points)
        order = _order_alternating_sides(meshes.bound[promising], with_pipeline[promising])
        return take_meshes(meshes, promising[order])

    def _open_meshes(self, meshes: Meshes) -> None:
        """Search meshes in every placement and under every policy, and keep the layouts found. The
        clock is looked at every _STEPS steps; stop where time is over."""
        while len(meshes.rows) and self._may_go_on(float(meshes.bound.min())):
            progress = Progress(self.incumbent.limits, self.counts, self.found)
            opened = open_meshes(self.tables.compiled, meshes, _STEPS, progress)
            self._move_found_to_incumbent()
            if not opened:  # One mesh has more layouts than the buffers hold: it is opened again.
                self.found = empty_found(8 * len(self.found.seconds))
            meshes = take_meshes(meshes, slice(opened, None))

    def _move_found_to_incumbent(self) -> None:
        """Move the layouts in the buffers to the incumbent, and empty the buffers."""
        count = int(self.counts[0]["found"])
        self.counts[0]["found"] = 0
        rows, variant, schedule, seconds, points = (values[:count].copy() for values in self.found)
        self.incumbent.keep(self.tables.layouts_of(rows, schedule, variant), seconds, points)

    # -- what is left out

    def _promising_positions(self, bound: Array, with_pipeline: Array, points: Array) -> Array:
        """Return the positions of rows that may be in the answer. `bound` has the least seconds of
        a step and `points` the least complexity of what grows from each row, (n,). The least bound
        of the other rows is noted, since the proof of the answer states it."""
        promising = self.incumbent.is_promising(bound, with_pipeline, points)
        self._note_left_out(float(bound[~promising].min(initial=np.inf)))
        return np.flatnonzero(promising)

    def _note_left_out(self, bound: float) -> None:
        """Lower the closing bound, the least seconds of all that was left out, to `bound` where
        that is less. The answer's certificate states it."""
        self.counts["closing_bound"] = np.minimum(self.counts["closing_bound"], bound)

    def _may_go_on(self, bound: float) -> bool:
        """Say whether the search may go on: it has time, and has evaluated no more than
        `max_evaluated` layouts. Otherwise mark it as not exact, and note `bound`, the least seconds
        of all that is left out."""
        if self.counts[0]["evaluated"] <= self.max_evaluated and self._has_time():
            return True
        self.exact = False
        self._note_left_out(bound)
        return False

    def _has_time(self) -> bool:
        """Say whether the search has time: the caller lets it go on; or time is over, but no layout
        has been found yet and the caller has set no step time to reach. The latter is true for
        `last_steps` calls at most, and each call uses one up."""
        if self.should_continue():
            return True
        self.last_steps -= 1
        return self.last_steps >= 0 and not self.incumbent.has_step_time_limit

    def _certificate(self) -> Certificate:
        """Return the numbers of layouts that the search looked at or left out. Layouts that are in
        no other count were pruned by a bound."""
        tables = self.tables
        counts = self.counts[0]
        rejected = self.rejected + Counter(dominated=int(counts["dominated"]))
        size, closing_bound = tables.space.size, float(counts["closing_bound"])
        over_memory, evaluated = int(counts["over_memory"]), int(counts["evaluated"])
        counted = sum(rejected.values()) + over_memory + self.pruned_by_memory + evaluated
        return Certificate(
            space=size,
            cardinality=tables.space.cardinality,
            rejected=dict(rejected),
            over_memory=over_memory,
            pruned_by_memory=self.pruned_by_memory,
            pruned_by_bound=size - counted,
            evaluated=evaluated,
            closing_bound_s=closing_bound if np.isfinite(closing_bound) else None,
            exact=self.exact,
            # Nothing that was left out takes less than the closing bound.
            gap=max(self.incumbent.best / closing_bound - 1, 0.0),
        )

    def _why_no_answer(self) -> Exception:
        """Return the exception to raise for a search without an answer: nothing faster than was
        asked (in the time there was), no time, too little memory, or no legal layout."""
        if np.isfinite(self.incumbent.goal.faster_than):
            return NothingFaster()
        if not self.exact:
            return OutOfTime()
        return MinimumMemory(self.tables, self._has_time).error() or NoLegalLayout(self.rejected)


def _order_alternating_sides(bound: Array, with_pipeline: Array) -> Array:
    """Return the positions of rows in order of the bound, alternating between rows with a pipeline
    and rows without. Rows of either kind are pruned by the best layout of their kind, and taking
    turns finds both of these early."""
    order = np.argsort(bound, kind="stable")
    # Each row has its rank among the rows of its own kind; equal ranks follow each other.
    turn = np.where(
        with_pipeline[order], np.cumsum(with_pipeline[order]), np.cumsum(~with_pipeline[order])
    )
    return order[np.argsort(turn, kind="stable")]
