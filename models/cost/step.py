"""A training step: time and memory of a layout, put together.

The time of a step is that of the stage that is last to finish its own passes, waiting, gradient
reduction and update. Its memory is that of the fullest stage.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from models.columns import Array
from models.compilation.compiled import compiled, inlined
from models.cost.collectives import links_of
from models.cost.encoder import encoder_shard
from models.cost.facts import (
    CONTEXT_ALLGATHER,
    LAST_PRODUCT,
    CoefficientRecord,
    Facts,
    ProblemRecords,
    record_type,
)
from models.cost.least_links import LeastLinks, least_links
from models.cost.mesh import Mesh, Part, set_shard, set_traffic
from models.cost.overlap import (
    Exposed,
    Regime,
    expose_end,
    expose_layer,
    hide_once,
    overlaps,
    set_regime,
    waiting_for_slow_node,
)
from models.cost.pipeline import (
    FORWARD,
    PathScratch,
    StageTimes,
    bubble,
    ends_together,
    in_flight,
    moves_weight_gradients,
    passes_alike,
    scratch_for,
)
from models.cost.rows import ROW, Row, StageTables
from models.cost.shard import same_shard, shard_of
from models.layouts.groups import Groups, groups_for
from models.spec.hardware import GIB
from models.spec.layout import DUALPIPE

TIME = (
    "compute_s", "recompute_s", "tensor_s", "context_s", "expert_s", "data_s", "pipeline_s",
    "bubble_s", "offload_s", "optimizer_s", "fixed_s", "jitter_s",
)  # fmt: skip
(
    COMPUTE, RECOMPUTE, TENSOR, CONTEXT, EXPERT, DATA, SENDS,
    BUBBLE, OFFLOAD, OPTIMIZER, FIXED, JITTER,
) = range(len(TIME))  # fmt: skip
MEMORY = (
    "parameters_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes", "logits_bytes",
    "context_bytes", "fragmentation_bytes",
)  # fmt: skip
PARAMETERS, GRADIENTS, STATES, ACTIVATIONS, LOGITS, RUNTIME, FRAGMENTATION = range(len(MEMORY))
HOST_GRADIENT_BYTES = 4.0
"""The size of an element of a gradient that is added up on the host (DeepSpeed
runtime/zero/stage_1_and_2.py, stage3.py: fp32 partitions; FSDP keeps fp32 shards)."""


PART, MESH, EXPOSED, REGIME = (record_type(cls) for cls in (Part, Mesh, Exposed, Regime))


class Stages(NamedTuple):
    """Holds the different stages of a pipeline, in arrays of shape (stages,). Seconds are those of
    one micro-batch."""

    forward: Array
    backward: Array
    weight: Array
    """Seconds of weight gradients, which are a part of backward."""
    free: Array
    """Seconds of both passes beside which nothing else is sent."""
    idle: Array
    """Seconds that the stage is idle in a whole step."""
    dense: Array
    """Parameters outside routed experts, before they are sharded over data parallelism."""
    expert: Array
    """Parameters inside routed experts, before they are sharded over data parallelism."""
    trained_dense: Array
    """Parameters outside routed experts that are trained."""
    trained_expert: Array
    """Parameters inside routed experts that are trained."""
    dense_flops: Array
    """FLOPs of Muon's orthogonalisation of matrices outside routed experts."""
    expert_flops: Array
    """FLOPs of Muon's orthogonalisation of matrices inside routed experts."""
    gather: Array
    """Seconds of gathering parameters once a step, nothing hidden."""
    reduce: Array
    """Seconds of reducing gradients once a step, nothing hidden."""
    kept: Array
    """Bytes of activations that layers keep of one micro-batch."""
    kept_of_images: Array
    """Bytes of activations that the encoder of images keeps of one micro-batch. They are never
    offloaded."""
    of_layers: Array
    """Parameters without those of embedding and head."""


