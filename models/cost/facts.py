"""Records of numbers, in which compiled functions read a question.

A *question* is a problem (model, workload, cluster and software) with the recompute policies that
are asked about. A *kind* of layer stands for all layers of the model that are equal. The *parts* of
a model are its kinds of layers, the embedding and the head.

Each class here names the fields of one kind of record. Its annotations are the types that compiled
functions see. At run time they are given rows of arrays of :func:`record_type`, which numba reads
like objects with these fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar, cast, get_type_hints

import numpy as np

from models.columns import Array
from models.layouts.groups import DeviceOrder
from models.spec.identity import cached_by_identity
from models.spec.profile import Coefficients
from models.spec.recompute import LAST, PIECES

F = TypeVar("F")

CONTEXT = ("ring", "allgather", "ulysses")
RING, CONTEXT_ALLGATHER, ULYSSES = range(len(CONTEXT))
DISPATCHERS = ("alltoall", "deduplicated", "allgather")
ALLTOALL, DEDUPLICATED, ALLGATHER = range(len(DISPATCHERS))
ALL_PIECES = (*PIECES, LAST)
_CACHED_COEFFICIENTS = 64
"""The number of coefficients whose records are kept. The number bounds memory: an older result is
dropped and worked out again when it is asked for."""
(
    NORM,
    DENSE_ACT,
    EXPERT_ACT,
    ATTENTION,
    UP,
    KEYS,
    OUT_PROJECTION,
    DENSE,
    DENSE_HALF,
    EXPERTS,
    GROUPED,
    LAST_PRODUCT,
) = range(len(ALL_PIECES))
"""The pieces of a layer that recompute may repeat, as columns of arrays (models.spec.recompute)."""


class Facts(NamedTuple):
    """Holds what a problem says about all layers, its chip and its stack. Formulas name it `f`. A
    field named `_bytes` is the size of one element unless its docstring says otherwise. Fields that
    models.spec has under the same name (Problem, Stack, Workload) are explained there."""

    # the workload
    seq_len: float
    attended_length: float
    """Tokens of a sequence that attend to each other. It is less than `seq_len` where sequences are
    packed with documents."""
    document_length: float
    """The mean number of tokens of a document; `seq_len` where sequences are not packed."""
    document_spread: float
    """The standard deviation of the lengths of documents over their mean; 0 where sequences are not
    packed."""
    global_batch: int
    activation_bytes: float
    gemm_bytes: float
    natural_routing: bool
    """True where experts get different shares of the tokens; false where balance is forced and all
    get equal shares."""
    capacity_factor: float
    """The most tokens that an expert takes, over the mean; 0 where no tokens are dropped."""
    # the model
    kinds: int
    """The number of kinds of layers. Among the parts of a model, the kinds come first, then the
    embedding, then the head."""
    num_layers: int
    hidden_size: float
    residual_streams: float
    vocab_size: float
    mtp_layers: int
    last_kind: int
    tied_embedding: bool
    embedding_parameters: float
    head_parameters: float
    """Parameters of the output projection, and of MTP modules beyond their layers. The final norm
    is not counted."""
    encoder_layers: float
    """Layers of the encoder of images; 0 where there is none."""
    # the chip
    gemm_tile: float
    pads_products: bool
    pads_vocabulary: bool
    compute_units: float
    """Compute units of one device."""
    gemm_flops: float
    """The dense peak of a device in the format of its matrix products, FLOP/s."""
    gemm_format_bits: int
    """Bits of the format of matrix products, where the format has an efficiency coefficient: 16, 8
    or 4."""
    flops_16: float
    """The dense peak of products that stay in 16 bits, FLOP/s. In fp32 training it is the peak of
    fp32."""
    optimizer_flops: float
    """The dense 16-bit peak at which Muon's products run, FLOP/s."""
    memory_bytes_s: float
    usable_bytes: float
    """Bytes of memory that a device may use."""
    host_bytes: float
    """Bytes of host memory for each device."""
    # the optimizer
    muon: bool
    trains_layers: bool
    """True where the weights of layers are trained, false where only their adapters are."""
    trains_embedding: bool
    trains_head: bool
    reference_forwards: float
    """The number of forward passes without gradients beside each one of training."""
    reference_copies: float
    """The number of copies of the model that run the forward passes without gradients."""
    parameter_bytes: float
    base_bytes: float
    """The size of a parameter as it lies in memory."""
    operand_bytes: float
    gradient_bytes: float
    reduce_bytes: float
    """The size of a gradient on the wire."""
    gradient_reduction_bytes: float
    gather_bytes: float
    gather_copy_bytes: float
    reduce_copy_bytes: float
    tensor_gather_bytes: float
    cast_bytes: float
    weight_cast_bytes: float
    scales_rows: bool
    master_bytes: float
    """The size of the fp32 copy beside the parameter in use."""
    sharded_master_bytes: float
    """The size of the fp32 copy that FSDP shards."""
    moment_bytes: float
    # the stack
    materialises_scores: bool
    score_passes: float
    """The number of times that a kernel which keeps scores in memory reads or writes each score."""
    key_block: float
    """The number of keys that the attention kernel takes at a time."""
    fused: bool
    fused_norm: bool
    low_precision_activations: bool
    loss_traffic_bytes: float
    """Bytes of memory traffic of the loss for each logit."""
    loss_memory_bytes: float
    """Bytes of memory for a logit and its gradient, over all heads."""
    loss_memory_bytes_over_tensor: float
    """Bytes of memory for a logit and its gradient with tp > 1, over all heads."""
    parallel_loss: bool
    loss_chunks: float
    tiled_mlp: bool
    keeps_logits: bool
    saves_scattered: bool
    """Selective recompute saves what tensor parallelism reduced and scattered."""
    scaled_token_bytes: float
    rematerialises: bool
    """True where backward computes what norms and activation functions put out anew, at no
    cost."""
    experts_at_once: bool
    experts_in_python: bool
    """True where a loop in Python goes through the experts, operation by operation."""
    experts_gathered_apart: bool
    """True where ZeRO 3 gathers each matrix of each expert by itself."""
    partly_captured: bool
    gathers_matrices: bool
    parameter_shards: bool
    whole_gradients: bool
    offloads_gradients: bool
    """True where gradients are offloaded with the optimizer."""
    parameters_on_host: bool
    """True where parameters are offloaded with the optimizer."""
    host_buffers: float
    """Host memory over the bytes that are offloaded there with the optimizer."""
    context: int
    dispatcher: int
    node_limit: float
    overlap_data: bool
    overlap_zero1: bool
    overlap_tensor: bool
    overlap_expert: bool
    overlap_pipeline: bool
    age_years: float
    splits_by_threshold: bool
    """True where a stage takes layers until their cost passes its share (Stack.partition), so that
    a stage may have no layer."""
    # the cluster
    is_torus: bool
    node: float
    """The number of devices of a node. Stragglers count beyond one node."""
    fills_fabric: bool


