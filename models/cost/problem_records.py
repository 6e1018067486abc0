"""The records of a problem, from its specification.

Compiled functions read a problem as records of numbers, whose fields are in models.cost.facts. A
*kind* of layer stands for all layers that are equal. A *question* is a problem with the recompute
policies that are asked about.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from models.columns import Array
from models.cost.facts import (
    ALL_PIECES,
    CONTEXT,
    DISPATCHERS,
    DimFacts,
    EncoderFacts,
    Facts,
    Images,
    LayerFacts,
    PolicyFacts,
    ProblemRecords,
    facts_from,
    record_type,
    records,
)
from models.cost.layer_facts import layer_facts
from models.layouts.groups import device_order
from models.spec.adapters import Lora
from models.spec.architecture import Architecture
from models.spec.encoder import Encoder
from models.spec.hardware import Cluster, Dim
from models.spec.identity import cached_by_identity
from models.spec.layer import Layer
from models.spec.problem import Problem
from models.spec.recompute import NONE, Recomputed
from models.spec.stack import Stack
from models.spec.trained import trains_embedding, trains_head

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


def question(problem: Problem, recompute: Array) -> ProblemRecords:
    """Return the records of a problem as compiled functions read them. `recompute` (n,) has numbers
    of recompute policies; the records list the distinct ones, after the policy that recomputes
    nothing. The result is shared through a cache: nobody may write to it."""
    return _question(problem, tuple(policy_numbers(recompute).tolist()))


@cached_by_identity(_CACHED_QUESTIONS)
def _question(problem: Problem, policies: tuple[int, ...]) -> ProblemRecords:
    """Return the records of a problem for recompute policies of these numbers, as `question`
    does."""
    policy_records = _policy_records(problem.stack, problem.architecture.kinds, policies)
    return ProblemRecords(
        facts=_fact_records(problem),
        layers=_layer_records(problem),
        policies=policy_records,
        # A bit for every piece that some policy repeats in some kind of layer.
        repeated_pieces=int(np.bitwise_or.reduce(policy_records["pieces"], axis=None)),
        dims=_dim_records(problem.cluster),
        order=device_order(problem.cluster.device_orders),
        images=_images(problem, policies),
    )


@cached_by_identity(_CACHED_QUESTIONS)
def _fact_records(problem: Problem) -> Array:
    return records(Facts, [_facts(problem)])


def _layer_records(problem: Problem) -> Array:
    """Return records of LayerFacts for every kind of layer of a problem's model, (kinds,)."""
    architecture, workload = problem.architecture, problem.workload
    skips_last = tuple(map(problem.stack.skips_last_product, architecture.kinds))
    return _records_of_kinds(architecture, workload.attended_length, workload.lora, skips_last)


# One prediction asks about a model under several stacks, and one job about a model under many
# batches. Each cache below is therefore keyed by no more of a problem than its records depend on.


@cached_by_identity(_CACHED_QUESTIONS)
def _records_of_kinds(
    architecture: Architecture, seq_len: float, lora: Lora | None, skips_last: tuple[bool, ...]
) -> Array:
    """Return records of LayerFacts for the kinds of layers of an architecture, (kinds,).
    `skips_last` says of each kind whether recompute leaves out its last product."""
    hidden = architecture.hidden_size
    kinds = zip(architecture.kinds, architecture.layers_per_kind_with_mtp, skips_last, strict=True)
    return records(
        LayerFacts,
        [layer_facts(kind, count, hidden, seq_len, lora, skips) for kind, count, skips in kinds],
    )


@cached_by_identity(_CACHED_QUESTIONS, objects=2)
def _policy_records(stack: Stack, kinds: tuple[Layer, ...], policies: tuple[int, ...]) -> Array:
    """Return records of PolicyFacts for recompute policies of these numbers and kinds of layers,
    (policies, kinds)."""
    rows = [_policy(stack.recomputed(number, kind)) for number in policies for kind in kinds]
    return records(PolicyFacts, rows).reshape(len(policies), len(kinds))


@cached_by_identity(_CACHED_QUESTIONS)
def _dim_records(cluster: Cluster) -> Array:
    return records(DimFacts, [_dim(dim) for dim in cluster.dims])


def _images(problem: Problem, policies: tuple[int, ...]) -> Images:
    """Return the records of the encoder of images under recompute policies of these numbers; empty
    records for a model without one. Its facts are the problem's, with one image as the sequence."""
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
    """Return the facts of an encoder of images beside its layers and the projector's matrices."""
    # Parameters of the patch embedding, which tensor parallelism leaves whole.
    embedding = encoder.patch_elements * encoder.hidden_size
    return facts_from(
        EncoderFacts,
        (encoder,),
        patches=encoder.patches_per_sequence,
        tokens=encoder.tokens_per_sequence,
        whole_parameters=embedding + encoder.other_parameters,
        projector_vectors=encoder.projector.vectors,
    )


def policy_numbers(recompute: Array) -> Array:
    """Return the distinct policies among these numbers, ascending, with the one that recomputes
    nothing always first: layers that a policy leaves out keep what they keep under that one."""
    return np.array(sorted({NONE, *np.unique(recompute).tolist()}))