class Workspace(NamedTuple):
    """Holds what is worked out of one layout on the way to its step time."""

    parts: Array
    """Records of Part, (parts,)."""
    mesh: Array
    """A record of Mesh, (1,)."""
    regime: Array
    """A record of Regime, (1,)."""
    exposed: Array
    """Records of Exposed, (parts,)."""
    counts: Array
    """Layers of each kind in the whole model, and one of each end, (parts,)."""
    part_forward: Array
    """Seconds of forward of every part, (parts,)."""
    part_both: Array
    """Seconds of both passes of every part, (parts,)."""
    weights: Array
    """Seconds that weight gradients add to both passes of every part, where the schedule moves
    them, (parts,)."""
    gather_once: Array
    """Seconds of gathering a part's parameters once a step, nothing hidden, (parts,)."""
    reduce_once: Array
    """Seconds of reducing a part's gradients once a step, nothing hidden, (parts,)."""
    mean_kept: Array
    """Bytes that a part keeps, on average over layers that are recomputed and layers that are not,
    (parts,)."""
    again: Array
    """Seconds that a recompute policy adds to backward, (policies, parts)."""
    kept: Array
    """Bytes that a part keeps under a recompute policy, (policies, parts)."""
    pieces: Array
    """Seconds or bytes of the pieces of one layer, (LAST_PRODUCT + 1,)."""
    dispatch: Array
    """The cost of an exchange of tokens over the links, (kinds, 2): seconds for each byte, and
    before the first byte."""


def workspace_for(layers: Array, policies: Array) -> Workspace:
    kinds = len(layers)
    parts = kinds + 2
    counts = np.ones(parts)
    counts[:kinds] = layers["trained_layers"]
    return Workspace(
        parts=np.zeros(parts, PART),
        mesh=np.zeros(1, MESH),
        regime=np.zeros(1, REGIME),
        exposed=np.zeros(parts, EXPOSED),
        counts=counts,
        part_forward=np.zeros(parts),
        part_both=np.zeros(parts),
        weights=np.zeros(parts),
        gather_once=np.zeros(parts),
        reduce_once=np.zeros(parts),
        mean_kept=np.zeros(parts),
        again=np.zeros((len(policies), parts)),
        kept=np.zeros((len(policies), parts)),
        pieces=np.zeros(LAST_PRODUCT + 1),
        dispatch=np.zeros((kinds, 2)),
    )


def stages_for(tables: StageTables) -> Stages:
    """Return arrays that hold the stages of any of these partitions."""
    return Stages(*np.zeros((len(Stages._fields), tables.amounts.shape[1])))


class Buffers(NamedTuple):
    """Holds the arrays in which compiled functions work, one layout after the other."""

    workspace: Workspace
    stages: Stages
    scratch: PathScratch
    groups: Groups
    row: Array
    """The layout whose parts are exposed, a record of Row (1,)."""
    shard: Array
    """The layout whose shard is worked out, a record of Row (1,)."""


def buffers_for(q: ProblemRecords, tables: StageTables) -> Buffers:
    return Buffers(
        workspace=workspace_for(q.layers, q.policies),
        stages=stages_for(tables),
        scratch=scratch_for(tables),
        groups=groups_for(q.order),
        row=np.zeros(1, ROW),
        shard=np.zeros(1, ROW),
    )


@inlined
def reset(buffers: Buffers) -> None:
    """Drop what is known of the layout before, so that another question or other coefficients may
    follow."""
    buffers.shard[0].micro_batch = 0
    buffers.row[0].policy = -1


# -- parts and stages


@compiled
def expose_parts(
    f: Facts, layers: Array, policies: Array, row: Row, c: CoefficientRecord, w: Workspace
) -> None:
    """Write what every part exposes, and what weight gradients add to it where the schedule moves
    them."""
    set_kept(f, policies, row, w)
    mesh, regime = w.mesh[0], w.regime[0]
    moves_weights = moves_weight_gradients(row.schedule)
    for kind in range(f.kinds):
        layer = layers[kind]
        part = w.parts[kind]
        policy = policies[row.policy, kind]
        again, kept = w.again[row.policy, kind] * regime.share, w.mean_kept[kind]
        found = expose_layer(
            f=f,
            layer=layer,
            part=part,
            policy=policy,
            row=row,
            mesh=mesh,
            regime=regime,
            c=c,
            weight=0.0,
            again=again,
            kept=kept,
        )
        set_exposed(w, kind, found)
        w.weights[kind] = 0.0
        if moves_weights:
            without = expose_layer(
                f=f,
                layer=layer,
                part=part,
                policy=policy,
                row=row,
                mesh=mesh,
                regime=regime,
                c=c,
                weight=part.weight,
                again=again,
                kept=kept,
            )
            w.weights[kind] = found.both - without.both
    whole = regime.share if policies[row.policy, f.last_kind].whole else 0.0
    for end in range(f.kinds, f.kinds + 2):
        part, again = w.parts[end], w.again[row.policy, end] * regime.share
        found = expose_end(f=f, part=part, regime=regime, c=c, weight=0.0, again=again, whole=whole)
        set_exposed(w, end, found)
        w.weights[end] = 0.0
        if moves_weights:
            without = expose_end(
                f=f, part=part, regime=regime, c=c, weight=part.weight, again=again, whole=whole
            )
            w.weights[end] = found.both - without.both
    set_once(f, row, w)


