"""The costs that depend on the mesh, its placement and the micro-batch only: kernel times, sizes
and traffic of every part of the model."""

from __future__ import annotations

import math

from models.columns import Array
from models.compilation.compiled import compiled
from models.cost.again import computed_again, kept_bytes
from models.cost.collectives import Links, doublings, time
from models.cost.compute import (
    LayerTime,
    embedding_time,
    head_time,
    largest_of,
    layer_time,
    mtp_projection,
    overhead,
    skew,
)
from models.cost.encoder import (
    add_encoder_kept,
    encoder_shard,
    encoder_size,
    encoder_time,
)
from models.cost.facts import (
    ALLGATHER,
    DEDUPLICATED,
    ULYSSES,
    CoefficientRecord,
    Facts,
    Images,
    LayerFacts,
    ProblemRecords,
)
from models.cost.memory import (
    PartSize,
    activations,
    embedding_size,
    head_size,
    kept_logit_bytes,
    layer_size,
    logit_bytes,
)
from models.cost.rows import Row
from models.cost.shard import Shard, kv_share, routed_tokens


class Part:
    """Holds seconds for one micro-batch, and parameters on one device, of one part of the model: a
    layer of a kind, the embedding with the encoder of images, or the head.

    The fields up to `host` are those of LayerTime, and those from `dense` to `trained_expert` are
    those of PartSize. All others in seconds are communication, of which nothing is hidden.
    """

    forward: float
    backward: float
    weight: float
    attention_forward: float
    attention_backward: float
    idle_forward: float
    idle_backward: float
    host: float
    tensor: float
    """Tensor-parallel traffic in forward. A layer has as much in backward."""
    tensor_back: float
    """Tensor-parallel traffic of the embedding or the head in backward."""
    stall: float
    """Host seconds in forward of the tensor-parallel collectives, beside pipeline sends."""
    hooks: float
    """Host seconds in forward of ZeRO 3 for matrices of experts that it gathers one by one."""
    context: float
    """Context-parallel traffic in forward."""
    dispatch: float
    """Traffic of tokens to experts and back, in one pass."""
    gather: float
    """A gather of parameters over the devices that shard them."""
    stuck: float
    """The part of `gather` that cannot hide."""
    scatter: float
    """A reduce-scatter of gradients, with an all-reduce over replicas."""
    reduce: float
    """An all-reduce of whole gradients, where nothing is sharded."""
    gather_copy: float
    """Copies in device memory beside a gather of parameters."""
    reduce_copy: float
    """Copies in device memory beside a reduction of gradients."""
    dense: float
    expert: float
    unit: float
    trained_dense: float
    trained_expert: float
    encoder_share: float
    """The share of the part's parameters that are the encoder's."""
    trained_encoder_share: float
    """The share of the part's trained parameters that are the encoder's."""
    forward_only: float
    """The share of the part's parameters that backward does not need: those of a frozen encoder, or
    of a layer before all that is trained."""


class Mesh:
    """Holds what a mesh costs besides its parts."""

    send: float
    """Seconds of sending a micro-batch's activations to the next stage."""
    dense_shards: float
    """The number of devices that share dense parameters."""
    expert_shards: float
    """The number of devices that share an expert's parameters."""
    tensor_across_domains: bool
    logits: float
    """Bytes of logits and their gradient on the last stage, for one micro-batch."""
    kept_logits: float
    """Bytes of logits on the last stage that stay until the step ends."""
    whole_keys: float
    """Bytes of a layer's keys and values of whole sequences, where context parallelism gathers
    them. Their gradients take as many before they are scattered."""
    micro_batches: int
    """The number of micro-batches that a rank runs in one step."""
    norm: float
    """Seconds of the gradient's norm."""
    uneven: float
    """Seconds for each micro-batch that the rank with the longest documents spends on attention
    beyond the mean rank, on the mean stage."""
    straggling: float
    """The share of a step that waiting for the slowest device adds to it."""
    largest_unit: float
    """Parameters that FSDP gathers at a time, for the largest layer."""
    undecided: bool
    """True where the placement or the policy is not decided yet, so that times are lower bounds."""


