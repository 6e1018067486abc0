"""The exposed seconds of each part of a model under a policy: compute, and communication that no
compute hides.

A *part* is a layer of one kind, the embedding or the head, and its times are those of one
micro-batch. Traffic *hides* while compute runs beside it. A *regime* is what ZeRO, recompute,
offload and the schedule decide about how parts run. `f` are the facts of the problem and `c` the
coefficients of its profile (models.cost.facts).
"""

from __future__ import annotations

from typing import NamedTuple

from models.compilation.compiled import inlined
from models.cost.facts import RING, ULYSSES, CoefficientRecord, Facts, LayerFacts, PolicyFacts
from models.cost.kernels import slower_in_chunks
from models.cost.mesh import Mesh, Part
from models.cost.rows import Row
from models.spec.layout import DUALPIPE, ZERO_BUBBLE_V


class Pair(NamedTuple):
    """Seconds of forward and of backward."""

    forward: float
    backward: float


class Exposed(NamedTuple):
    """Holds the exposed seconds of a part. `forward` is of forward alone. All others are of forward
    and backward together: `both` is the sum of the terms from `compute` to `offload`, and `free`
    the seconds of compute behind which no traffic hides."""

    forward: float
    both: float
    free: float
    compute: float
    recompute: float
    tensor: float
    context: float
    expert: float
    data: float
    offload: float


class Regime:
    """Holds what ZeRO, recompute, offload and the schedule decide about how parts run."""

    share: float
    """The share of a stage's layers to which the recompute policy applies."""
    once: bool
    """True where parameters are gathered and gradients reduced once a step, not with every
    micro-batch."""
    gathers: bool
    """True where parameters are gathered before every forward, as in ZeRO 3."""
    gathers_again: bool
    """True where parameters are gathered before every backward."""
    offload: bool
    experts_hide: float
    """The share of the micro-batches whose all-to-all may run beside another micro-batch's
    compute."""
    largest_kept: float
    """Bytes of activations that the largest layer keeps."""
    working: float
    """Bytes of the largest layer while it is computed again, and of what it gathers."""


@inlined
def set_regime(
    f: Facts, row: Row, micro_batches: int, repeats_experts: bool, regime: Regime
) -> None:
    """Fill `regime` for a layout, except `largest_kept` and `working`. `repeats_experts` says
    whether recompute repeats the exchange of tokens with experts. Then no exchange hides."""
    zero3 = row.zero_stage == 3
    regime.share = recomputed_share(f, row)
    # `once`: a step gathers parameters and reduces gradients once, not with every micro-batch.
    # A pipeline adds up gradients until its last micro-batch, also those that ZeRO 2 shards (arXiv
    # 2402.15627 §3.2; torch distributed/pipelining/stage.py). ZeRO 3 that keeps parameters through
    # a pipeline gathers them once a step too.
    regime.once = row.zero_stage < 2 or (row.pp > 1 and not (zero3 and row.reshard))
    regime.gathers = zero3 and not regime.once
    regime.gathers_again = regime.gathers and row.reshard
    regime.offload = row.offload_activations
    regime.experts_hide = 0.0
    if f.overlap_expert and (row.pp == 1 or overlaps_micro_batches(row)) and not repeats_experts:
        # The first forward and the last backward have no other micro-batch to hide beside.
        regime.experts_hide = 1 - 1 / micro_batches


@inlined
def overlaps_micro_batches(row: Row) -> bool:
    """Say whether the schedule runs one micro-batch's compute beside another's communication, as
    those do that give a device several chunks of layers."""
    return row.virtual_stages > 1 or row.schedule == DUALPIPE or row.schedule == ZERO_BUBBLE_V


@inlined
def recomputed_share(f: Facts, row: Row) -> float:
    """Return the share of layers that the recompute policy applies to: `recompute_layers` of each
    chunk, or all layers where that is 0."""
    if row.recompute_layers == 0:
        return 1.0
    chunk = f.num_layers / (row.pp * row.virtual_stages)
    return min(row.recompute_layers / chunk, 1.0)