@inlined
def set_kept(f: Facts, policies: Array, row: Row, w: Workspace) -> None:
    """Write how the parts of a layout run, and the activations that they keep: the bytes of every
    part; those of the largest layer, two of which are on their way to the host or back; and those
    that a layer has only while it is computed again."""
    regime = w.regime[0]
    set_regime(f, row, w.mesh[0].micro_batches, repeats_experts(policies, row.policy), regime)
    largest = working = 0.0
    for part in range(f.kinds + 2):
        whole, kept = w.kept[0, part], w.kept[row.policy, part]
        w.mean_kept[part] = regime.share * kept + (1 - regime.share) * whole
        if part < f.kinds:
            largest = max(largest, w.mean_kept[part])
            working = max(working, whole - kept)
        elif f.encoder_layers > 0:  # The encoder computes one of its layers again at a time.
            working = max(working, (whole - kept) / f.encoder_layers)
    regime.largest_kept = largest
    regime.working = working + (w.mesh[0].whole_keys if f.context == CONTEXT_ALLGATHER else 0.0)


@inlined
def set_once(f: Facts, row: Row, w: Workspace) -> None:
    """Write the data-parallel traffic of every part that comes once a step, nothing hidden."""
    once = w.regime[0].once
    gathers = 1 <= row.zero_stage <= 2 or (once and row.zero_stage == 3)
    whole = row.zero_stage <= (1 if f.whole_gradients else 0)
    for index in range(f.kinds + 2):
        part = w.parts[index]
        w.gather_once[index] = part.gather if gathers else 0.0
        reduced = part.reduce if whole else part.scatter
        w.reduce_once[index] = reduced if once else 0.0


@inlined
def set_exposed(w: Workspace, index: int, found: Exposed) -> None:
    exposed = w.exposed[index]
    exposed.forward = found.forward
    exposed.both = found.both
    exposed.free = found.free
    exposed.compute = found.compute
    exposed.recompute = found.recompute
    exposed.tensor = found.tensor
    exposed.context = found.context
    exposed.expert = found.expert
    exposed.data = found.data
    exposed.offload = found.offload
    w.part_forward[index] = found.forward
    w.part_both[index] = found.both


@compiled
def repeats_experts(policies: Array, policy: int) -> bool:
    for kind in range(policies.shape[1]):
        if policies[policy, kind].expert > 0:
            return True
    return False


@inlined
def fill_stages(
    f: Facts, layers: Array, row: Row, tables: StageTables, w: Workspace, s: Stages
) -> None:
    """Write the sums over the parts that each stage has. DualPipe holds the parameters of two
    stages. A tied embedding is on the stage of the head too, without the encoder of images."""
    embedding, head = f.kinds, f.kinds + 1
    held_times = 2.0 if row.schedule == DUALPIPE else 1.0
    for stage in range(tables.different[row.partition]):
        forward = both = weight = free = dense = expert = gather = reduce = 0.0
        trained_dense = trained_expert = 0.0
        for index in range(f.kinds + 2):
            amount = tables.amounts[row.partition, stage, index]
            part, held = w.parts[index], amount * held_times
            tied = 0.0
            if f.tied_embedding and index == embedding:
                tied = max(tables.amounts[row.partition, stage, head] * held_times - held, 0.0)
            all_held = held + tied * (1 - part.encoder_share)
            trained_held = held + tied * (1 - part.trained_encoder_share)
            forward += amount * w.exposed[index].forward
            both += amount * w.exposed[index].both
            free += amount * w.exposed[index].free
            weight += amount * w.weights[index]
            dense += all_held * part.dense
            expert += held * part.expert
            trained_dense += trained_held * part.trained_dense
            trained_expert += held * part.trained_expert
            gather += all_held * w.gather_once[index]
            reduce += trained_held * w.reduce_once[index]
        s.forward[stage] = forward
        s.backward[stage] = both - forward
        s.weight[stage] = weight
        s.free[stage] = free
        s.dense[stage] = dense
        s.expert[stage] = expert
        s.trained_dense[stage] = trained_dense
        s.trained_expert[stage] = trained_expert
        s.gather[stage] = gather
        s.reduce[stage] = reduce
        fill_layers(
            f=f,
            layers=layers,
            amounts=tables.amounts[row.partition, stage],
            held_times=held_times,
            w=w,
            s=s,
            stage=stage,
        )