# -- what a shard decides


@compiled
def set_shard(
    q: ProblemRecords,
    shard: Shard,
    of_images: Shard,
    c: CoefficientRecord,
    piece_bits: int,
    parts: Array,
    again: Array,
    kept: Array,
    pieces: Array,
) -> None:
    """Write times and sizes into `parts`. Write the seconds that each recompute policy adds to
    backward into `again` (policies, parts), and the bytes that a part keeps into `kept` (policies,
    parts)."""
    f, policies = q.facts[0], q.policies
    for kind in range(f.kinds):
        layer = q.layers[kind]
        seconds = layer_time(f, layer, shard, c, piece_bits, pieces)
        set_time(parts[kind], seconds)
        set_size(parts[kind], layer_size(f, layer, shard))
        parts[kind].forward_only = 0.0 if layer.has_backward else 1.0
        for policy in range(len(policies)):
            again[policy, kind] = computed_again(policies[policy, kind], seconds.forward, pieces)
        stored = activations(f, layer, shard, pieces)
        for policy in range(len(policies)):
            kept[policy, kind] = kept_bytes(policies[policy, kind], stored, pieces)
        if not layer.has_backward:
            again[:, kind] = 0.0
            kept[:, kind] = 0.0
    set_ends(f=f, policies=policies, shard=shard, c=c, parts=parts, again=again, kept=kept)
    if len(q.images.layers) > 0:
        add_encoder(
            images=q.images,
            shard=of_images,
            c=c,
            part=parts[f.kinds],
            again=again[:, f.kinds],
            kept=kept[:, f.kinds],
            pieces=pieces,
        )


@compiled
def set_ends(
    f: Facts,
    policies: Array,
    shard: Shard,
    c: CoefficientRecord,
    parts: Array,
    again: Array,
    kept: Array,
) -> None:
    """Write the embedding and the head. A module of multi-token prediction repeats its projection
    where its layer is repeated."""
    embedding, head = f.kinds, f.kinds + 1
    kept[:, embedding] = kept[:, head] = 0.0
    set_time(parts[embedding], embedding_time(f, shard, c))
    set_size(parts[embedding], embedding_size(f, shard))
    set_time(parts[head], head_time(f, shard, c))
    set_size(parts[head], head_size(f, shard))
    projection = mtp_projection(f, shard, c).forward * f.mtp_layers * overhead(f, c)
    for policy in range(len(policies)):
        again[policy, embedding] = 0.0
        again[policy, head] = projection if policies[policy, f.last_kind].whole else 0.0


@compiled
def add_encoder(
    images: Images,
    shard: Shard,
    c: CoefficientRecord,
    part: Part,
    again: Array,
    kept: Array,
    pieces: Array,
) -> None:
    """Add the encoder of images to the embedding."""
    seconds = encoder_time(images, shard, c, again, pieces)
    add_encoder_kept(images, shard, kept, pieces)
    part.forward += seconds.forward
    part.backward += seconds.backward
    part.weight += seconds.weight
    size = encoder_size(images, shard)
    part.dense += size.dense
    part.trained_dense += size.trained_dense
    part.unit = size.unit
    part.encoder_share = size.dense / part.dense
    if part.trained_dense > 0:
        part.trained_encoder_share = size.trained_dense / part.trained_dense
    part.forward_only = (size.dense - size.trained_dense) / part.dense


@compiled
def set_time(part: Part, seconds: LayerTime) -> None:
    part.forward = seconds.forward
    part.backward = seconds.backward
    part.weight = seconds.weight
    part.attention_forward = seconds.attention_forward
    part.attention_backward = seconds.attention_backward
    part.idle_forward = seconds.idle_forward
    part.idle_backward = seconds.idle_backward
    part.host = seconds.host


@compiled
def set_size(part: Part, size: PartSize) -> None:
    part.dense = size.dense
    part.expert = size.expert
    part.unit = size.unit
    part.trained_dense = size.trained_dense
    part.trained_expert = size.trained_expert


# -- what the links decide


