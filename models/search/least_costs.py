"""What no placement of a mesh's axes makes cheaper: collectives over groups that are as close as
can be.

Closest is not always fastest (the rings of a torus, links between peers, a tree over many domains),
so that every distance between neighbours is tried, once for every degree that there is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from models.columns import Array, SharedRows, total
from models.cost.collectives import Cost, Network
from models.cost.mesh_costs import of_axes
from models.layouts.factors import divisors
from models.layouts.placement import (
    Group,
    Groups,
    expert_groups_beside_pipeline,
    groups_of_every_stride,
    innermost_group,
)
from models.spec.layout import Layouts
from models.spec.problem import Problem
from models.spec.profile import Coefficients


class LeastCosts:
    """Of a problem's collectives, for groups of all degrees that divide its devices, and of
    `others`; in some or all `fillings` of a torus."""

    def __init__(
        self, problem: Problem, c: Coefficients, *others: Array, fillings: Array | None = None
    ) -> None:
        self.problem, self.network = problem, Network(problem.cluster.dims, c)
        self.degrees = np.unique(
            np.concatenate([divisors(problem.cluster.num_devices), *others]).astype(np.int64)
        )
        self.axes = of_axes(problem, self.network)
        self.fillings = (
            problem.cluster.device_orders.distinct_fillings if fillings is None else fillings
        )
        self._groups, self._choices = groups_of_every_stride(
            problem.cluster, self.degrees, self.fillings
        )
        self._known: dict[tuple[Callable[[Group], Cost], int], Cost] = {}

    def collectives(
        self, g: Groups, meshes: Layouts | None = None, *, apart: bool = False
    ) -> dict[str, Cost]:
        """By name, over groups as close as can be; over the expert axes of whole `meshes` the least
        of those that they may have. `apart`: in every filling of a torus, one after the other, for
        `g.times` as many."""
        exact = (
            {}
            if meshes is None
            else expert_groups_beside_pipeline(self.problem.cluster, meshes, g, self.fillings)
        )
        times = len(self.fillings) if apart else 1
        beside = (
            2 * len(self.fillings) // times
        )  # strides of an expert axis, or those with fillings
        single = {
            name: cost(exact[axis]).least_of(beside, apart=times)
            if axis in exact
            else self._of(getattr(g, axis), cost, times)
            for name, (axis, cost) in self.axes.items()
        }
        network, parts = self.network, [g.dp_shard, g.cp, g.dp_replicate]
        gather, reduce = (
            self._of(g.sharding, network.gather, times),
            self._of(g.replicas, network.reduce, times),
        )
        return single | {
            "sharding": _joined(
                g.sharding, parts[:2], gather, network.least_gather(g.sharding.table), times
            ),
            "replicas": _joined(
                g.replicas, parts, reduce, network.least_reduce(g.replicas.table), times
            ),
        }

    def within_layers(self, g: Groups) -> dict[str, Cost]:
        """The same of what a layer sends, but for parameters."""
        return {
            name: self._of(getattr(g, axis), cost)
            for name, (axis, cost) in self.axes.items()
            if axis in ("tp", "cp", "ep", "etp")
        }

    def context(self, g: Groups) -> dict[str, Cost]:
        """The same for context parallelism alone."""
        return {"cp": self._of(g.cp, self.axes["cp"][1])}

    @cached_property
    def once(self) -> tuple[Array, Array]:
        """Seconds that a parameter's traffic takes at least once a step, over each of `degrees`
        replicas of it: of dense ones, and of experts. Over some replicas it is gathered and its
        gradient scattered, and what each has of that is reduced over the others; or all reduce the
        whole gradient. Nothing, where sharding does that too."""
        problem, degrees = self.problem, self.degrees
        if problem.stack.all_reduces_gradients(1):
            return (np.zeros(len(degrees)),) * 2
        inner, outer = np.nonzero(np.isin(np.multiply.outer(degrees, degrees), degrees))
        both = np.searchsorted(degrees, degrees[inner] * degrees[outer])
        gather, reduce = (
            self._tabulated(cost).byte_s for cost in (self.network.gather, self.network.reduce)
        )
        element, gradient = problem.gather_bytes, problem.gradient_bytes

        def least(gather: Array) -> Array:
            found = 2 * gather * gradient
            apart = gather[inner] * (element + gradient) + reduce[outer] * gradient / degrees[inner]
            np.minimum.at(found, both, apart)
            return found

        near, bent = innermost_group(problem.cluster, degrees), gather.copy()
        several = np.flatnonzero((degrees[inner] > 1) & (degrees[outer] > 1))
        joined = near.take(inner[several]) * near.take(outer[several])
        np.minimum.at(bent, both[several], self.network.least_gather(joined).byte_s)
        return least(bent), least(gather)

    def _of(self, axis: SharedRows[Group], cost: Callable[[Group], Cost], times: int = 1) -> Cost:
        entries = np.searchsorted(self.degrees, axis.table.degree)
        every = np.add.outer(np.arange(times) * len(self.degrees), entries).ravel()
        return self._tabulated(cost, times).take(every)

    def _tabulated(self, cost: Callable[[Group], Cost], times: int = 1) -> Cost:
        """Of every degree."""
        if (cost, times) not in self._known:
            self._known[cost, times] = cost(self._groups).least_of(
                self._choices // times, apart=times
            )
        return self._known[cost, times]


def _joined(
    axis: SharedRows[Group], parts: list[SharedRows[Group]], alone: Cost, bent: Cost, times: int
) -> Cost:
    """Of two axes or more the links may be those of several dims."""
    several, bent = np.zeros(len(bent.byte_s), dtype=bool), bent.times(times)
    several[axis.code] = total((part.per_row(part.table.degree) > 1) * 1 for part in parts) > 1
    several = np.tile(several, times)
    return Cost(
        np.where(several, bent.byte_s, alone.byte_s),
        np.where(several, bent.latency_s, alone.latency_s),
    )
