"""The parts of a layout, and the stages of its pipeline as sums over their parts.

A *part* is a layer of one kind, the embedding or the head. Communication is *exposed* where no
compute hides it. A *regime* is what ZeRO, recompute, offload and the schedule decide about how
parts run. Stages that have equal parts are worked out once, as one *distinct* stage.
"""

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
from models.cost.overlap import Exposed, Regime, expose_end, expose_layer, set_regime
from models.cost.pipeline.bubble import moves_weight_gradients, scratch_for
from models.cost.pipeline.makespan import TurningStages
from models.cost.rows import ROW, Row, StageTables
from models.layouts.groups import Groups, groups_for
from models.spec.layout import DUALPIPE

PART, MESH, EXPOSED, REGIME = (record_type(cls) for cls in (Part, Mesh, Exposed, Regime))


class Stages(NamedTuple):
    """Holds the distinct stages of a pipeline, in arrays of shape (stages,). Seconds are those of
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
    """Holds intermediate results of one layout on the way to its step time."""

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
    recompute: Array
    """Seconds that a recompute policy adds to backward, (policies, parts)."""
    kept: Array
    """Bytes that a part keeps under a recompute policy, (policies, parts)."""
    pieces: Array
    """Seconds or bytes of the pieces of one layer, (LAST_PRODUCT + 1,)."""
    dispatch: Array
    """The cost of an exchange of tokens with experts, (kinds, 2): seconds for each byte, and the
    latency in seconds."""


def workspace_for(layers: Array, policies: Array) -> Workspace:
    """Return a workspace for layouts of a model whose kinds of layers have the records `layers`
    (kinds,), under recompute policies with the records `policies` (policies, kinds)."""
    kinds = len(layers)
    parts = kinds + 2  # the embedding and the head follow the kinds
    counts = np.ones(parts)
    counts[:kinds] = layers["num_layers"]
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
        recompute=np.zeros((len(policies), parts)),
        kept=np.zeros((len(policies), parts)),
        pieces=np.zeros(LAST_PRODUCT + 1),  # one for each piece of a layer, LAST_PRODUCT the last
        dispatch=np.zeros((kinds, 2)),  # seconds for each byte, and the latency
    )


def stages_for(tables: StageTables) -> Stages:
    """Return arrays with room for the stages of any partition in `tables`."""
    return Stages(*np.zeros((len(Stages._fields), tables.amounts.shape[1])))


class Buffers(NamedTuple):
    """Holds the arrays in which compiled functions work, one layout after the other."""

    workspace: Workspace
    stages: Stages
    scratch: TurningStages
    groups: Groups
    row: Array
    """The layout whose exposed seconds the workspace has, a record of Row (1,)."""
    shard: Array
    """The layout whose kernel times and sizes the workspace has, a record of Row (1,)."""


def buffers_for(question: ProblemRecords, tables: StageTables) -> Buffers:
    """Return buffers for any layout of a problem whose partition is in `tables`. They must be
    `reset` before a layout is worked out in them."""
    return Buffers(
        workspace=workspace_for(question.layers, question.policies),
        stages=stages_for(tables),
        scratch=scratch_for(tables),
        groups=groups_for(question.order),
        row=np.zeros(1, ROW),
        shard=np.zeros(1, ROW),
    )


@inlined
def reset(buffers: Buffers) -> None:
    """Mark what the buffers hold as stale. This must be done before another problem or other
    coefficients are used with them."""
    # No layout has a micro_batch of 0 or a policy of -1, so the next one equals neither record.
    buffers.shard[0].micro_batch = 0
    buffers.row[0].policy = -1


@compiled
def expose_parts(
    question: ProblemRecords, row: Row, coefficients: CoefficientRecord, workspace: Workspace
) -> None:
    """Write to the workspace the exposed seconds of every part of the model (layer kinds, embedding
    and head): its compute, and the communication that no compute hides. Where the schedule moves
    weight gradients, write also the seconds by which these make a part longer."""
    facts = question.facts[0]
    set_regime_and_kept(facts, question.policies, row, workspace)
    moves_weights = moves_weight_gradients(row.schedule)
    for index in range(facts.kinds + 2):
        # 0.0: backward keeps all of its weight gradients.
        exposed = expose_part(question, row, coefficients, workspace, index, 0.0)
        set_exposed(workspace, index, exposed)
        workspace.weights[index] = 0.0
        # Without weight gradients less traffic may hide: their effect is the difference of the two.
        if moves_weights:
            weight = workspace.parts[index].weight
            without = expose_part(question, row, coefficients, workspace, index, weight)
            workspace.weights[index] = exposed.both - without.both
    set_once_a_step(facts, row, workspace)


@inlined
def expose_part(
    question: ProblemRecords,
    row: Row,
    coefficients: CoefficientRecord,
    workspace: Workspace,
    index: int,
    weight: float,
) -> Exposed:
    """Return the exposed seconds of a part of the model, with `weight` seconds of weight gradients
    taken out of its backward. `index` counts the kinds of layers, then the embedding and the
    head."""
    facts = question.facts[0]
    policies = question.policies
    part = workspace.parts[index]
    regime = workspace.regime[0]
    recompute = workspace.recompute[row.policy, index] * regime.share
    if index >= facts.kinds:
        # Full recompute is on for every kind of layer, and for the encoder of images in the
        # embedding, or for none: the record of the last kind says which.
        is_full = policies[row.policy, facts.last_kind].whole
        fully_recomputed = regime.share if is_full else 0.0
        return expose_end(
            f=facts,
            part=part,
            regime=regime,
            c=coefficients,
            weight=weight,
            recompute=recompute,
            fully_recomputed=fully_recomputed,
        )
    return expose_layer(
        f=facts,
        layer=question.layers[index],
        part=part,
        policy=policies[row.policy, index],
        row=row,
        mesh=workspace.mesh[0],
        regime=regime,
        c=coefficients,
        weight=weight,
        recompute=recompute,
        kept=workspace.mean_kept[index],
    )


@inlined
def set_regime_and_kept(facts: Facts, policies: Array, row: Row, workspace: Workspace) -> None:
    """Set the workspace's Regime for a layout, and the bytes of activations that every part keeps:
    the mean over layers that are recomputed and layers that are not. The regime also gets the bytes
    kept by the largest layer, and the bytes in use while a layer is computed again."""
    regime = workspace.regime[0]
    set_regime(
        facts, row, workspace.mesh[0].micro_batches, repeats_experts(policies, row.policy), regime
    )
    largest = working = 0.0
    for part in range(facts.kinds + 2):  # The embedding and the head follow the kinds.
        # Policy 0 recomputes nothing, so a part keeps all of its activations under it.
        whole, kept = workspace.kept[0, part], workspace.kept[row.policy, part]
        workspace.mean_kept[part] = regime.share * kept + (1 - regime.share) * whole
        if part < facts.kinds:
            largest = max(largest, workspace.mean_kept[part])
            working = max(working, whole - kept)
        elif facts.encoder_layers > 0:  # The encoder computes one of its layers again at a time.
            working = max(working, (whole - kept) / facts.encoder_layers)
    regime.largest_kept = largest
    # All-gathered keys are in use beside the layer; a ring and Ulysses hold no such copy.
    regime.working = working + (
        workspace.mesh[0].whole_keys if facts.context == CONTEXT_ALLGATHER else 0.0
    )


@inlined
def set_once_a_step(facts: Facts, row: Row, workspace: Workspace) -> None:
    """Write the seconds of data-parallel traffic that every part has once a step, before any
    overlap: gathers of parameters and reductions of gradients. What comes with every micro-batch
    instead counts in `expose_data`, and is 0 here."""
    once = workspace.regime[0].once
    # ZeRO 1 and 2 gather the updated parameters; ZeRO 3 does so where it keeps them for the step.
    gathers = 1 <= row.zero_stage <= 2 or (once and row.zero_stage == 3)
    # Gradients that are not sharded are all-reduced; some stacks do so under ZeRO 1 too.
    whole = row.zero_stage <= (1 if facts.whole_gradients else 0)
    for index in range(facts.kinds + 2):  # The embedding and the head follow the kinds.
        part = workspace.parts[index]
        workspace.gather_once[index] = part.gather if gathers else 0.0
        reduced = part.reduce if whole else part.scatter
        workspace.reduce_once[index] = reduced if once else 0.0


@inlined
def set_exposed(workspace: Workspace, index: int, exposed: Exposed) -> None:
    """Copy the exposed seconds of part `index` into the arrays of the workspace. Sums over parts
    read `forward` and `both` from plain arrays, so these two are copied there too."""
    record = workspace.exposed[index]
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
    workspace.part_forward[index] = exposed.forward
    workspace.part_both[index] = exposed.both


@compiled
def repeats_experts(policies: Array, policy: int) -> bool:
    """Say whether the recompute policy of this number repeats the exchange of tokens with experts
    in some kind of layer. `policies` has shape (policies, kinds)."""
    for kind in range(policies.shape[1]):
        if policies[policy, kind].expert > 0:
            return True
    return False


@inlined
def fill_stages(
    question: ProblemRecords, row: Row, tables: StageTables, workspace: Workspace, stages: Stages
) -> None:
    """Write to `stages` the sums over the parts of each distinct stage of a layout's partition:
    seconds of passes and traffic, parameters, bytes kept, and FLOPs of Muon."""
    facts = question.facts[0]
    embedding = facts.kinds
    # `amounts` has half of a DualPipe stage's layers, as it does half of the work on them. It holds
    # their parameters whole.
    held_times = 2.0 if row.schedule == DUALPIPE else 1.0
    for stage in range(tables.distinct_count[row.partition]):
        amounts = tables.amounts[row.partition, stage]
        forward = both = weight = free = dense = expert = gather = reduce = 0.0
        trained_dense = trained_expert = kept = of_layers = dense_flops = expert_flops = 0.0
        for index in range(facts.kinds + 2):
            amount = amounts[index]
            part, held = workspace.parts[index], amount * held_times
            forward += amount * workspace.exposed[index].forward
            both += amount * workspace.exposed[index].both
            free += amount * workspace.exposed[index].free
            weight += amount * workspace.weights[index]
            tied = 0.0
            if facts.tied_embedding and index == embedding:
                # The head's stage has a copy of the embedding without the encoder of images, unless
                # the embedding itself is on that stage.
                tied = max(amounts[embedding + 1] * held_times - held, 0.0)
            all_held = held + tied * (1 - part.encoder_share)
            trained_held = held + tied * (1 - part.trained_encoder_share)
            dense += all_held * part.dense
            expert += held * part.expert
            trained_dense += trained_held * part.trained_dense
            trained_expert += held * part.trained_expert
            gather += all_held * workspace.gather_once[index]
            reduce += trained_held * workspace.reduce_once[index]
            if index < facts.kinds:
                kept += amount * workspace.mean_kept[index]
                of_layers += held * (part.dense + part.expert)
                layer = question.layers[index]
                dense_flops += held * part.trained_dense * layer.muon_dense_flops
                expert_flops += held * part.trained_expert * layer.muon_expert_flops
        stages.forward[stage] = forward
        stages.backward[stage] = both - forward
        stages.weight[stage] = weight
        stages.free[stage] = free
        stages.dense[stage] = dense
        stages.expert[stage] = expert
        stages.trained_dense[stage] = trained_dense
        stages.trained_expert[stage] = trained_expert
        stages.gather[stage] = gather
        stages.reduce[stage] = reduce
        stages.kept[stage] = kept
        stages.kept_of_images[stage] = amounts[embedding] * workspace.mean_kept[embedding]
        stages.of_layers[stage] = of_layers
        stages.dense_flops[stage] = dense_flops
        stages.expert_flops[stage] = expert_flops