@compiled
def set_traffic(
    q: ProblemRecords,
    row: Row,
    shard: Shard,
    c: CoefficientRecord,
    links: Links,
    dispatch: Array,
    parts: Array,
    mesh: Mesh,
) -> None:
    """Write the communication of every part into `parts`, and what else the links decide into
    `mesh`."""
    f, layers = q.facts[0], q.layers
    largest_unit = largest_keys = 0.0
    for kind in range(f.kinds):
        layer, part = layers[kind], parts[kind]
        part.tensor = tensor_traffic(f, layer, row, shard, links)
        part.stall = stall_seconds(layer, row, c)
        part.hooks = hook_seconds(f, layer, shard, c, links)
        part.context = context_traffic(f, layer, row, shard, links)
        part.dispatch = dispatch_seconds(f, layer, shard, c, links, dispatch[kind])
        largest_unit = max(largest_unit, part.unit)
        largest_keys = max(largest_keys, layer.kv_dim * kv_share(layer, shard.tp))
    for index in range(f.kinds + 2):
        sparse = index < f.kinds and layers[index].sparse
        set_data_traffic(f, row, c, links, sparse, parts[index])
    if len(q.images.layers) > 0:
        add_encoder_traffic(q.images, row, links, parts[f.kinds])
        largest_unit = max(largest_unit, parts[f.kinds].unit)
    sequence_keys = row.micro_batch * f.seq_len * 2 * largest_keys * f.activation_bytes
    token_bytes = f.residual_streams * f.hidden_size * f.activation_bytes
    mesh.micro_batches = micro_batches(f, row)
    mesh.send = time(links.send, shard.local_tokens * token_bytes) + c.send_s
    if row.pp == 1:
        mesh.send = 0.0
    mesh.dense_shards = links.dense_shards
    mesh.expert_shards = links.expert_shards
    mesh.tensor_across_domains = links.tensor_across_domains
    mesh.logits = logit_bytes(f, shard)
    keeps_logits = row.pp > 1 and f.keeps_logits
    mesh.kept_logits = mesh.micro_batches * kept_logit_bytes(f, shard) if keeps_logits else 0.0
    mesh.whole_keys = sequence_keys if row.cp > 1 else 0.0
    mesh.largest_unit = largest_unit
    devices = row.pp * row.dp_replicate * row.dp_shard * row.cp * row.tp
    mesh.norm = norm_seconds(c, devices)
    mesh.straggling = straggling(f, c, devices)
    mesh.uneven = uneven_attention(f, layers, row, parts)


