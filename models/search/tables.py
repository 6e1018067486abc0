"""What every level of a search looks up."""

from __future__ import annotations

from collections import Counter
from copy import copy
from dataclasses import replace
from functools import cached_property, partial

import numpy as np

from models.columns import Array, distinct, first_match, take_at
from models.cost.memory_uncertainty import MemoryTerms, MemoryUncertainty
from models.cost.mesh_costs import Links, MeshCosts, ShardCosts, Tables, collectives
from models.cost.shard import Shards
from models.cost.step import Predictions
from models.errors import Invalid, TooLarge
from models.layouts.complexity import points_of_policy
from models.layouts.placement import Groups, groups
from models.layouts.space import (
    MEMORY_POLICY_KNOBS,
    SCHEDULE_KNOBS,
    SHARDING_KNOBS,
    Space,
    default_layouts,
    first_refusals,
    variant_row,
)
from models.search.bounds import Bounds, CoreBounds, Variants, slower_shardings
from models.search.least_costs import LeastCosts
from models.search.memory_bounds import CoreMemory, Memory, MemoryBounds
from models.search.nodes import Meshes, Room
from models.search.pipeline_bounds import Chains
from models.spec.hardware import GIB
from models.spec.layout import Layouts
from models.spec.problem import Problem
from models.spec.profile import Coefficients, Profile

MOST_CORES = 30_000_000  # looked at in one search
_OF_LINKS = "least", "bounds", "context"  # which are worked out anew for others
MOST_SHARDS = 300_000  # of a layer, tabulated: 2 GiB


class NoLegalLayout(Exception):
    """No mesh obeys the rules; `rejected` counts layouts by the rule that refused them."""

    def __init__(self, rejected: Counter[str]) -> None:
        super().__init__("no legal layout")
        self.rejected = rejected