@inlined
def fill_layers(
    f: Facts, layers: Array, amounts: Array, held_times: float, w: Workspace, s: Stages, stage: int
) -> None:
    """Write the sums that are over layers only."""
    kept = parameters = 0.0
    for kind in range(f.kinds):
        kept += amounts[kind] * w.mean_kept[kind]
        parameters += amounts[kind] * held_times * (w.parts[kind].dense + w.parts[kind].expert)
    s.kept[stage] = kept
    s.kept_of_images[stage] = amounts[f.kinds] * w.mean_kept[f.kinds]
    s.of_layers[stage] = parameters
    if f.muon:
        dense = expert = 0.0
        for kind in range(f.kinds):
            held = amounts[kind] * held_times
            part = w.parts[kind]
            layer = layers[kind]
            dense += held * part.trained_dense * layer.muon_dense_flops
            expert += held * part.trained_expert * layer.muon_expert_flops
        s.dense_flops[stage] = dense
        s.expert_flops[stage] = expert


# -- time


@inlined
def write_time_terms(
    f: Facts,
    row: Row,
    c: CoefficientRecord,
    tables: StageTables,
    w: Workspace,
    s: Stages,
    scratch: PathScratch,
    time: Array,
) -> float:
    """Write the seconds of a step by term. Return the seconds of data-parallel traffic that is
    exposed once a step.

    Where all stages wait for the last of the passes (models.cost.pipeline.ends_together), passes
    are those of the slowest stage.
    """
    mesh, m = w.mesh[0], w.mesh[0].micro_batches
    together = ends_together(row.schedule)
    set_idle(row, tables, w, s, scratch, m)
    every = m * (s.forward[0] + s.backward[0]) + s.idle[0]
    last = slowest = 0
    latest = longest = -np.inf
    once = optimizer = sends = fetched = 0.0
    for stage in range(tables.different[row.partition]):
        both = s.forward[stage] + s.backward[stage]
        window = once_window(row, m, together, every, s.forward[stage], s.backward[stage])
        stage_once = hide_once(f, c, row, s.gather[stage], window[0])
        stage_once += hide_once(f, c, row, s.reduce[stage], window[1])
        stage_optimizer = optimizer_seconds(f, c, row, mesh, s, stage)
        # The sends of a micro-batch hide beside the passes of the others.
        beside = (1 - 1 / m) * every if together else (m - 1) * s.free[stage]
        stage_sends = exposed_sends(f, c, row, m, mesh.send, beside)
        stage_fetched = fetched_seconds(f, c, row, mesh, s, stage)
        end = m * both + s.idle[stage] + stage_once + stage_optimizer + stage_sends
        end += stage_fetched
        if both > longest:
            slowest, longest = stage, both
        if end > latest:
            last, latest = stage, end
            once = stage_once
            optimizer = stage_optimizer
            sends = stage_sends
            fetched = stage_fetched
    slow = slowest if together else last
    sum_terms(f, tables.amounts[row.partition, slow], w, m, time)
    time[DATA] += once
    time[OFFLOAD] += fetched
    time[SENDS] = sends
    # To fill and to drain the pipeline waits for a send at every hop.
    time[BUBBLE] = max(s.idle[slow], 0.0) + 2 * (row.pp - 1) * mesh.send
    time[OPTIMIZER] = optimizer
    time[FIXED] = c.step_fixed_s
    seconds = waits = waiting_for_slow_node(f, c, row, m) + m * mesh.uneven
    for term in range(JITTER):
        seconds += time[term]
    time[JITTER] = waits + seconds * mesh.straggling
    return once


