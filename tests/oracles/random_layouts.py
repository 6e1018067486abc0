"""Random legal layouts of any problem.

Knobs are drawn so that they mostly go together, and the rules have the last word: a layout that
breaks one is dropped, and so is one that was drawn before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from models.columns import Array
from models.layouts.factors import divisors, factorisations
from models.layouts.rules import RULES_BY_NAME, first_broken
from models.spec.layout import (
    AFAB,
    AXES,
    DEFAULT_PLACEMENT,
    INTERLEAVED,
    ONE_F_ONE_B,
    PLACEMENTS,
    SCHEDULES,
    ZERO_BUBBLE_V,
    Layout,
    Layouts,
    active_axes,
)
from models.spec.problem import Problem
from models.spec.recompute import FULL, NONE, policy_code

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
_SHARDING_RULES = (
    "sharding_shape",
    "sharding_offered",
    "sharding_searched",
    "sharding_in_pipeline",
    "sharding_in_context",
    "sharding_axes_need_zero_3",
    "muon_offered",
    "states_offered",
)
_ROUNDS = 12
_LEAST_DRAWN = 512
_MOST_DRAWN = 1 << 14
_FEW = 20
"""Where so many times the yield of a round is not enough, there is little left to find."""
_OTHER_MODULES = 3
"""How many sets of modules that the stack does not name are drawn for a problem."""


def random_layouts(problem: Problem, rng: np.random.Generator, n: int) -> Layouts:
    """Up to n different legal layouts; fewer where there are few, or where hardly any is legal.

    As many have each combination of axes longer than 1, as far as there are such.
    """
    draws = _Draws(problem, rng)
    found = Layouts.of([])
    if not len(draws.degrees):
        return found
    drawn = 2 * n
    for _ in range(_ROUNDS):
        size = min(max(drawn, _LEAST_DRAWN), _MOST_DRAWN)
        rows = draws.layouts(size)
        rows = draws.stated(rows.take(first_broken(problem, rows) < 0))
        more = _different(Layouts.concatenate([found, rows]).materialised())
        yielded = len(more) - len(found)
        found = more
        if len(found) >= n or (size == _MOST_DRAWN and _FEW * yielded < n):
            break
        drawn = 2 * (n - len(found)) * size // max(yielded, 1)
    return found.take(np.arange(min(n, len(found)))).materialised()


def _different(layouts: Layouts) -> Layouts:
    """Each layout once, in the order in which they first appear."""
    columns = [getattr(layouts, name) for name in Layouts.__slots__]
    codes = [np.unique(column, return_inverse=True)[1].ravel() for column in columns]
    _, first = np.unique(np.stack(codes), axis=1, return_index=True)
    return layouts.take(np.sort(first))


class _Draws:
    """Random knobs of the layouts of one problem, and what they are drawn from."""

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        self.problem, self.rng = problem, rng
        self.degrees = self._legal_degrees()
        self.stages = self._legal_zero_stages()
        some = np.asarray(self.stages.any(axis=0))
        self.degrees, self.stages = self.degrees.take(some).materialised(), self.stages[:, some]
        pattern = active_axes(self.degrees)
        weights = 1 / np.bincount(pattern, minlength=1 << len(AXES)).clip(1)[pattern]
        self.weights = weights / weights.sum()
        self.policies = self._recompute_policies()

    def layouts(self, size: int) -> Layouts:
        """So many layouts, most of them legal."""
        row = self.rng.choice(len(self.degrees), size, p=self.weights)
        x = self.degrees.take(row)
        for draw in (
            self._experts,
            self._micro_batches,
            self._schedules,
            lambda rows: self._shardings(rows, self.stages[:, row]),
            self._recompute,
            self._offload,
            self._placements,
        ):
            x = x.with_columns(**draw(x))
        return x.materialised()

    # -- degrees

    def _legal_degrees(self) -> Layouts:
        """Every mesh with and without sequence parallelism that is legal with one expert group and
        micro-batches of one sequence."""
        table = factorisations(self.problem.cluster.num_devices, len(AXES))
        columns = dict(zip(AXES, np.repeat(table, 2, axis=0).T, strict=True))
        plain = Layouts.of([Layout()]).take(np.zeros(2 * len(table), dtype=np.int64))
        rows = plain.with_columns(**columns, sequence_parallel=np.tile([False, True], len(table)))
        layers = self.problem.architecture.num_layers
        may_split = np.asarray(rows.pp <= layers)
        if self.problem.stack.partition == "even":
            may_split = may_split & (layers % rows.pp == 0)
        return rows.take(may_split & self._obeys(_DEGREE_RULES, rows)).materialised()

    def _legal_zero_stages(self) -> Array:
        """(4, meshes): whether a mesh without expert parallelism may have a ZeRO stage."""
        rows = self.degrees
        stages = [rows.with_columns(zero_stage=np.full(len(rows), stage)) for stage in range(4)]
        return np.array([self._obeys(_SHARDING_RULES, one) for one in stages])

    def _obeys(self, names: Sequence[str], rows: Layouts) -> Array:
        """Whether layouts obey all rules of these names."""
        tests = [RULES_BY_NAME[name].test(self.problem, rows) for name in names]
        return np.asarray(np.all(tests, axis=0), dtype=bool)

    def _experts(self, x: Layouts) -> dict[str, Array]:
        """Degrees of experts that fold over the devices of a stage."""
        moes = [kind.moe for kind in self.problem.architecture.kinds if kind.moe]
        if not moes:
            return {}
        stack = self.problem.stack
        room = x.dp_shard * x.cp * x.tp
        if stack.expert_folding == "all":
            room = np.where(x.dp_shard > 1, room, room * x.dp_replicate)
        etp = np.ones_like(x.pp)
        if self.problem.experts_keep_tensor:
            etp, room = x.tp, x.dp_shard * x.cp
        elif stack.expert_tensor_parallel:
            widths = int(np.gcd.reduce([moe.intermediate_size for moe in moes]))
            most = min(widths, stack.max_tp)
            wide = self._divisors_of(room, lambda d: widths % d == 0 and d <= most)
            etp = np.where(self._chance(0.4, len(x)), wide, 1)
            room = room // etp
        experts = int(np.gcd.reduce([moe.num_experts for moe in moes]))
        many = self._divisors_of(room, lambda d: experts % d == 0 and d <= stack.max_ep)
        return {"etp": etp, "ep": np.where(self._chance(0.8, len(x)), many, 1)}

    def _micro_batches(self, x: Layouts) -> dict[str, Array]:
        """Small ones more often than large ones, and sometimes all of a rank's sequences."""
        share = self.problem.workload.global_batch // x.dp
        sizes = self._divisors_of(share, lambda _: True, power=2.0)
        return {"micro_batch": np.where(self._chance(0.15, len(x)), share, sizes)}

    def _divisors_of(
        self, numbers: Array, wanted: Callable[[int], bool], power: float = 1.0
    ) -> Array:
        """A divisor of each number that is wanted; the higher the power, the smaller."""
        values, code = np.unique(numbers, return_inverse=True)
        tables = [np.array([d for d in divisors(int(v)) if wanted(d)]) for v in values]
        starts = np.cumsum([0, *map(len, tables)])
        counts = np.diff(starts)[code.ravel()]
        at = (self.rng.random(len(numbers)) ** power * counts).astype(np.int64)
        return np.concatenate(tables)[starts[code.ravel()] + at]

    # -- the pipeline

    def _schedules(self, x: Layouts) -> dict[str, Array]:
        """A schedule with as many chunks as there are layers for, split evenly or not."""
        stack, n = self.problem.stack, len(x)
        offered = np.array([SCHEDULES.index(name) for name in stack.schedules])
        single = np.where(self._chance(0.5, n), AFAB, ONE_F_ONE_B)
        schedule = np.where(x.pp > 1, self.rng.choice(offered, n), single)
        layers = self.problem.architecture.num_layers
        most = np.minimum((layers + 2) // x.pp, stack.max_virtual_stages).clip(2)
        chunks = 2 + (self.rng.random(n) * (most - 1)).astype(np.int64)
        virtual = np.select([schedule == INTERLEAVED, schedule == ZERO_BUBBLE_V], [chunks, 2], 1)
        if stack.splits_by_threshold:
            balanced = x.pp > 1
        else:
            uneven = self._chance(0.5, n) | (layers % (x.pp * virtual) > 0)
            balanced = uneven & (x.pp > 1) & (stack.partition == "balanced")
        return {"schedule": schedule, "virtual_stages": virtual, "balanced": balanced}

    def stated(self, x: Layouts) -> Layouts:
        """Legal layouts, a third of whose pipelines say how many layers each chunk has."""
        if self.problem.stack.splits_by_threshold:
            return x
        chosen = (x.pp > 1) & self._chance(0.3, len(x)) & (x.balanced | self._chance(0.3, len(x)))
        texts = [""] * len(x)
        for row in np.flatnonzero(chosen).tolist():
            chunks = int(x.pp[row] * x.virtual_stages[row])
            ends = x.schedule[row] == INTERLEAVED
            counts = self._split(chunks, uneven=bool(x.balanced[row]), empty_ends=bool(ends))
            texts[row] = "".join(chr(1 + count) for count in counts)
        return x.with_columns(layers_per_chunk=np.array(texts, dtype=str))

    def _split(self, chunks: int, *, uneven: bool, empty_ends: bool) -> list[int]:
        """The layers of the model over so many chunks, each with one at least; those at the ends
        may have none where that is legal."""
        layers = self.problem.architecture.num_layers
        if not uneven:
            return [layers // chunks] * chunks
        least = np.ones(chunks, dtype=np.int64)
        if empty_ends:
            least[[0, -1]] = 0
        odds = self.rng.dirichlet(np.full(chunks, self.rng.choice([0.5, 5.0, 500.0])))
        return (least + self.rng.multinomial(layers - least.sum(), odds)).tolist()

    # -- sharding, recompute and offload

    def _shardings(self, x: Layouts, stages: Array) -> dict[str, Array]:
        """One of the legal ZeRO stages (4, n), and whether parameters are dropped after forward,
        which says nothing without ZeRO 3."""
        stage = np.argmax(self.rng.random(stages.shape) * stages, axis=0)
        reshard = self.rng.choice(np.array(self.problem.stack.reshard), len(x))
        return {"zero_stage": stage, "reshard": reshard}

    def _recompute_policies(self) -> list[Array]:
        """The numbers of the policies of each kind of recompute that the stack has."""
        problem, stack = self.problem, self.problem.stack
        sets = [(), *(problem.effective_modules(modules) for modules in stack.selective)]
        there = [name for name in stack.recomputable_modules if problem.has_module(name)]
        for _ in range(_OTHER_MODULES if there else 0):
            count = self.rng.integers(1, len(there) + 1)
            sets.append(tuple(self.rng.choice(there, count, replace=False)))
        selective = np.unique([policy_code("selective", modules) for modules in sets])
        every = {"none": np.array([NONE]), "selective": selective, "full": np.array([FULL])}
        return [every[name] for name in stack.recompute]

    def _recompute(self, x: Layouts) -> dict[str, Array]:
        kind = self.rng.integers(0, len(self.policies), len(x))
        policy = np.select(
            [kind == i for i in range(len(self.policies))],
            [self.rng.choice(numbers, len(x)) for numbers in self.policies],
        )
        in_chunk = self.problem.architecture.num_layers // (x.pp * x.virtual_stages)
        some = (self.rng.random(len(x)) * in_chunk).astype(np.int64)
        may_be_some = (policy == FULL) & ~x.balanced & self.problem.stack.recompute_layers
        layers = np.where(may_be_some & self._chance(0.6, len(x)), some, 0)
        return {"recompute": policy, "recompute_layers": layers}

    def _offload(self, x: Layouts) -> dict[str, Array]:
        stack, n = self.problem.stack, len(x)
        activations = self._chance(0.25, n) & ("activations" in stack.offload)
        activations &= x.recompute_layers == 0
        if stack.offload_alone:
            activations &= (x.pp == 1) & (x.recompute == NONE)
        if stack.offloads_checkpoints:
            activations &= (x.recompute == FULL) & (x.zero_stage == 3)
        activations &= stack.offloads_recurrences or not self.problem.architecture.recurrences
        optimizer = self._chance(0.25, n) & ("optimizer" in stack.offload) & (x.zero_stage > 0)
        optimizer &= self.problem.workload.optimizer != "muon"
        is_adam = "adam" in self.problem.workload.optimizer
        optimizer &= is_adam or not stack.offloads_adam_alone
        return {"offload_activations": activations, "offload_optimizer": optimizer}

    # -- the fabric

    def _placements(self, x: Layouts) -> dict[str, Array]:
        offered = self.problem.stack.placements or PLACEMENTS
        codes = np.array([PLACEMENTS.index(order) for order in offered])
        placement = self.rng.choice(codes, len(x))
        if DEFAULT_PLACEMENT in codes:
            placement = np.where(self._chance(0.3, len(x)), DEFAULT_PLACEMENT, placement)
        fillings = self.problem.cluster.device_orders.fillings
        at = self.rng.integers(0, len(fillings), len(x)) * self._chance(0.6, len(x))
        axes, block = fillings[at].T
        return {"placement": placement, "torus_axes": axes, "torus_block": block}

    def _chance(self, probability: float, n: int) -> Array:
        return self.rng.random(n) < probability
