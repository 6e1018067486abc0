"""The least memory that any layout needs, for the error of a search in which nothing fits, and the
layout that is surest to fit.

A *trunk* is a layout of which only pp, tp, cp and micro-batch are decided, and a *core* one of
which the degrees of experts are decided too. To *open* a core is to search all layouts that decide
the rest.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np

from models.columns import growing_slices
from models.cost.memory_uncertainty import percent
from models.errors import Infeasible, Surest
from models.search.compiled_tables import new_counts
from models.search.cores import cross_all
from models.search.incumbent import limits_for
from models.search.most_frugal import find_most_frugal, no_frugal
from models.search.result import Goal, ShouldContinue
from models.search.tables import SearchTables
from models.spec.constraints import EVEN_CHANCE, MAX_FIT_PROBABILITY
from models.spec.hardware import GIB
from models.spec.layout import Layout, Layouts

# Cores that are opened together, at first and at most. Between two such blocks the search asks
# whether time is over, and ends where the layout found so far rules out the cores that are left.
_FIRST, _MOST = 1 << 4, 1 << 9
_SAME_DEVIATIONS = 1e-9  # standard deviations: layouts that differ by less are as sure


class MinimumMemory:
    """Finds the layout that needs least memory, by opening cores in order of a lower bound of their
    memory.

    `layout` is this layout, or None, and `least` the bytes on its fullest device (`needed_bytes`).
    A layout that offloads more than a host has does not count, and sets `beyond_host`. With
    `counts_host` it counts too: where it fills a larger share of its host than of its device,
    `least` is that share of the device. `is_complete` is false where time ended before all layouts
    were looked at.
    """

    def __init__(
        self, tables: SearchTables, should_continue: ShouldContinue, *, counts_host: bool = False
    ) -> None:
        self.tables, self.should_continue = tables, should_continue
        self.counts_host = counts_host
        self.layout: Layout | None = None
        self.least = np.inf
        self.beyond_host = False
        self.is_complete = True
        self._search()

    def error(self) -> Infeasible | None:
        """Return the error that says how much memory is missing, with the most frugal layout and
        the one that is surest to fit. Return None if no layout is legal."""
        tables = self.tables
        if self.layout is None and not self.is_complete:
            return Infeasible(
                "memory", "no legal layout fits; by how much, there was no time to find"
            )
        if self.layout is None and not self.beyond_host:
            return None  # There was no legal layout to look at.
        surest = self._surest()
        host_gib = tables.problem.cluster.host_bytes / GIB
        host = f"{host_gib:.1f} GiB of host memory beside"
        if self.layout is None:
            detail = f"all that may fit a device offloads more than the {host} it"
            detail += self._surest_words(surest)
            return Infeasible("memory", detail, available=host_gib, unit="GiB", surest=surest)
        needed, usable = self.least / GIB, tables.capacity / GIB
        searched = "" if self.is_complete else ", of those that there was time for,"
        detail = (
            f"the most frugal legal layout{searched} needs {needed:.1f} GiB on its fullest device,"
            f" {usable:.1f} GiB are usable"
        )
        probability = tables.space.constraints.min_fit_probability
        if probability > EVEN_CHANCE:
            detail += f" with constraints.min_fit_probability = {probability:g}"
        detail += f": {self.layout.summary()}"
        if tables.hosts_too_small:
            detail += f"; {host} each are too few for the optimizer's states"
        detail += self._surest_words(surest)
        return Infeasible(
            "memory", detail, needed=needed, available=usable, unit="GiB", surest=surest
        )

    def _surest(self) -> Surest | None:
        """Return the layout that is surest to fit, or None where no layout is legal or time ran
        out. Where all layouts are equally uncertain, it is the most frugal one."""
        tables = self.tables
        # With one spread for all layouts and no limit of the host, least memory is surest to fit.
        if tables.memory_uncertainty.is_uniform and math.isinf(tables.problem.cluster.host_bytes):
            return None if self.layout is None else _surest_with_odds(tables, self.layout)
        return surest_layout(tables, self.should_continue)

    def _surest_words(self, surest: Surest | None) -> str:
        """Return the end of the error's sentence, such as "; it fits with a probability of 43%".
        "It" is the surest layout, which is named if it is not the most frugal one, named before.
        Add the min_fit_probability under which that layout would be an answer, if there is any.
        Return "" without a surest layout."""
        if surest is None:
            return ""
        is_most_frugal = self.layout and _differ_in_placement_only(surest.layout, self.layout)
        which = "it" if is_most_frugal else f"the surest, {surest.layout.summary()},"
        if self.tables.space.constraints.memory_reserve_gib:
            which = f"without constraints.memory_reserve_gib {which}"
        words = f"; {which} fits with a probability of {percent(surest.fit_probability)}"
        if surest.min_fit_probability is not None:
            words += f": constraints.min_fit_probability = {surest.min_fit_probability:g} allows it"
        return words

    def _search(self) -> None:
        """Set the attributes to the most frugal layout. Cores are opened in order of a lower bound
        of their memory, until no other can need less than what was found, or time is over."""
        # Limits before anything is found let every core pass.
        tables, no_limits = self.tables, limits_for(Goal(), None)
        trunks = np.arange(len(tables.trunks.rows))
        cores = cross_all(
            tables.compiled, tables.crossing, trunks, no_limits, new_counts(), of_memory=True
        )
        frugal = no_frugal()
        for block, _ in growing_slices(np.argsort(cores.bound, kind="stable"), _FIRST, _MOST):
            least = float(cores.bound[block[0]])
            if least >= self.least:
                return
            # So far every layout offloads more than the host has, which the error will say. Layouts
            # from here on need more than a device has, and would not change that error.
            only_host_is_short = self.beyond_host and self.layout is None
            if only_host_is_short and least > tables.capacity_and_rounding:
                return
            if not self.should_continue():
                self.is_complete = False
                return
            meshes = tables.meshes_of_cores(cores.trunk[block], cores.pair[block])
            find_most_frugal(tables.compiled, meshes, self.counts_host, frugal)
            self.beyond_host, self.least = bool(frugal.beyond_host[0]), float(frugal.needed[0])
            if self.least < np.inf:
                self.layout = tables.layouts_of(frugal.row, frugal.schedule, frugal.variant)[0]


def surest_layout(tables: SearchTables, should_continue: ShouldContinue) -> Surest | None:
    """Return the layout that fits with the highest probability, where none fits as surely as the
    tables ask. Where no layout fits even as predicted, return the one that needs the least share of
    what there is. Return None where no layout is legal, or time ran out.

    A layout has some standard deviations left between the memory it needs and the memory there is.
    The layout with most of them is found step by step (Dinkelbach's method for the largest ratio).
    Each step asks which layout needs least with a safety factor (which scales its predicted memory)
    of so many deviations. The deviations that this layout has left are taken in the next step,
    until no layout has more.

    Only layouts that recompute as many layers as they can are looked at. With fewer layers they
    need more memory, and could be surer only if less of that memory is uncertain.
    """
    best: Layout | None = None
    most_deviations = -math.inf
    uncertainty = tables.memory_uncertainty
    probability = uncertainty.probability
    while True:
        at_probability = tables.at_fit_probability(probability)
        layout = MinimumMemory(at_probability, should_continue, counts_host=True).layout
        if layout is None:
            break
        deviations = _deviations(tables, layout)
        if best is not None and deviations <= most_deviations + _SAME_DEVIATIONS:
            break
        best, most_deviations = layout, deviations
        next_probability = max(NormalDist().cdf(deviations), EVEN_CHANCE)
        if uncertainty.is_uniform or next_probability == probability:
            break
        # A layout as sure as was asked was refused for the caller's reserve (memory_reserve_gib)
        # alone. That is sure enough, so no surer one is looked for.
        if next_probability >= uncertainty.probability:
            break
        probability = next_probability
    return None if best is None else _surest_with_odds(tables, best)


def _deviations(tables: SearchTables, layout: Layout) -> float:
    """Return how surely a layout fits: the logarithm of available over predicted memory, in
    standard deviations; negative where the prediction exceeds what there is."""
    predictions = tables.predict(Layouts.of([layout]))
    cluster = tables.problem.cluster
    return float(tables.memory_uncertainty.deviations(predictions, cluster)[0])


def _surest_with_odds(tables: SearchTables, layout: Layout) -> Surest:
    """Return the layout in a legal placement, with the probability that it fits, and with that
    rounded down to a percent as the min_fit_probability to ask for. The latter is None below an
    even chance, or where the layout would not fit under it either, since the caller's memory
    reserve (memory_reserve_gib) leaves too little."""
    fit_probability = NormalDist().cdf(_deviations(tables, layout))
    asked = min(math.floor(100 * fit_probability) / 100, MAX_FIT_PROBABILITY)
    predictions = tables.predict(Layouts.of([layout]))
    fits = asked >= EVEN_CHANCE and tables.at_fit_probability(asked).fits(predictions)
    return Surest(
        layout=_placed_legally(tables, layout),
        on_torus=tables.problem.cluster.is_torus,
        fit_probability=fit_probability,
        min_fit_probability=asked if fits else None,
    )


def _placed_legally(tables: SearchTables, layout: Layout) -> Layout:
    """Return the layout in the first legal placement on the fabric and filling of a torus; or as it
    is where none is legal. It needs as much memory in all of them."""
    torus_axes, torus_block = tables.space.fillings.T
    in_every_filling = Layouts.of([layout] * len(torus_axes)).with_columns(
        torus_axes=torus_axes, torus_block=torus_block
    )
    placed = tables.space.in_every_placement(in_every_filling)
    return placed[0] if len(placed) else layout


def _differ_in_placement_only(layout: Layout, other: Layout) -> bool:
    """Say whether two layouts differ at most in their placement, which memory does not depend
    on."""
    return other == replace(
        layout,
        placement=other.placement,
        torus_axes=other.torus_axes,
        torus_block=other.torus_block,
    )