def _facts(problem: Problem) -> Facts:
    """Return the facts of a problem that do not depend on the kind of layer: workload, model sizes,
    chip, formats and what the stack does."""
    architecture, cluster = problem.architecture, problem.cluster
    workload = problem.workload
    stack = problem.stack
    chip = cluster.chip
    number_format, count = workload.number_format, architecture.parameters
    last_layer = architecture.layers[-1].parameters(architecture.hidden_size)
    # Multi-token prediction beyond its layers, which count with the model's layers.
    mtp_extra = architecture.mtp_layers * (architecture.mtp_parameters - last_layer)
    gemm_flops = cluster.peak_flops(number_format.gemm)
    heads = 1 + architecture.mtp_layers  # each module of multi-token prediction runs it again
    logit_bytes = LOSS_MEMORY[stack.loss]
    sharded_loss = stack.loss == "pytorch" and stack.parallel_loss
    gather_copy, reduce_copy = problem.shard_copy_bytes
    return facts_from(
        Facts,
        # The first that has a field counts. The problem comes before the stack, since its sizes of
        # an element are the stack's sizes under the workload's number format.
        (problem, stack, workload, number_format, architecture, cluster, chip),
        document_length=workload.packing.mean_length if workload.packing else workload.seq_len,
        document_spread=workload.packing.spread if workload.packing else 0.0,
        natural_routing=workload.routing == "natural",
        capacity_factor=workload.capacity_factor or 0.0,  # 0: no tokens are dropped
        kinds=len(architecture.kinds),
        vocab_size=architecture.head_outputs,
        last_kind=architecture.kinds.index(architecture.layers[-1]),
        tied_embedding=architecture.tie_word_embeddings,
        embedding_parameters=count.embedding,
        head_parameters=count.lm_head + mtp_extra,
        encoder_layers=len(architecture.encoder.layers) if architecture.encoder else 0,
        pads_vocabulary=stack.pads == "vocabulary",
        compute_units=chip.compute_units / chip.devices_per_chip,
        gemm_flops=gemm_flops,
        gemm_format_bits={"fp8": 8, "int8": 8, "fp4": 4}.get(number_format.gemm, 16),
        flops_16=gemm_flops if workload.precision == "fp32" else cluster.peak_flops_16,
        # Other optimizers than Muon have no products, and do not read it.
        optimizer_flops=cluster.peak_flops_16 if workload.optimizer == "muon" else 1.0,
        muon=workload.optimizer == "muon",
        trains_layers=workload.lora is None,
        trains_embedding=trains_embedding(architecture, workload),
        trains_head=trains_head(architecture, workload),
        reference_forwards=workload.reference.forwards if workload.reference else 0.0,
        reference_copies=float(workload.reference.own_weights) if workload.reference else 0.0,
        gather_copy_bytes=gather_copy,
        reduce_copy_bytes=reduce_copy,
        sharded_master_bytes=workload.optimizer_state.master_bytes,
        # Kernels that the tables do not name keep no scores in memory, and take 128 keys at a time.
        score_passes=SCORE_PASSES.get(problem.attention_kernel, 0.0),
        key_block=KEY_BLOCK.get(problem.attention_kernel, 128),
        loss_traffic_bytes=LOSS_TRAFFIC[stack.loss],
        loss_memory_bytes=logit_bytes * heads / problem.loss_chunks,
        loss_memory_bytes_over_tensor=(PARALLEL_LOSS_MEMORY if sharded_loss else logit_bytes)
        * heads
        / problem.loss_chunks,
        experts_in_python=stack.calls_expert_modules,
        experts_gathered_apart=stack.gathers_experts_apart,
        partly_captured=problem.is_partly_captured,
        gathers_matrices=stack.gather_unit == "matrix",
        parameter_shards=problem.keeps_sharded_parameters,
        context=CONTEXT.index(stack.context),
        dispatcher=DISPATCHERS.index(stack.dispatcher),
        node_limit=np.inf if stack.node_limit is None else stack.node_limit,
        overlap_tensor=problem.overlaps_tensor,
        overlap_expert=problem.overlaps_experts,
        is_torus=any(dim.kind == "ring" for dim in cluster.dims),
        # A scale-up domain of a rack joins many nodes, which have eight devices at most.
        node=min(8, cluster.scale_up_domain),
    )


def _encoder_layers(problem: Problem, encoder: Encoder) -> list[LayerFacts]:
    """Return the facts of each kind of layer of the encoder, which attends over one image."""
    hidden, image = encoder.hidden_size, encoder.patches_per_image
    facts = []
    for kind in encoder.kinds:
        of_kind = layer_facts(
            kind,
            encoder.layers.count(kind),
            hidden,
            image,
            lora=None,  # adapters are on the language model only
            skips_last=problem.stack.skips_last_product(kind),
        )
        facts.append(of_kind._replace(trains_weights=encoder.trained))
    return facts


def _policy(recomputed: Recomputed) -> PolicyFacts:
    """Return the record of a recompute policy, with a bit for each piece of a layer that it
    repeats."""
    bits = sum(1 << bit for bit, name in enumerate(ALL_PIECES) if name in recomputed.pieces)
    return facts_from(PolicyFacts, (recomputed,), pieces=bits)


def _dim(dim: Dim) -> DimFacts:
    """Return the record of one dim of a cluster."""
    return facts_from(
        DimFacts,
        (dim,),
        ring=dim.kind == "ring",
        out=dim.scale == "out",
        peer_gb_s=dim.peer_gb_s or 0.0,
    )