class SearchTables:
    """Of a space: its trunks, expert degrees and policies, less those that cannot be, with what
    they cost and hold.

    `rejected` and `pruned_by_memory` count the layouts that are left out already. Raises
    NoLegalLayout, TooLarge, or Invalid if nothing is left of a device's memory.
    """

    def __init__(self, space: Space, profile: Profile) -> None:
        self.space, self.problem = space, space.problem
        self.c: Coefficients = profile.coefficients(self.problem.scopes)
        self.memory_uncertainty = MemoryUncertainty.of(
            self.problem, profile, space.constraints.min_fit_probability
        )
        self._keep_free()
        self.pruned_by_memory = 0
        self.trunks, rejected = space.trunks
        self.rejected = rejected.copy()
        self.experts, refused = space.experts
        self.policies, unwanted = space.offered
        rows = self.trunks.rows
        if not (len(rows) and len(self.experts) and len(self.policies) and len(space.fillings)):
            raise NoLegalLayout(self.rejected + refused + unwanted)
        if (cores := len(rows) * len(self.experts)) > MOST_CORES:
            raise TooLarge(
                self.problem.cluster.num_chips,
                cores,
                "meshes with their expert degrees",
                MOST_CORES,
            )
        splits, every = space.splits(rows), len(space.policies)
        self.splits = splits * space.allowed_placements
        meshes = int(self.splits.sum())
        others = (int(splits.sum()) * space.placements - meshes) * (
            len(self.experts) + sum(refused.values())
        )
        self.rejected["constraints.torus_block"] += others * every
        self.rejected += Counter({name: count * meshes * every for name, count in refused.items()})
        meshes *= len(self.experts)
        self.rejected += Counter({name: count * meshes for name, count in unwanted.items()})
        legal = self._drop_schedules()
        self._drop_offload()
        self._cost()
        pipelines = self.trunks.pp, self.trunks.micro_batches
        self.chains = Chains(
            self.problem, self.policies.schedules, *pipelines, legal, self.shards.weights
        )

    def at_fit_probability(self, probability: float) -> SearchTables:
        """The same where layouts have to fit with that probability, which is nothing to what is
        legal and costs."""
        other = copy(self)
        other.memory_uncertainty = replace(self.memory_uncertainty, probability=probability)
        other._keep_free()
        return other

    def linked(self, problem: Problem) -> SearchTables | None:
        """The same for a problem whose chips are joined by other links, which is nothing to what is
        legal, what it computes and what it holds; None where the problem differs in more."""
        mine, links = self.problem.cluster, problem.cluster
        joined = replace(mine, fabric=links.fabric, chips_per_domain=links.chips_per_domain)
        if (
            problem != replace(self.problem, cluster=joined)
            or problem.scopes != self.problem.scopes
        ):
            return None
        if links.wraps != mine.wraps:
            return None
        other = copy(self)
        other.problem, other.space = problem, self.space.with_links_of(problem)
        for name in _OF_LINKS:
            vars(other).pop(name, None)
        return other

    def fits(self, memory: MemoryTerms, on_host: Array) -> Array:
        """Whether layouts do, for certain."""
        return self.memory_uncertainty.fits(
            memory, on_host, self.problem.cluster, self.capacity * (1 - 1e-12)
        )

    def _keep_free(self) -> None:
        """`capacity`: what no layout that fits needs more than."""
        usable, reserve = (
            self.problem.cluster.usable_bytes,
            self.space.constraints.memory_reserve_gib,
        )
        runtime = float(self.c.context_gib) * GIB
        self.capacity = min(
            usable - reserve * GIB,
            runtime + (usable - runtime) / self.memory_uncertainty.least_safety_factor,
        )
        if self.capacity <= 0:
            rule = f"must leave some of the {usable / GIB:.1f} usable GiB of a device"
            raise Invalid("constraints.memory_reserve_gib", reserve, rule)
        self.at_most = self.capacity * (1 + 1e-12)  # for bounds, which add up in another order

    def _cost(self) -> None:
        """Shards, and what every policy does with them."""
        bodies = Shards.of(self.trunks.rows, self.problem.workload.seq_len)
        self.bodies, self.body = bodies.table, bodies.code
        if (count := len(bodies.table) * len(self.experts)) > MOST_SHARDS:
            raise TooLarge(self.problem.cluster.num_chips, count, "shards of a layer", MOST_SHARDS)
        shards = self._crossed(bodies.table)
        self.shards = ShardCosts.of(
            self.problem, shards, self.c, self.policies.memory_policies.recompute
        )
        self.memory = CoreMemory(self.problem, self.shards, self.c, self.policies)
        self.variants = Variants.of_policies(self.policies)
        z, r = len(self.policies.shardings), len(self.policies.memory_policies)
        self.legal_variants = self.space.legal_variants(self.policies)
        legal = np.logical_or.reduce(self.legal_variants.reshape(-1, z, r), axis=2)
        kept = ~slower_shardings(self.problem, self.policies.shardings, legal)
        self.fast_shardings, self.legal_shardings = (
            self.policies.shardings.take(kept),
            legal[:, kept],
        )
        self.sharding = np.repeat(np.arange(z), r)
        self.memory_policy = np.tile(np.arange(r), z)
        self.on_host = self.policies.memory_policies.offload_optimizer[self.memory_policy]
        self._count_points()

    def _crossed(self, bodies: Shards) -> Shards:
        """Every body with the pairs of expert degrees that may fold on some trunk, body by body; or
        with the first."""
        first, _ = distinct(self.body, self.trunks.rows.pp)
        first = first[np.argsort(self.body[first], kind="stable")]
        starts = np.searchsorted(self.body[first], np.arange(len(bodies)))
        some = np.logical_or.reduceat(self._folds(first), starts)
        some[~some.any(axis=1), 0] = True
        body, expert = np.nonzero(some)
        self.first_shard = np.searchsorted(body, np.arange(len(bodies)))
        self._shard = np.cumsum(some).reshape(some.shape) - 1
        return bodies.take(body).with_columns(
            ep=self.experts.ep[expert], etp=self.experts.etp[expert]
        )

    def pairs(self, trunks: Array) -> tuple[Array, Array]:
        """Trunks with the pairs of expert degrees that may fold over their stages: (the trunk, the
        pair) of each."""
        row, pair = np.nonzero(self._folds(trunks))
        return trunks.take(row), pair

    def _folds(self, trunks: Array) -> Array:
        """(trunks, pairs)."""
        rows, x = self.trunks.rows, self.experts
        stage = self.problem.cluster.num_devices // rows.pp[trunks]
        folds = stage[:, None] % (x.ep * x.etp) == 0
        if self.problem.experts_keep_tensor:
            folds &= rows.tp[trunks][:, None] == x.etp
        return np.asarray(folds)

    @cached_property
    def least(self) -> LeastCosts:
        return LeastCosts(
            self.problem, self.c, self.experts.ep, self.experts.etp, fillings=self.space.fillings
        )

    @cached_property
    def bounds(self) -> CoreBounds:
        return CoreBounds(self.problem, self.shards, self.c, self.least, self.first_shard)

    @cached_property
    def context(self) -> Array:
        """What context parallelism adds at least to a pass, of every trunk."""
        return self.bounds.context(self.trunks.rows, self.body)

    @property
    def places_freely(self) -> bool:
        """Whether a mesh has so many placements that it pays to know first what of it fits."""
        return len(self.space.fillings) > 1 or not self.problem.stack.placements

    def _count_points(self) -> None:
        """Of complexity: of every schedule in a pipeline, of every variant, and the fewest of each
        of their keys."""
        schedules, n = self.policies.schedules, len(self.sharding)
        none = np.zeros(n, dtype=np.int64)
        self.schedule_points = points_of_policy(
            schedules.with_columns(pp=np.full(len(schedules), 2))
        )
        self.variant_points = points_of_policy(
            self.with_policies(default_layouts(n), none, np.arange(n))
        )
        self.key_points = np.full(len(self.variants.keys), np.iinfo(np.int64).max)
        np.minimum.at(self.key_points, self.variants.of, self.variant_points)

    def _drop_schedules(self) -> Array:
        """Those that no trunk may have; returns which of the others each chain may, (chains,
        schedules)."""
        x = self.trunks
        used = np.asarray(x.legal.any(axis=0))
        meshes = np.bincount(x.chains, self.splits, len(x.pp)).astype(np.int64) * len(self.experts)
        each = len(self.policies.shardings) * int(self.policies.counts.sum())
        dropped = first_refusals(x.breaks[:, ~used], meshes)
        self.rejected += Counter({name: count * each for name, count in dropped.items()})
        self.policies = replace(self.policies, schedules=self.policies.schedules.take(used))
        return np.asarray(x.legal[:, used])

    def _drop_offload(self) -> None:
        """Of the optimizer, where no host can hold it; but not all that there is, for the answer to
        say why."""
        memory_policies = self.policies.memory_policies
        kept = ~memory_policies.offload_optimizer
        self.hosts_too_small = not kept.all() and not self._hosts_hold_states()
        if not (self.hosts_too_small and kept.any()):
            return
        left = self.policies.with_memory_policies(kept)
        self.pruned_by_memory += (
            int(self.splits.sum()) * len(self.experts) * (len(self.policies) - len(left))
        )
        self.policies = left

    def _hosts_hold_states(self) -> bool:
        """Whether all hosts together could: some device has its share of the optimizer's states, or
        more, of what the layers and the embedding have."""
        problem, states = self.problem, self.problem.workload.optimizer_state
        count = problem.architecture.parameters
        least = count.total - count.lm_head - 2 * problem.architecture.hidden_size
        each = min(problem.master_bytes, states.master_bytes) + states.moment_bytes
        return least * each <= problem.cluster.host_bytes * problem.cluster.num_devices

    def chain(self, trunk: Array) -> Array:
        return np.asarray(self.trunks.chains[trunk])

    def legal(self, layouts: Layouts) -> Array:
        """(shardings·policies, n): the variants that meshes may have."""
        return np.asarray(self.legal_variants[variant_row(layouts)].T)

    def bounded(self, costs: MeshCosts, chain: Array) -> Array:
        """The time that meshes take at least, whatever the policy."""
        legal = self.legal_shardings[variant_row(costs.layouts)].T
        return Bounds(costs, self.policies, self.chains, chain).least(self.fast_shardings, legal)

    def costs(
        self, layouts: Layouts, shard: Array, placed: Groups, links: Links | None
    ) -> MeshCosts:
        return MeshCosts(Tables(self.problem, self.c, self.shards, links), layouts, shard, placed)

    def predict(self, layouts: Layouts) -> Predictions:
        """Of layouts in the space."""
        placed, shards = (
            groups(self.problem.cluster, layouts),
            Shards.of(layouts, self.problem.workload.seq_len),
        )
        body, expert = (
            first_match(*([getattr(rows, name) for name in names] for rows in (of, shards.table)))
            for of, names in (
                (self.bodies, ("tokens", "tp", "sequence_parallel")),
                (self.experts, ("ep", "etp")),
            )
        )
        links = partial(collectives, self.problem, placed, self.c)
        costs = self.costs(layouts, shards.per_row(self._shard[body, expert]), placed, links)
        return Predictions(costs, self.chains.shared(layouts))

    def cores(self, trunk: Array, expert: Array) -> tuple[Layouts, Array, Array]:
        """Trunks with pairs of expert degrees: as layouts, the shard of each, and the bytes that it
        needs at least."""
        shard = take_at(self._shard, self.body.take(trunk), expert)
        layouts = self.layouts(trunk, shard)
        return (
            layouts,
            shard,
            self.memory.memory(shard, layouts, self.chains.least_in_flight[self.chain(trunk)]),
        )

    def layouts(self, trunk: Array, shard: Array) -> Layouts:
        """Cores as layouts, gathered from trunks and shards when they are asked for."""
        cut = self.shards.shards
        return self.trunks.rows.take(trunk).with_columns(
            ep=cut.ep.take(shard), etp=cut.etp.take(shard)
        )

    def room(self, meshes: Meshes) -> Room:
        """Memory of placed meshes under every variant, whatever the schedule."""
        first, of = distinct(meshes.unplaced)
        costs, chain = meshes.costs.take(first), meshes.chain[first]
        memory = self.least_memory(costs, chain)
        return Room(memory, (memory.least <= self.at_most) & self.legal(costs.layouts), of)

    def least_memory(self, costs: MeshCosts, chain: Array) -> Memory:
        """Bounds for meshes under every variant, whatever the schedule."""
        return MemoryBounds(
            costs, self.policies, self.chains.least_in_flight[chain], self.capacity
        ).memory()

    def with_policies(self, meshes: Layouts, schedule: Array, variant: Array) -> Layouts:
        """Meshes with a schedule, and a variant of sharding and memory policy, each."""
        parts = (
            (self.policies.schedules, SCHEDULE_KNOBS, schedule),
            (self.policies.shardings, SHARDING_KNOBS, self.sharding[variant]),
            (self.policies.memory_policies, MEMORY_POLICY_KNOBS, self.memory_policy[variant]),
        )
        return meshes.with_columns(
            **{name: getattr(rows, name)[at] for rows, names, at in parts for name in names}
        )

    def layers_again(
        self, layouts: Layouts, memory_policy: Array, index: Array | int
    ) -> tuple[Array, Array]:
        """Of how many layers recompute may be (1 where that is not open), and the number at an
        index, or the largest: those that are fewer than the layers of a chunk, and all of them
        (0)."""
        numbers, n = self.space.recompute_layers, self.problem.architecture.num_layers
        has_choice, has_all = self.policies.open[memory_policy], int(self.space.may_recompute_all)
        chunk = np.where(layouts.balanced, 1, n // (layouts.pp * layouts.virtual_stages))
        fewer = np.minimum(np.searchsorted(numbers, chunk), len(numbers) - has_all)
        legal = np.where(has_choice, fewer + has_all, 1)
        at = np.minimum(index, np.maximum(legal - 1, 0))
        number = numbers[np.minimum(at, len(numbers) - 1)] if len(numbers) else at
        return legal, np.where(has_choice & (at < fewer), number, 0)