ROWS_LOCAL, INPUTS, OUTPUTS, CUT_INPUTS, CUT_OUTPUTS, KV_OUTPUTS, GROUPS, IS_UP = range(8)
"""Columns of the products of a layer. ROWS_LOCAL says whether a device multiplies only its own
tokens; INPUTS and OUTPUTS are elements in and out; CUT_INPUTS and CUT_OUTPUTS say whether tensor
parallelism divides them; KV_OUTPUTS are the elements out that belong to key-value heads; GROUPS is
the number of blocks on the diagonal; and IS_UP says whether `mla_up_proj` repeats the product."""
MAX_PRODUCTS = 16
"""The most products that a layer may have: records are of one size, so that shorter lists are
padded."""
Products = Any
"""Rows of numbers, (MAX_PRODUCTS, columns)."""


class LayerFacts(NamedTuple):
    """Holds what a problem says about one kind of layer. Fields that models.spec has under the same
    name (Layer, Attention, Moe) are explained there."""

    num_layers: float
    """The number of layers of this kind in the model, layers of multi-token prediction included."""
    trains_weights: bool
    """True where the layer's own weights are trained, false where only adapters or nothing are."""
    has_backward: bool
    """True where backward reaches the layer: it, or something before it, is trained."""
    blocks: float
    """The number of mixers and feed-forward networks in the layer."""
    products: Products
    """The projections of the mixers, and those to the latent of experts and back."""
    num_products: int
    # attention
    attends: bool
    num_attention_heads: float
    num_key_value_heads: float
    head_dim: float
    v_head_dim: float
    kv_dim: float
    mla: bool
    q_lora_rank: float
    kv_lora_rank: float
    qk_rope_head_dim: float
    sliding_window: float
    """The most keys that a query sees; 0 where there is no limit."""
    mean_keys: float
    """The mean number of keys that a query sees."""
    score_dims: float
    """Elements of a query and a value that are multiplied for each key."""
    gate: float
    """Elements of the gate on the output of attention."""
    chooses_keys: bool
    scored_keys: float
    """The mean number of keys that the indexer scores for a query."""
    scoring_flops: float
    """FLOPs that the indexer spends on scores for one query."""
    chosen_keys: float
    """The most keys that the indexer keeps for a query; 0 without an indexer."""
    index_elements: float
    """Elements of a token that the indexer and the pooling of keys keep."""
    passed_keys: float
    """Elements of a token that context parallelism passes on and tensor parallelism does not cut; 0
    where keys and values of every head are passed."""
    # linear attention or a state-space model
    recurs: bool
    recurrence_flops: float
    """Forward FLOPs of the recurrence for one token, over all heads."""
    recurrence_traffic: float
    """Elements of a token that the kernels of the recurrence read and write."""
    recurrence_light: float
    """Elements of a token that the convolution, the norm and the gate read and write."""
    recurrence_kept: float
    """Elements of a token that stay for backward."""
    recurrence_exchanged: float
    """Elements of a token that enter and leave the recurrence, which context parallelism
    exchanges."""
    # the feed-forward network
    dense_width: float
    """The width of the dense network or of the shared expert; 0 where there is none."""
    dense_matrices: float
    gated: bool
    parallel: bool
    num_norms: float
    skips_last_product: bool
    sparse: bool
    num_experts: float
    """The number of routed experts; 0 where it is not decided yet how they are divided over
    devices."""
    experts_per_token: float
    expert_width: float
    expert_input: float
    """Elements of a token as experts read and write it."""
    expert_matrices: float
    expert_bias: bool
    num_groups: float
    groups_per_token: int
    # parameters
    dense_parameters: float
    """Parameters outside the routed experts."""
    expert_parameters: float
    """Parameters of all routed experts."""
    kv_parameters: float
    """Parameters that make keys and values, which are repeated where tp exceeds the key-value
    heads; 0 for MLA."""
    replicated_parameters: float
    """Parameters that every tensor-parallel rank has whole."""
    largest_matrix: float
    """Parameters of the largest matrix outside the routed experts."""
    trained_dense: float
    """Trained parameters outside the routed experts: all of them, or those of adapters."""
    trained_expert: float
    """Trained parameters of all routed experts: all of them, or those of adapters."""
    adapter_elements: float
    """Elements of a token that adapters outside the routed experts read and write."""
    expert_adapter_elements: float
    """Elements that the adapters of an expert read and write for each token that it gets."""
    adapters: float
    """The number of matrices that have adapters."""
    muon_dense_flops: float
    muon_expert_flops: float