@inlined
def expose_layer(
    f: Facts,
    layer: LayerFacts,
    part: Part,
    policy: PolicyFacts,
    row: Row,
    mesh: Mesh,
    regime: Regime,
    c: CoefficientRecord,
    weight: float,
    recompute: float,
    kept: float,
) -> Exposed:
    """Return the exposed seconds of a layer: its compute, and the communication that no compute
    hides. `weight` seconds of weight gradients are taken out of backward, and `recompute` seconds
    of repeated forward are added. The layer keeps `kept` bytes, which may be offloaded."""
    backward = part.backward - weight
    # `ahead` and `back` grow below: the seconds of forward and of backward, with all that each has
    # been found to wait for up to that line.
    ahead, back = part.forward, backward + recompute
    backward_share = 1 - part.forward_only  # the share of the part that has a backward
    repeated = regime.share * policy.context
    # Attention's kernels, which come again where recompute repeats attention.
    kernels = Pair(
        part.attention_forward,
        part.attention_backward + backward_share * repeated * part.attention_forward,
    )
    # Gaps in which the device waits for the host come again with a whole layer only: a piece that
    # is repeated by itself has none.
    whole = backward_share * regime.share if policy.whole else 0.0
    idle = Pair(part.idle_forward, part.idle_backward + whole * part.idle_forward)
    sent = offload = 0.0
    # Activations travel beside the passes, which wait for what they do not cover. Other traffic may
    # run in these waits, so that they count as gaps.
    if regime.offload:
        traffic = kept / (c.host_gb_s * 1e9)
        sent, fetched = max(traffic - ahead, 0.0), max(traffic - back, 0.0)
        ahead = ahead + sent
        back = back + fetched
        offload = sent + fetched
        idle = Pair(idle.forward + sent, idle.backward + fetched)

    # From here on traffic hides in the order of docs/model.md, and compute that one kind has hidden
    # behind is not there for the next.
    gaps = idle
    repeated_tensor = backward_share * (1.0 + regime.share * policy.tensor)
    tensor = Pair(part.tensor, part.tensor * repeated_tensor)
    if f.overlap_tensor:
        # The seconds of each pass beside attention. At least 0: attention may be all of a pass, and
        # its kernels may be counted longer than a backward from which weight gradients are taken.
        beside = Pair(max(ahead - kernels.forward, 0.0), max(back - kernels.backward, 0.0))
        hidden = Pair(0.0, 0.0)
        if row.sequence_parallel and not mesh.tensor_across_domains:
            hidden = hidden_tensor(c, tensor, beside)
        tensor = Pair(tensor.forward - hidden.forward, tensor.backward - hidden.backward)
        idle = Pair(
            min(idle.forward, beside.forward - hidden.forward),
            min(idle.backward, beside.backward - hidden.backward),
        )
    ahead, back = ahead + tensor.forward, back + tensor.backward
    # A pass takes no less than the host needs to launch it. The host serves the tensor-parallel
    # collectives too (`stall`).
    # Backward launches two products for one of forward, and forward again where all is recomputed.
    launches = backward_share * (2 + whole)
    host = Pair(part.host + part.stall, part.host * launches + part.stall * repeated_tensor)
    held = Pair(max(host.forward - ahead, 0.0), max(host.backward - back, 0.0))
    ahead, back = ahead + held.forward, back + held.backward
    # Before the search decides the placement, these seconds are a lower bound. Slower traffic of
    # the final placement may leave gaps as long as these, in which a ring's traffic may hide.
    if mesh.undecided:
        idle = Pair(gaps.forward + held.forward, gaps.backward + held.backward)
    hooked = waiting_for_hooks(part, row, host, Pair(ahead, back), launches)
    ahead, back = ahead + hooked.forward, back + hooked.backward
    idle = Pair(idle.forward + hooked.forward, idle.backward + hooked.backward)

    # From here on `forward` is the result, and `ahead` and `back` are what traffic may hide behind.
    forward = ahead
    context = 0.0
    context_forward = 0.0
    if row.cp > 1:
        sent_back = part.context * backward_share * (backward_context(f) + repeated)
        sent_context = Pair(part.context, sent_back)
        hidden = Pair(0.0, 0.0)
        # Attention over a ring hides its traffic, and is slower: it meets the keys in short chunks.
        if f.context == RING:
            hidden = hidden_context(c, sent_context, kernels, idle)
            slower = slower_in_chunks(f, layer, row.cp)
            context = slower * (kernels.forward + kernels.backward)
            forward += slower * kernels.forward
            context_forward = slower * kernels.forward
        forward += sent_context.forward - hidden.forward
        context_forward += sent_context.forward - hidden.forward
        context += sent_context.forward - hidden.forward
        context += sent_context.backward - hidden.backward
        ahead = max(ahead - hidden.forward, 0.0)
        back = max(back - hidden.backward, 0.0)

    data = expose_data(f, part, regime, c, ahead, back)
    forward, free = forward + data.forward, data.free
    expert = expert_forward = reference_expert = 0.0
    if layer.sparse:
        passes = 2.0 - part.forward_only  # forward, and backward where the layer has one
        hidden_expert = min(c.expert_overlap * passes * part.dispatch, free) * regime.experts_hide
        expert_forward = part.dispatch - hidden_expert / passes
        forward += expert_forward
        free -= hidden_expert
        repeated_expert = backward_share * regime.share * policy.expert
        expert = part.dispatch * (passes + repeated_expert) - hidden_expert
        # A forward of the reference model has no backward beside which more could hide.
        hidden_alone = min(c.expert_overlap * part.dispatch, data.free_forward)
        reference_expert = part.dispatch - hidden_alone * regime.experts_hide
    compute, tensor_all = part.forward + backward, tensor.forward + tensor.backward
    tensor_all += held.forward + held.backward
    data_all = data.both + hooked.forward + hooked.backward
    # A reference model (as of preference training) runs forwards alone, with the same traffic.
    if f.reference_forwards > 0:
        times = f.reference_forwards
        compute += times * part.forward
        tensor_all += times * (tensor.forward + held.forward)
        context += times * context_forward
        expert += times * reference_expert
        data_all += times * (data.forward + hooked.forward)
        # The reference model's forwards offload nothing, so they do not wait these `sent` seconds.
        # The wait counts for them all the same, since traffic has been taken to hide in it.
        offload += times * sent
        forward += times * (forward - expert_forward + reference_expert)
    both = compute + recompute + tensor_all + context + expert + data_all + offload
    return Exposed(
        forward=forward,
        both=both,
        free=free,
        compute=compute,
        recompute=recompute,
        tensor=tensor_all,
        context=context,
        expert=expert,
        data=data_all,
        offload=offload,
    )