@inlined
def sum_terms(f: Facts, amounts: Array, w: Workspace, m: int, time: Array) -> None:
    """Write the terms of all micro-batches on a stage with these amounts of every part."""
    compute = recompute = tensor = context = expert = data = offload = 0.0
    for index in range(f.kinds + 2):
        exposed, amount = w.exposed[index], m * amounts[index]
        compute += amount * exposed.compute
        recompute += amount * exposed.recompute
        tensor += amount * exposed.tensor
        context += amount * exposed.context
        expert += amount * exposed.expert
        data += amount * exposed.data
        offload += amount * exposed.offload
    time[COMPUTE] = compute
    time[RECOMPUTE] = recompute
    time[TENSOR] = tensor
    time[CONTEXT] = context
    time[EXPERT] = expert
    time[DATA] = data
    time[OFFLOAD] = offload


@inlined
def set_idle(
    row: Row, tables: StageTables, w: Workspace, s: Stages, scratch: PathScratch, m: int
) -> None:
    """Write the seconds that each stage is idle in a step."""
    all_forward = all_both = all_weight = 0.0
    for index in range(len(w.counts)):
        all_forward += w.counts[index] * w.part_forward[index]
        all_both += w.counts[index] * w.part_both[index]
        all_weight += w.counts[index] * w.weights[index]
    times = StageTimes(
        forward=s.forward,
        backward=s.backward,
        weight=s.weight,
        all_forward=all_forward,
        all_both=all_both,
        all_weight=all_weight,
        part_counts=w.counts,
        part_forward=w.part_forward,
        part_both=w.part_both,
    )
    bubble(
        schedule=row.schedule,
        pp=row.pp,
        virtual_stages=row.virtual_stages,
        micro_batches=m,
        partition=row.partition,
        tables=tables,
        times=times,
        idle=s.idle,
        scratch=scratch,
    )


@inlined
def once_window(
    row: Row, m: int, together: bool, every: float, forward: float, backward: float
) -> tuple[float, float]:
    """Return the seconds of forward and of backward beside which traffic that comes once a step may
    hide. They are those of the stage itself or, where stages end together, of a mean pass. `every`
    is the seconds in which stages compute or wait for one another."""
    if not together or row.pp == 1:
        return forward, backward
    one = every / passes_alike(row.pp, row.virtual_stages, m)
    return FORWARD * one, (1 - FORWARD) * one


@inlined
def exposed_sends(
    f: Facts, c: CoefficientRecord, row: Row, m: int, send: float, beside: float
) -> float:
    """Return the exposed seconds of a step's sends between stages, where they may hide beside
    `beside` seconds."""
    every = 2 * m * row.virtual_stages * send
    if not (f.overlap_pipeline and overlaps(row)):
        return every
    return every - min(c.pipeline_overlap * every, beside)


@inlined
def over_shards(mesh: Mesh, dense: float, expert: float, sharded: bool) -> float:
    """Return the parameters, or a cost in proportion to them, of one of the devices that share
    them, if they are sharded."""
    if not sharded:
        return dense + expert
    return dense / mesh.dense_shards + expert / mesh.expert_shards


@inlined
def optimizer_seconds(
    f: Facts, c: CoefficientRecord, row: Row, mesh: Mesh, s: Stages, stage: int
) -> float:
    """Return the seconds of clipping, update and Muon's five Newton-Schulz steps on every matrix
    (arXiv 2502.16982 §2.2), spread over the devices that share it. The ends of the model stay with
    AdamW."""
    sharded = row.zero_stage >= 1
    owned = over_shards(mesh, s.trained_dense[stage], s.trained_expert[stage], sharded)
    seconds = update_seconds(f, c, row, owned) + mesh.norm
    if f.muon:
        flops = over_shards(mesh, s.dense_flops[stage], s.expert_flops[stage], sharded)
        seconds += flops / (f.optimizer_flops * c.gemm_16)
    return seconds


@inlined
def fetched_seconds(
    f: Facts, c: CoefficientRecord, row: Row, mesh: Mesh, s: Stages, stage: int
) -> float:
    """Return the seconds that a step waits for parameters that are on the host. Their shards come
    for both passes of every micro-batch, or for forward alone where they are kept. They are fetched
    ahead of time, beside the passes."""
    if not (f.parameters_on_host and row.offload_optimizer and row.zero_stage == 3):
        return 0.0
    shards = over_shards(mesh, s.dense[stage], s.expert[stage], True)
    seconds = f.parameter_bytes * shards / (c.host_gb_s * 1e9)
    beside = s.forward[stage] + s.backward[stage]
    return mesh.micro_batches * max((2.0 if row.reshard else 1.0) * seconds - beside, 0.0)


