"""Schedule, partition, recompute, sharding policy and offload on top of the costs of a mesh, for
every layout."""

from __future__ import annotations

from functools import cached_property, reduce

import numpy as np

from models.columns import Array, SharedRows, distinct, total
from models.cost import pipeline
from models.cost.makespan import Chunks, Rounds
from models.cost.memory_uncertainty import MemoryUncertainty
from models.cost.mesh_costs import MeshCosts
from models.cost.overlap import Exposure, straggling, weighed
from models.cost.stage_partition import Stages, boundaries, facing, partition
from models.spec.hardware import GIB
from models.spec.layout import DUALPIPE, INTERLEAVED, ZERO_BUBBLE_V, Layouts
from models.spec.problem import Problem

TIME_TERMS: dict[str, str] = {
    "compute_s": "kernels of forward and backward on the slowest stage",
    "recompute_s": "forward work done again in backward",
    "tensor_s": "exposed tensor-parallel traffic",
    "context_s": "exposed context-parallel traffic",
    "expert_s": "exposed expert all-to-all",
    "data_s": (
        "exposed data-parallel traffic: FSDP gathers and its copies, gradient reduction, parameter"
        " gather"
    ),
    "pipeline_s": "exposed sends between stages",
    "bubble_s": "idle time of the slowest stage: pipeline fill and drain",
    "offload_s": "exposed traffic to host memory",
    "optimizer_s": "gradient clipping and parameter update",
    "fixed_s": "host work once a step",
    "jitter_s": "stragglers, growing with scale, and a node in trouble",
}
MEMORY_TERMS: dict[str, str] = {
    "parameters_bytes": "parameters in use, and FSDP's gathered layers",
    "gradients_bytes": "accumulated gradients, and those of the layer being reduced",
    "optimizer_bytes": "master copy and moments",
    "activations_bytes": (
        "activations of the micro-batches in flight, and the layer being worked on"
    ),
    "logits_bytes": (
        "logits and their gradient, where they take more than the layer computed again after them"
    ),
    "context_bytes": "runtime, libraries, communication buffers",
    "fragmentation_bytes": "reserved by the allocator beyond what is in use",
}


def in_gib(term: str) -> str:
    """The name of a memory term when it is given in GiB."""
    return term.replace("_bytes", "_gib")


def partitions(problem: Problem, layouts: Layouts) -> SharedRows[Stages]:
    """Layers over stages, by forward FLOPs; one table entry for every (stages, chunks, policy).
    Those of multi-token prediction are where the head is."""
    x = layouts
    paired = x.schedule == DUALPIPE, x.schedule == ZERO_BUBBLE_V
    columns = (
        x.pp,
        x.virtual_stages,
        x.balanced,
        *paired,
        pipeline.holds_equal_micro_batches(x.schedule),
    )
    first, code = distinct(*columns, *_stated_splits(x))
    weights, head = problem.forward_flops
    parts = [column[first] for column in columns]
    runs, by_threshold = problem.architecture.layer_runs, problem.stack.splits_by_threshold
    found = partition(
        runs,
        np.array(weights),
        head,
        *parts,
        by_threshold=by_threshold,
        stated=_stated_layers(x, first),
    )
    return SharedRows(found.beside_head(runs[-1][0], problem.architecture.mtp_layers), code)


def _stated_splits(layouts: Layouts) -> tuple[Array, ...]:
    """A column that tells the layouts' `layers_per_chunk` apart; none where no layout has one, as
    in a search."""
    if not layouts.states_layers.any():
        return ()
    _, code = np.unique(layouts.layers_per_chunk, return_inverse=True)
    return (code.ravel(),)


def _stated_layers(layouts: Layouts, rows: Array) -> Array | None:
    """The layers of each chunk of some layouts, (rows, most chunks), all 0 where none are stated;
    None where no layout states any."""
    return layouts.stated_layers[rows] if layouts.states_layers.any() else None


def layers_of_chunks(problem: Problem, layouts: Layouts) -> list[list[list[int]]]:
    """Of each layout's partition, the kinds of the layers of each chunk, in the order of the
    model."""
    weights, head = problem.forward_flops
    kinds = np.repeat(
        *(np.array(column) for column in zip(*problem.architecture.layer_runs, strict=True))
    )
    x = layouts
    chunks, faces = (
        x.pp * x.virtual_stages,
        facing(x.pp, x.schedule == DUALPIPE, x.schedule == ZERO_BUBBLE_V),
    )
    columns = (
        x.pp,
        x.virtual_stages,
        x.balanced,
        faces,
        pipeline.holds_equal_micro_batches(x.schedule),
    )
    first, code = distinct(*columns, *_stated_splits(x))
    shape = [column[first] for column in columns]
    begin = boundaries(
        np.array(weights)[kinds],
        head,
        *shape,
        by_threshold=problem.stack.splits_by_threshold,
        stated=_stated_layers(x, first),
    )
    cuts = [row[1:count] for row, count in zip(begin[code], chunks.tolist(), strict=True)]
    return [[chunk.tolist() for chunk in np.split(kinds, cut)] for cut in cuts]


