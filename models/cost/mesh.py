"""Records of the costs that depend on the mesh, its placement and the micro-batch only.

A *mesh* is the parallel degrees of a layout, and its placement the order of their axes over the
devices. A *part* of the model is a layer of one kind, the embedding or the head.
"""

from __future__ import annotations


class Part:
    """Holds seconds for one micro-batch, and parameters on one device, of one part of the model: a
    layer of a kind, the embedding with the encoder of images, or the head.

    The fields up to `host` are those of LayerTime, and those from `dense` to `trained_expert` are
    those of PartSize. All others in seconds are communication, before any overlap.
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
    """Seconds a micro-batch by which attention takes longer on the data-parallel rank with the
    longest documents than on the mean rank, on the mean stage."""
    straggling: float
    """The share of a step that waiting for the slowest device adds to it."""
    largest_unit: float
    """Parameters that FSDP gathers at a time, for the largest layer."""
    undecided: bool
    """True where the placement or the policy is not decided yet, so that times are lower bounds."""