@inlined
def update_seconds(f: Facts, c: CoefficientRecord, row: Row, owned: float) -> float:
    """Return the seconds of clipping (read gradients) and update (read and write states) of `owned`
    parameters, in device or host memory. A device's share of host memory is about as fast as its
    link to it."""
    states = 2 * (f.master_bytes + f.moment_bytes)
    moved = f.gradient_bytes + f.parameter_bytes
    if row.offload_optimizer:
        return owned * (states + 2 * moved) / (c.host_gb_s * 1e9)
    return owned * (states + f.gradient_bytes + moved) / (f.memory_bytes_s * c.memory)


# -- memory


class Held(NamedTuple):
    """Bytes of a stage by term. Those of activations are of all micro-batches in flight."""

    parameters: float
    gradients: float
    states: float
    activations: float
    logits: float
    host: float


@inlined
def write_memory_terms(
    f: Facts,
    row: Row,
    c: CoefficientRecord,
    tables: StageTables,
    w: Workspace,
    s: Stages,
    memory: Array,
) -> tuple[int, float]:
    """Write bytes by term on the fullest stage. Return its number, and the bytes on the host for a
    device of the stage that has most there."""
    fullest = 0
    most = -np.inf
    on_host = 0.0
    for stage in range(tables.different[row.partition]):
        held = stage_memory(f=f, row=row, c=c, tables=tables, w=w, s=s, stage=stage)
        allocated = held.parameters + held.gradients + held.states + held.activations + held.logits
        on_host = max(on_host, held.host)
        if allocated > most:
            fullest, most = stage, allocated
            memory[PARAMETERS] = held.parameters
            memory[GRADIENTS] = held.gradients
            memory[STATES] = held.states
            memory[ACTIVATIONS] = held.activations
            memory[LOGITS] = held.logits
    memory[RUNTIME] = c.context_gib * GIB
    memory[FRAGMENTATION] = most * c.fragmentation
    return tables.first_alike[row.partition, fullest], on_host


@inlined
def stage_memory(
    f: Facts,
    row: Row,
    c: CoefficientRecord,
    tables: StageTables,
    w: Workspace,
    s: Stages,
    stage: int,
) -> Held:
    mesh, regime = w.mesh[0], w.regime[0]
    dense, expert = s.trained_dense[stage], s.trained_expert[stage]
    states = state_bytes(f, row) * over_shards(mesh, dense, expert, row.zero_stage >= 1)
    times = c.activation_memory * in_flight(
        row.schedule,
        tables.first_alike[row.partition, stage],
        row.pp,
        row.virtual_stages,
        mesh.micro_batches,
    )
    flying = s.kept[stage] * times
    resident = flying
    # Offloaded activations are on the device only on their way: those of two layers at a time.
    if row.offload_activations:
        resident = min(2 * regime.largest_kept * c.activation_memory, flying)
    resident += s.kept_of_images[stage] * times
    working, logits = regime.working * c.activation_memory, 0.0
    has_head = tables.amounts[row.partition, stage, f.kinds + 1] > 0
    if has_head and mesh.logits * c.logit_memory > working:
        # Logits are freed before any layer is computed again, so that the larger of both counts.
        logits, working = mesh.logits * c.logit_memory, 0.0
    return Held(
        parameters=parameter_bytes(f, row, mesh, s, stage),
        gradients=gradient_bytes(f, row, mesh, regime, dense, expert),
        states=0.0 if row.offload_optimizer else states,
        activations=resident + working,
        logits=logits + (mesh.kept_logits if has_head else 0.0),
        host=offloaded_bytes(f, row, mesh, s, stage, states)
        + (flying if row.offload_activations else 0.0),
    )


