"""The communication of every part of a model on a mesh, before any overlap, and what else its links
decide.

A *part* is a layer of one kind, the embedding or the head. A *mesh* is a layout's parallel degrees
with their placement on the fabric. `links` are the costs of its collectives over that placement.
"""

from __future__ import annotations

import math

from models.columns import Array
from models.compilation.compiled import compiled
from models.cost.collectives import Links, collective_seconds, doublings
from models.cost.compute import expected_maximum, skew
from models.cost.encoder import encoder_shard
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
from models.cost.memory import kept_logit_bytes, logit_bytes
from models.cost.mesh import Part
from models.cost.rows import Row
from models.cost.shard import Shard, kv_share, routed_tokens
from models.cost.stages import Workspace


@compiled
def set_traffic(
    question: ProblemRecords,
    row: Row,
    shard: Shard,
    coefficients: CoefficientRecord,
    links: Links,
    workspace: Workspace,
) -> None:
    """Write to the workspace's parts the seconds of their communication, before any overlap. Write
    to its mesh the costs of a layout that belong to no part: sends between stages, logits, the norm
    of gradients, stragglers. A *unit* is the parameters that FSDP gathers at a time."""
    facts = question.facts[0]
    layers = question.layers
    parts = workspace.parts
    mesh = workspace.mesh[0]
    dispatch = workspace.dispatch
    largest_unit = largest_keys = 0.0
    for kind in range(facts.kinds):
        layer, part = layers[kind], parts[kind]
        part.tensor = tensor_traffic(facts, layer, row, shard, links)
        part.stall = stall_seconds(layer, row, coefficients)
        part.hooks = hook_seconds(facts, layer, shard, coefficients, links)
        part.context = context_traffic(facts, layer, row, shard, links)
        part.dispatch = dispatch_seconds(facts, layer, shard, coefficients, links, dispatch[kind])
        largest_unit = max(largest_unit, part.unit)
        largest_keys = max(largest_keys, layer.kv_dim * kv_share(layer, shard.tp))
    for index in range(facts.kinds + 2):  # The embedding and the head follow the kinds.
        sparse = index < facts.kinds and layers[index].sparse
        set_data_traffic(facts, row, coefficients, links, sparse, parts[index])
    if len(question.images.layers) > 0:
        add_encoder_traffic(question.images, row, links, parts[facts.kinds])
        largest_unit = max(largest_unit, parts[facts.kinds].unit)
    # keys and values of whole sequences, and as much for their gradients
    sequence_keys = row.micro_batch * facts.seq_len * 2 * largest_keys * facts.activation_bytes
    token_bytes = facts.residual_streams * facts.hidden_size * facts.activation_bytes
    mesh.micro_batches = micro_batches(facts, row)
    mesh.send = 0.0
    if row.pp > 1:
        sent = shard.local_tokens * token_bytes
        mesh.send = collective_seconds(links.send, sent) + coefficients.send_s
    mesh.dense_shards = links.dense_shards
    mesh.expert_shards = links.expert_shards
    mesh.tensor_across_domains = links.tensor_across_domains
    mesh.logits = logit_bytes(facts, shard)
    keeps_logits = row.pp > 1 and facts.keeps_logits
    mesh.kept_logits = mesh.micro_batches * kept_logit_bytes(facts, shard) if keeps_logits else 0.0
    mesh.whole_keys = sequence_keys if row.cp > 1 else 0.0
    mesh.largest_unit = largest_unit
    devices = row.pp * row.dp_replicate * row.dp_shard * row.cp * row.tp
    mesh.norm = norm_seconds(coefficients, devices)
    # Each doubling of the devices beyond a node makes the slowest of them slower.
    mesh.straggling = coefficients.jitter * doublings(devices / facts.node)
    mesh.uneven = uneven_attention(facts, layers, row, parts)