@inlined
def waiting_for_hooks(part: Part, row: Row, host: Pair, passes: Pair, launches: float) -> Pair:
    """Return the seconds, in forward and backward, by which the host takes longer than `passes`
    where ZeRO 3 gathers single matrices of experts, each from a hook in Python. `host` is the time
    of its launches, and `launches` how many times as many backward has as forward. The hooks add
    `part.hooks` to that time in forward, and `launches` times as much in backward."""
    if row.zero_stage != 3 or part.hooks == 0.0:
        return Pair(0.0, 0.0)
    return Pair(
        max(host.forward + part.hooks - passes.forward, 0.0),
        max(host.backward + part.hooks * launches - passes.backward, 0.0),
    )


@inlined
def expose_end(
    f: Facts,
    part: Part,
    regime: Regime,
    c: CoefficientRecord,
    weight: float,
    recompute: float,
    fully_recomputed: float,
) -> Exposed:
    """Return the exposed seconds of the embedding or the head. `weight` seconds of weight gradients
    are taken out of backward, and `recompute` seconds of repeated forward are added. The embedding
    may have an encoder of images. Nothing hides the encoder's tensor-parallel traffic, which comes
    again for the share `fully_recomputed` of its layers."""
    backward = part.backward - weight
    tensor = Pair(part.tensor, part.tensor_back * (1 + fully_recomputed))
    ahead, back = part.forward + tensor.forward, backward + recompute + tensor.backward
    data = expose_data(f, part, regime, c, ahead, back)
    compute, tensor_all = part.forward + backward, tensor.forward + tensor.backward
    forward, data_all = ahead + data.forward, data.both
    # A reference model (as of preference training) runs forwards alone, with the same traffic.
    if f.reference_forwards > 0:
        times = f.reference_forwards
        compute += times * part.forward
        tensor_all += times * tensor.forward
        data_all += times * data.forward
        forward *= 1 + times
    both = compute + recompute + tensor_all + data_all
    # The ends have no context-parallel traffic and no experts, and offload no activations.
    return Exposed(
        forward=forward,
        both=both,
        free=data.free,
        compute=compute,
        recompute=recompute,
        tensor=tensor_all,
        context=0.0,
        expert=0.0,
        data=data_all,
        offload=0.0,
    )


@inlined
def hidden_tensor(c: CoefficientRecord, tensor: Pair, beside: Pair) -> Pair:
    """Return the seconds of tensor-parallel traffic that hide behind GEMMs, which work on the parts
    that have arrived (userbuffers of Transformer Engine, within a scale-up domain). They are a
    share of the traffic, `tensor`, and at most `beside`, the passes without attention."""
    return Pair(
        min(c.tensor_overlap * tensor.forward, beside.forward),
        min(c.tensor_overlap * tensor.backward, beside.backward),
    )