@inlined
def offloaded_bytes(f: Facts, row: Row, mesh: Mesh, s: Stages, stage: int, states: float) -> float:
    """Return the bytes that go to the host with the optimizer: its states; gradients in fp32 where
    they go with them; and parameters where they are on the host beside the fp32 ones. Copies of the
    whole model that ranks may load before it is sharded are not counted."""
    if not row.offload_optimizer:
        return 0.0
    size = states
    if f.offloads_gradients and row.zero_stage >= 2:
        trained = over_shards(mesh, s.trained_dense[stage], s.trained_expert[stage], True)
        size += HOST_GRADIENT_BYTES * trained
    if f.parameters_on_host and f.parameter_shards and row.zero_stage == 3:
        size += f.base_bytes * over_shards(mesh, s.dense[stage], s.expert[stage], True)
    return f.host_buffers * size


@inlined
def state_bytes(f: Facts, row: Row) -> float:
    """Return the bytes of a parameter's master copy and moments. FSDP's sharded parameters are the
    fp32 copy, whatever the parameters in use are."""
    return f.moment_bytes + (f.sharded_master_bytes if row.zero_stage == 3 else f.master_bytes)


@inlined
def parameter_bytes(f: Facts, row: Row, mesh: Mesh, s: Stages, stage: int) -> float:
    """Return the bytes of parameters in use.

    FSDP keeps only the sharded master copy (counted with the optimizer) and two gathered layers,
    unless it does not reshard. Parameters that the host updates come back as shards, unless all are
    on the host. Where none are gathered, copies of layers in the format of GEMMs may lie beside. A
    reference model is sharded as the trained one is (TRL models/utils.py, prepare_deepspeed and
    prepare_fsdp).
    """
    dense = s.dense[stage]
    expert = s.expert[stage]
    layers = s.of_layers[stage]
    ends = dense + expert - layers  # The ends are not quantized where layers are.
    copies = f.reference_copies * f.parameter_bytes
    if row.zero_stage < 3:
        of_layers = f.base_bytes * layers + f.parameter_bytes * ends + f.operand_bytes * layers
        return of_layers + copies * (dense + expert)
    held = dense + expert
    if row.reshard:
        held = min(2 * mesh.largest_unit, held)
    size = f.parameter_bytes * held
    on_host = row.offload_optimizer and f.parameters_on_host
    if (row.offload_optimizer or f.parameter_shards) and not on_host:
        size += f.base_bytes * over_shards(mesh, dense, expert, True)
        size += (f.parameter_bytes - f.base_bytes) * ends / mesh.dense_shards
    return size + copies * over_shards(mesh, dense, expert, True)


@inlined
def gradient_bytes(
    f: Facts, row: Row, mesh: Mesh, regime: Regime, dense: float, expert: float
) -> float:
    """Return the bytes of accumulated gradients, unless these are on the host, and of the gradients
    of the layer that is being reduced."""
    sharded = row.zero_stage >= 2 and not regime.once
    size = f.gradient_bytes * over_shards(mesh, dense, expert, sharded)
    if row.offload_optimizer and f.offloads_gradients and row.zero_stage >= 2:
        size = 0.0
    if sharded and f.trains_layers:
        size += f.gradient_reduction_bytes * mesh.largest_unit
    return size


# -- one layout after the other


@compiled
def set_mesh(
    q: ProblemRecords,
    row: Row,
    c: CoefficientRecord,
    piece_bits: int,
    least: LeastLinks,
    buffers: Buffers,
) -> None:
    """Work out what a layout's mesh decides, and its shard unless that is known. Where the layout
    is not placed, the least links stand for those of its placement."""
    f, w = q.facts[0], buffers.workspace
    shard = shard_of(f, row)
    if not same_shard(row, buffers.shard[0]):
        of_images = encoder_shard(q.images, row)
        set_shard(
            q=q,
            shard=shard,
            of_images=of_images,
            c=c,
            piece_bits=piece_bits,
            parts=w.parts,
            again=w.again,
            kept=w.kept,
            pieces=w.pieces,
        )
        buffers.shard[0] = row
    if row.placement < 0:
        links = least_links(f, row, least, w.dispatch)
    else:
        links = links_of(
            f=f,
            layers=q.layers,
            dims=q.dims,
            order=q.order,
            row=row,
            c=c,
            g=buffers.groups,
            dispatch=w.dispatch,
        )
    set_traffic(
        q=q,
        row=row,
        shard=shard,
        c=c,
        links=links,
        dispatch=w.dispatch,
        parts=w.parts,
        mesh=w.mesh[0],
    )
    w.mesh[0].undecided = row.placement < 0
    buffers.row[0].policy = -1  # Nothing is exposed on this mesh yet.


