"""Lower bounds of step time and memory for all layouts that grow from a row (a layout decided in
part): partial sums, in which what is not decided yet is left out or taken at its best.

The terms are those of a prediction (models.cost.time_terms), over the best links where links are
not decided, and on the mean stage. A partial sum never exceeds the whole: the slowest stage is no
faster than the mean of all, no term of a step is negative, and no step gets shorter on slower links
(tests/models/search).
"""

from __future__ import annotations

import numpy as np

from models.columns import Array
from models.compilation.compiled import inlined
from models.cost.facts import CoefficientRecord, Facts
from models.cost.memory_terms import gradient_bytes, state_bytes
from models.cost.overlap import exposed_once, waiting_for_slow_node
from models.cost.rows import Row
from models.cost.stages import Workspace
from models.cost.time_terms import exposed_sends, over_shards, update_seconds
from models.spec.hardware import GIB
from models.spec.layout import DUALPIPE


@inlined
def least_step(
    facts: Facts, row: Row, coefficients: CoefficientRecord, workspace: Workspace, pass_s: float
) -> float:
    """Return a lower bound of a step's seconds. `pass_s` has the least seconds of all passes
    (models.search.least_passes). The update and the traffic once a step are those of the mean
    stage, and all traffic hides as far as it may."""
    mesh = workspace.mesh[0]
    m, pp = mesh.micro_batches, row.pp
    dense = expert = gather = reduce = 0.0
    # The parts of a model are its kinds of layers, its embedding and its head.
    for index in range(facts.kinds + 2):
        count = workspace.counts[index]
        dense += count * workspace.parts[index].trained_dense
        expert += count * workspace.parts[index].trained_expert
        gather += count * workspace.gather_once[index]
        reduce += count * workspace.reduce_once[index]
    # Traffic hides beside infinitely much compute, since a bound must hold however much there is.
    gather = exposed_once(facts, coefficients, row, gather / pp, np.inf)
    reduce = exposed_once(facts, coefficients, row, reduce / pp, np.inf)
    owned = over_shards(mesh, dense / pp, expert / pp, row.zero_stage >= 1)
    update = update_seconds(facts, coefficients, row, owned) + mesh.norm
    sends = exposed_sends(facts, coefficients, row, m, mesh.send, np.inf)
    seconds = pass_s + (gather + reduce)
    seconds += update + coefficients.step_fixed_s
    # While it fills and drains, the pipeline also waits for a send at every hop, forward and back.
    seconds += sends + 2 * (pp - 1) * mesh.send
    waits = waiting_for_slow_node(facts, coefficients, row, m) + m * mesh.uneven
    return (seconds + waits) * (1 + mesh.straggling)


@inlined
def least_memory(
    facts: Facts,
    row: Row,
    coefficients: CoefficientRecord,
    workspace: Workspace,
    times_held: Array,
) -> float:
    """Return a lower bound of the bytes on the fullest stage: those on the mean stage, without
    logits. `times_held` (parts,) is how often that stage holds the activations of each part at
    least (`LeastPasses.kept`). In a pipeline one layer at most counts as gathered by FSDP, or as on
    its way to the host, since the fullest stage need not have more."""
    mesh = workspace.mesh[0]
    regime = workspace.regime[0]
    pp = row.pp
    dense = expert = trained_dense = trained_expert = kept = 0.0
    for index in range(facts.kinds + 2):
        dense += workspace.counts[index] * workspace.parts[index].dense
        expert += workspace.counts[index] * workspace.parts[index].expert
        trained_dense += workspace.counts[index] * workspace.parts[index].trained_dense
        trained_expert += workspace.counts[index] * workspace.parts[index].trained_expert
    # The parameters and the kept bytes of the smallest layer, which every stage has at least.
    smallest, smallest_kept = np.inf, np.inf
    for kind in range(facts.kinds):
        kept += times_held[kind] * workspace.mean_kept[kind]
        smallest = min(smallest, workspace.parts[kind].dense + workspace.parts[kind].expert)
        smallest_kept = min(smallest_kept, workspace.mean_kept[kind])
    if pp == 1:
        smallest, smallest_kept = dense + expert, kept
    elif facts.splits_by_threshold:  # A split by thresholds may leave a stage without layers.
        smallest, smallest_kept = 0.0, 0.0
    # The mean stage has 1/pp of the model; under DualPipe a device has the parameters of two.
    share = 2.0 / pp if row.schedule == DUALPIPE else 1.0 / pp
    trained_dense, trained_expert = trained_dense * share, trained_expert * share
    size = gradient_bytes(facts, row, mesh, regime, trained_dense, trained_expert)
    if not row.offload_optimizer:
        sharded = row.zero_stage >= 1
        size += state_bytes(facts, row) * over_shards(mesh, trained_dense, trained_expert, sharded)
    # Below ZeRO 3 every device has all parameters of its stage. With it, they stay gathered after
    # use unless they are resharded.
    if row.zero_stage < 3:
        size += facts.base_bytes * (dense + expert) * share
    elif not row.reshard:
        size += facts.parameter_bytes * (dense + expert) * share
    else:  # FSDP holds two gathered units, the one in use and the next.
        size += facts.parameter_bytes * min(2 * mesh.largest_unit, smallest)
    if row.offload_activations:
        # Offloaded activations are on the device only on their way: those of two layers at a time.
        kept = min(2 * regime.largest_kept, smallest_kept)
    # The part after the kinds of layers is the embedding, whose activations are those of the
    # encoder of images. They are never offloaded.
    kept += times_held[facts.kinds] * workspace.mean_kept[facts.kinds]
    # `working` is what the largest layer needs while it is computed again.
    size += (kept + regime.working) * coefficients.activation_memory
    return size * (1 + coefficients.fragmentation) + coefficients.context_gib * GIB
