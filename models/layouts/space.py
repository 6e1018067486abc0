"""The space of layouts: every factorisation of the devices over the axes, times every knob.

The search goes through it in four levels, each of which fixes more than the one before:

    trunk    pp, tp, cp, sequence parallelism and micro-batch; the rest of the devices is data
             parallelism, not yet divided
    core     a trunk with the expert degrees ep and etp
    mesh     a core with dp divided into dp_replicate and dp_shard
    layout   a mesh with a placement of its axes on the fabric, and with a policy: a schedule (with
             virtual stages and partition), a sharding (ZeRO stage and reshard), and a memory policy
             (recompute and offload)

A rule is tested on the first level that fixes all it needs. Where it refuses a row (a layout
decided so far), all layouts that would have grown from it are counted against the rule. A *variant*
is a sharding with a memory policy.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import product

import numpy as np

from models.columns import Array, distinct, expand_ranges, growing_slices
from models.errors import Invalid, TooLarge
from models.layouts.factors import divisors, factorisations, num_ordered_factorisations
from models.layouts.placement import LayoutGroups, groups_of_meshes
from models.layouts.placement_rules import equal_data_parallel, fits_torus
from models.layouts.rules import RULES_BY_NAME
from models.spec.constraints import Constraints
from models.spec.hardware import Cluster
from models.spec.layout import (
    AXES,
    PLACEMENTS,
    SCHEDULES,
    TORUS_BLOCKS,
    Layout,
    Layouts,
    active_axes,
    equivalent_placements,
    offered_placements,
    pipeline_outermost,
)
from models.spec.problem import Problem
from models.spec.recompute import FULL, decode_policy

MAX_TRUNKS = 1_000_000  # All trunks are held at a time, so that this bounds memory.
_DEGREE_RULES = (
    "degrees_offered",
    "degrees_searched",
    "tensor_divides_heads",
    "tensor_divides_widths",
    "whole_blocks",
    "sequence_divides",
    "sequence_divides_over_tensor",
    "context_divides_heads",
    "sequence_parallel_offered",
    "sequence_parallel_searched",
    "moe_needs_sequence_parallel",
    "tied_embedding_in_pipeline",
    "mtp_offered",
    "batch_divides",
)
_EXPERT_RULES = (
    "degrees_offered",
    "degrees_searched",
    "graphs_have_static_experts",
    "experts_divide",
    "tensor_divides_widths",
    "whole_blocks",
)
SCHEDULE_RULES = (
    "schedule_offered",
    "schedule_shape",
    "virtual_stages_offered",
    "virtual_stages_searched",
    "partition_offered",
    "layers_divide",
    "balancing_needs_all_forwards_first",
    "accumulation_offered",
)
_SHARDING_RULES = (
    "sharding_offered",
    "sharding_searched",
    "reshard_offered",
    "muon_offered",
    "states_offered",
)
_VARIANT_RULES = (
    "sharding_offered",
    "sharding_shape",
    "sharding_in_pipeline",
    "sharding_in_context",
    "sharding_beside_experts",
    "sharding_axes_need_zero_3",
    "offload_in_pipeline",
    "offload_needs_sharding",
)
_ON_ANY_CLUSTER = ("policies", "offered", "expert_pairs", "legal_variants")


@dataclass(frozen=True)
class Policies:
    """Holds the three parts of a policy, each as layouts that differ in the knobs of that part
    only."""

    schedules: Layouts
    shardings: Layouts
    memory_policies: Layouts
    counts: Array
    """The number of layouts that a memory policy stands for, which differ in how many layers they
    recompute, (memory policies,)."""
    open: Array
    """True where the search chooses the number of layers to recompute, (memory policies,). It takes
    the least number that fits, since every further layer only adds work."""

    def __len__(self) -> int:
        return len(self.schedules) * len(self.shardings) * int(self.counts.sum())

    @property
    def variants(self) -> Layouts:
        """Every sharding with every memory policy. The variants of one sharding follow each
        other."""
        shape = len(self.shardings), len(self.memory_policies)
        sharding, memory_policy = np.indices(shape).reshape(2, -1)
        return self.memory_policies.take(memory_policy).with_columns(
            **{knob: getattr(self.shardings, knob)[sharding] for knob in SHARDING_KNOBS}
        )

    def with_memory_policies(self, kept: Array) -> Policies:
        """Return the policies with only the memory policies that the mask `kept` marks, (memory
        policies,). A search thereby drops offload of the optimizer where hosts are too small for
        its states."""
        rows = self.memory_policies.take(kept)
        return replace(self, memory_policies=rows, counts=self.counts[kept], open=self.open[kept])


SCHEDULE_KNOBS = ("schedule", "virtual_stages", "balanced")
SHARDING_KNOBS = ("zero_stage", "reshard")
MEMORY_POLICY_KNOBS = ("recompute", "recompute_layers", "offload_activations", "offload_optimizer")
POLICY_KNOBS = SCHEDULE_KNOBS + SHARDING_KNOBS + MEMORY_POLICY_KNOBS


@dataclass(frozen=True)
class Trunks:
    """Holds the legal trunks, and the chain of each. A chain is a number of stages with a number of
    micro-batches, which is all of a trunk that the rules of schedules depend on."""

    rows: Layouts
    """The trunks, with all of data parallelism in dp_shard. Trunks that differ in pp only follow
    each other, so that the costs of a layer can be reused on them."""
    chains: Array
    """The chain of each trunk, (trunks,)."""
    pp: Array
    """The number of stages, (chains,)."""
    micro_batches: Array
    """The number of micro-batches that a rank runs in one step, (chains,)."""
    breaks: Array
    """The first of SCHEDULE_RULES that a chain breaks under a schedule, as an index, or -1,
    (chains, schedules)."""

    @property
    def legal(self) -> Array:
        """True where a chain under a schedule breaks no schedule rule, (chains, schedules)."""
        return np.asarray(self.breaks < 0)


@dataclass(frozen=True)
class Space:
    """Holds the layouts of a problem, within a caller's constraints."""

    problem: Problem
    constraints: Constraints

    def with_links_of(self, problem: Problem) -> Space:
        """Return this space for a problem that differs only in the links between its chips. No rule
        depends on links, so cached properties are kept."""
        other = copy(self)
        object.__setattr__(other, "problem", problem)  # since spaces are frozen
        return other

    def on_cluster(self, cluster: Cluster) -> Space:
        """Return the space on a cluster that differs in its number of chips only. Cached policies
        and degrees of experts are kept, since they do not depend on it."""
        other = Space(replace(self.problem, cluster=cluster), self.constraints)
        known = vars(self)
        vars(other).update({name: known[name] for name in _ON_ANY_CLUSTER if name in known})
        return other

    @cached_property
    def cardinality(self) -> dict[str, int]:
        """The number of values that each independent choice in a layout has, before any rule. Their
        product is the size of the space."""
        n = self.problem.cluster.num_devices
        return {
            "mesh": num_ordered_factorisations(n, len(AXES)),
            "ep": len(self._expert_degrees),
            "etp": len(self._expert_tensor_degrees),
            "sequence_parallel": 2,
            "placement": len(PLACEMENTS),
            "torus_filling": len(self.problem.cluster.device_orders.distinct_fillings),
            "micro_batch": len(self._micro_batches),
            "schedule": len(self.policies.schedules),
            "sharding": len(self.policies.shardings),
            # Memory policies. Full recompute counts once for every number of layers.
            "saving": int(self.policies.counts.sum()),
        }

    @cached_property
    def fillings(self) -> Array:
        """The fillings of a torus (orders in which its devices are numbered) that differ and that
        the constraints allow, as rows of (order, block)."""
        return self.problem.cluster.device_orders.fillings_with_blocks(
            self.constraints.allowed.get("torus_block", TORUS_BLOCKS)
        )

    @property
    def num_placements(self) -> int:
        """The number of placements that a mesh has on the fabric, before any rule or constraint:
        orders of its axes times, on a torus, orders in which devices are numbered."""
        return self.cardinality["placement"] * self.cardinality["torus_filling"]

    @property
    def num_allowed_placements(self) -> int:
        """The number of placements of a mesh on the fabric that the constraints allow."""
        return self.cardinality["placement"] * len(self.fillings)

    @property
    def size(self) -> int:
        """The number of layouts before any rule."""
        return math.prod(self.cardinality.values())

    # -- policies

    @cached_property
    def policies(self) -> Policies:
        """All schedules, shardings and memory policies, before any rule. Raises Invalid where the
        constraints ask for recompute of modules that the stack or the model lacks."""
        asked = self.constraints.allowed.get("recompute_modules")
        if asked:
            self._require_modules(asked)
        module_sets = (asked,) if asked else self.problem.stack.selective
        effective_sets = [self.problem.effective_modules(modules) for modules in module_sets]
        recompute = [Layout(recompute="none")]
        recompute += [
            Layout(recompute="selective", recompute_modules=modules) for modules in effective_sets
        ]
        recompute.append(Layout(recompute="full"))
        memory_policies = Layouts.of(
            replace(layout, offload_activations=activations, offload_optimizer=optimizer)
            for layout, activations, optimizer in product(recompute, (False, True), (False, True))
        )
        # Only ZeRO 3 gathers parameters, which are then dropped after use or kept.
        shardings = [Layout(zero_stage=stage) for stage in range(4)]
        shardings.append(Layout(zero_stage=3, reshard=False))
        # Full recompute may be of any number of layers.
        is_full = memory_policies.recompute == FULL
        return Policies(
            # ZB-V has two virtual stages, also in stacks that do not interleave.
            schedules=_schedules(max(self.problem.stack.max_virtual_stages, 2)),
            shardings=Layouts.of(shardings),
            memory_policies=memory_policies,
            counts=np.where(is_full, self.problem.architecture.num_layers, 1),
            open=self._may_choose_num_layers(memory_policies),
        )

    def _require_modules(self, asked: tuple[str, ...]) -> None:
        """Raise Invalid where the stack cannot recompute these modules, or where no layer has one
        of them. The policies would otherwise silently be without what was asked for."""
        layout = Layout(recompute="selective", recompute_modules=asked)
        for name in ("recompute_offered", "modules_offered", "modules_exist"):
            if not self._obeys(name, Layouts.of([layout]))[0]:
                message = RULES_BY_NAME[name].message(self.problem, layout)
                raise Invalid("constraints.recompute_modules", list(asked), message)

    @cached_property
    def offered(self) -> tuple[Policies, Counter[str]]:
        """The policies that the constraints and the stack allow on some mesh; and the number of
        refused policies, by the constraint or rule that refuses them ("dominated" where another
        policy is better on every mesh)."""
        refused: Counter[str] = Counter()
        every = self.policies
        # `weight` is the number of policies that a refused schedule, sharding or memory policy
        # stands for.
        weight = len(every.shardings) * int(every.counts.sum())
        schedules = self._filter(every.schedules, refused, weight, knobs=SCHEDULE_KNOBS)
        weight = len(schedules) * int(every.counts.sum())
        shardings = self._filter(
            every.shardings, refused, weight, knobs=SHARDING_KNOBS, rules=_SHARDING_RULES
        )
        weight = len(schedules) * len(shardings)
        memory_policies, counts = self._offered_memory_policies(refused, weight)
        # True where the search chooses how many layers full recompute covers (Policies.open).
        open_layers = self._may_choose_num_layers(memory_policies)
        # A plus drops the names that have refused nothing.
        return Policies(schedules, shardings, memory_policies, counts, open_layers), +refused

    def _offered_memory_policies(self, refused: Counter[str], weight: int) -> tuple[Layouts, Array]:
        """Return the memory policies that are allowed and that no other dominates, and how many
        choices each stands for: full recompute is one choice for every number of layers. Each
        choice that a constraint or rule refuses is counted in `refused` as `weight` layouts."""
        memory_policies, counts = self.policies.memory_policies, self.policies.counts
        # A policy that some constraint or rule leaves no choice is refused.
        for name, most in self._most_layer_choices(memory_policies):
            left = np.minimum(counts, most)
            refused[name] += int((counts - left).sum()) * weight
            counts = left
        memory_policies, counts = memory_policies.take(counts > 0), counts[counts > 0]
        undominated = self._is_undominated(memory_policies)
        refused["dominated"] += int(counts[~undominated].sum()) * weight
        return memory_policies.take(undominated), counts[undominated]

    @cached_property
    def recompute_layers(self) -> Array:
        """The numbers of layers of a chunk that the search may recompute, ascending. All layers of
        a chunk, which are 0 in constraints and layouts, are here the number of layers of the
        model, so that they sort last."""
        layers = self.problem.architecture.num_layers
        allowed = self.constraints.allowed
        # A caller who names the kind of recompute and no number of layers means all of them.
        default = (0,) if "recompute" in allowed else range(layers)
        numbers = allowed.get("recompute_layers", default)
        possible = {number or layers for number in numbers if number < layers}
        return np.array(sorted(possible), dtype=np.int64)

    @property
    def may_recompute_all(self) -> bool:
        """Say whether the constraints allow all layers of a chunk to be recomputed.
        `recompute_layers` writes that as the number of layers of the model."""
        return bool((self.recompute_layers == self.problem.architecture.num_layers).any())

    def _most_layer_choices(self, memory_policies: Layouts) -> Iterator[tuple[str, Array]]:
        """Yield each constraint and rule by name, with the most numbers of layers to recompute that
        it leaves each memory policy to choose from, (memory policies,). From these limits
        _offered_memory_policies counts what each refuses."""
        # Full recompute has at most `layers` such numbers, so that the limit `layers` refuses none.
        # A policy without it counts as one: a limit above 0 leaves it, and 0 refuses it.
        layers = self.problem.architecture.num_layers
        for knob in ("recompute", "offload_activations", "offload_optimizer"):
            yield f"constraints.{knob}", layers * self._is_allowed(memory_policies, knob)
        is_full = memory_policies.recompute == FULL
        most = np.where(is_full, len(self.recompute_layers), layers * self.may_recompute_all)
        yield "constraints.recompute_layers", most
        for name in ("recompute_offered", "modules_offered", "modules_exist", "offload_offered"):
            yield name, layers * self._obeys(name, memory_policies)
        # Where the number is not free, only "all layers" is left: one choice, or none.
        may_be_any = self._may_choose_num_layers(memory_policies) | ~is_full
        yield "recompute_layers_offered", np.where(may_be_any, layers, int(self.may_recompute_all))

    def _may_choose_num_layers(self, memory_policies: Layouts) -> Array:
        """Return for each memory policy whether the search may choose how many layers it
        recomputes. That needs full recompute without offload of activations, in a stack that takes
        such a number."""
        layers = self.problem.architecture.num_layers
        is_full = memory_policies.recompute == FULL
        allows_fewer = self.recompute_layers.min(initial=layers) < layers
        may_be_fewer = self.problem.stack.recompute_layers and allows_fewer
        return is_full & ~memory_policies.offload_activations & may_be_fewer

    def _is_undominated(self, memory_policies: Layouts) -> Array:
        """Return for each memory policy whether to keep it. It is dropped where another one
        offloads as much, keeps the same activations of this model and recomputes less."""
        # A fused attention kernel never writes its scores: to recompute it frees nothing.
        keeps_nothing = set() if self.problem.materialises_scores else {"attention"}
        kinds = self.problem.architecture.kinds
        recomputed = [
            [self.problem.stack.recomputed(int(policy), kind) for kind in kinds]
            for policy in memory_policies.recompute
        ]
        offloads = np.stack(
            [memory_policies.offload_activations, memory_policies.offload_optimizer], axis=1
        ).tolist()

        def dominates(better: int, other: int) -> bool:
            """Say whether policy `better` makes `other` superfluous: it keeps the same activations
            and recomputes less. Of two that recompute the same, the first does."""
            if better == other or offloads[better] != offloads[other]:
                return False
            # Full recompute keeps least, so that nothing replaces it. Other policies are compared
            # only if they keep equally many bytes: they may differ in pieces of a layer
            # (models.spec.recompute.PIECES) that keep nothing.
            by_kind = list(zip(recomputed[better], recomputed[other], strict=True))
            if any(mine.whole or theirs.whole for mine, theirs in by_kind):
                return False
            if any((mine.pieces ^ theirs.pieces) - keeps_nothing for mine, theirs in by_kind):
                return False
            repeats_no_more = all(mine.pieces <= theirs.pieces for mine, theirs in by_kind)
            repeats_less = any(mine.pieces < theirs.pieces for mine, theirs in by_kind)
            return repeats_no_more and (repeats_less or better < other)

        rows = range(len(memory_policies))
        return np.array([not any(dominates(row, other) for row in rows) for other in rows], bool)

    @cached_property
    def legal_variants(self) -> Array:
        """True where a variant (sharding with memory policy) is legal on the meshes of a class,
        (classes, variants). The meshes of a class have the same degrees above 1 (`mesh_class`)."""
        variants = self.offered[0].variants
        classes = 1 << len(_CLASS_DEGREES)
        mesh, variant = np.indices((classes, len(variants))).reshape(2, -1)
        # The rules ask only which degrees are above 1. So the smallest mesh of each class, with
        # degrees of 1 or 2, stands for all.
        degrees = {
            degree: 1 + (mesh >> bit & 1) for bit, degree in enumerate(reversed(_CLASS_DEGREES))
        }
        rows = variants.take(variant).with_columns(**degrees)
        legal = np.all([self._obeys(name, rows) for name in _VARIANT_RULES], axis=0)
        return np.asarray(legal.reshape(classes, -1))

    # -- trunks

    @cached_property
    def trunks(self) -> tuple[Trunks, Counter[str]]:
        """The legal trunks (pp, tp, cp, sequence parallelism and micro-batch), and the number of
        layouts that each rule or constraint has refused so far. A trunk without a legal schedule is
        dropped. Raises TooLarge where there would be more than MAX_TRUNKS."""
        rejected: Counter[str] = Counter()
        count = self.cardinality
        # The layouts that would grow from a trunk, for each division of its dp.
        per_split = count["ep"] * count["etp"] * self.num_placements * len(self.policies)
        rows = self._legal_degrees(rejected, per_split * count["micro_batch"])
        rows = self._cross_micro_batches(rows, rejected, per_split)
        micro_batches = rows.num_micro_batches(self.problem.workload.global_batch)
        # Rules of schedules depend only on a trunk's chain: its stages and micro-batches.
        trunk_of_chain, chains = distinct(rows.pp, micro_batches)
        breaks = self._broken_schedule_rules(rows.take(trunk_of_chain))
        # Trunks whose chain has no legal schedule are dropped. Their layouts are counted under what
        # refuses each schedule: a constraint, or else the first rule that is broken.
        has_schedule = np.asarray((breaks < 0).any(axis=1))
        # The meshes that would grow from each chain: one for each division of a trunk's dp.
        num_meshes = np.bincount(chains, self.num_dp_splits(rows), len(breaks)).astype(np.int64)
        dropped = num_meshes[~has_schedule]
        pairs = Counter[str]()  # of a mesh and a schedule, by what refuses them
        self._filter(self.policies.schedules, pairs, int(dropped.sum()), knobs=SCHEDULE_KNOBS)
        pairs += first_refusals(breaks[~has_schedule], dropped)
        # `per_split` counts the layouts of all schedules together, and a pair has one.
        rejected += scale_counts(pairs, per_split // count["schedule"])
        usable = has_schedule[chains]
        renumbered = np.cumsum(has_schedule) - 1  # the new number of each chain that is kept
        trunk_of_chain = trunk_of_chain[has_schedule]
        return Trunks(
            rows=rows.take(usable),
            chains=renumbered[chains[usable]],
            pp=rows.pp[trunk_of_chain],
            micro_batches=micro_batches[trunk_of_chain],
            breaks=breaks[has_schedule],
        ), rejected

    def num_dp_splits(self, rows: Layouts) -> Array:
        """Return the number of ways to divide the dp of each row into dp_replicate and dp_shard,
        (n,): 3 for dp 4."""
        degrees, counts, _ = self._divisors
        return np.asarray(counts[np.searchsorted(degrees, rows.dp)])

    @cached_property
    def _divisors(self) -> tuple[Array, Array, Array]:
        """The degrees that dp may have (the divisors of the number of devices), how many divisors
        each has, and the divisors of all, one degree after the other: dp_shard may be any of
        them."""
        degrees = divisors(self.problem.cluster.num_devices)
        divisors_of_degree = [divisors(degree) for degree in degrees]
        counts = [len(numbers) for numbers in divisors_of_degree]
        return np.array(degrees), np.array(counts), np.concatenate(divisors_of_degree)

    def _legal_degrees(self, rejected: Counter[str], weight: int) -> Layouts:
        """Return the legal degrees of tp, cp, pp and data parallelism, with and without sequence
        parallelism. A refused row counts in `rejected` for all layouts that would have grown from
        it: `weight` for every division of its dp into dp_replicate and dp_shard."""
        table = factorisations(self.problem.cluster.num_devices, 4)
        # All rows without sequence parallelism come first, then all with it. The whole of data
        # parallelism stands in dp_shard until divide_data_parallelism splits it.
        columns = dict(zip(("tp", "cp", "pp", "dp_shard"), np.tile(table, (2, 1)).T, strict=True))
        columns["sequence_parallel"] = np.repeat(np.array([False, True]), len(table))
        rows = default_layouts(2 * len(table)).with_columns(**columns)
        weights = self.num_dp_splits(rows) * weight
        knobs = ("pp", "dp", "cp", "tp", "sequence_parallel")
        return self._filter(rows, rejected, weights, knobs=knobs, rules=_DEGREE_RULES)

    def _cross_micro_batches(self, rows: Layouts, rejected: Counter[str], weight: int) -> Layouts:
        """Return the trunks: every row of legal degrees with every allowed micro-batch that divides
        the batch. A refused trunk counts in `rejected` for all layouts that would have grown from
        it: `weight` for every division of its dp. Raise TooLarge above MAX_TRUNKS."""
        sizes = np.array(self._micro_batches)
        dp_degrees = self._divisors[0]
        # Exact for the dp of every row: _legal_degrees keeps those that divide the batch.
        sequences_per_rank = self.problem.workload.global_batch // dp_degrees
        divides_by_dp = sequences_per_rank[:, None] % sizes == 0
        divides = divides_by_dp[np.searchsorted(dp_degrees, rows.dp)]  # (rows, sizes)
        if (trunks := int(divides.sum())) > MAX_TRUNKS:
            chips = self.problem.cluster.num_chips
            raise TooLarge(chips, trunks, "degrees with their micro-batches", MAX_TRUNKS)
        weights = self.num_dp_splits(rows) * weight
        rejected["batch_divides"] += int((weights * (~divides).sum(axis=1)).sum())
        # Transposed, so that trunks which differ in pp only still follow each other (see Trunks).
        size, row = np.nonzero(divides.T)
        grown = rows.take(row).with_columns(micro_batch=sizes[size])
        allowed = self._is_allowed(grown, "micro_batch")
        rejected["constraints.micro_batch"] += int(weights[row[~allowed]].sum())
        return grown.take(allowed)

    def _broken_schedule_rules(self, chains: Layouts) -> Array:
        """Return the index in SCHEDULE_RULES of the first rule that each chain breaks under each
        offered schedule, or -1 for none; (chains, schedules)."""
        schedules = self.offered[0].schedules
        breaks = np.full((len(chains), len(schedules)), -1)
        # Columns of shape (chains, 1) meet those of shape (schedules,).
        rows = chains.take(np.arange(len(chains))[:, None]).with_columns(
            **{knob: getattr(schedules, knob) for knob in SCHEDULE_KNOBS}
        )
        # Later rules are written first, so that the first rule that is broken stays. A rule that
        # reads only the chain, or only the schedule, has one column or row: it is broadcast.
        for index, name in reversed([*enumerate(SCHEDULE_RULES)]):
            obeys = np.broadcast_to(self._obeys(name, rows), breaks.shape)
            breaks[~obeys] = index
        return breaks

    # -- cores

    @cached_property
    def expert_pairs(self) -> tuple[Layouts, Counter[str]]:
        """The legal pairs of ep and etp, as layouts that are default in all else, and the number of
        pairs that each rule refuses."""
        pairs = np.array(list(product(self._expert_degrees, self._expert_tensor_degrees)))
        rows = default_layouts(len(pairs)).with_columns(ep=pairs[:, 0], etp=pairs[:, 1])
        refused: Counter[str] = Counter()
        # Every refused pair counts as one.
        return self._filter(rows, refused, 1, knobs=("ep", "etp"), rules=_EXPERT_RULES), refused

    @cached_property
    def _expert_degrees(self) -> list[int]:
        return common_expert_divisors(self.problem, "num_experts")

    @cached_property
    def _expert_tensor_degrees(self) -> list[int]:
        return common_expert_divisors(self.problem, "intermediate_size")

    @cached_property
    def _micro_batches(self) -> list[int]:
        return divisors(self.problem.workload.global_batch)

    # -- meshes

    def divide_data_parallelism(self, cores: Layouts) -> tuple[Layouts, Array]:
        """Return the meshes that cores make, one for every legal division of dp into dp_replicate
        and dp_shard, and for each mesh the position of its core."""
        # `all_divisors` has the divisors of one degree after the other, as many as `counts` says.
        degrees, counts, all_divisors = self._divisors
        start = np.cumsum(counts) - counts  # where the divisors of each degree begin
        degree = np.searchsorted(degrees, cores.dp)
        # One row for each core and each divisor of its dp.
        parent, position = expand_ranges(start[degree], counts[degree])
        rows, shards = cores.take(parent), all_divisors[position]
        rows = rows.with_columns(dp_shard=shards, dp_replicate=rows.dp // shards)
        legal = self._obeys("experts_fold_over_dense_axes", rows)
        # A mesh needs some sharding with some memory policy that is legal on it. What is legal
        # depends on which degrees are above 1, the mesh's class.
        legal &= np.asarray(self.legal_variants.any(axis=1))[mesh_class(rows)]
        for knob in ("dp_replicate", "dp_shard"):
            legal &= self._is_allowed(rows, knob)
        return rows.take(legal), parent[legal]

    def in_every_placement(self, meshes: Layouts) -> Layouts:
        """Return meshes in every legal placement that the stack offers. Where several placements of
        a mesh put every axis on the same links, only the first is returned. The filling of a torus
        stays."""
        pattern = active_axes(meshes)  # the set of axes with a degree above 1, as a number
        orders, start, count = placement_lists(self.problem.stack.placements)
        # One row for each mesh and each placement in its list.
        parent, row = expand_ranges(start[pattern], count[pattern])
        rows = meshes.take(parent).with_columns(placement=orders[row])
        placed = groups_of_meshes(self.problem.cluster, rows)
        # Listed placements are offered ones: of the rules on placement these two are left.
        is_legal = fits_torus(self.problem, placed) & equal_data_parallel(self.problem, rows)
        # `distinct` names the last of equal rows. Rows are reversed, so that it is the first.
        backwards = np.flatnonzero(is_legal)[::-1]
        # Two rows have the same code of an axis where its groups use the same links.
        links = [getattr(placed, axis).code[backwards] for axis in LayoutGroups.__slots__]
        first, _ = distinct(parent[backwards], *links)
        return rows.take(np.sort(backwards[first]))

    # -- refusals

    def _obeys(self, name: str, rows: Layouts) -> Array:
        """Return for each layout whether it obeys the rule of this name, (n,)."""
        return np.asarray(RULES_BY_NAME[name].test(self.problem, rows), dtype=bool)

    def _is_allowed(self, rows: Layouts, knob: str) -> Array:
        """Return for each layout whether the constraints allow its value of a knob, (n,). All are
        allowed where the constraints do not name the knob."""
        allowed = self.constraints.allowed.get(knob)
        if allowed is None:
            return np.ones(len(rows), dtype=bool)
        if knob == "recompute":
            # A number codes the kind ("none", "selective", "full") and its modules. Constraints
            # name kinds.
            names = [decode_policy(int(number))[0] for number in rows.recompute]
            return np.array([name in allowed for name in names], dtype=bool)
        if knob == "schedule":
            allowed = tuple(SCHEDULES.index(name) for name in allowed)
        return np.isin(getattr(rows, knob), allowed)

    def _filter(
        self,
        rows: Layouts,
        refused: Counter[str],
        weight: Array | int,
        *,
        knobs: Sequence[str] = (),
        rules: Sequence[str] = (),
    ) -> Layouts:
        """Return the layouts that the constraints on `knobs` allow and that obey the rules with
        the names `rules`. Every other row is counted in `refused` under the first constraint or
        rule that refuses it, as `weight` layouts (one number, or one for each row)."""
        weights = np.broadcast_to(weight, len(rows))
        tests = {f"constraints.{knob}": partial(self._is_allowed, knob=knob) for knob in knobs}
        tests |= {name: partial(self._obeys, name) for name in rules}
        for name, test in tests.items():
            passes = test(rows)
            if not passes.all():
                refused[name] += int(weights[~passes].sum())
                rows, weights = rows.take(passes), weights[passes]
        return rows

    def has_legal(self, *, with_pipeline: bool | None = None) -> bool:
        """Say whether any layout is legal; if `with_pipeline` is given, whether any with a pipeline
        is, or any without. Placements are not tested, so that a search may still find none."""
        trunks = self.trunks[0].rows
        if with_pipeline is not None:
            trunks = trunks.take((trunks.pp > 1) == with_pipeline)
        experts, _ = self.expert_pairs
        policies, _ = self.offered
        if not (len(trunks) and len(experts) and len(policies) and len(self.fillings)):
            return False
        # The first block is small, since the first legal layout ends the search.
        blocks = [rows for rows, _ in growing_slices(np.arange(len(trunks)), 64, len(trunks))]
        cores = (
            with_experts(trunks.take(rows), experts, np.full(len(rows), pair))
            for pair in range(len(experts))
            for rows in blocks
        )
        return any(len(self.divide_data_parallelism(rows)[0]) for rows in cores)


def common_expert_divisors(problem: Problem, size: str) -> list[int]:
    """Return the numbers that divide a size of the experts (`size` is its field, such as
    "num_experts") in every sparse layer; [1] for a dense model."""
    sizes = [getattr(layer.moe, size) for layer in problem.architecture.kinds if layer.moe]
    return divisors(int(np.gcd.reduce(sizes))) if sizes else [1]


def first_refusals(breaks: Array, num_meshes: Array) -> Counter[str]:
    """Return how many pairs of a mesh and a schedule each rule refuses first. `breaks` (chains,
    schedules) has the first rule that a chain breaks under a schedule, as an index into
    SCHEDULE_RULES or -1. `num_meshes` (chains,) is the number of meshes of each chain."""
    refused = {
        name: int(((breaks == rule).sum(axis=1) * num_meshes).sum())
        for rule, name in enumerate(SCHEDULE_RULES)
    }
    return +Counter(refused)  # without zeros


def scale_counts(counts: Counter[str], factor: int) -> Counter[str]:
    """Return the counts times a factor. A refused trunk, for example, counts as often as there are
    layouts that would have grown from it."""
    return Counter({name: count * factor for name, count in counts.items()})


def with_experts(rows: Layouts, experts: Layouts, pair: Array) -> Layouts:
    """Return n layouts with the expert degrees, ep and etp, taken from `experts`. Layout i takes
    those at position `pair[i]`."""
    return rows.with_columns(ep=experts.ep[pair], etp=experts.etp[pair])


_CLASS_DEGREES = ("cp", "ep", "pp", "dp_shard", "dp_replicate")


def mesh_class(rows: Layouts) -> Array:
    """Return the class of each mesh, (n,): a number with a bit for each of _CLASS_DEGREES, the last
    one lowest, that is set where the degree is above 1. The rules of shardings and memory policies
    depend on nothing else of a mesh, so they are tested once for each class."""
    number = np.zeros(len(rows), dtype=np.int64)
    for degree in _CLASS_DEGREES:
        number = 2 * number + (getattr(rows, degree) > 1)
    return number


def default_layouts(rows: int) -> Layouts:
    """Return `rows` layouts with the default of every knob."""
    return _DEFAULT_LAYOUT.take(np.zeros(rows, dtype=np.int64))


_DEFAULT_LAYOUT = Layouts.of([Layout()])


@cache
def _schedules(most_virtual_stages: int) -> Layouts:
    """Return every schedule with every number of virtual stages up to this one, and with even and
    balanced splits of layers."""
    return Layouts.of(
        Layout(schedule=schedule, virtual_stages=virtual_stages, balanced=balanced)
        for schedule, virtual_stages, balanced in product(
            SCHEDULES, range(1, most_virtual_stages + 1), (False, True)
        )
    )


@cache
def placement_lists(offered: tuple[tuple[str, ...], ...]) -> tuple[Array, Array, Array]:
    """Return the placements that a search tries for a mesh: lists of their numbers, one list after
    the other; where each list begins; and its length. `offered` are the placements of a stack, all
    where it is empty.

    There is a list for every set of axes with a degree above 1 (as in `active_axes`). It has one
    placement for each order of these axes that is offered. As many lists follow that keep only
    placements with the pipeline's axis outermost, for meshes that are legal in no other
    (equal_data_parallel).
    """
    # Of placements that order these axes alike, only the first is tried.
    is_first_of_order = equivalent_placements() == np.arange(len(PLACEMENTS))
    is_listed = offered_placements(offered) & is_first_of_order
    is_listed = np.concatenate([is_listed, is_listed & pipeline_outermost()])
    counts = is_listed.sum(axis=1)
    return np.nonzero(is_listed)[1], np.cumsum(counts) - counts, counts
