"""Records of numbers, in which compiled functions read a question.

Each class here names the fields of one kind of record. Its annotations are the types that compiled
functions see. At run time they are given rows of arrays of :func:`record_type`, which numba reads
like objects with these fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple, get_type_hints

import numpy as np

from models.columns import Array
from models.layouts.groups import DeviceOrder, device_order
from models.spec.adapters import Lora
from models.spec.architecture import Architecture
from models.spec.attention import Attention
from models.spec.encoder import Encoder
from models.spec.hardware import Cluster, Dim
from models.spec.identity import cached_by_identity
from models.spec.layer import Layer
from models.spec.problem import Problem
from models.spec.profile import Coefficients
from models.spec.projection import Projection, parameters_of
from models.spec.recompute import LAST, NONE, PIECES, Recomputed
from models.spec.recurrence import Recurrence
from models.spec.stack import Stack
from models.spec.trained import trains_embedding, trains_head

CONTEXT = ("ring", "allgather", "ulysses")
RING, CONTEXT_ALLGATHER, ULYSSES = range(len(CONTEXT))
DISPATCHERS = ("alltoall", "deduplicated", "allgather")
ALLTOALL, DEDUPLICATED, ALLGATHER = range(len(DISPATCHERS))
ALL_PIECES = (*PIECES, LAST)
_CACHED_QUESTIONS = 64
"""The number of results that each cache here keeps. A service asks about many layouts of the same
few problems, so the records of a problem are kept and shared. The number bounds memory: an older
result is dropped and worked out again when it is asked for."""
KEY_BLOCK = {"splash": 512}
"""The number of keys that an attention kernel takes at a time (sa_block_kv of MaxText). Kernels
that are not named here take 128, as flash kernels do."""
SCORE_PASSES = {"unfused": 10.0, "fused_softmax": 5.0}
"""The number of times that a kernel which keeps scores in memory reads or writes each score. An
unfused softmax does so for scale, mask, softmax and dropout one by one; a fused one does them at
once."""
LOSS_TRAFFIC = {"fused": 16, "fused_linear": 8, "compiled": 16, "pytorch": 40, "stepwise": 52}
"""Bytes of memory traffic for each fp32 logit. A fused kernel writes the logit, reads it for its
maximum and sum, writes a gradient and reads that. Liger's kernel does the same with logits of 16
bits. PyTorch's cross-entropy converts the logit (6 bytes), takes log-softmax (12), clears a
gradient (4), fills it (12) and converts that (6). A stepwise loss, as Megatron-LM's
vocab_parallel_cross_entropy is unless told otherwise, converts (6), takes the maximum (4),
subtracts (8), takes the exponent (8), sums (4) and divides (8); its backward scales (8) and
converts (6)."""
LOSS_MEMORY = {
    # fp32 logits and their 16-bit gradient, alive together (Korthikanti et al. §4.3 counts 4 for
    # logits)
    "fused": 6,
    # logits of a chunk in 16 bits, replaced by their gradient, and as many bytes of what the head
    # reads: chunks are that large (liger_kernel ops/fused_linear_cross_entropy.py)
    "fused_linear": 4,
    "stepwise": 6,  # in place
    "compiled": 8,  # and 16-bit logits
    "pytorch": 16,  # and fp32 log-softmax and gradient
}
"""Bytes of memory for each logit while loss and gradient are computed."""
PARALLEL_LOSS_MEMORY = 20
"""Bytes of memory for each logit under PyTorch's loss_parallel: log-softmax, gradient, exponent,
sum and product, each in fp32."""
(
    NORM,
    DENSE_ACT,
    EXPERT_ACT,
    ATTENTION,
    UP,
    ENDS,
    OUT_PROJECTION,
    DENSE,
    DENSE_HALF,
    EXPERTS,
    GROUPED,
    LAST_PRODUCT,
) = range(len(ALL_PIECES))
"""The pieces of a layer that recompute may repeat, as columns of arrays (models.spec.recompute)."""


class Facts(NamedTuple):
    """Holds what a problem says about all layers, its chip and its stack. A field named `_bytes` is
    the size of one element unless its docstring says otherwise."""

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
    """True where layers are split by a threshold of cost, so that a stage of a pipeline may have no
    layer."""
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
    """Holds what a problem says about one kind of layer."""

    trained_layers: float
    """The number of layers of this kind, layers of multi-token prediction included."""
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
    """Return the dtype of records with the fields of a class."""
    hints = get_type_hints(cls)
    return np.dtype([(name, *_CODES.get(of, _PRODUCTS)) for name, of in hints.items()], align=True)


def records(cls: Any, rows: Sequence[Any]) -> Array:
    """Return rows as an array of records with the fields of a class."""
    return np.array([tuple(row) for row in rows], dtype=record_type(cls))


CoefficientRecord = Any
"""A record with one number for each field of models.spec.profile.Coefficients."""
COEFFICIENTS = np.dtype([(field.name, "f8") for field in fields(Coefficients)])
_COEFFICIENT_VALUES = attrgetter(*(field.name for field in fields(Coefficients)))


@cached_by_identity(_CACHED_QUESTIONS)
def coefficient_records(c: Coefficients) -> Array:
    """Return coefficients as records, (1,), or (n,) where some are arrays of n draws. The array is
    shared through a cache: nobody may write to it."""
    values = _COEFFICIENT_VALUES(c)
    if not any(isinstance(value, np.ndarray) for value in values):
        return np.array([values], dtype=COEFFICIENTS)
    record = np.empty(np.broadcast_shapes(*map(np.shape, values)), dtype=COEFFICIENTS)
    for name, of in zip(COEFFICIENTS.names or (), values, strict=True):
        record[name] = of
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
    """Holds a problem as compiled functions take it."""

    facts: Array
    """Records of Facts, (1,)."""
    layers: Array
    """Records of LayerFacts, (kinds,)."""
    policies: Array
    """Records of PolicyFacts, (policies, kinds). The first policy recomputes nothing."""
    dims: Array
    """Records of DimFacts, (dims,), from the inside out."""
    order: DeviceOrder
    images: Images


def question(problem: Problem, recompute: Array) -> ProblemRecords:
    """Return the records of a problem, with the policy that recomputes nothing and then the
    policies of these numbers. The result is shared through a cache: nobody may write to it."""
    return _question(problem, tuple(policy_numbers(recompute).tolist()))


@cached_by_identity(_CACHED_QUESTIONS)
def _question(problem: Problem, policies: tuple[int, ...]) -> ProblemRecords:
    return ProblemRecords(
        facts=_fact_records(problem),
        layers=_layer_records(problem),
        policies=_policy_records(problem.stack, problem.architecture.kinds, policies),
        dims=_dim_records(problem.cluster),
        order=device_order(problem.cluster.device_orders),
        images=_images(problem, policies),
    )


@cached_by_identity(_CACHED_QUESTIONS)
def _fact_records(problem: Problem) -> Array:
    return records(Facts, [_facts(problem)])


def _layer_records(problem: Problem) -> Array:
    architecture, workload = problem.architecture, problem.workload
    skips_last = tuple(map(problem.stack.skips_last_product, architecture.kinds))
    return _records_of_kinds(architecture, workload.attended_length, workload.lora, skips_last)


# One prediction asks about a model under several stacks, and one job about a model under many
# batches. Each cache below is therefore keyed by no more of a problem than its records depend on.


@cached_by_identity(_CACHED_QUESTIONS)
def _records_of_kinds(
    architecture: Architecture, seq_len: float, lora: Lora | None, skips_last: tuple[bool, ...]
) -> Array:
    hidden = architecture.hidden_size
    kinds = zip(architecture.kinds, architecture.trained_layers_per_kind, skips_last, strict=True)
    return records(
        LayerFacts,
        [_layer(kind, count, hidden, seq_len, lora, skips) for kind, count, skips in kinds],
    )


@cached_by_identity(_CACHED_QUESTIONS, objects=2)
def _policy_records(stack: Stack, kinds: tuple[Layer, ...], policies: tuple[int, ...]) -> Array:
    rows = [_policy(stack.recomputed(number, kind)) for number in policies for kind in kinds]
    return records(PolicyFacts, rows).reshape(len(policies), len(kinds))


@cached_by_identity(_CACHED_QUESTIONS)
def _dim_records(cluster: Cluster) -> Array:
    return records(DimFacts, [_dim(dim) for dim in cluster.dims])


def _images(problem: Problem, policies: tuple[int, ...]) -> Images:
    encoder = problem.architecture.encoder
    if encoder is None:
        return _no_images(len(policies))._replace(facts=_fact_records(problem))
    image = float(encoder.patches_per_image)
    facts = _facts(problem)._replace(
        seq_len=image,
        attended_length=image,
        hidden_size=encoder.hidden_size,
        residual_streams=1,
        trains_layers=encoder.trained,
    )
    return Images(
        facts=records(Facts, [facts]),
        encoder=records(EncoderFacts, [_encoder(encoder)]),
        layers=records(LayerFacts, _encoder_layers(problem, encoder)),
        policies=_policy_records(problem.stack, encoder.kinds, policies),
        projector=np.array(encoder.projector.matrices, dtype=float).reshape(-1, 2),
    )


@cache
def _no_images(policies: int) -> Images:
    """Return the records of a model without images, except for the facts, which depend on the
    problem."""
    return Images(
        facts=np.zeros(0, record_type(Facts)),
        encoder=np.zeros(1, record_type(EncoderFacts)),
        layers=np.zeros(0, record_type(LayerFacts)),
        policies=np.zeros((policies, 0), record_type(PolicyFacts)),
        projector=np.zeros((0, 2)),
    )


def _encoder(encoder: Encoder) -> EncoderFacts:
    embedding = encoder.patch_elements * encoder.hidden_size
    return EncoderFacts(
        patches=encoder.patches_per_sequence,
        tokens=encoder.tokens_per_sequence,
        patch_elements=encoder.patch_elements,
        num_attention_heads=encoder.num_attention_heads,
        trained=encoder.trained,
        projector_trained=encoder.projector_trained,
        whole_parameters=embedding + encoder.other_parameters,
        projector_vectors=encoder.projector.vectors,
    )


def policy_numbers(recompute: Array) -> Array:
    """Return the distinct policies among these numbers, ascending, with the one that recomputes
    nothing always first."""
    return np.array(sorted({NONE, *np.unique(recompute).tolist()}))


def _facts(problem: Problem) -> Facts:
    architecture, cluster = problem.architecture, problem.cluster
    workload = problem.workload
    stack = problem.stack
    chip = cluster.chip
    number_format, count = workload.number_format, architecture.parameters
    layer = architecture.layers[-1].parameters(architecture.hidden_size)
    mtp_extra = architecture.mtp_layers * (architecture.mtp_parameters - layer)
    gemm_flops = cluster.peak_flops(number_format.gemm)
    heads = 1 + architecture.mtp_layers
    logit_bytes = LOSS_MEMORY[stack.loss]
    sharded_loss = stack.loss == "pytorch" and stack.parallel_loss
    gather_copy, reduce_copy = problem.shard_copy_bytes
    return Facts(
        seq_len=workload.seq_len,
        attended_length=workload.attended_length,
        document_length=workload.packing.mean_length if workload.packing else workload.seq_len,
        document_spread=workload.packing.spread if workload.packing else 0.0,
        global_batch=workload.global_batch,
        activation_bytes=number_format.activation_bytes,
        gemm_bytes=number_format.gemm_bytes,
        natural_routing=workload.routing == "natural",
        capacity_factor=workload.capacity_factor or 0.0,
        kinds=len(architecture.kinds),
        num_layers=architecture.num_layers,
        hidden_size=architecture.hidden_size,
        residual_streams=architecture.residual_streams,
        vocab_size=architecture.head_outputs,
        mtp_layers=architecture.mtp_layers,
        last_kind=architecture.kinds.index(architecture.layers[-1]),
        tied_embedding=architecture.tie_word_embeddings,
        embedding_parameters=count.embedding,
        head_parameters=count.lm_head + mtp_extra,
        encoder_layers=len(architecture.encoder.layers) if architecture.encoder else 0,
        gemm_tile=chip.gemm_tile,
        pads_products=problem.pads_products,
        pads_vocabulary=stack.pads == "vocabulary",
        compute_units=chip.compute_units / chip.devices_per_chip,
        gemm_flops=gemm_flops,
        gemm_format_bits={"fp8": 8, "int8": 8, "fp4": 4}.get(number_format.gemm, 16),
        flops_16=gemm_flops if workload.precision == "fp32" else cluster.peak_flops_16,
        optimizer_flops=cluster.peak_flops_16 if workload.optimizer == "muon" else 1.0,
        memory_bytes_s=cluster.memory_bytes_s,
        usable_bytes=cluster.usable_bytes,
        host_bytes=cluster.host_bytes,
        muon=workload.optimizer == "muon",
        trains_layers=workload.lora is None,
        trains_embedding=trains_embedding(architecture, workload),
        trains_head=trains_head(architecture, workload),
        reference_forwards=workload.reference.forwards if workload.reference else 0.0,
        reference_copies=float(workload.reference.own_weights) if workload.reference else 0.0,
        parameter_bytes=problem.parameter_bytes,
        base_bytes=problem.base_bytes,
        operand_bytes=problem.operand_bytes,
        gradient_bytes=problem.gradient_bytes,
        reduce_bytes=problem.reduce_bytes,
        gradient_reduction_bytes=problem.gradient_reduction_bytes,
        gather_bytes=problem.gather_bytes,
        gather_copy_bytes=gather_copy,
        reduce_copy_bytes=reduce_copy,
        tensor_gather_bytes=problem.tensor_gather_bytes,
        cast_bytes=problem.cast_bytes,
        weight_cast_bytes=problem.weight_cast_bytes,
        scales_rows=problem.scales_rows,
        master_bytes=problem.master_bytes,
        sharded_master_bytes=workload.optimizer_state.master_bytes,
        moment_bytes=problem.moment_bytes,
        materialises_scores=problem.materialises_scores,
        score_passes=SCORE_PASSES.get(problem.kernel, 0.0),
        key_block=KEY_BLOCK.get(problem.kernel, 128),
        fused=stack.fused,
        fused_norm=stack.fused_norm,
        low_precision_activations=stack.low_precision_activations,
        loss_traffic_bytes=LOSS_TRAFFIC[stack.loss],
        loss_memory_bytes=logit_bytes * heads / problem.loss_chunks,
        loss_memory_bytes_over_tensor=(PARALLEL_LOSS_MEMORY if sharded_loss else logit_bytes)
        * heads
        / problem.loss_chunks,
        parallel_loss=stack.parallel_loss,
        loss_chunks=problem.loss_chunks,
        tiled_mlp=stack.tiled_mlp,
        keeps_logits=stack.keeps_logits,
        experts_at_once=stack.experts_at_once,
        experts_in_python=stack.calls_expert_modules,
        experts_gathered_apart=stack.gathers_experts_apart,
        partly_captured=problem.is_partly_captured,
        gathers_matrices=stack.gather_unit == "matrix",
        parameter_shards=problem.keeps_sharded_parameters,
        whole_gradients=stack.whole_gradients,
        offloads_gradients=stack.offloads_gradients,
        parameters_on_host=stack.parameters_on_host,
        host_buffers=stack.host_buffers,
        context=CONTEXT.index(stack.context),
        dispatcher=DISPATCHERS.index(stack.dispatcher),
        node_limit=np.inf if stack.node_limit is None else stack.node_limit,
        overlap_data=stack.overlap_data,
        overlap_zero1=stack.overlap_zero1,
        overlap_tensor=problem.overlaps_tensor,
        overlap_expert=problem.overlaps_experts,
        overlap_pipeline=stack.overlap_pipeline,
        age_years=stack.age_years,
        splits_by_threshold=stack.splits_by_threshold,
        is_torus=any(dim.kind == "ring" for dim in cluster.dims),
        # A scale-up domain of a rack joins many nodes, which have eight devices at most.
        node=min(8, cluster.scale_up_domain),
        fills_fabric=cluster.fills_fabric,
    )


def _encoder_layers(problem: Problem, encoder: Encoder) -> list[LayerFacts]:
    hidden, image = encoder.hidden_size, encoder.patches_per_image
    skips_last = problem.stack.skips_last_product
    kinds = [(kind, encoder.layers.count(kind)) for kind in encoder.kinds]
    rows = [_layer(kind, count, hidden, image, None, skips_last(kind)) for kind, count in kinds]
    return [row._replace(trains_weights=encoder.trained) for row in rows]


def _layer(
    layer: Layer, count: float, hidden: int, seq_len: float, lora: Lora | None, skips_last: bool
) -> LayerFacts:
    """Return the facts of a kind of layer of which there are `count`. `seq_len` is the number of
    tokens that attend to each other."""
    dense, moe = layer.dense, layer.moe
    expert = moe.expert_parameters(hidden) if moe else 0
    muon_dense, muon_expert = layer.orthogonalisation_flops(hidden)
    products = _products(layer, hidden)
    return LayerFacts(
        trained_layers=count,
        trains_weights=lora is None and layer.gradients == "weights",
        has_backward=layer.gradients != "none",
        blocks=layer.blocks,
        products=np.pad(products, ((0, MAX_PRODUCTS - len(products)), (0, 0))),
        num_products=len(products),
        **_attention(layer.attention, hidden, seq_len),
        **_recurrence(layer.recurrence, hidden),
        dense_width=dense.intermediate_size if dense else 0,
        dense_matrices=dense.matrices if dense else 0,
        gated=layer.feed_forward.gated if layer.feed_forward else False,
        parallel=layer.parallel,
        num_norms=layer.num_norms,
        skips_last_product=skips_last,
        sparse=moe is not None,
        num_experts=moe.num_experts if moe else 1,
        experts_per_token=moe.experts_per_token if moe else 0,
        expert_width=moe.intermediate_size if moe else 0,
        expert_input=moe.token_size(hidden) if moe else 0,
        expert_matrices=moe.expert.matrices if moe else 0,
        expert_bias=bool(moe and moe.bias),
        num_groups=moe.num_groups if moe else 1,
        groups_per_token=moe.groups_per_token if moe else 1,
        dense_parameters=layer.parameters(hidden) - expert,
        expert_parameters=expert,
        kv_parameters=_kv_parameters(layer, hidden),
        replicated_parameters=layer.replicated_parameters(hidden),
        largest_matrix=_largest_matrix(layer, hidden),
        **_trained(lora, layer, hidden),
        muon_dense_flops=muon_dense,
        muon_expert_flops=muon_expert,
    )


def _trained(lora: Lora | None, layer: Layer, hidden: int) -> dict[str, Any]:
    """Return the fields of LayerFacts that say what is trained. An adapter reads each input once
    more, and reads and writes each output, so it counts one and two elements for them."""
    if lora is None:
        expert = layer.moe.expert_parameters(hidden) if layer.moe else 0
        is_trained = layer.gradients == "weights"
        return {
            "trained_dense": layer.parameters(hidden) - expert if is_trained else 0,
            "trained_expert": expert if is_trained else 0,
            "adapter_elements": 0,
            "expert_adapter_elements": 0,
            "adapters": 0,
        }
    matrices = list(lora.matrices(layer, hidden))
    of_expert = list(lora.expert_matrices(layer, hidden))
    return {
        "trained_dense": lora.parameters(layer, hidden),
        "trained_expert": lora.expert_parameters(layer, hidden),
        "adapter_elements": sum(matrix.n_in + 2 * matrix.n_out for matrix in matrices),
        "expert_adapter_elements": sum(matrix.n_in + 2 * matrix.n_out for matrix in of_expert),
        "adapters": len(matrices) + len(of_expert),
    }


def _kv_parameters(layer: Layer, hidden: int) -> int:
    return parameters_of(
        projection for projection in layer.projections(hidden) if projection.cut == "kv"
    )


def _largest_matrix(layer: Layer, hidden: int) -> int:
    matrices = [projection.parameters for projection in layer.projections(hidden)]
    if layer.dense:
        matrices.append(hidden * layer.dense.intermediate_size)
    return max(matrices, default=hidden)


def _products(layer: Layer, hidden: int) -> Array:
    """Return the products of a layer as rows of numbers, (products, columns). The fused projections
    of a mixer are one product; projections to the latent of experts and back follow those of the
    mixers."""
    rows: list[tuple[float, ...]] = []
    for mixer in layer.mixers:
        projections = mixer.projections(hidden)
        fused = [projection for projection in projections if projection.fused]
        outputs = sum(projection.n_out for projection in fused if projection.cut == "columns")
        kv = sum(projection.n_out for projection in fused if projection.cut == "kv")
        rows += [(False, hidden, outputs, False, True, kv, 1, False)] if fused else []
        rows += [_product(projection) for projection in projections if not projection.fused]
    if layer.moe and layer.moe.latent_size:
        latent = layer.moe.latent_size
        rows += [_product(Projection("latent_down", hidden, latent, "whole"))]
        rows += [_product(Projection("latent_up", latent, hidden, "whole"))]
    return np.array(rows, dtype=float).reshape(-1, 8)


def _product(each: Projection) -> tuple[float, ...]:
    is_up = each.name in ("q_up", "kv_up")
    whole, rows, columns = (each.cut == cut for cut in ("whole", "rows", "columns"))
    return whole, each.n_in, each.n_out, rows, columns, 0, each.groups, is_up


def _attention(attention: Attention | None, hidden: int, seq_len: float) -> dict[str, Any]:
    if attention is None:
        return {**dict.fromkeys(_OF_ATTENTION, 0.0), "num_key_value_heads": 1.0}
    indexer, pooled = attention.indexer, attention.compression
    scored = attention.mean_scored(seq_len)
    whole = [
        projection
        for projection in attention.projections(hidden)
        if projection.cut == "whole" and not projection.name.endswith("_down")
    ]
    absorbed = attention.kv_lora_rank if indexer else None
    passed = attention.kv_dim if pooled else 0
    if absorbed:
        passed = absorbed + attention.qk_rope_head_dim
    return {
        "attends": True,
        "num_attention_heads": attention.num_attention_heads,
        "num_key_value_heads": attention.num_key_value_heads,
        "head_dim": attention.head_dim,
        "v_head_dim": attention.v_head_dim,
        "kv_dim": attention.kv_dim,
        "mla": attention.is_mla,
        "q_lora_rank": attention.q_lora_rank or 0,
        "kv_lora_rank": attention.kv_lora_rank or 0,
        "qk_rope_head_dim": attention.qk_rope_head_dim,
        "sliding_window": attention.sliding_window or 0,
        "mean_keys": attention.mean_keys(seq_len),
        # Sparse attention over MLA reads chosen keys as latents, which all heads share.
        "score_dims": 2 * absorbed + attention.qk_rope_head_dim
        if absorbed
        else attention.head_dim + attention.v_head_dim,
        "gate": attention.gate_size,
        "chooses_keys": attention.is_sparse,
        "scored_keys": scored,
        "scoring_flops": 2 * scored * indexer.num_heads * indexer.head_dim if indexer else 0,
        "chosen_keys": min(indexer.top_k, seq_len) if indexer else 0,
        "index_elements": sum(projection.n_out for projection in whole),
        "passed_keys": passed + (indexer.head_dim if indexer and not indexer.shared else 0),
    }


_OF_ATTENTION = (
    "attends", "num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim", "kv_dim",
    "mla", "q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "sliding_window", "mean_keys",
    "score_dims", "gate", "chooses_keys", "scored_keys", "scoring_flops", "chosen_keys",
    "index_elements", "passed_keys",
)  # fmt: skip


def _recurrence(recurrence: Recurrence | None, hidden: int) -> dict[str, Any]:
    if recurrence is None:
        names = ("flops", "traffic", "light", "kept", "exchanged")
        return {"recurs": False, **{f"recurrence_{name}": 0.0 for name in names}}
    entered = sum(
        projection.n_out
        for projection in recurrence.projections(hidden)
        if projection.cut == "columns" and projection.name != "out"
    )
    return {
        "recurs": True,
        "recurrence_flops": recurrence.flops,
        "recurrence_traffic": recurrence.traffic,
        "recurrence_light": recurrence.light_traffic,
        "recurrence_kept": entered + recurrence.kept,
        "recurrence_exchanged": entered + recurrence.values,
    }


def _policy(done: Recomputed) -> PolicyFacts:
    pieces = sum(1 << bit for bit, name in enumerate(ALL_PIECES) if name in done.pieces)
    return PolicyFacts(
        whole=done.whole,
        pieces=pieces,
        skips_last=done.skips_last,
        tensor=done.tensor,
        context=done.context,
        expert=done.expert,
    )


def _dim(dim: Dim) -> DimFacts:
    return DimFacts(
        ring=dim.kind == "ring",
        out=dim.scale == "out",
        domain=dim.domain,
        gb_s=dim.gb_s,
        wraps=dim.wraps,
        peer_gb_s=dim.peer_gb_s or 0.0,
    )