@inlined
def backward_context(f: Facts) -> float:
    """Return the context-parallel traffic of backward as a multiple of forward's. A ring or a
    gather sends keys and values again and their gradients back; Ulysses exchanges heads for tokens
    once, as in forward."""
    return 1.0 if f.context == ULYSSES else 2.0


@inlined
def hidden_context(c: CoefficientRecord, sent: Pair, kernels: Pair, idle: Pair) -> Pair:
    """Return the seconds of a ring's context-parallel traffic (`sent`) that hide behind attention
    (`kernels`) and behind gaps in which the device waits (`idle`). Other kinds of context
    parallelism hide nothing: their traffic precedes or follows attention."""
    return Pair(
        min(sent.forward, c.context_overlap * (kernels.forward + idle.forward)),
        min(sent.backward, c.context_overlap * (kernels.backward + idle.backward)),
    )


class DataExposed(NamedTuple):
    """Holds the data-parallel seconds that every micro-batch exposes, in `forward` and in `both`
    passes together; and the seconds of compute that no such traffic hides behind, in both passes
    together (`free`) and in forward (`free_forward`)."""

    forward: float
    both: float
    free: float
    free_forward: float


@inlined
def expose_data(
    f: Facts, part: Part, regime: Regime, c: CoefficientRecord, forward: float, backward: float
) -> DataExposed:
    """Return the data-parallel seconds that a part exposes in every micro-batch, where parameters
    are gathered or gradients reduced with each (ZeRO 2 and 3). `forward` and `backward` are the
    seconds of the passes that hide such traffic. Nothing is exposed here where the traffic comes
    once a step (`exposed_once`)."""
    if regime.once:  # All compute is left for other traffic to hide behind.
        return DataExposed(0.0, 0.0, forward + backward, forward)
    # Copies (`before` forward and `after` backward) run on the device and hide behind nothing;
    # traffic may hide beside them. Early traffic hides beside forward and late traffic beside
    # backward; stuck traffic, which kernels of all experts wait for, hides beside neither.
    before = stuck = early = 0.0
    after, late = part.reduce_copy, part.scatter
    movable = part.gather - part.stuck
    if regime.gathers:
        before = part.gather_copy
        early = movable
        stuck = part.stuck
    both = before + after + stuck
    if regime.gathers_again:
        after = after + part.gather_copy * (1 - part.forward_only)
        late = late + movable * (1 - part.forward_only)
        both = both + part.gather_copy * (1 - part.forward_only) + part.stuck
    forward, backward = forward + before, backward + after
    exposed_early = exposed_traffic(f, c, early, forward)
    exposed_late = exposed_traffic(f, c, late, backward)
    hidden = early + late - exposed_early - exposed_late
    return DataExposed(
        forward=before + stuck + exposed_early,
        both=both + exposed_early + exposed_late,
        free=forward + backward - hidden,
        free_forward=forward - (early - exposed_early),
    )


@inlined
def exposed_traffic(f: Facts, c: CoefficientRecord, traffic: float, window: float) -> float:
    """Return the seconds that data-parallel traffic adds to `window` seconds of compute beside it:
    what does not hide, and the share `interference` of what does, by which compute gets slower."""
    if not f.overlap_data:
        return traffic
    return traffic - min(traffic, c.data_overlap * window) * (1 - c.interference)


@inlined
def exposed_once(f: Facts, c: CoefficientRecord, row: Row, traffic: float, window: float) -> float:
    """Return the seconds by which data-parallel traffic that is sent once a step lengthens the
    step, beside `window` seconds of compute. Some stacks do not overlap the traffic of ZeRO 1."""
    if row.zero_stage == 1 and not f.overlap_zero1:
        return traffic
    return exposed_traffic(f, c, traffic, window)


@inlined
def waiting_for_slow_node(f: Facts, c: CoefficientRecord, row: Row, micro_batches: int) -> float:
    """Return the seconds that a step waits for a node in trouble, whose every send and receipt
    takes longer by a fixed time. A job is taken to have such a node where the fabric leaves it none
    to spare (Cluster.fills_fabric). Both passes of each micro-batch wait once for each neighbour of
    a stage, and filling and draining the pipeline once for each hop. Without a pipeline both passes
    wait once."""
    if not f.fills_fabric:
        return 0.0
    # Each chunk of a stage sends to its neighbours, which are one with pp 2, and two otherwise.
    neighbours = row.virtual_stages * min(max(row.pp - 1, 1), 2)
    return 2 * (micro_batches * neighbours + row.pp - 1) * c.slow_node_s
