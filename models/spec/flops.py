"""FLOPs of a training step, and MFU under its named conventions.

A matrix multiplication of M x K by K x N takes 2·M·N·K FLOPs forward and twice that backward. For a
token and N weights that makes the "6N" of Kaplan et al. (arXiv 2001.08361) and PaLM (arXiv
2204.02311, appendix B). N counts the weights that a token is multiplied with. The output head is
among them; the input embedding, which is a look-up, is not. Sources that count both add 6·V·h FLOPs
a token: 7% for Llama-3.1-8B.

Attention adds 2·keys·heads·(query-key dim + value dim) FLOPs a token forward. The conventions
differ in the number of keys: "causal" counts those that a query may see (half of them on average),
"full" the whole sequence or window, "none" nothing. Linear attention and state-space models take
the FLOPs of their recurrence in every convention. Recompute is never counted in MFU.
"""

from __future__ import annotations

from typing import Literal

from models.spec.architecture import Architecture
from models.spec.attention import Attention
from models.spec.encoder import Encoder
from models.spec.identity import cached_by_identity
from models.spec.layer import Layer
from models.spec.projection import parameters_of
from models.spec.workload import Workload

AttentionCount = Literal["causal", "full", "none"]
_KEPT = 1024  # layers: every FLOP count of a model asks for each of its layers


def attention_flops(attention: Attention, seq_len: float, count: AttentionCount) -> float:
    """Return the forward FLOPs of one token in attention outside its projections: scores, their
    product with the values, and the indexer that chooses keys. `count` says how many keys count
    (see this module's docstring)."""
    if count == "none":
        return 0.0
    keys, scored = attention.mean_keys(seq_len), attention.mean_scored_keys(seq_len)
    if count == "full":
        # The indexer of a causal query scores half of the sequence on average (mean_scored_keys).
        keys, scored = attention.most_keys(seq_len), 2 * scored
    flops = 2 * keys * attention.num_attention_heads * (attention.head_dim + attention.v_head_dim)
    if indexer := attention.indexer:
        flops += 2 * scored * indexer.num_heads * indexer.head_dim
    return flops


@cached_by_identity(_KEPT)
def matmul_parameters(layer: Layer, hidden_size: int) -> int:
    """Return the number of weights of a layer that one token is multiplied with. Only those routed
    experts count that the token is sent to."""
    total = parameters_of(layer.projections(hidden_size))
    if layer.dense:  # the network of a dense layer, or the shared expert
        total += layer.dense.matrices * hidden_size * layer.dense.intermediate_size
    if moe := layer.moe:
        width = moe.experts_per_token * moe.intermediate_size
        total += moe.expert.matrices * moe.token_size(hidden_size) * width
        total += moe.replicated_parameters(hidden_size)  # the router and latent projections
    return total


def layer_forward_flops(
    layer: Layer, hidden_size: int, seq_len: float, count: AttentionCount = "causal"
) -> float:
    """Return the forward FLOPs of one token through one layer. `count` says how many keys of
    attention count (see this module's docstring)."""
    flops = float(2 * matmul_parameters(layer, hidden_size))
    if layer.attention:
        flops += attention_flops(layer.attention, seq_len, count)
    if layer.recurrence:
        flops += layer.recurrence.flops
    return flops


def head_forward_flops(
    architecture: Architecture,
    seq_len: float,
    count: AttentionCount = "causal",
    *,
    mtp: bool = True,
) -> float:
    """Return the forward FLOPs of one token through the output head and, if `mtp`, through the
    modules of multi-token prediction. A module has a layer like the last, a projection from 2h to
    h, and the head once more."""
    h = architecture.hidden_size
    head = 2 * h * architecture.head_outputs
    modules = architecture.mtp_layers if mtp else 0
    last = layer_forward_flops(architecture.layers[-1], h, seq_len, count)
    # 4 h²: two FLOPs for each of the 2h x h weights of the projection.
    return head + modules * (last + 4 * h * h + head)


def forward_flops_per_token(
    architecture: Architecture,
    seq_len: float,
    count: AttentionCount = "causal",
    *,
    mtp: bool = True,
) -> float:
    """Return the forward FLOPs of one token through the whole model."""
    body = sum(
        n * layer_forward_flops(architecture.kinds[kind], architecture.hidden_size, seq_len, count)
        for kind, n in architecture.layer_runs
    )
    return body + head_forward_flops(architecture, seq_len, count, mtp=mtp)