class EncoderFacts(NamedTuple):
    """Holds what a problem says about the encoder of images, beside its layers and its
    projector."""

    patches: float
    """Patches of images in a sequence, on which the encoder works."""
    tokens: float
    """Tokens of a sequence that the projector makes of its patches for the language model."""
    patch_elements: float
    num_attention_heads: float
    trained: bool
    projector_trained: bool
    whole_parameters: float
    """Parameters of the tower outside its layers."""
    projector_vectors: float
    """Parameters of biases and norms of the projector."""


class PolicyFacts(NamedTuple):
    """Says what a recompute policy does to one kind of layer."""

    whole: bool
    pieces: int
    """The pieces of ALL_PIECES that the policy repeats, a bit each."""
    skips_last: bool
    tensor: float
    """The share of forward's tensor-parallel traffic that the policy repeats."""
    context: float
    """The share of forward's context-parallel traffic that the policy repeats."""
    expert: float
    """The share of forward's expert-parallel traffic that the policy repeats."""


class DimFacts(NamedTuple):
    """Holds one dim of a cluster (models.spec.hardware.Dim)."""

    ring: bool
    out: bool
    domain: int
    gb_s: float
    wraps: bool
    peer_gb_s: float
    """The bandwidth to one peer where there is no switch; 0 where there is one."""


