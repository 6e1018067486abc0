"""Where nothing fits: the least that any layout needs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from models.columns import Array, growing_slices
from models.cost.combine import Combiner
from models.cost.mesh_costs import MeshCosts
from models.errors import Infeasible
from models.layouts.complexity import points_of_degrees, points_of_policy
from models.layouts.placement import closest_groups
from models.search.nodes import Cores
from models.search.result import ShouldContinue
from models.search.tables import SearchTables
from models.spec.constraints import EVEN_CHANCE
from models.spec.hardware import GIB
from models.spec.layout import Layout, Layouts

_FIRST, _MOST = 1 << 10, 1 << 13  # variants looked at together
_CORES = 1 << 10


class MinimumMemory:
    """`least` bytes on the fullest device of any `layout` that the hosts can hold, found by opening
    cores, and of these their variants, in order of a bound; `run_to_completion`, or as long as
    there was time."""

    def __init__(self, tables: SearchTables, should_continue: ShouldContinue) -> None:
        self.tables = tables
        self.layout: Layout | None = None
        self.least, self.beyond_host, self.run_to_completion = np.inf, False, True
        self._look(should_continue)

    def error(self) -> Infeasible | None:
        """None if no layout is legal."""
        tables = self.tables
        if self.layout is None and not self.run_to_completion:
            return Infeasible(
                "memory", "no legal layout fits; by how much, there was no time to find"
            )
        host = f"{tables.problem.cluster.host_bytes / GIB:.1f} GiB of host memory beside"
        if self.layout is None and self.beyond_host:
            available = tables.problem.cluster.host_bytes / GIB
            detail = f"all that may fit a device offloads more than the {host} it"
            return Infeasible("memory", detail, available=available, unit="GiB")
        if self.layout is None:
            return None
        needed, usable = self.least / GIB, tables.capacity / GIB
        of = "" if self.run_to_completion else ", of those that there was time for,"
        detail = (
            f"the most frugal legal layout{of} needs {needed:.1f} GiB on its fullest device,"
            f" {usable:.1f} GiB are"
        )
        probability = tables.space.constraints.min_fit_probability
        of = (
            f" with constraints.min_fit_probability = {probability:g}"
            if probability > EVEN_CHANCE
            else ""
        )
        detail += f" usable{of}: {self.layout.summary()}"
        if tables.hosts_too_small:
            detail += f"; {host} each are too few for the optimizer's states"
        return Infeasible("memory", detail, needed=needed, available=usable, unit="GiB")

    def _look(self, should_continue: ShouldContinue) -> None:
        for bound, cores in self._cores():
            if bound >= self.least or (
                self.beyond_host and self.layout is None and bound > self.tables.at_most
            ):
                return
            if not should_continue():
                self.run_to_completion = False
                return
            self._open(cores)

    def _open(self, cores: Cores) -> None:
        for bound, costs, trunk, variant in self._variants(cores):
            if bound >= self.least:
                return
            rows, needed = self._needed(costs, trunk, variant)
            self.beyond_host = self.beyond_host or bool(np.isinf(needed).any())
            if needed.min(initial=np.inf) < self.least:
                self.least = float(needed.min())
                self.layout = _simplest_of(
                    rows.take(np.flatnonzero(needed <= self.least * (1 + 1e-9)))
                )

    def _variants(self, cores: Cores) -> Iterator[tuple[float, MeshCosts, Array, Array]]:
        """The meshes of some cores, each under every legal variant, few at a time at first: what
        they need at least, in order of that and less than `least`, their costs, trunks and
        variants."""
        tables = self.tables
        layouts, parent = tables.space.split(cores.layouts)
        trunk, near = cores.trunk[parent], closest_groups(tables.problem.cluster, layouts)
        chain, costs = tables.chain(trunk), tables.costs(layouts, cores.shard[parent], near, None)
        bounds = tables.least_memory(costs, chain).least
        variant, mesh = np.nonzero((bounds < self.least) & tables.legal(layouts))
        bound = bounds[variant, mesh]
        for chosen, _ in growing_slices(np.argsort(bound, kind="stable"), _FIRST, _MOST):
            at = mesh[chosen]
            yield float(bound[chosen[0]]), costs.take(at), trunk[at], variant[chosen]

    def _needed(self, costs: MeshCosts, trunk: Array, variant: Array) -> tuple[Layouts, Array]:
        """Meshes with their variants under every legal schedule: bytes on the fullest device,
        infinite where the host has not as much as is offloaded."""
        tables = self.tables
        mesh, schedule = np.nonzero(tables.chains.legal[tables.chain(trunk)])
        rows = tables.with_policies(costs.layouts.take(mesh), schedule, variant[mesh])
        legal, most = tables.layers_again(
            rows, tables.memory_policy[variant[mesh]], np.iinfo(np.int64).max
        )
        kept = np.flatnonzero(legal > 0)
        rows, mesh = rows.with_columns(recompute_layers=most).take(kept), mesh[kept]
        stages = tables.chains.stages(tables.chain(trunk[mesh]), schedule[kept])
        combiner = Combiner(rows, costs.take(mesh), stages)
        used, _ = combiner.memory()
        on_host = (
            tables.memory_uncertainty.safety_factor(used) * combiner.host()
            <= tables.problem.cluster.host_bytes
        )
        return rows, np.where(on_host, tables.memory_uncertainty.needed(used), np.inf)

    def _cores(self) -> Iterator[tuple[float, Cores]]:
        """Cores, few at a time at first, in order of the memory that they need at least."""
        tables = self.tables
        trunk, expert = tables.pairs(np.arange(len(tables.trunks.rows)))
        layouts, shard, memory = tables.cores(trunk, expert)
        order = np.argsort(memory, kind="stable")
        for chosen, _ in growing_slices(order, 16, _CORES):
            yield (
                float(memory[chosen[0]]),
                Cores(layouts.take(chosen), trunk[chosen], shard[chosen], memory[chosen]),
            )


def _simplest_of(layouts: Layouts) -> Layout:
    return layouts[int((points_of_degrees(layouts) + points_of_policy(layouts)).argmin())]
