"""Tables that every level of a search looks things up in (docs/search.md has the levels).

A *trunk* decides pp, tp, cp, sequence parallelism and micro-batch, a *core* also the degrees of
experts (ep, etp), and a *mesh* also dp_replicate and dp_shard. A *variant* is a sharding (ZeRO
stage and reshard) with a memory policy (recompute and offload). A *chain* is pp with a number of
micro-batches, which decides the legal schedules.
"""

from __future__ import annotations

from collections import Counter
from copy import copy
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from models.columns import Array
from models.cost.facts import ProblemRecords, coefficient_records
from models.cost.fit import Margin, fits
from models.cost.least_links import (
    ANY_FILLING,
    DISPATCH,
    UNDECIDED,
    UNPLACED,
    LeastLinks,
    fill_least,
)
from models.cost.memory_terms import MEMORY
from models.cost.memory_uncertainty import MemoryUncertainty
from models.cost.pipeline.layer_split import layers_of
from models.cost.pipeline.stage_partition import distinct_partitions
from models.cost.predictions import Predictions, StepCosts, predict
from models.cost.problem_records import policy_numbers, question
from models.cost.rows import ROW, StageTables
from models.cost.stages import Buffers, buffers_for
from models.cost.time_terms import TIME
from models.errors import Invalid, TooLarge
from models.layouts.complexity import points_of_degrees, points_of_policy
from models.layouts.factors import divisors
from models.layouts.placement_rules import equal_data_parallel
from models.layouts.space import (
    MEMORY_POLICY_KNOBS,
    SCHEDULE_KNOBS,
    SHARDING_KNOBS,
    Space,
    default_layouts,
    first_refusals,
    mesh_class,
    placement_lists,
    scale_counts,
    with_experts,
)
from models.search.compiled_tables import CompiledTables, Meshes, MeshScratch, PolicyTables
from models.search.cores import CoreCrossing, bound_rows
from models.search.least_passes import Chains, LeastPasses, least_passes
from models.search.placements import Places
from models.spec.constraints import EVEN_CHANCE
from models.spec.device_order import filling_code, filling_of
from models.spec.hardware import GIB
from models.spec.layout import (
    AXES,
    DEGREES,
    PLACEMENTS,
    ZERO_BUBBLE,
    ZERO_BUBBLE_V,
    Layouts,
    active_axes,
)
from models.spec.problem import Problem
from models.spec.profile import Coefficients, Profile

MOST_CORES = 30_000_000
"""The most cores (trunks with expert degrees) that a search makes. Each gets a bound, so this
limits the time of a search."""
# Cached properties that depend on links, and are worked out anew where those differ.
_LINK_PROPERTIES = ("question", "least", "compiled", "at_even_chance")
_MESH_FIELDS = (*DEGREES, "micro_batch", "sequence_parallel")


class NoLegalLayout(Exception):
    """No mesh obeys the rules; `rejected` counts layouts by the rule that refused them."""

    def __init__(self, rejected: Counter[str]) -> None:
        super().__init__("no legal layout")
        self.rejected = rejected


