"""The costs that depend on the mesh, its placement and the micro-batch only: kernel times, sizes
and traffic of every part of the model."""

from __future__ import annotations

from models.columns import Array
from models.compilation.compiled import compiled
from models.cost.compute import (
    LayerTime,
    embedding_time,
    head_time,
    layer_time,
    mtp_projection,
    overhead,
)
from models.cost.encoder import add_encoder_kept, encoder_size, encoder_time
from models.cost.facts import CoefficientRecord, Facts, Images, ProblemRecords
from models.cost.memory import PartSize, activations, embedding_size, head_size, layer_size
from models.cost.recomputation import kept_bytes, recompute_seconds
from models.cost.shard import Shard


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


@compiled
def set_shard(
    question: ProblemRecords,
    shard: Shard,
    of_images: Shard,
    coefficients: CoefficientRecord,
    parts: Array,
    recompute: Array,
    kept: Array,
    pieces: Array,
) -> None:
    """Write kernel times and sizes of one device's share into `parts`. Write the seconds that each
    recompute policy adds to backward into `recompute` (policies, parts), and the bytes that a part
    keeps into `kept` (policies, parts). `of_images` is the share in the encoder of images, and
    `pieces` is scratch."""
    facts = question.facts[0]
    policies = question.policies
    for kind in range(facts.kinds):
        layer = question.layers[kind]
        seconds = layer_time(facts, layer, shard, coefficients, question.repeated_pieces, pieces)
        set_time(parts[kind], seconds)
        set_size(parts[kind], layer_size(facts, layer, shard))
        parts[kind].forward_only = 0.0 if layer.has_backward else 1.0
        for policy in range(len(policies)):
            recompute[policy, kind] = recompute_seconds(
                policies[policy, kind], seconds.forward, pieces
            )
        stored = activations(facts, layer, shard, pieces)
        for policy in range(len(policies)):
            kept[policy, kind] = kept_bytes(policies[policy, kind], stored, pieces)
        if not layer.has_backward:
            recompute[:, kind] = 0.0
            kept[:, kind] = 0.0
    set_ends(
        facts=facts,
        policies=policies,
        shard=shard,
        coefficients=coefficients,
        parts=parts,
        recompute=recompute,
        kept=kept,
    )
    if len(question.images.layers) > 0:
        add_encoder(
            images=question.images,
            shard=of_images,
            coefficients=coefficients,
            part=parts[facts.kinds],
            recompute=recompute[:, facts.kinds],
            kept=kept[:, facts.kinds],
            pieces=pieces,
        )


@compiled
def set_ends(
    facts: Facts,
    policies: Array,
    shard: Shard,
    coefficients: CoefficientRecord,
    parts: Array,
    recompute: Array,
    kept: Array,
) -> None:
    """Write kernel times and sizes of the embedding and the head into `parts`, and their columns of
    `recompute` and `kept` (policies, parts). A policy that recomputes whole layers also repeats the
    projections of multi-token prediction, which count with the head."""
    embedding, head = facts.kinds, facts.kinds + 1
    kept[:, embedding] = kept[:, head] = 0.0
    set_time(parts[embedding], embedding_time(facts, shard, coefficients))
    set_size(parts[embedding], embedding_size(facts, shard))
    set_time(parts[head], head_time(facts, shard, coefficients))
    set_size(parts[head], head_size(facts, shard))
    projection = (
        mtp_projection(facts, shard, coefficients).forward
        * facts.mtp_layers
        * overhead(facts, coefficients)
    )
    for policy in range(len(policies)):
        recompute[policy, embedding] = 0.0
        recompute[policy, head] = projection if policies[policy, facts.last_kind].whole else 0.0


@compiled
def add_encoder(
    images: Images,
    shard: Shard,
    coefficients: CoefficientRecord,
    part: Part,
    recompute: Array,
    kept: Array,
    pieces: Array,
) -> None:
    """Add the times and sizes of the encoder of images to `part`, the embedding, and set the shares
    of its parameters that are the encoder's. Add the encoder's repeated seconds and kept bytes to
    `recompute` and `kept` (policies,). `pieces` is scratch."""
    seconds = encoder_time(images, shard, coefficients, recompute, pieces)
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
