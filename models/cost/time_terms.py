"""The time of a step by term.

It is that of the stage that is last to finish its own passes, waiting, gradient reduction and
update.
"""

from __future__ import annotations

import numpy as np

from models.columns import Array
from models.compilation.compiled import inlined
from models.cost.facts import CoefficientRecord, Facts
from models.cost.mesh import Mesh
from models.cost.overlap import hide_once, overlaps, waiting_for_slow_node
from models.cost.pipeline.bubble import (
    FORWARD,
    PathScratch,
    StageTimes,
    bubble,
    ends_together,
    passes_alike,
)
from models.cost.rows import Row, StageTables
from models.cost.stages import Stages, Workspace

TIME = (
    "compute_s", "recompute_s", "tensor_s", "context_s", "expert_s", "data_s", "pipeline_s",
    "bubble_s", "offload_s", "optimizer_s", "fixed_s", "jitter_s",
)  # fmt: skip
(
    COMPUTE, RECOMPUTE, TENSOR, CONTEXT, EXPERT, DATA, SENDS,
    BUBBLE, OFFLOAD, OPTIMIZER, FIXED, JITTER,
) = range(len(TIME))  # fmt: skip


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
    """Write the seconds of a step to `time`, by term. Return the exposed seconds of data-parallel
    traffic that comes once a step. `w` and `s` hold the layout's parts and stages.

    Terms are those of the stage that is last to finish. Where all stages wait for the last pass
    (models.cost.pipeline.bubble.ends_together), the terms of the passes are the slowest stage's.
    """
    mesh, m = w.mesh[0], w.mesh[0].micro_batches
    together = ends_together(row.schedule)
    set_idle(row, tables, w, s, scratch, m)
    every = m * (s.forward[0] + s.backward[0]) + s.idle[0]
    last = slowest = 0
    latest = longest = -np.inf
    stages = tables.different[row.partition]
    for stage in range(stages):
        both = s.forward[stage] + s.backward[stage]
        if both > longest:
            slowest, longest = stage, both
    once = optimizer = sends = fetched = 0.0
    for stage in range(stages):
        both = s.forward[stage] + s.backward[stage]
        window = once_window(row, m, together, every, s.forward[stage], s.backward[stage])
        stage_once = hide_once(f, c, row, s.gather[stage], window[0])
        stage_once += hide_once(f, c, row, s.reduce[stage], window[1])
        stage_optimizer = optimizer_seconds(f, c, row, mesh, s, stage)
        # The sends of a micro-batch hide beside the passes of the others.
        beside = (1 - 1 / m) * every if together else (m - 1) * s.free[stage]
        stage_sends = exposed_sends(f, c, row, m, mesh.send, beside)
        # A stage that waits for the others fetches beside these waits too.
        stage_fetched = fetched_seconds(f, c, row, mesh, s, stage, every if together else m * both)
        end = m * both + s.idle[stage] + stage_once + stage_optimizer + stage_sends
        end += stage_fetched
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
    """Write to `time` the terms of all m micro-batches on one stage, without what comes once a
    step. `amounts` (parts,) is how much of each part of the model the stage has."""
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
    """Write to `s.idle` the seconds that each distinct stage is idle in a step of m micro-batches,
    while the pipeline fills and drains."""
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
    """Return the seconds of one forward and of one backward beside which traffic that comes once a
    step may hide. They are the stage's own or, where stages end together, those of a mean stage.
    `every` is then the seconds of a step in which stages compute or wait for one another."""
    if not together or row.pp == 1:
        return forward, backward
    one = every / passes_alike(row.pp, row.virtual_stages, m)
    return FORWARD * one, (1 - FORWARD) * one


@inlined
def exposed_sends(
    f: Facts, c: CoefficientRecord, row: Row, m: int, send: float, beside: float
) -> float:
    """Return the exposed seconds of a stage's sends in a step. `send` is the seconds of one, of
    which each chunk has two a micro-batch; `beside` is the compute that they may hide behind."""
    every = 2 * m * row.virtual_stages * send
    if not (f.overlap_pipeline and overlaps(row)):
        return every
    return every - min(c.pipeline_overlap * every, beside)


@inlined
def over_shards(mesh: Mesh, dense: float, expert: float, sharded: bool) -> float:
    """Return one device's part of an amount in proportion to parameters, outside (`dense`) and
    inside experts (`expert`). If sharded, each is divided by the devices that share it."""
    if not sharded:
        return dense + expert
    return dense / mesh.dense_shards + expert / mesh.expert_shards


@inlined
def optimizer_seconds(
    f: Facts, c: CoefficientRecord, row: Row, mesh: Mesh, s: Stages, stage: int
) -> float:
    """Return the seconds of a stage for clipping, the update and the norm of gradients, once a
    step. Muon adds five Newton-Schulz steps on every matrix of the layers (arXiv 2502.16982 §2.2),
    spread over the devices that share it. The ends of the model stay with AdamW."""
    sharded = row.zero_stage >= 1
    owned = over_shards(mesh, s.trained_dense[stage], s.trained_expert[stage], sharded)
    seconds = update_seconds(f, c, row, owned) + mesh.norm
    if f.muon:
        flops = over_shards(mesh, s.dense_flops[stage], s.expert_flops[stage], sharded)
        seconds += flops / (f.optimizer_flops * c.gemm_16)
    return seconds


@inlined
def fetched_seconds(
    f: Facts,
    c: CoefficientRecord,
    row: Row,
    mesh: Mesh,
    s: Stages,
    stage: int,
    beside: float,
) -> float:
    """Return the seconds that a stage waits in a step for parameters that ZeRO 3 keeps on the host;
    0 for other layouts. Shards are fetched in every micro-batch, for both passes with `reshard` and
    for forward alone without, and hide behind `beside` seconds of the step."""
    if not (f.parameters_on_host and row.offload_optimizer and row.zero_stage == 3):
        return 0.0
    shards = over_shards(mesh, s.dense[stage], s.expert[stage], True)
    seconds = f.parameter_bytes * shards / (c.host_gb_s * 1e9)
    fetches = mesh.micro_batches * (2.0 if row.reshard else 1.0)
    return max(fetches * seconds - beside, 0.0)


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