class Combiner:
    """The second pass. Arrays have shape (n,) for layouts, (s, n) for the different stages of
    each."""

    def __init__(self, layouts: Layouts, meshes: MeshCosts, stages: Stages) -> None:
        self.problem, self.layouts, self.meshes, self.c = meshes.problem, layouts, meshes, meshes.c
        self.exposure, self.stages = Exposure(layouts, meshes), stages
        self.micro_batches, self.zero3, self.once = (
            self.exposure.micro_batches,
            self.exposure.zero3,
            self.exposure.once,
        )

    # -- time
    # ----------------------------------------------------------------------------------------------

    def time(self) -> dict[str, Array]:
        """Seconds by term, on the stage that is last to finish its own work, waiting, reduction and
        update; where all wait for the last of the passes (models.cost.pipeline.ends_together),
        passes are those of the slowest stage."""
        return self._time[0]

    @property
    def once_s(self) -> Array:
        """What the stage that is last to finish exposes of its data-parallel traffic once a
        step."""
        return self._time[1]

    @cached_property
    def _time(self) -> tuple[dict[str, Array], Array]:
        x, m, stages, exposure = self.layouts, self.micro_batches, self.stages, self.exposure
        parts = exposure.parts
        both = weighed(stages.amounts, [part.both for part in parts])
        forward = weighed(stages.amounts, [part.forward for part in parts])
        weight: tuple[Array | float, Array | float] = (0.0, 0.0)
        if pipeline.moves_weight_gradients(x.schedule):
            weights = exposure.weights()
            weight = weighed(stages.amounts, weights), weighed(exposure.amounts, weights)
        all_forward = weighed(exposure.amounts, [part.forward for part in parts])
        whole, order = (all_forward, exposure.whole_model(), weight[1]), (stages.order, stages.code)
        times = pipeline.StageTimes(
            forward, both - forward, weight[0], *whole, *order, self._rounds(forward, both)
        )
        idle = pipeline.bubble(x.schedule, x.pp, x.virtual_stages, m, times)
        together, every = pipeline.ends_together(x.schedule), m * both[0] + idle[0]
        beside = self._beside_once(times, every)
        once, optimizer = self._data_once(*beside), self._optimizer()
        within = exposure.sends_within(every)
        sends = np.where(together, within, exposure.sends(stages.amounts)) + np.zeros_like(both)
        last = _largest(m * both + idle + once + optimizer + sends)
        slow = np.where(together, _largest(both), last)
        amounts = [_pick(a, slow) for a in stages.amounts]
        time = {
            name: (
                m
                * total(
                    a * part.terms[name]
                    for a, part in zip(amounts, parts, strict=True)
                    if name in part.terms
                )
            )
            for name in (
                "compute_s",
                "recompute_s",
                "tensor_s",
                "context_s",
                "expert_s",
                "data_s",
                "offload_s",
            )
        }
        exposed = _pick(once, last)
        time["data_s"] = time["data_s"] + exposed
        time["pipeline_s"] = _pick(sends, last)
        time["bubble_s"] = np.maximum(_pick(idle, slow), 0.0) + exposure.hops()
        time["optimizer_s"] = _pick(optimizer, last)
        time["fixed_s"] = np.zeros(len(x)) + self.c.step_fixed_s
        waits = exposure.waits()
        subtotal = total(time.values())
        time["jitter_s"] = waits + (subtotal + waits) * straggling(
            self.problem, self.c, x.num_devices
        )
        return {name: time[name] + np.zeros_like(subtotal) for name in TIME_TERMS}, exposed

    def _rounds(self, forward: Array, both: Array) -> Rounds | None:
        """Passes on chunks that are dealt out in rounds, of the layouts that have them."""
        rows = np.flatnonzero(self.layouts.schedule == INTERLEAVED)
        if not len(rows):
            return None
        x, stages = self.layouts, self.stages
        first, last = stages.of_rounds(rows)
        forwards, every = zip(
            *((part.forward[rows], part.both[rows]) for part in self.exposure.parts), strict=True
        )
        ahead, whole = (
            Chunks(of_stages.take(rows, axis=1), weighed(first, seconds), weighed(last, seconds))
            for of_stages, seconds in ((forward, forwards), (both, every))
        )
        steady, code = stages.steady, stages.code.take(rows)
        group = pipeline.micro_batch_group(x.pp[rows], self.micro_batches[rows])
        chunk = np.array(self.exposure.amounts)[:, None] / (x.pp[rows] * x.virtual_stages[rows])
        out, back, down = steady.with_groups(code, group, chunk)
        return Rounds(
            forward=ahead,
            backward=whole.less(ahead),
            steady=weighed(out - back, forwards) + weighed(back, every),
            ahead=weighed(down, every),
            last=steady.last.take(code),
        )

    def _beside_once(self, times: pipeline.StageTimes, every: Array) -> tuple[Array, Array]:
        """A forward and a backward that what comes once a step may hide beside: a stage's own; or,
        where stages end together, those of a mean pass of `every` second that they compute or wait
        for one another."""
        x = self.layouts
        shared = pipeline.ends_together(x.schedule) & (x.pp > 1)
        one = every / pipeline.passes_alike(x.pp, x.virtual_stages, self.micro_batches)
        forward = np.where(shared, pipeline.FORWARD * one, times.forward)
        return forward, np.where(shared, (1 - pipeline.FORWARD) * one, times.backward)

    def _data_once(self, forward: Array, backward: Array) -> Array:
        """Gradient reduction behind the last micro-batch's backward, parameter gather behind the
        first forward."""
        gathers, scatters = zip(*self.exposure.data_once(), strict=True)
        hide, amounts = self.exposure.hide_once, self._parameter_amounts
        return hide(weighed(amounts, gathers), forward) + hide(weighed(amounts, scatters), backward)

    def _optimizer(self) -> Array:
        """Clip, update, and Muon's products."""
        amounts = self._parameter_amounts
        owned = weighed(amounts, [self.exposure.owned(i) for i in range(len(amounts))])
        return (
            self.exposure.update(owned, self.layouts.offload_optimizer)
            + self.exposure.norm()
            + self._orthogonalisation()
        )

    def _orthogonalisation(self) -> Array | float:
        """Muon's five Newton-Schulz steps on every matrix (arXiv 2502.16982 §2.2), spread over
        those who share it."""
        if self.problem.workload.optimizer != "muon":
            return 0.0
        architecture = self.problem.architecture
        flops = [
            layer.orthogonalisation_flops(architecture.hidden_size) for layer in architecture.kinds
        ]
        owned = [
            self.exposure.owned(i, worth) for i, worth in enumerate(flops)
        ]  # the ends stay with AdamW
        return weighed(self._parameter_amounts, owned) / (
            self.problem.cluster.peak_flops_16 * self.c.gemm_16
        )

    # -- memory
    # ----------------------------------------------------------------------------------------------

    def memory(self) -> tuple[dict[str, Array], Array]:
        """Bytes by term on the fullest stage, and which that is."""
        x, c, stages = self.layouts, self.c, self.stages
        dense, expert = self._parameters
        resident = self._in_flight
        if x.offload_activations.any():
            resident = np.where(
                x.offload_activations, np.minimum(2 * self._kept_layer, resident), resident
            )
        has_head = stages.amounts[-1] > 0
        logits = has_head * (self.meshes.logits * c.logit_memory)
        recomputed = self.exposure.working() * c.activation_memory
        losing = logits > recomputed  # logits are gone before the first layer is computed again
        parts = {
            "parameters_bytes": self._parameter_bytes(dense, expert),
            "gradients_bytes": self._gradient_bytes(dense, expert),
            "optimizer_bytes": ~x.offload_optimizer * self._states,
            "activations_bytes": resident * c.activation_memory + np.where(losing, 0.0, recomputed),
            "logits_bytes": np.where(losing, logits, 0.0),
        }
        if self.problem.stack.keeps_logits:
            parts["logits_bytes"] = parts["logits_bytes"] + has_head * self.meshes.kept_logits
        allocated = total(parts.values())
        worst = _largest(allocated)
        held = {name: _pick(value, worst) for name, value in parts.items()}
        held["context_bytes"] = np.zeros(len(x)) + c.context_gib * GIB
        held["fragmentation_bytes"] = _pick(allocated, worst) * c.fragmentation
        return {name: held[name] for name in MEMORY_TERMS}, _pick(stages.index, worst)

    def host(self) -> Array:
        """Bytes on the host for a device of the stage that has most there."""
        x, held = self.layouts, np.zeros((1, len(self.layouts)))
        if x.offload_optimizer.any():
            held = held + x.offload_optimizer * self._states
        if x.offload_activations.any():
            held = held + x.offload_activations * (self._in_flight * self.c.activation_memory)
        return np.asarray(held.max(axis=0))

    def fits(self, capacity: float, margin: MemoryUncertainty) -> Array:
        """In so many bytes of the device, and with the margin in all of it and in what is known of
        the host."""
        used, _ = self.memory()
        return margin.fits(used, self.host(), self.problem.cluster, capacity)

    @cached_property
    def _in_flight(self) -> Array:
        """Activations that the micro-batches in flight keep, wherever they are."""
        x, stages = self.layouts, self.stages
        kept = weighed(stages.amounts, [self.exposure.kept(i) for i in range(self.meshes.kinds)])
        return kept * pipeline.in_flight(
            x.schedule, stages.index, x.pp, x.virtual_stages, self.micro_batches
        )

    @cached_property
    def _states(self) -> Array:
        """Bytes of master copies and moments, wherever they are."""
        owned = self.exposure.shard(*self._parameters, self.layouts.zero_stage >= 1)
        return (self._master_bytes() + self.problem.workload.optimizer_state.moment_bytes) * owned

    @cached_property
    def _parameters(self) -> tuple[Array, Array]:
        """Dense ones and those of experts."""
        amounts, size = self._parameter_amounts, self.meshes.bytes
        return weighed(amounts, [s.dense for s in size]), weighed(amounts, [s.expert for s in size])

    @cached_property
    def _parameter_amounts(self) -> Array:
        """Of how many layers and ends a stage holds the parameters: DualPipe those of two stages,
        and a tied embedding is where the head is too."""
        amounts = self.stages.amounts * (1.0 + (self.layouts.schedule == DUALPIPE))
        if self.problem.architecture.tie_word_embeddings:
            amounts[-2] = np.maximum(amounts[-2], amounts[-1])
        return np.asarray(amounts)

    @cached_property
    def _kept_layer(self) -> Array:
        """Activations that a layer keeps, of which two are on their way to the host or back."""
        return reduce(np.maximum, [self.exposure.kept(i) for i in range(self.meshes.kinds)])

    @cached_property
    def _unit(self) -> Array:
        """Parameters gathered, or gradients reduced, at a time."""
        return reduce(np.maximum, [part.unit for part in self.meshes.bytes[: self.meshes.kinds]])

    def _master_bytes(self) -> Array:
        """FSDP's sharded parameters are the fp32 copy, whatever the parameters in use are."""
        whole = self.problem.workload.optimizer_state.master_bytes
        return np.where(self.zero3, whole, self.problem.master_bytes)

    def _parameter_bytes(self, dense: Array, expert: Array) -> Array:
        """Parameters in use. FSDP keeps only the sharded master copy (counted with the optimizer)
        and two gathered layers, unless it does not reshard; what the host updates comes back as
        shards of them."""
        x = self.layouts
        shards = self.zero3 & (x.offload_optimizer | self.problem.stack.parameter_shards)
        held = dense + expert
        if self.zero3.any():
            held = np.where(self.zero3 & x.reshard, np.minimum(2 * self._unit, held), held)
            held = held + shards * self.exposure.shard(dense, expert, self.zero3)
        return self.problem.parameter_bytes * held + self._operands()

    def _operands(self) -> Array | float:
        """Copies of the parameters of layers in the format of GEMMs, where none are gathered."""
        if not self.problem.operand_bytes:
            return 0.0
        layers = self._parameter_amounts[: self.meshes.kinds]
        size = [size.dense + size.expert for size in self.meshes.bytes[: self.meshes.kinds]]
        return np.where(self.zero3, 0.0, self.problem.operand_bytes * weighed(layers, size))

    def _gradient_bytes(self, dense: Array, expert: Array) -> Array:
        sharded = (self.layouts.zero_stage >= 2) & ~self.once
        reduced = sharded * (self.problem.gradient_reduction_bytes * self._unit)
        return self.problem.gradient_bytes * self.exposure.shard(dense, expert, sharded) + reduced


def _largest(values: Array) -> Array:
    """For each layout, the first of its stages with the most; (s, n) to (n,), where it stands in
    all values."""
    count = values.shape[1]
    own = np.arange(count)
    largest, at = values[0], own
    for stage in range(1, len(values)):
        more = values[stage] > largest
        at = np.where(more, own + stage * count, at)
        largest = np.maximum(largest, values[stage])
    return at


def _pick(values: Array, at: Array) -> Array:
    """Of (s, n) values, each layout's where its stage stands in them (_largest)."""
    return values.reshape(-1).take(at)