_CODES: dict[Any, tuple[Any, ...]] = {int: ("i8",), float: ("f8",), bool: ("?",)}
_PRODUCTS = ("f8", (MAX_PRODUCTS, 8))


@cache
def record_type(cls: Any) -> np.dtype[Any]:
    """Return the dtype of records with the fields of a class. Each field is annotated as int,
    float, bool or Products."""
    hints = get_type_hints(cls)
    types = [(name, *_CODES.get(hint, _PRODUCTS)) for name, hint in hints.items()]
    return np.dtype(types, align=True)


def facts_from(cls: type[F], sources: Sequence[object], **worked_out: Any) -> F:
    """Return facts of this class. Fields that are not `worked_out` come from the first of `sources`
    that has an attribute of the same name. Some source must have one."""

    classes = tuple(map(type, sources))

    def value(name: str) -> Any:
        return getattr(sources[_first_with(classes, name)], name)

    names = cast(Any, cls)._fields  # of a NamedTuple
    return cls(**{name: value(name) for name in names if name not in worked_out}, **worked_out)


@cache
def _first_with(classes: tuple[type, ...], name: str) -> int:
    """Return the index of the first of these classes whose instances have an attribute. To ask the
    instances would work out their properties, some hundred for each new question."""
    return next(
        index
        for index, cls in enumerate(classes)
        if hasattr(cls, name) or name in getattr(cls, "__dataclass_fields__", ())
    )


def records(cls: Any, rows: Sequence[Any]) -> Array:
    """Return rows as an array of records with the fields of a class."""
    return np.array([tuple(row) for row in rows], dtype=record_type(cls))


CoefficientRecord = Any
"""A record with one number for each field of models.spec.profile.Coefficients. Formulas name it
`c`."""
COEFFICIENTS = np.dtype([(field.name, "f8") for field in fields(Coefficients)])
_COEFFICIENT_VALUES = attrgetter(*(field.name for field in fields(Coefficients)))


@cached_by_identity(_CACHED_COEFFICIENTS)
def coefficient_records(coefficients: Coefficients) -> Array:
    """Return coefficients as records of COEFFICIENTS: one, (1,), or n of them where some
    coefficients are arrays of n draws. The array is shared through a cache: nobody may write to it.
    """
    values = _COEFFICIENT_VALUES(coefficients)
    if not any(isinstance(value, np.ndarray) for value in values):
        return np.array([values], dtype=COEFFICIENTS)
    record = np.empty(np.broadcast_shapes(*map(np.shape, values)), dtype=COEFFICIENTS)
    for name, value in zip(COEFFICIENTS.names or (), values, strict=True):
        record[name] = value
    return np.atleast_1d(record)


class Images(NamedTuple):
    """Holds the encoder of images. A model without one has no layers here, and zeros."""

    facts: Array
    """Records of Facts, (1,). They are those of the problem with the encoder's hidden size, and
    with an image as the sequence."""
    encoder: Array
    """Records of EncoderFacts, (1,)."""
    layers: Array
    """Records of LayerFacts, (kinds,)."""
    policies: Array
    """Records of PolicyFacts, (policies, kinds)."""
    projector: Array
    """Elements in and out of each matrix of the projector, (matrices, 2)."""


class ProblemRecords(NamedTuple):
    """Holds a problem as compiled functions take it, under the name `question`."""

    facts: Array
    """Records of Facts, (1,)."""
    layers: Array
    """Records of LayerFacts, (kinds,)."""
    policies: Array
    """Records of PolicyFacts, (policies, kinds). The first policy recomputes nothing."""
    repeated_pieces: int
    """The pieces of a layer that some policy repeats, a bit each."""
    dims: Array
    """Records of DimFacts, (dims,), from the inside out."""
    order: DeviceOrder
    images: Images