@compiled
def micro_batches(f: Facts, row: Row) -> int:
    """Return the number of micro-batches that a rank runs in one step."""
    return max(f.global_batch // (row.dp_replicate * row.dp_shard * row.micro_batch), 1)


@compiled
def uneven_attention(f: Facts, layers: Array, row: Row, parts: Array) -> float:
    """Return the seconds for each micro-batch that the rank with the longest documents computes
    longer than the mean rank.

    Attention's work on a document grows with its length squared. Where lengths are log-normal with
    a coefficient of variation v, the squared coefficient of variation of their squares is (1 + v²)⁴
    - 1. A rank adds up the squares of its documents in a step. Its work is at most that of
    sequences that are one document each.
    """
    ranks = row.dp_replicate * row.dp_shard
    if f.document_spread == 0 or ranks == 1:
        return 0.0
    attention = 0.0
    for kind in range(f.kinds):
        part = parts[kind]
        both = part.attention_forward + part.attention_backward
        attention += layers[kind].trained_layers * both
    documents = max(f.global_batch * f.seq_len / (ranks * f.document_length), 1.0)
    variance = ((1 + f.document_spread * f.document_spread) ** 4 - 1) / documents
    longer = math.sqrt(variance) * largest_of(float(ranks))
    return attention / row.pp * min(longer, f.seq_len / f.attended_length - 1)


@compiled
def cut_blocks(layer: LayerFacts) -> int:
    """Return the number of blocks of a layer that are cut over tensor-parallel ranks."""
    mixer = 1 if layer.attends or layer.recurs else 0
    if layer.parallel:
        return mixer
    return mixer + (1 if layer.dense_width > 0 else 0)


@compiled
def tensor_traffic(f: Facts, layer: LayerFacts, row: Row, shard: Shard, links: Links) -> float:
    """Return the seconds of tensor-parallel traffic of a layer in forward.

    With sequence parallelism, every block that is cut has a gather before it and a scatter after
    it; otherwise it has an all-reduce (Megatron-LM §3, arXiv 1909.08053, and Korthikanti et al.
    §4.2.1). A sparse block without a shared expert needs none, since its tokens stay sharded and
    travel by all-to-all. The tokens of an etp group are gathered for the slices of its experts, and
    scattered back.
    """
    seconds = 0.0
    if row.tp > 1:
        latency, sent = links.tp_reduce.latency_s, 2 * f.activation_bytes
        if row.sequence_parallel:
            latency, sent = 2 * links.tp.latency_s, f.tensor_gather_bytes + f.activation_bytes
        block = shard.tokens * f.hidden_size * sent * links.tp.byte_s + latency
        seconds = cut_blocks(layer) * block
    if layer.sparse and row.etp > 1:
        expert_bytes = layer.expert_input * f.activation_bytes
        seconds += 2 * time(links.etp, routed_tokens(layer, shard) * expert_bytes)
    return seconds


@compiled
def add_encoder_traffic(images: Images, row: Row, links: Links, part: Part) -> None:
    """Add the encoder's traffic to that of the embedding: an all-reduce behind every block that is
    cut, and a message of parameters, and one of gradients, for each of its layers."""
    f = images.facts[0]
    encoder = images.encoder[0]
    shard = encoder_shard(images, row)
    blocks = 0.0
    for kind in range(len(images.layers)):
        blocks += images.layers[kind].trained_layers * cut_blocks(images.layers[kind])
    part.tensor = 0.0
    if shard.tp > 1:
        part.tensor = blocks * time(
            links.tp_reduce, shard.tokens * f.hidden_size * f.activation_bytes
        )
    part.tensor_back = part.tensor if encoder.trained else 0.0
    part.gather += f.encoder_layers * links.sharding.latency_s
    if encoder.trained:
        latency = links.sharding.latency_s + links.replicate.latency_s
        part.scatter += f.encoder_layers * latency


@compiled
def stall_seconds(layer: LayerFacts, row: Row, c: CoefficientRecord) -> float:
    """Return the host seconds of a layer's tensor-parallel collectives, which they cost beside
    pipeline sends."""
    if row.pp == 1:
        return 0.0
    hops = (row.tp - 1) * (2 if row.sequence_parallel else 1)
    return cut_blocks(layer) * hops * c.stall_s


@compiled
def hook_seconds(
    f: Facts, layer: LayerFacts, shard: Shard, c: CoefficientRecord, links: Links
) -> float:
    """Return the seconds that the host spends where every matrix of every local expert is gathered
    by itself: its own time, and the latency of the gather. It waits for the gathers, since it lets
    no more than two be under way (DeepSpeed runtime/zero/partitioned_param_coordinator.py,
    max_ongoing_fetch_events)."""
    if not layer.sparse or not f.experts_gathered_apart:
        return 0.0
    matrices = layer.expert_matrices * layer.num_experts / shard.ep
    return matrices * (c.hook_s + links.edp.latency_s)


@compiled
def context_traffic(f: Facts, layer: LayerFacts, row: Row, shard: Shard, links: Links) -> float:
    """Return the seconds of context-parallel traffic of a layer in forward. Keys and values of the
    whole sequence pass every device (ring or gather), or heads are exchanged for tokens."""
    if row.cp == 1:
        return 0.0
    seconds = attention_context(f, layer, row, shard, links) if layer.attends else 0.0
    if layer.recurs:  # A recurrence needs whole sequences: heads go for tokens, and come back.
        exchanged = shard.tokens * layer.recurrence_exchanged / shard.tp
        seconds += time(links.cp, exchanged * f.activation_bytes)
    return seconds


@compiled
def attention_context(f: Facts, layer: LayerFacts, row: Row, shard: Shard, links: Links) -> float:
    """Return the seconds of sending keys and values to queries of other tokens. Sparse attention
    sends the latents of chosen keys and the keys of the indexer."""
    keys = layer.kv_dim * kv_share(layer, shard.tp)
    if layer.passed_keys > 0:
        return time(links.cp, shard.tokens * row.cp * layer.passed_keys * f.activation_bytes)
    if f.context == ULYSSES:
        heads = layer.num_attention_heads * (layer.head_dim + layer.v_head_dim) / shard.tp
        # Every rank needs a key-value head, so they are repeated where there are fewer than ranks.
        keys = max(keys, row.cp * layer.kv_dim / layer.num_key_value_heads)
        return time(links.cp, shard.tokens * (heads + keys) * f.activation_bytes)
    # Keys come from as many ranks as a window reaches over.
    reach = min(layer.sliding_window, f.seq_len) if layer.sliding_window > 0 else f.seq_len
    share = min(reach / (f.seq_len / row.cp), row.cp)
    return time(links.cp, shard.tokens * share * keys * f.activation_bytes)


@compiled
def dispatch_seconds(
    f: Facts, layer: LayerFacts, shard: Shard, c: CoefficientRecord, links: Links, cost: Array
) -> float:
    """Return the seconds of dispatch and combine of tokens over expert parallelism."""
    if not layer.sparse or shard.ep == 1:
        return 0.0
    byte_s, latency_s = cost
    if f.dispatcher == ALLGATHER:
        every = shard.local_tokens * shard.ep * layer.expert_input * f.activation_bytes
        return 2 * (every * byte_s + latency_s)
    out = f.gemm_bytes if f.dispatcher == DEDUPLICATED else f.activation_bytes
    sent = shard.local_tokens * layer.experts_per_token * layer.expert_input
    both = sent * (out + f.activation_bytes) * byte_s + 2 * latency_s
    return both * skew(f, layer, c, shard.ep)


@compiled
def set_data_traffic(
    f: Facts, row: Row, c: CoefficientRecord, links: Links, sparse: bool, part: Part
) -> None:
    """Write the traffic of parameters and gradients over their data-parallel groups."""
    gathered, gradient = part.dense * f.gather_bytes, part.trained_dense * f.reduce_bytes
    part.gather = time(links.sharding, gathered)
    part.scatter = time(links.sharding, gradient)
    part.scatter += time(links.replicate, gradient / links.dense_shards)
    part.reduce = time(links.replicas, gradient)
    part.stuck = 0.0
    copied = part.dense if links.dense_shards > 1 else 0.0
    reduced = part.trained_dense if links.dense_shards > 1 else 0.0
    if sparse:
        of_experts = time(links.edp, part.expert * f.gather_bytes)
        over_experts = time(links.edp, part.trained_expert * f.reduce_bytes)
        part.gather += of_experts
        part.stuck = of_experts * (1 - c.expert_prefetch)
        part.scatter += over_experts
        part.reduce += 2 * over_experts
        # Without shards, the group that shares experts has the replicas in it.
        if row.dp_shard > 1:
            share = part.trained_expert * f.reduce_bytes / links.expert_shards
            part.scatter += time(links.replicate, share)
        copied += part.expert if links.expert_shards > 1 else 0.0
        reduced += part.trained_expert if links.expert_shards > 1 else 0.0
    rate = f.memory_bytes_s * c.memory
    part.gather_copy = f.gather_copy_bytes * copied / rate
    part.reduce_copy = f.reduce_copy_bytes * reduced / rate


@compiled
def norm_seconds(c: CoefficientRecord, devices: int) -> float:
    """Return the seconds of the gradient's norm: two reductions over all devices, if there are
    several."""
    if devices == 1:
        return 0.0
    return 2 * (c.collective_s + c.scaleout_hop_s * doublings(devices))


@compiled
def straggling(f: Facts, c: CoefficientRecord, devices: int) -> float:
    """Return the share of a step that waiting for the slowest of `devices` devices adds to it. It
    grows with each doubling beyond a node."""
    return c.jitter * doublings(devices / f.node)