@compiled
def micro_batches(facts: Facts, row: Row) -> int:
    """Return the number of micro-batches that a data-parallel rank runs in one step, at least 1."""
    return max(facts.global_batch // (row.dp_replicate * row.dp_shard * row.micro_batch), 1)


@compiled
def uneven_attention(facts: Facts, layers: Array, row: Row, parts: Array) -> float:
    """Return the seconds a micro-batch by which the data-parallel rank with the longest documents
    takes longer for attention than the mean rank.

    Attention's work on a document grows with its length squared. Where lengths are log-normal with
    a coefficient of variation v, the squared coefficient of variation of their squares is (1 + v²)⁴
    - 1. A rank adds up the squares of its documents in a step, which divides that by their number.
    No rank has more work than if each of its sequences were one document.
    """
    ranks = row.dp_replicate * row.dp_shard
    if facts.document_spread == 0 or ranks == 1:
        return 0.0
    attention = 0.0
    for kind in range(facts.kinds):
        part = parts[kind]
        both = part.attention_forward + part.attention_backward
        attention += layers[kind].num_layers * both
    documents = max(facts.global_batch * facts.seq_len / (ranks * facts.document_length), 1.0)
    variance = ((1 + facts.document_spread * facts.document_spread) ** 4 - 1) / documents
    longer = math.sqrt(variance) * expected_maximum(float(ranks))
    # A mean stage has 1 / pp of the attention.
    return attention / row.pp * min(longer, facts.seq_len / facts.attended_length - 1)


@compiled
def cut_blocks(layer: LayerFacts) -> int:
    """Return the number of blocks of a layer (mixer, dense MLP) whose output tensor-parallel ranks
    add up. Parallel blocks share one sum; experts have no such sum."""
    mixer = 1 if layer.attends or layer.recurs else 0
    if layer.parallel:
        return mixer
    return mixer + (1 if layer.dense_width > 0 else 0)


@compiled
def tensor_traffic(facts: Facts, layer: LayerFacts, row: Row, shard: Shard, links: Links) -> float:
    """Return the seconds of tensor-parallel traffic of a layer in forward.

    With sequence parallelism, every block that is cut has a gather before it and a scatter after
    it; otherwise it has an all-reduce (Megatron-LM §3, arXiv 1909.08053, and Korthikanti et al.
    §4.2.1). A sparse block without a shared expert needs none, since its tokens stay sharded and
    travel by all-to-all. The tokens of an etp group are gathered for the slices of its experts, and
    scattered back.
    """
    seconds = 0.0
    if row.tp > 1:
        latency = links.tp_reduce.latency_s
        # An all-reduce moves as many bytes as a scatter and a gather.
        element_bytes = 2 * facts.activation_bytes
        if row.sequence_parallel:
            latency = 2 * links.tp.latency_s
            element_bytes = facts.tensor_gather_bytes + facts.activation_bytes
        block = shard.tokens * facts.hidden_size * element_bytes * links.tp.byte_s + latency
        seconds = cut_blocks(layer) * block
    if layer.sparse and row.etp > 1:
        expert_bytes = layer.expert_input * facts.activation_bytes
        seconds += 2 * collective_seconds(links.etp, routed_tokens(layer, shard) * expert_bytes)
    return seconds


@compiled
def add_encoder_traffic(images: Images, row: Row, links: Links, part: Part) -> None:
    """Set the tensor-parallel traffic of the embedding to the encoder's: an all-reduce behind every
    block that tensor parallelism cuts. Add to its data-parallel traffic the latency of a gather and
    of a reduction for each layer of the encoder, whose bytes count with the embedding's."""
    facts = images.facts[0]
    encoder = images.encoder[0]
    shard = encoder_shard(images, row)
    blocks = 0.0
    for kind in range(len(images.layers)):
        blocks += images.layers[kind].num_layers * cut_blocks(images.layers[kind])
    part.tensor = 0.0
    if shard.tp > 1:
        part.tensor = blocks * collective_seconds(
            links.tp_reduce, shard.tokens * facts.hidden_size * facts.activation_bytes
        )
    part.tensor_back = part.tensor if encoder.trained else 0.0
    part.gather += facts.encoder_layers * links.sharding.latency_s
    if encoder.trained:
        latency = links.sharding.latency_s + links.replicate.latency_s
        part.scatter += facts.encoder_layers * latency


@compiled
def stall_seconds(layer: LayerFacts, row: Row, coefficients: CoefficientRecord) -> float:
    """Return the host seconds in forward that a layer's tensor-parallel collectives cost in a
    pipeline, where the host also serves the sends between stages; 0 without one. They grow with the
    hops of a ring, which sequence parallelism passes twice, for a gather and a scatter."""
    if row.pp == 1:
        return 0.0
    hops = (row.tp - 1) * (2 if row.sequence_parallel else 1)
    return cut_blocks(layer) * hops * coefficients.stall_s


@compiled
def hook_seconds(
    facts: Facts, layer: LayerFacts, shard: Shard, coefficients: CoefficientRecord, links: Links
) -> float:
    """Return the host seconds in forward of gathering every matrix of every local expert by itself,
    as ZeRO 3 of some stacks does in hooks of modules. Each takes the host's own work (`hook_s`) and
    the gather's latency, for which the host waits: it lets no more than two be under way (DeepSpeed
    runtime/zero/partitioned_param_coordinator.py, max_ongoing_fetch_events)."""
    if not layer.sparse or not facts.experts_gathered_apart:
        return 0.0
    matrices = layer.expert_matrices * layer.num_experts / shard.ep
    return matrices * (coefficients.hook_s + links.edp.latency_s)


@compiled
def context_traffic(facts: Facts, layer: LayerFacts, row: Row, shard: Shard, links: Links) -> float:
    """Return the seconds of context-parallel traffic of a layer in forward: that of its attention,
    and that of its recurrence; 0 without context parallelism."""
    if row.cp == 1:
        return 0.0
    seconds = attention_context(facts, layer, row, shard, links) if layer.attends else 0.0
    if layer.recurs:  # A recurrence needs whole sequences: heads are exchanged for tokens and back.
        exchanged = shard.tokens * layer.recurrence_exchanged / shard.tp
        seconds += collective_seconds(links.cp, exchanged * facts.activation_bytes)
    return seconds


@compiled
def attention_context(
    facts: Facts, layer: LayerFacts, row: Row, shard: Shard, links: Links
) -> float:
    """Return the seconds of context-parallel traffic of attention in forward. A ring or gather
    sends keys and values as far as a query's window reaches; Ulysses exchanges heads for tokens.
    Sparse attention sends the latents or pooled keys that it attends to, and the indexer's keys."""
    keys = layer.kv_dim * kv_share(layer, shard.tp)
    # Whatever queries choose, every rank gets these keys of all ranks, and tp does not cut them.
    if layer.passed_keys > 0:
        passed = shard.tokens * row.cp * layer.passed_keys
        return collective_seconds(links.cp, passed * facts.activation_bytes)
    if facts.context == ULYSSES:
        heads = layer.num_attention_heads * (layer.head_dim + layer.v_head_dim) / shard.tp
        # Every rank needs a key-value head, so they are repeated where there are fewer than ranks.
        keys = max(keys, row.cp * layer.kv_dim / layer.num_key_value_heads)
        return collective_seconds(links.cp, shard.tokens * (heads + keys) * facts.activation_bytes)
    # Keys come from as many ranks as a window reaches over.
    reach = min(layer.sliding_window, facts.seq_len) if layer.sliding_window > 0 else facts.seq_len
    share = min(reach / (facts.seq_len / row.cp), row.cp)
    return collective_seconds(links.cp, shard.tokens * share * keys * facts.activation_bytes)


@compiled
def dispatch_seconds(
    facts: Facts,
    layer: LayerFacts,
    shard: Shard,
    coefficients: CoefficientRecord,
    links: Links,
    cost: Array,
) -> float:
    """Return the seconds of sending a layer's tokens to their experts and the results back, in one
    pass. `cost` (2,) has the seconds for each byte and the latency. All-to-alls wait for the
    busiest device (`skew`); all-gathers send every token everywhere."""
    if not layer.sparse or shard.ep == 1:
        return 0.0
    byte_s, latency_s = cost
    if facts.dispatcher == ALLGATHER:
        gathered = shard.local_tokens * shard.ep * layer.expert_input * facts.activation_bytes
        return 2 * (gathered * byte_s + latency_s)  # there, and the results back
    # A dispatcher that sends one copy to each domain sends it in the format of GEMMs.
    out = facts.gemm_bytes if facts.dispatcher == DEDUPLICATED else facts.activation_bytes
    elements = shard.local_tokens * layer.experts_per_token * layer.expert_input
    both = elements * (out + facts.activation_bytes) * byte_s + 2 * latency_s
    return both * skew(facts, layer, coefficients, shard.ep)


@compiled
def set_data_traffic(
    facts: Facts, row: Row, coefficients: CoefficientRecord, links: Links, sparse: bool, part: Part
) -> None:
    """Write into `part` the seconds of its data-parallel traffic, before any overlap: gathers of
    parameters, reductions of gradients, and the copies in device memory beside them. A `sparse`
    part has experts too, which have data-parallel groups of their own."""
    gathered = part.dense * facts.gather_bytes
    gradient = part.trained_dense * facts.reduce_bytes
    # Sharded gradients are scattered over the shards, and each shard is then all-reduced over its
    # replicas. Whole gradients are all-reduced over all ranks at once (`reduce`).
    part.gather = collective_seconds(links.sharding, gathered)
    part.scatter = collective_seconds(links.sharding, gradient)
    part.scatter += collective_seconds(links.replicate, gradient / links.dense_shards)
    part.reduce = collective_seconds(links.replicas, gradient)
    part.stuck = 0.0
    # Copies beside the collectives (gather_copy_bytes) come only for what is in shards.
    copied = part.dense if links.dense_shards > 1 else 0.0
    reduced = part.trained_dense if links.dense_shards > 1 else 0.0
    if sparse:
        expert_gather = collective_seconds(links.edp, part.expert * facts.gather_bytes)
        expert_scatter = collective_seconds(links.edp, part.trained_expert * facts.reduce_bytes)
        part.gather += expert_gather
        # Kernels that need the weights of all experts wait for what is not prefetched.
        part.stuck = expert_gather * (1 - coefficients.expert_prefetch)
        part.scatter += expert_scatter
        part.reduce += 2 * expert_scatter  # an all-reduce: a scatter and a gather
        # Without shards, edp has the replicas in it (devices_sharing_experts), and no all-reduce
        # over them follows.
        if row.dp_shard > 1:
            share = part.trained_expert * facts.reduce_bytes / links.expert_shards
            part.scatter += collective_seconds(links.replicate, share)
        copied += part.expert if links.expert_shards > 1 else 0.0
        reduced += part.trained_expert if links.expert_shards > 1 else 0.0
    rate = facts.memory_bytes_s * coefficients.memory
    part.gather_copy = facts.gather_copy_bytes * copied / rate
    part.reduce_copy = facts.reduce_copy_bytes * reduced / rate


@compiled
def norm_seconds(coefficients: CoefficientRecord, devices: int) -> float:
    """Return the seconds in which devices reduce the gradient's norm: the latency of two reductions
    of one number over all of them, or 0 for a single device."""
    if devices == 1:
        return 0.0
    # A reduction of one number takes its latency alone: a start, and the hops down a tree.
    return 2 * (coefficients.collective_s + coefficients.scaleout_hop_s * doublings(devices))
