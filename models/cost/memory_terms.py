"""The memory of a step by term: that of the fullest stage.

`f` are the facts of the problem and `c` the coefficients of its profile (models.cost.facts). The
*ends* of a model are its embedding and its head. Stages with equal parts are worked out once, as
one *distinct* stage. A *mesh* is a layout's parallel degrees with their placement, and a *regime*
what ZeRO, recompute, offload and the schedule decide.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from models.columns import Array
from models.compilation.compiled import inlined
from models.cost.facts import CoefficientRecord, Facts, ProblemRecords
from models.cost.mesh import Mesh
from models.cost.overlap import Regime
from models.cost.pipeline.bubble import in_flight
from models.cost.rows import Row, StageTables
from models.cost.stages import Buffers, Stages
from models.cost.time_terms import over_shards
from models.spec.hardware import GIB

MEMORY = (
    "parameters_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes", "logits_bytes",
    "context_bytes", "fragmentation_bytes",
)  # fmt: skip
PARAMETERS, GRADIENTS, STATES, ACTIVATIONS, LOGITS, RUNTIME, FRAGMENTATION = range(len(MEMORY))
HOST_GRADIENT_BYTES = 4.0
"""The size of an element of a gradient that is added up on the host (DeepSpeed
runtime/zero/stage_1_and_2.py, stage3.py: fp32 partitions; FSDP keeps fp32 shards)."""


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
    question: ProblemRecords,
    row: Row,
    coefficients: CoefficientRecord,
    tables: StageTables,
    buffers: Buffers,
    memory: Array,
) -> tuple[int, float]:
    """Write to `memory` the bytes on the fullest stage, by term. Return the number of that stage,
    and the most bytes that a device of any stage has on its host. `buffers` hold the layout's parts
    and stages."""
    fullest = 0
    most = -np.inf
    on_host = 0.0
    for stage in range(tables.distinct_count[row.partition]):
        held = stage_memory(question.facts[0], row, coefficients, tables, buffers, stage)
        allocated = held.parameters + held.gradients + held.states + held.activations + held.logits
        on_host = max(on_host, held.host)
        if allocated > most:
            fullest, most = stage, allocated
            memory[PARAMETERS] = held.parameters
            memory[GRADIENTS] = held.gradients
            memory[STATES] = held.states
            memory[ACTIVATIONS] = held.activations
            memory[LOGITS] = held.logits
    # The runtime takes as much on every stage, and fragmentation is in proportion to what is
    # allocated, so the stage that allocates most needs most.
    memory[RUNTIME] = coefficients.context_gib * GIB
    memory[FRAGMENTATION] = most * coefficients.fragmentation
    return tables.first_alike[row.partition, fullest], on_host


@inlined
def stage_memory(
    f: Facts, row: Row, c: CoefficientRecord, tables: StageTables, buffers: Buffers, stage: int
) -> Held:
    """Return the bytes that a device of one distinct stage holds, by term, and those on its
    host."""
    mesh, regime = buffers.workspace.mesh[0], buffers.workspace.regime[0]
    stages = buffers.stages
    dense, expert = stages.trained_dense[stage], stages.trained_expert[stage]
    states = state_bytes(f, row) * over_shards(mesh, dense, expert, row.zero_stage >= 1)
    # How often the activations of a micro-batch are held, with the coefficient that scales them.
    times_held = c.activation_memory * in_flight(
        row.schedule,
        tables.first_alike[row.partition, stage],
        row.pp,
        row.virtual_stages,
        mesh.micro_batches,
    )
    kept = stages.kept[stage] * times_held
    resident = kept
    # Offloaded activations are on the device only on their way: those of two layers at a time.
    if row.offload_activations:
        resident = min(2 * regime.largest_kept * c.activation_memory, kept)
    resident += stages.kept_of_images[stage] * times_held  # never offloaded
    working, logits = regime.working * c.activation_memory, 0.0
    has_head = tables.amounts[row.partition, stage, f.kinds + 1] > 0
    if has_head and mesh.logits * c.logit_memory > working:
        # Logits are freed before any layer is computed again, so that the larger of both counts.
        logits, working = mesh.logits * c.logit_memory, 0.0
    offloaded = offloaded_bytes(f, row, mesh, stages, stage, states)
    return Held(
        parameters=parameter_bytes(f, row, mesh, stages, stage),
        gradients=gradient_bytes(f, row, mesh, regime, dense, expert),
        states=0.0 if row.offload_optimizer else states,
        activations=resident + working,
        logits=logits + (mesh.kept_logits if has_head else 0.0),
        host=offloaded + (kept if row.offload_activations else 0.0),
    )


@inlined
def offloaded_bytes(
    f: Facts, row: Row, mesh: Mesh, stages: Stages, stage: int, states: float
) -> float:
    """Return the bytes that an offloaded optimizer has on the host, for one device: its `states`;
    fp32 gradients where the stack offloads these; and ZeRO 3's parameters where the stack keeps
    these on the host, if they are not the states' master copy. Copies of the whole model that ranks
    may load before it is sharded are not counted."""
    if not row.offload_optimizer:
        return 0.0
    size = states
    # True: ZeRO 2 and 3 divide gradients over the shards, and ZeRO 3 parameters too.
    if f.offloads_gradients and row.zero_stage >= 2:
        trained = over_shards(mesh, stages.trained_dense[stage], stages.trained_expert[stage], True)
        size += HOST_GRADIENT_BYTES * trained
    if f.parameters_on_host and f.parameter_shards and row.zero_stage == 3:
        size += f.base_bytes * over_shards(mesh, stages.dense[stage], stages.expert[stage], True)
    return f.host_buffers * size  # Some stacks need buffers beside what they offload.


@inlined
def state_bytes(f: Facts, row: Row) -> float:
    """Return the bytes of one parameter's optimizer states: master copy and moments. Below
    ZeRO 3, fp32 parameters in use are their own master copy, and count as parameters. Under ZeRO 3
    the fp32 shards are the master copy and count here, whatever the format in use. What is gathered
    from them, and shards kept in the format in use, count as parameters (parameter_bytes)."""
    return f.moment_bytes + (f.sharded_master_bytes if row.zero_stage == 3 else f.master_bytes)


@inlined
def parameter_bytes(f: Facts, row: Row, mesh: Mesh, stages: Stages, stage: int) -> float:
    """Return the bytes of parameters in use on a device of a stage. The fp32 master copy counts
    with the optimizer instead. A reference model is sharded as the trained one is (TRL
    models/utils.py, prepare_deepspeed and prepare_fsdp).
    """
    dense = stages.dense[stage]
    expert = stages.expert[stage]
    layers = stages.of_layers[stage]
    ends = dense + expert - layers  # The ends are not quantized where layers are.
    copies = f.reference_copies * f.parameter_bytes
    # Below ZeRO 3 a device holds all parameters, in some stacks with copies in the GEMM format.
    if row.zero_stage < 3:
        of_layers = f.base_bytes * layers + f.parameter_bytes * ends + f.operand_bytes * layers
        return of_layers + copies * (dense + expert)
    # ZeRO 3 holds two gathered layers with `reshard`, and all layers without.
    held = dense + expert
    if row.reshard:
        held = min(2 * mesh.largest_unit, held)
    size = f.parameter_bytes * held
    # The shards count too (True: divided over the shards), unless they are the master copy on the
    # device, or are on the host.
    on_host = row.offload_optimizer and f.parameters_on_host
    if (row.offload_optimizer or f.parameter_shards) and not on_host:
        size += f.base_bytes * over_shards(mesh, dense, expert, True)
        # `base_bytes` is the size in quantized layers; the ends have full-size parameters.
        size += (f.parameter_bytes - f.base_bytes) * ends / mesh.dense_shards
    return size + copies * over_shards(mesh, dense, expert, True)


@inlined
def gradient_bytes(
    f: Facts, row: Row, mesh: Mesh, regime: Regime, dense: float, expert: float
) -> float:
    """Return the bytes of gradients on a device: the accumulated ones, unless these are on the
    host; and, where ZeRO shards gradients, the whole ones of the layer being reduced. `dense` and
    `expert` are the trained parameters of the stage outside and inside experts."""
    # Gradients that are reduced only once a step add up whole until then.
    sharded = row.zero_stage >= 2 and not regime.once
    size = f.gradient_bytes * over_shards(mesh, dense, expert, sharded)
    if row.offload_optimizer and f.offloads_gradients and row.zero_stage >= 2:
        size = 0.0
    if sharded and f.trains_layers:  # Whole gradients of adapters are not counted.
        size += f.gradient_reduction_bytes * mesh.largest_unit
    return size
