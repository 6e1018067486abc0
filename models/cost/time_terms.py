"""The time of a step by term.

It is that of the stage that is last to finish its own passes, waiting, gradient reduction and
update. Stages that have equal layers are worked out once, as one *distinct* stage. Communication is
*exposed* where no compute hides it. `m` is the number of micro-batches, `f` are the facts of the
problem and `c` the coefficients of its profile (models.cost.facts).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from models.columns import Array
from models.compilation.compiled import inlined
from models.cost.facts import CoefficientRecord, Facts, ProblemRecords
from models.cost.mesh import Mesh
from models.cost.overlap import exposed_once, overlaps_micro_batches, waiting_for_slow_node
from models.cost.pipeline.bubble import (
    FORWARD,
    StageTimes,
    bubble,
    ends_together,
    length_of_equal_stages,
)
from models.cost.rows import Row, StageTables
from models.cost.stages import Buffers, Stages, Workspace

TIME = (
    "compute_s", "recompute_s", "tensor_s", "context_s", "expert_s", "data_s", "pipeline_s",
    "bubble_s", "offload_s", "optimizer_s", "fixed_s", "jitter_s",
)  # fmt: skip
(
    COMPUTE, RECOMPUTE, TENSOR, CONTEXT, EXPERT, DATA, SENDS,
    BUBBLE, OFFLOAD, OPTIMIZER, FIXED, JITTER,
) = range(len(TIME))  # fmt: skip


class StageEnding(NamedTuple):
    """Holds the seconds of a step that a stage spends outside its passes and its waits for other
    stages."""

    once: float
    """Exposed data-parallel traffic that comes once a step."""
    optimizer: float
    sends: float
    """Exposed sends between stages."""
    fetched: float
    """Waits for parameters from the host."""


@inlined
def write_time_terms(
    question: ProblemRecords,
    row: Row,
    c: CoefficientRecord,
    tables: StageTables,
    buffers: Buffers,
    time: Array,
) -> float:
    """Write the seconds of a step to `time`, by term. Return the exposed seconds of data-parallel
    traffic that comes once a step. `buffers` hold the layout's exposed parts and its stages.

    Terms are those of the stage that is last to finish. Where all stages wait for the last pass
    (models.cost.pipeline.bubble.ends_together), the terms of the passes are the slowest stage's.
    """
    f = question.facts[0]
    workspace, stages = buffers.workspace, buffers.stages
    mesh, m = workspace.mesh[0], workspace.mesh[0].micro_batches
    together = ends_together(row.schedule)
    set_idle(row, tables, buffers)
    # Seconds in which stages that end together compute or wait for one another. They are the same
    # for all these stages, so the first one's are taken. Under other schedules the value means
    # nothing, and is not used.
    length = m * (stages.forward[0] + stages.backward[0]) + stages.idle[0]
    last = slowest = 0
    latest = longest = -np.inf
    stage_count = tables.distinct_count[row.partition]
    for stage in range(stage_count):
        both = stages.forward[stage] + stages.backward[stage]
        if both > longest:
            slowest, longest = stage, both
    ending = StageEnding(0.0, 0.0, 0.0, 0.0)
    for stage in range(stage_count):
        both = stages.forward[stage] + stages.backward[stage]
        # The sends of a micro-batch hide beside the passes of the others: where stages do not end
        # together, beside the seconds of these passes that hide no other traffic (`free`).
        beside = (1 - 1 / m) * length if together else (m - 1) * stages.free[stage]
        # A stage that waits for the others fetches parameters from the host beside these waits too.
        covered = length if together else m * both
        fetched = fetched_seconds(f, c, row, mesh, stages, stage, covered)
        # Traffic that comes once a step hides beside waits for the host too. Otherwise a step whose
        # passes get shorter, and whose waits for the host get longer by as much, would take longer.
        stage_ending = StageEnding(
            once=once_seconds(f, c, row, m, length + fetched, stages, stage),
            optimizer=optimizer_seconds(f, c, row, mesh, stages, stage),
            sends=exposed_sends(f, c, row, m, mesh.send, beside),
            fetched=fetched,
        )
        end = m * both + stages.idle[stage] + stage_ending.once + stage_ending.optimizer
        end = end + stage_ending.sends + stage_ending.fetched
        if end > latest:
            last, latest, ending = stage, end, stage_ending
    stage = slowest if together else last
    sum_terms(f, tables.amounts[row.partition, stage], workspace, m, time)
    time[DATA] += ending.once
    time[OFFLOAD] += ending.fetched
    time[SENDS] = ending.sends
    # While it fills and drains, the pipeline waits for a send at every hop.
    # A closed form that is only near may be below the stage's own work, hence the 0.
    time[BUBBLE] = max(stages.idle[stage], 0.0) + 2 * (row.pp - 1) * mesh.send
    time[OPTIMIZER] = ending.optimizer
    time[FIXED] = c.step_fixed_s
    # Jitter is waits for slow nodes and long documents, and a share of the step for stragglers.
    seconds = waits = waiting_for_slow_node(f, c, row, m) + m * mesh.uneven
    for term in range(JITTER):
        seconds += time[term]
    time[JITTER] = waits + seconds * mesh.straggling
    return ending.once


@inlined
def sum_terms(f: Facts, amounts: Array, workspace: Workspace, m: int, time: Array) -> None:
    """Write to `time` the terms of all m micro-batches on one stage, without what comes once a
    step. `amounts` (parts,) is how much of each part of the model the stage has."""
    compute = recompute = tensor = context = expert = data = offload = 0.0
    for index in range(f.kinds + 2):  # The embedding and the head follow the kinds of layers.
        exposed, amount = workspace.exposed[index], m * amounts[index]
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
def set_idle(row: Row, tables: StageTables, buffers: Buffers) -> None:
    """Write to `buffers.stages` the seconds that each distinct stage is idle in a step, while the
    pipeline fills and drains."""
    workspace, stages = buffers.workspace, buffers.stages
    all_forward = all_both = all_weight = 0.0
    for index in range(len(workspace.counts)):
        all_forward += workspace.counts[index] * workspace.part_forward[index]
        all_both += workspace.counts[index] * workspace.part_both[index]
        all_weight += workspace.counts[index] * workspace.weights[index]
    times = StageTimes(
        forward=stages.forward,
        backward=stages.backward,
        weight=stages.weight,
        all_forward=all_forward,
        all_both=all_both,
        all_weight=all_weight,
        part_counts=workspace.counts,
        part_forward=workspace.part_forward,
        part_both=workspace.part_both,
    )
    micro_batches = workspace.mesh[0].micro_batches
    bubble(row, micro_batches, tables, times, stages.idle, buffers.scratch)


@inlined
def once_seconds(
    f: Facts, c: CoefficientRecord, row: Row, m: int, length: float, stages: Stages, stage: int
) -> float:
    """Return the exposed seconds of a stage's data-parallel traffic that comes once a step. Gathers
    of parameters may hide beside one forward, and reductions of gradients beside one backward. The
    two passes are the stage's own or, in a pipeline whose stages end together, those of a mean
    stage. These are worked out from `length`, the seconds in which such stages compute or wait for
    one another."""
    forward, backward = stages.forward[stage], stages.backward[stage]
    if ends_together(row.schedule) and row.pp > 1:
        # FORWARD is the share of a forward in both passes.
        both = length / length_of_equal_stages(row.pp, row.virtual_stages, m)
        forward, backward = FORWARD * both, (1 - FORWARD) * both
    gathers = exposed_once(f, c, row, stages.gather[stage], forward)
    return gathers + exposed_once(f, c, row, stages.reduce[stage], backward)


@inlined
def exposed_sends(
    f: Facts, c: CoefficientRecord, row: Row, m: int, send: float, beside: float
) -> float:
    """Return the exposed seconds of a stage's sends to its neighbours in a step. One send takes
    `send` seconds, and a chunk has two for each micro-batch: of activations forward and of their
    gradients back. `beside` is the seconds of compute that the sends may hide behind."""
    seconds = 2 * m * row.virtual_stages * send
    if not (f.overlap_pipeline and overlaps_micro_batches(row)):
        return seconds
    return seconds - min(c.pipeline_overlap * seconds, beside)


@inlined
def over_shards(mesh: Mesh, dense: float, expert: float, sharded: bool) -> float:
    """Return one device's part of an amount that is in proportion to its parameters: `dense` for
    those outside experts and `expert` for those inside. If sharded, each is divided by the devices
    that share it."""
    if not sharded:
        return dense + expert
    return dense / mesh.dense_shards + expert / mesh.expert_shards


@inlined
def optimizer_seconds(
    f: Facts, c: CoefficientRecord, row: Row, mesh: Mesh, stages: Stages, stage: int
) -> float:
    """Return the seconds of a stage for clipping, the update and the norm of gradients, once a
    step. Muon adds five Newton-Schulz steps on every matrix of the layers (arXiv 2502.16982 §2.2),
    spread over the devices that share it. The ends of the model stay with AdamW."""
    sharded = row.zero_stage >= 1
    owned = over_shards(mesh, stages.trained_dense[stage], stages.trained_expert[stage], sharded)
    seconds = update_seconds(f, c, row, owned) + mesh.norm
    if f.muon:
        flops = over_shards(mesh, stages.dense_flops[stage], stages.expert_flops[stage], sharded)
        seconds += flops / (f.optimizer_flops * c.gemm_16)
    return seconds


@inlined
def fetched_seconds(
    f: Facts,
    c: CoefficientRecord,
    row: Row,
    mesh: Mesh,
    stages: Stages,
    stage: int,
    beside: float,
) -> float:
    """Return the seconds that a stage waits in a step for parameters that ZeRO 3 keeps on the host;
    0 for other layouts. Shards are fetched in every micro-batch, for both passes with `reshard` and
    for forward alone without, and hide behind `beside` seconds of the step."""
    if not (f.parameters_on_host and row.offload_optimizer and row.zero_stage == 3):
        return 0.0
    # True: under ZeRO 3 a device fetches its own shard alone.
    shards = over_shards(mesh, stages.dense[stage], stages.expert[stage], True)
    seconds = f.parameter_bytes * shards / (c.host_gb_s * 1e9)
    fetches = mesh.micro_batches * (2.0 if row.reshard else 1.0)
    return max(fetches * seconds - beside, 0.0)


@inlined
def update_seconds(f: Facts, c: CoefficientRecord, row: Row, owned: float) -> float:
    """Return the seconds of clipping (read gradients) and update (read and write states) of `owned`
    parameters, in device or host memory."""
    states = 2 * (f.master_bytes + f.moment_bytes)  # read and written
    moved = f.gradient_bytes + f.parameter_bytes
    # Gradients and parameters also travel between device and host. A device's share of host memory
    # is about as fast as its link to the host.
    if row.offload_optimizer:
        return owned * (states + 2 * moved) / (c.host_gb_s * 1e9)
    # Gradients are read twice, for clipping and for the update.
    return owned * (states + f.gradient_bytes + moved) / (f.memory_bytes_s * c.memory)
