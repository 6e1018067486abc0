"""The parts of a layout, and the stages of its pipeline as sums over their parts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from models.columns import Array
from models.compilation.compiled import compiled, inlined
from models.cost.facts import (
    CONTEXT_ALLGATHER,
    LAST_PRODUCT,
    CoefficientRecord,
    Facts,
    ProblemRecords,
    record_type,
)
from models.cost.mesh import Mesh, Part
from models.cost.overlap import (
    Exposed,
    Regime,
    expose_end,
    expose_layer,
    set_regime,
)
from models.cost.pipeline import PathScratch, moves_weight_gradients, scratch_for
from models.cost.rows import ROW, Row, StageTables
from models.layouts.groups import Groups, groups_for
from models.spec.layout import DUALPIPE

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
        exposed = expose_layer(
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
        set_exposed(w, kind, exposed)
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
            w.weights[kind] = exposed.both - without.both
    whole = regime.share if policies[row.policy, f.last_kind].whole else 0.0
    for end in range(f.kinds, f.kinds + 2):
        part, again = w.parts[end], w.again[row.policy, end] * regime.share
        exposed = expose_end(
            f=f, part=part, regime=regime, c=c, weight=0.0, again=again, whole=whole
        )
        set_exposed(w, end, exposed)
        w.weights[end] = 0.0
        if moves_weights:
            without = expose_end(
                f=f, part=part, regime=regime, c=c, weight=part.weight, again=again, whole=whole
            )
            w.weights[end] = exposed.both - without.both
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
def set_exposed(w: Workspace, index: int, exposed: Exposed) -> None:
    record = w.exposed[index]
    record.forward = exposed.forward
    record.both = exposed.both
    record.free = exposed.free
    record.compute = exposed.compute
    record.recompute = exposed.recompute
    record.tensor = exposed.tensor
    record.context = exposed.context
    record.expert = exposed.expert
    record.data = exposed.data
    record.offload = exposed.offload
    w.part_forward[index] = exposed.forward
    w.part_both[index] = exposed.both


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