@inlined
def set_step(
    q: ProblemRecords,
    row: Row,
    c: CoefficientRecord,
    tables: StageTables,
    buffers: Buffers,
    time: Array,
) -> float:
    """Write the seconds of a step by term. Return the seconds of data-parallel traffic that it
    exposes once a step."""
    f = q.facts[0]
    w = buffers.workspace
    s = buffers.stages
    fill_stages(f, q.layers, row, tables, w, s)
    return write_time_terms(
        f=f, row=row, c=c, tables=tables, w=w, s=s, scratch=buffers.scratch, time=time
    )


@inlined
def set_memory(
    q: ProblemRecords,
    row: Row,
    c: CoefficientRecord,
    tables: StageTables,
    buffers: Buffers,
    memory: Array,
) -> tuple[int, float]:
    """Write bytes by term on the fullest stage. Return its number, and the bytes on the host.
    `set_step` must have written the stages."""
    return write_memory_terms(
        f=q.facts[0],
        row=row,
        c=c,
        tables=tables,
        w=buffers.workspace,
        s=buffers.stages,
        memory=memory,
    )


class Costs(NamedTuple):
    """Holds the time and the memory of n layouts."""

    time: Array
    """Seconds of a step by term, (n, terms)."""
    memory: Array
    """Bytes by term on the fullest stage, (n, terms)."""
    fullest: Array
    """The number of the fullest stage, (n,)."""
    host: Array
    """Bytes on the host, (n,)."""
    once: Array
    """Seconds of data-parallel traffic exposed once a step, (n,)."""


def empty_costs(n: int) -> Costs:
    return Costs(
        np.empty((n, len(TIME))),
        np.empty((n, len(MEMORY))),
        np.empty(n, dtype=np.int64),
        np.empty(n),
        np.empty(n),
    )


@compiled
def predict_rows(
    q: ProblemRecords,
    tables: StageTables,
    rows: Array,
    coefficients: Array,
    least: LeastLinks,
    buffers: Buffers,
    costs: Costs,
) -> None:
    """Write the costs of n layouts, under one set of coefficients or one for each. A layout that
    has its shard, mesh or regime in common with the one before it reuses them."""
    piece_bits, drawn = repeated_pieces(q.policies), len(coefficients) > 1
    reset(buffers)
    before = buffers.shard[0]
    for i in range(len(rows)):
        row, c = rows[i], coefficients[i if drawn else 0]
        if drawn:
            reset(buffers)
        new_mesh = buffers.shard[0].micro_batch == 0
        new_mesh = new_mesh or not (same_shard(row, before) and same_mesh(row, before))
        if new_mesh:
            set_mesh(q, row, c, piece_bits, least, buffers)
        if new_mesh or not same_regime(row, before):
            expose_parts(q.facts[0], q.layers, q.policies, row, c, buffers.workspace)
        costs.once[i] = set_step(q, row, c, tables, buffers, costs.time[i])
        costs.fullest[i], costs.host[i] = set_memory(q, row, c, tables, buffers, costs.memory[i])
        before = row


@inlined
def same_mesh(one: Row, other: Row) -> bool:
    """Say whether two layouts whose shards are alike have the same mesh, placed alike."""
    return (
        one.pp == other.pp
        and one.dp_shard == other.dp_shard
        and one.dp_replicate == other.dp_replicate
        and one.placement == other.placement
        and one.filling == other.filling
    )


@inlined
def same_regime(one: Row, other: Row) -> bool:
    """Say whether the parts of two layouts on the same mesh run alike."""
    return (
        one.policy == other.policy
        and one.recompute_layers == other.recompute_layers
        and one.offload_activations == other.offload_activations
        and one.zero_stage == other.zero_stage
        and one.reshard == other.reshard
        and (one.recompute_layers == 0 or one.virtual_stages == other.virtual_stages)
        and overlaps(one) == overlaps(other)
        and moves_weight_gradients(one.schedule) == moves_weight_gradients(other.schedule)
    )


@compiled
def repeated_pieces(policies: Array) -> int:
    """Return the pieces that some policy repeats, a bit each."""
    piece_bits = 0
    for policy in range(len(policies)):
        for kind in range(policies.shape[1]):
            piece_bits |= policies[policy, kind].pieces
    return piece_bits