class SearchTables:
    """Holds a space's trunks (pp, tp, cp and micro-batch), expert degrees and policies, without
    those that cannot be in an answer, and all that the compiled functions need to predict them.

    `rejected` and `pruned_by_memory` count the layouts that are left out already. The constructor
    raises NoLegalLayout; TooLarge; or Invalid if the constraints leave nothing of a device's
    memory, or ask for recompute of modules that the stack or the model lacks.
    """

    def __init__(self, space: Space, profile: Profile) -> None:
        self.space, self.problem = space, space.problem
        self.coefficients: Coefficients = profile.coefficients(self.problem.scopes)
        self.memory_uncertainty = MemoryUncertainty.of(
            self.problem, profile, space.constraints.min_fit_probability
        )
        self._set_capacity()
        self.pruned_by_memory = 0
        self.trunks, rejected = space.trunks
        self.rejected = rejected.copy()
        self.experts, refused_pairs = space.expert_pairs
        self.policies, refused_policies = space.offered
        rows = self.trunks.rows
        if not (len(rows) and len(self.experts) and len(self.policies) and len(space.fillings)):
            raise NoLegalLayout(self.rejected + refused_pairs + refused_policies)
        if (cores := len(rows) * len(self.experts)) > MOST_CORES:
            chips = self.problem.cluster.num_chips
            raise TooLarge(chips, cores, "meshes with their expert degrees", MOST_CORES)
        # The meshes in all placements that grow from a trunk with one pair of expert degrees.
        self.placed_meshes = space.num_dp_splits(rows) * space.num_allowed_placements
        self._count_refused(refused_pairs, refused_policies)
        self.legal_variants = space.legal_variants
        self.legal_schedules = self._drop_schedules()
        self._drop_offload()
        self._list_variants()

    def _count_refused(self, refused_pairs: Counter[str], refused_policies: Counter[str]) -> None:
        """Add to `rejected` the layouts on legal trunks whose placement, pair of expert degrees or
        policy is refused. `refused_pairs` and `refused_policies` have the numbers of pairs and of
        policies that each rule refuses."""
        space, placed_meshes = self.space, int(self.placed_meshes.sum())
        # A layout counts for what refuses it first: its placement, then its pair, then its policy.
        # Refused placements therefore count with all pairs, and refused pairs with all policies.
        # torus_block is the only constraint that refuses placements.
        all_pairs = len(self.experts) + sum(refused_pairs.values())
        placed_anywhere = int(space.num_dp_splits(self.trunks.rows).sum()) * space.num_placements
        refused_placements = (placed_anywhere - placed_meshes) * all_pairs * len(space.policies)
        self.rejected["constraints.torus_block"] += refused_placements
        self.rejected += scale_counts(refused_pairs, placed_meshes * len(space.policies))
        self.rejected += scale_counts(refused_policies, placed_meshes * len(self.experts))

    def at_fit_probability(self, probability: float) -> SearchTables:
        """Return the tables for layouts that must fit with this probability. Legality and cost do
        not depend on it, so those tables are shared."""
        compiled = self.compiled
        other = copy(self)
        other.memory_uncertainty = replace(self.memory_uncertainty, probability=probability)
        other._set_capacity()
        other.compiled = compiled._replace(margin=other.margin)
        return other

    @cached_property
    def at_even_chance(self) -> SearchTables:
        """The tables for layouts that must fit with an even chance, the least that may be asked. A
        search bounds meshes with them, so that a later search for less certain layouts can go on
        with the meshes of an earlier one."""
        return self.at_fit_probability(EVEN_CHANCE)

    def with_links_of(self, problem: Problem) -> SearchTables | None:
        """Return the tables for a problem whose chips are joined by other links, as sweeps over
        bandwidths need them. Legality, compute and memory do not depend on links, so their tables
        are shared. Return None where the problem differs in anything else, or its torus wraps along
        other dims."""
        mine, links = self.problem.cluster, problem.cluster
        joined = replace(mine, fabric=links.fabric, chips_per_domain=links.chips_per_domain)
        differs_in_links_only = problem == replace(self.problem, cluster=joined)
        # Coefficients depend on the scopes, which may name the fabric.
        if not differs_in_links_only or problem.scopes != self.problem.scopes:
            return None
        if links.slice_dims != mine.slice_dims:
            return None
        other = copy(self)
        other.problem, other.space = problem, self.space.with_links_of(problem)
        # Cached properties that depend on links are dropped, so that they are worked out anew.
        for name in _LINK_PROPERTIES:
            vars(other).pop(name, None)
        return other

    def fits(self, costs: StepCosts) -> Array:
        """Say of each layout whether it fits with the probability asked, (n,)."""
        return fits(self.margin, costs.memory_terms, costs.host_bytes)

    def _set_capacity(self) -> None:
        """Set `capacity`, the most bytes that a layout may be predicted to need on a device: the
        lesser of what the caller's reserve leaves and what the least safety factor leaves. Raise
        Invalid where nothing is left."""
        usable = self.problem.cluster.usable_bytes
        reserve = self.space.constraints.memory_reserve_gib
        runtime = float(self.coefficients.context_gib) * GIB
        # Each layout has a safety factor of its own, by which the uncertainty of its memory scales
        # all but the runtime's bytes. `fits` applies it. No factor is less than the least one, so
        # nothing that fits exceeds this capacity.
        self.capacity = min(
            usable - reserve * GIB,
            runtime + (usable - runtime) / self.memory_uncertainty.least_safety_factor,
        )
        if self.capacity <= 0:
            rule = f"must leave some of the {usable / GIB:.1f} usable GiB of a device"
            raise Invalid("constraints.memory_reserve_gib", reserve, rule)
        # Bounds add up memory in another order than predictions, and may exceed them by rounding.
        self.capacity_and_rounding = self.capacity * (1 + 1e-12)

    # -- policies

    def _drop_schedules(self) -> Array:
        """Drop the schedules that no trunk may have from `policies`, and add their layouts to
        `rejected`. Return which of the others each chain (pp with a number of micro-batches) may
        have, (chains, schedules)."""
        trunks = self.trunks
        used = np.asarray(trunks.legal.any(axis=0))  # schedules that some chain may have
        # Placed meshes of each chain, under one pair of expert degrees. `trunks.breaks` has the
        # first rule that refuses a schedule on a chain, under which these meshes are counted.
        meshes = np.bincount(trunks.chains, self.placed_meshes, len(trunks.pp)).astype(np.int64)
        dropped = first_refusals(trunks.breaks[:, ~used], meshes * len(self.experts))
        policies_per_schedule = len(self.policies.shardings) * int(self.policies.counts.sum())
        self.rejected += scale_counts(dropped, policies_per_schedule)
        self.policies = replace(self.policies, schedules=self.policies.schedules.take(used))
        # Columns that are taken by index come in Fortran order, or in C order where there is a
        # single row. Every function that reads them would be compiled for both.
        return np.ascontiguousarray(trunks.legal[:, used])

    def _drop_offload(self) -> None:
        """Drop the memory policies that offload the optimizer where the hosts are too small for its
        states, and count them as pruned by memory. Keep them where every policy offloads: the
        answer then says why nothing fits. Set `hosts_too_small`."""
        memory_policies = self.policies.memory_policies
        kept = ~memory_policies.offload_optimizer
        self.hosts_too_small = not kept.all() and not self._hosts_hold_states()
        if not (self.hosts_too_small and kept.any()):
            return
        # Columns are variants: all memory policies with the first sharding, then with the next.
        self.legal_variants = self.legal_variants[:, np.tile(kept, len(self.policies.shardings))]
        left = self.policies.with_memory_policies(kept)
        dropped = len(self.policies) - len(left)
        self.pruned_by_memory += int(self.placed_meshes.sum()) * len(self.experts) * dropped
        self.policies = left

    def _hosts_hold_states(self) -> bool:
        """Say whether all hosts together could hold the optimizer's states. If not, no layout can
        offload them, since some device has at least its even share of them."""
        problem, states = self.problem, self.problem.workload.optimizer_state
        count = problem.architecture.parameters
        # The least that is trained: the layers and the embedding. The head may be tied to it, or
        # be that of a reward model; the final norm (a weight and perhaps a bias) is little. Of
        # adapters, or where parts of the model are frozen, only what layers train counts.
        least = count.total - count.lm_head - 2 * problem.architecture.hidden_size
        if problem.workload.lora or problem.workload.trained:
            least = problem.trained_layer_parameters
        # ZeRO 3 has a master copy of `states.master_bytes`, other stages of `problem.master_bytes`.
        # The lesser counts. `host_bytes` is one device's share of its host.
        bytes_per_parameter = min(problem.master_bytes, states.master_bytes) + problem.moment_bytes
        return (
            least * bytes_per_parameter <= problem.cluster.host_bytes * problem.cluster.num_devices
        )

    def _list_variants(self) -> None:
        """List the variants: every sharding (ZeRO stage and reshard) with every memory policy
        (recompute and offload). Set `sharding` and `memory_policy` (variants,), the numbers of
        these in each variant. Set `variant_points` (variants,) and `schedule_points` (schedules,),
        the points of complexity of a variant, and of a schedule in a pipeline."""
        shape = len(self.policies.shardings), len(self.policies.memory_policies)
        self.sharding, self.memory_policy = np.indices(shape).reshape(2, -1)
        schedules, variant = self.policies.schedules, np.arange(len(self.sharding))
        in_pipeline = schedules.with_columns(pp=np.full(len(schedules), 2))
        self.schedule_points = points_of_policy(in_pipeline)
        # Any schedule will do: default layouts have no pipeline, where schedules have no points.
        # (`0 * variant` gives each the first schedule.)
        variants = self.with_policies(default_layouts(len(variant)), 0 * variant, variant)
        self.variant_points = points_of_policy(variants)

    def with_policies(self, meshes: Layouts, schedule: Array, variant: Array) -> Layouts:
        """Return n meshes with their policies set. `schedule` (n,) has the number of each mesh's
        schedule, and `variant` (n,) that of its variant (sharding with memory policy)."""
        parts = (
            (self.policies.schedules, SCHEDULE_KNOBS, schedule),
            (self.policies.shardings, SHARDING_KNOBS, self.sharding[variant]),
            (self.policies.memory_policies, MEMORY_POLICY_KNOBS, self.memory_policy[variant]),
        )
        columns: dict[str, Array] = {}
        for policies, knobs, numbers in parts:
            columns |= {knob: getattr(policies, knob)[numbers] for knob in knobs}
        return meshes.with_columns(**columns)

    def layouts_of(self, rows: Array, schedule: Array, variant: Array) -> Layouts:
        """Return n records of Row as layouts. `schedule` and `variant` (n,) are numbers: they set
        the knobs of policies, except `recompute_layers`, which is that of the record."""
        # Columns of records are views with gaps: each is copied, so that the records can be freed.
        numbers = (*DEGREES, "micro_batch", "placement", "filling", "recompute_layers")
        columns = {name: rows[name].astype(np.int64) for name in numbers}
        columns["sequence_parallel"] = rows["sequence_parallel"].copy()
        columns["torus_axes"], columns["torus_block"] = filling_of(columns.pop("filling"))
        layouts = self.with_policies(default_layouts(len(rows)), schedule, variant)
        return layouts.with_columns(**columns)

    # -- cores

    @cached_property
    def crossing(self) -> CoreCrossing:
        """The trunks and the pairs of expert degrees that cores are made of."""
        trunks = self.trunks
        return CoreCrossing(
            rows=self.undivided_rows(trunks.rows),
            chain=trunks.chains,
            points=points_of_degrees(trunks.rows),
            placed_meshes=self.placed_meshes,
            ep=np.ascontiguousarray(self.experts.ep),
            etp=np.ascontiguousarray(self.experts.etp),
            pair_points=points_of_degrees(self.experts),
            devices=self.problem.cluster.num_devices,
            etp_is_tp=bool(self.problem.experts_keep_tensor),
            row=np.zeros(1, dtype=ROW),
        )

    # -- what the compiled functions read

    @cached_property
    def question(self) -> ProblemRecords:
        return question(self.problem, self.policies.memory_policies.recompute)

    @cached_property
    def _partitions(self) -> tuple[StageTables, Array]:
        """The distinct partitions of layers over stages, and the number of the one that each chain
        (pp with a number of micro-batches) has under each schedule, (chains, schedules). The number
        is 0, and not read, where the schedule is not legal."""
        partition = np.zeros(self.legal_schedules.shape, dtype=np.int64)
        chain, schedule = np.nonzero(self.legal_schedules)
        shapes = self.policies.schedules.take(schedule).with_columns(pp=self.trunks.pp[chain])
        tables, partition[chain, schedule] = distinct_partitions(self.problem, shapes)
        return tables, partition

    @cached_property
    def passes(self) -> LeastPasses:
        """Sums that bound the time and memory of the passes of every chain (pp with a number of
        micro-batches) from below."""
        tables, partition = self._partitions
        trunks, schedules = self.trunks, self.policy_tables.schedules
        chains = Chains(trunks.pp, trunks.micro_batches, self.legal_schedules, partition)
        return least_passes(chains, schedules, layers_of(self.problem).costs, tables)

    @cached_property
    def coefficient_records(self) -> Array:
        return coefficient_records(self.coefficients)

    @cached_property
    def least(self) -> LeastLinks:
        """The least costs of collectives over an axis in any placement, for every degree that
        divides the devices or that experts may have."""
        cluster = self.problem.cluster
        question = self.question
        degrees = np.union1d(divisors(cluster.num_devices), [*self.experts.ep, *self.experts.etp])
        fillings = filling_code(*self.space.fillings.T)
        count = len(degrees)
        # The axes of LeastLinks.costs; each kind of layer has an exchange of tokens of its own.
        costs = np.empty((len(fillings) + 1, DISPATCH + len(question.layers), count, count + 1, 2))
        # The last row of costs is for a torus filled in any way. Rows for fillings that the space
        # does not have are not looked up.
        row = np.full(ANY_FILLING + 1, len(fillings))
        row[fillings] = np.arange(len(fillings))
        least = LeastLinks(
            degrees=degrees.astype(np.int64),
            costs=costs,
            filling=row,
            domain=cluster.scale_up_domain,
            joins_axes=self._slows_outwards,
        )
        coefficients, groups = self.coefficient_records[0], self.buffers.groups
        fill_least(question, fillings, cluster.num_devices, coefficients, groups, least)
        return least

    @property
    def _slows_outwards(self) -> bool:
        """Say whether links get slower, and hops longer, from the inside of the cluster outwards.
        Two axes together are then no faster than one (LeastLinks.joins_axes). It is false on a
        torus and for links between peers, where two axes may be faster than one."""
        c, dims = self.coefficients, self.problem.cluster.dims
        if any(dim.peer_gb_s or dim.kind == "ring" for dim in dims):
            return False
        rates = [dim.gb_s * (c.scaleup if dim.scale == "up" else c.scaleout) for dim in dims]
        slower = all(inner >= outer for inner, outer in pairwise(rates))
        return slower and bool(c.scaleup_hop_s <= c.scaleout_hop_s)

    @cached_property
    def buffers(self) -> Buffers:
        return buffers_for(self.question, self._partitions[0])

    @cached_property
    def hides_most(self) -> int:
        """The code of a schedule under which at least as much traffic hides as under any offered
        one. In lower bounds it stands for all of them before the schedule is chosen."""
        schedules = self.policies.schedules
        # Traffic also hides beside another micro-batch's compute where devices have several chunks:
        # with virtual stages, and under zero_bubble_v and dualpipe, which have the highest codes.
        overlapping = (schedules.virtual_stages > 1) | (schedules.schedule >= ZERO_BUBBLE_V)
        return ZERO_BUBBLE_V if overlapping.any() else ZERO_BUBBLE

    def unplaced_rows(self, meshes: Layouts) -> Array:
        """Return meshes as records of Row, (n,), to be bounded: not placed, and with the knobs of
        policies that hide most traffic."""
        rows = np.zeros(len(meshes), dtype=ROW)
        for name in _MESH_FIELDS:
            rows[name] = getattr(meshes, name)
        rows["placement"], rows["filling"] = UNPLACED, ANY_FILLING
        rows["reshard"] = True
        rows["schedule"] = self.hides_most
        rows["virtual_stages"] = 1
        return rows

    def undivided_rows(self, layouts: Layouts) -> Array:
        """Return layouts as records of Row, (n,), whose data parallelism is not divided into shards
        and replicas yet. Collectives that depend on the division cost nothing, and ZeRO 1 makes all
        ranks share the update, so that bounds hold for every division."""
        rows = self.unplaced_rows(layouts)
        rows["placement"], rows["zero_stage"] = UNDECIDED, 1
        return rows

    def set_variant(self, rows: Array, variant: Array) -> Array:
        """Write the sharding and the memory policy of each variant number (n,) into n records of
        Row, and return the records."""
        self.set_sharding(rows, self.sharding[variant])
        policies = self.policies.memory_policies.take(self.memory_policy[variant])
        # Row.policy is the position of a recompute policy among these.
        codes = policy_numbers(self.policies.memory_policies.recompute)
        rows["policy"] = np.searchsorted(codes, policies.recompute)
        rows["offload_activations"] = policies.offload_activations
        rows["offload_optimizer"] = policies.offload_optimizer
        return rows

    def set_sharding(self, rows: Array, sharding: Array) -> Array:
        """Write ZeRO stage and reshard of each sharding number (n,) into n records of Row, and
        return the records."""
        rows["zero_stage"] = self.policies.shardings.zero_stage[sharding]
        rows["reshard"] = self.policies.shardings.reshard[sharding]
        return rows

    @property
    def _is_plain_first(self) -> bool:
        """Say whether the first memory policy recomputes and offloads nothing, as it does unless
        the constraints rule that out."""
        first = self.policies.memory_policies[0]
        offloads = first.offload_activations or first.offload_optimizer
        return first.recompute == "none" and not offloads

    @cached_property
    def policy_tables(self) -> PolicyTables:
        """The policies of the space in the form that compiled functions read: variants (sharding
        with memory policy), schedules, and which schedules each chain (pp with a number of
        micro-batches) may have. PolicyTables explains the fields."""
        variant, schedules = np.arange(len(self.sharding)), self.policies.schedules
        variants = self.set_variant(np.zeros(len(variant), dtype=ROW), variant)
        schedule_rows = np.zeros(len(schedules), dtype=ROW)
        schedule_rows["schedule"] = schedules.schedule
        schedule_rows["virtual_stages"] = schedules.virtual_stages
        layers = self.space.recompute_layers
        # The variants of each sharding begin with the first memory policy.
        is_first = self.memory_policy == 0
        return PolicyTables(
            variants=variants,
            first=is_first,
            plain=is_first & self._is_plain_first,
            open_layers=self.policies.open[self.memory_policy],
            points=self.variant_points,
            schedules=schedule_rows,
            balanced=schedules.balanced,
            schedule_points=self.schedule_points,
            legal=self.legal_schedules,
            partition=self._partitions[1],
            # The number of all layers means "all of each chunk": `all_layers` stands for it.
            layers=layers[layers < self.problem.architecture.num_layers],
            all_layers=self.space.may_recompute_all,
            hides_most=self.hides_most,
        )

    @property
    def margin(self) -> Margin:
        return self.memory_uncertainty.margin(self.problem.cluster, self.capacity)

    @cached_property
    def compiled(self) -> CompiledTables:
        """All tables in the form that compiled functions read, with the arrays in which these
        work."""
        policies, dims = self.policy_tables, len(self.question.dims)
        policies_shape = len(policies.variants), len(policies.schedules)
        return CompiledTables(
            question=self.question,
            stages=self._partitions[0],
            coefficients=self.coefficient_records,
            least=self.least,
            passes=self.passes,
            policies=policies,
            places=Places(
                orders=placement_lists(self.problem.stack.placements)[0],
                fillings=filling_code(*self.space.fillings.T),
                is_torus=self.problem.cluster.fabric.torus is not None,
            ),
            margin=self.margin,
            buffers=self.buffers,
            scratch=MeshScratch(
                time=np.empty(len(TIME)),
                memory=np.empty(len(MEMORY)),
                settled=np.empty(len(policies.schedules), dtype=bool),
                fewest=np.empty(len(policies.variants), dtype=np.int64),
                layers=np.empty(policies_shape, dtype=np.int64),
                least=np.empty(policies_shape),
                quickest=np.empty(len(policies.variants)),
                # two numbers for each of eight axes on every dim, in the places of one mesh
                links=np.empty((len(PLACEMENTS) + 1, 16 * dims)),
            ),
        )

    def meshes_of_cores(self, trunk: Array, pair: Array) -> Meshes:
        """Return the meshes of n cores, given by the numbers of their trunks and pairs of expert
        degrees: one for each legal division of data parallelism into replicas and shards."""
        cores = with_experts(self.trunks.rows.take(trunk), self.experts, pair)
        # `parent` has, for each mesh, the position of its core.
        layouts, parent = self.space.divide_data_parallelism(cores)
        return self.meshes_of(layouts, self.trunks.chains[trunk[parent]])

    def meshes_of(self, layouts: Layouts, chain: Array) -> Meshes:
        """Return n meshes with what a search needs of each: the variants that it may have, its
        points of complexity, and its list of placements. `chain` (n,) has the number of each mesh's
        chain (pp with a number of micro-batches). Bounds are not filled yet."""
        # Some stacks allow only pp outermost where experts have another data parallelism than the
        # rest. To that rule every other place of pp is alike, so innermost stands for all of them.
        inside = PLACEMENTS.index(("pp", *(axis for axis in AXES if axis != "pp")))
        innermost = layouts.with_columns(placement=np.full(len(layouts), inside))
        only_outermost = ~equal_data_parallel(self.problem, innermost)
        _, first_order, order_count = placement_lists(self.problem.stack.placements)
        # A list for each set of active axes comes first, then as many with pp outermost only.
        orders = active_axes(layouts) + only_outermost * (1 << len(AXES))
        return Meshes(
            rows=self.unplaced_rows(layouts),
            chain=chain,
            legal=self.legal_variants[mesh_class(layouts)],
            bound=np.empty(len(layouts)),
            points=points_of_degrees(layouts),
            first_order=first_order[orders],
            order_count=order_count[orders],
        )

    def bound_trunks(self, rows: Array, chain: Array) -> Array:
        """Return a lower bound of the seconds of a step for each trunk (pp, tp, cp and micro-batch)
        that holds for all expert degrees, (n,): experts send nothing, and compute as fast as the
        largest matrix products."""
        layers = self.question.layers.copy()
        layers["num_experts"] = 0  # means that their division over devices is not decided
        without_experts = self.question._replace(layers=layers)
        return self.bound(rows, chain, without_experts)[0]

    def bound(self, rows: Array, chain: Array, question: ProblemRecords) -> tuple[Array, Array]:
        """Return lower bounds of the seconds of a step and of the bytes of n rows, each (n,). They
        hold for every layout that grows from a row. `chain` (n,) has the number of each row's chain
        (pp with a number of micro-batches). `question` is the problem, or one that costs less."""
        seconds, memory = np.empty((2, len(rows)))
        bound_rows(self.compiled._replace(question=question), rows, chain, seconds, memory)
        return seconds, memory

    def predict(self, layouts: Layouts) -> Predictions:
        """Return predictions of layouts in the space."""
        return predict(self.problem, layouts, self.coefficients)