def tower_forward_flops(encoder: Encoder, count: AttentionCount = "causal") -> float:
    """Return the forward FLOPs of the encoder without its projector (the vision tower), on the
    images of one sequence."""
    hidden, length = encoder.hidden_size, encoder.patches_per_image
    layers = sum(layer_forward_flops(layer, hidden, length, count) for layer in encoder.layers)
    # A patch is embedded by one matrix product, of its elements with `hidden` outputs.
    embedding = 2 * encoder.patch_elements * hidden
    return encoder.patches_per_sequence * (layers + embedding)


def projector_forward_flops(encoder: Encoder) -> float:
    """Return the forward FLOPs of the projector on the images of one sequence."""
    products = sum(n_in * n_out for n_in, n_out in encoder.projector.matrices)
    return 2.0 * encoder.tokens_per_sequence * products


def encoder_flops(encoder: Encoder, count: AttentionCount = "causal") -> float:
    """Return the FLOPs of the encoder and its projector on the images of one sequence: three passes
    where they are trained, and forward alone where they are frozen."""
    tower = tower_forward_flops(encoder, count) * (3 if encoder.trained else 1)
    return tower + projector_forward_flops(encoder) * (3 if encoder.projector_trained else 1)


def model_flops(
    architecture: Architecture,
    workload: Workload,
    count: AttentionCount = "causal",
    *,
    mtp: bool = True,
) -> float:
    """Return the FLOPs of one training step: forward, and backward, which takes twice as many.
    Recompute is not counted.

    Where sequences are packed, attention stays within documents. Frozen weights have no gradients:
    their products take two passes instead of three, and one pass where no layer before them is
    trained. Adapters are not counted. A frozen encoder takes one pass. The forward passes of a
    reference model (as in DPO) are counted.
    """
    length = workload.attended_length
    forward = forward_flops_per_token(architecture, length, count, mtp=mtp)
    per_token = 3 * forward
    if workload.lora:
        # Adapters freeze all weights, which saves the pass of weight gradients. Attention itself
        # ("none" leaves it out) has no weights, and keeps its three passes.
        per_token -= forward_flops_per_token(architecture, length, "none", mtp=mtp)
    elif workload.trained:
        per_token -= _frozen_flops(architecture, length, count)
    if workload.reference:
        per_token += workload.reference.forwards * forward
    images = encoder_flops(architecture.encoder, count) if architecture.encoder else 0.0
    return per_token * workload.tokens + images * workload.global_batch


def _frozen_flops(architecture: Architecture, seq_len: float, count: AttentionCount) -> float:
    """Return the FLOPs of one token that a step saves because layers are frozen. A frozen layer
    saves its weight gradients, and all of backward where nothing before it is trained. The head
    counts as trained."""
    hidden = architecture.hidden_size
    saved = 0.0
    for kind, layers in architecture.layer_runs:
        layer = architecture.kinds[kind]
        if layer.gradients == "inputs":
            # Weight gradients take as many FLOPs as forward, but for attention scores ("none"
            # leaves them out), which have no weights.
            saved += layers * layer_forward_flops(layer, hidden, seq_len, "none")
        elif layer.gradients == "none":  # Backward takes twice the FLOPs of forward.
            saved += layers * 2 * layer_forward_flops(layer, hidden, seq_len, count)
    return saved


def step_time_from_throughput(
    flops_per_chip_s: float,
    num_chips: int,
    architecture: Architecture,
    workload: Workload,
    count: AttentionCount,
    *,
    recompute_counted: bool = False,
    mtp: bool = True,
) -> float:
    """Return the step time in seconds behind a published FLOP/s per chip, with FLOPs counted as the
    source counts them (`count`, `mtp`).

    Where the source counted recompute, a step has four forward passes' worth of FLOPs instead of
    three.
    """
    recompute_factor = 4 / 3 if recompute_counted else 1.0
    flops = recompute_factor * model_flops(architecture, workload, count, mtp=mtp)
    return flops / (flops_per_chip_s * num_chips)
