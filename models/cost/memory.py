"""Bytes on one device: parameters and activations of a layer, and logits.

Activation counts are the bytes that backward needs of each operation, for every token. They follow
Korthikanti et al. (arXiv 2205.05198) table 2, without dropout masks and extended to grouped
queries, MLA, gated MLPs and experts.

A *piece* is a share of a layer's forward that recompute may repeat by itself, and whose activations
it then drops (models.spec.recompute.PIECES). `f` are the facts of the problem (models.cost.facts),
and `stream` counts elements of the residual stream.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from models.columns import Array
from models.compilation.compiled import compiled
from models.cost.facts import (
    ATTENTION,
    DENSE,
    DENSE_ACT,
    DENSE_HALF,
    EXPERT_ACT,
    EXPERTS,
    GROUPED,
    KEYS,
    NORM,
    OUT_PROJECTION,
    UP,
    Facts,
    LayerFacts,
)
from models.cost.shard import Shard, kv_share, routed_tokens

E5M6_BYTES = 1.5
"""The size of an element that attention puts out, where activations are kept in low precision.
Backward of attention reads it too, for which 8 bits are too few (DeepSeek-V3, arXiv 2412.19437,
§3.3.3)."""


class PartSize(NamedTuple):
    """The parameters of one layer, or of an end of the model, on one device.

    `dense` and `expert` are those outside and inside routed experts, and `trained_dense` and
    `trained_expert` those of them that are trained. `unit` is the number that FSDP gathers at a
    time; layers alone have one.
    """

    dense: float
    expert: float
    unit: float
    trained_dense: float
    trained_expert: float


class Activations(NamedTuple):
    """Bytes that a layer keeps whatever is recomputed by pieces. `input` is its input. `others` is
    all else that belongs to no piece, since it cannot be computed again by itself."""

    input: float
    others: float


@compiled
def layer_size(f: Facts, layer: LayerFacts, shard: Shard) -> PartSize:
    """Return the parameters of a layer on one device, all and trained, and how many FSDP gathers at
    a time. Key-value heads are repeated where tp exceeds their number."""
    whole, kv = layer.replicated_parameters, layer.kv_parameters
    sharded = (layer.dense_parameters - kv - whole) / shard.tp
    dense = sharded + kv * kv_share(layer, shard.tp) + whole
    expert = layer.expert_parameters / (shard.ep * shard.etp)
    unit = dense + expert
    # Experts are taken to have three matrices: gate, up and down.
    if f.gathers_matrices:
        unit = max(layer.largest_matrix / shard.tp, expert / 3)
    if layer.trains_weights:
        return PartSize(dense, expert, unit, dense, expert)
    # Tensor parallelism cuts one of an adapter's two matrices, on the side on which it cuts the
    # matrix that the adapter belongs to. The other is whole on every rank. The two are taken to be
    # of one size.
    trained = layer.trained_dense * (1 + 1 / shard.tp) / 2
    trained_expert = layer.trained_expert / shard.ep * (1 + 1 / shard.etp) / 2
    return PartSize(dense, expert, unit, trained, trained_expert)


@compiled
def embedding_size(f: Facts, shard: Shard) -> PartSize:
    """Return the parameters of the embedding on one device, of which none is in experts."""
    dense = f.embedding_parameters / shard.tp
    trained_dense = dense if f.trains_embedding else 0.0
    # The zeros: it has no experts, and only layers count as units that FSDP gathers.
    return PartSize(dense, 0.0, 0.0, trained_dense, 0.0)


@compiled
def head_size(f: Facts, shard: Shard) -> PartSize:
    """Return the parameters of the head on one device. The final norm is whole on every device. A
    tied head has no matrix of its own."""
    dense = f.head_parameters / shard.tp + f.hidden_size
    trained_dense = dense if f.trains_head else 0.0
    # The zeros: it has no experts, and only layers count as units that FSDP gathers.
    return PartSize(dense, 0.0, 0.0, trained_dense, 0.0)


@compiled
def activations(f: Facts, layer: LayerFacts, shard: Shard, pieces: Array) -> Activations:
    """Return the bytes that a layer keeps of a micro-batch from forward to backward whatever is
    recomputed. Write the bytes that recompute may drop into `pieces`, by piece.

    Tensor parallelism divides the inside of blocks always, and norms and residuals with sequence
    parallelism only.
    """
    pieces[:] = 0.0
    element = f.activation_bytes
    stream, inner = shard.local_tokens * f.hidden_size, shard.tokens / shard.tp
    latent = shard.local_tokens * (layer.q_lora_rank + layer.kv_lora_rank + layer.index_elements)
    attended = layer.num_attention_heads * layer.v_head_dim
    # What attention puts out stays in 12 bits: its backward reads it, for which 8 are too few.
    if f.low_precision_activations and f.gemm_bytes < element:
        attended *= E5M6_BYTES / element
    values = inner * (attended + 2 * layer.gate + layer.recurrence_kept)
    # The residual streams between blocks come from the output projection. They are dropped with
    # that piece, unless the stack saves what tensor parallelism scattered, whatever is recomputed.
    # Always kept are the input of each block where there are several streams, the inputs of norms
    # after blocks, and the outputs of mixers.
    streams = f.residual_streams
    between = stream * streams * (layer.blocks - 1) * element
    streams_kept = (layer.blocks if streams > 1 else 0.0) + max(layer.num_norms - 2, 0.0)
    others = (stream * streams_kept + latent + values) * element
    others += shard.local_tokens * layer.chosen_keys * 4  # indices of 32 bits
    if f.saves_scattered and shard.tp > 1:
        others += between
    else:
        pieces[OUT_PROJECTION] = between
    # A device has kv_share of these; the factor tp undoes the division in `inner`.
    keys_and_values = layer.kv_dim * kv_share(layer, shard.tp) * shard.tp
    heads = inner * (layer.num_attention_heads * layer.head_dim + keys_and_values) * element
    if layer.mla:
        pieces[UP] = heads
    else:  # Keys are half of keys and values.
        pieces[KEYS] = inner * keys_and_values / 2 * element
        others += heads - pieces[KEYS]
    # The output of the norm before each block stays, since the block's projections read it.
    pieces[NORM] = stream * f.gemm_bytes * layer.blocks
    if f.materialises_scores:  # softmax output, dropout mask and output: 5 bytes of 2-byte scores
        pieces[ATTENTION] = inner * layer.num_attention_heads * f.seq_len * (2.5 * element)
    network_activations(f, layer, shard, pieces)
    # A compiler has backward make these outputs anew at no cost. Eager kernels keep even more.
    if f.rematerialises:
        pieces[NORM] = pieces[DENSE_ACT] = pieces[EXPERT_ACT] = 0.0
    elif not f.fused and layer.gated:
        eager_activations(f, layer, stream, heads, pieces)
    if layer.sparse:
        routed = routed_tokens(layer, shard)
        pieces[EXPERT_ACT] += routed * layer.expert_input * f.scaled_token_bytes
    return Activations(stream * streams * element, others)


@compiled
def network_activations(f: Facts, layer: LayerFacts, shard: Shard, pieces: Array) -> None:
    """Write into `pieces` the bytes that the dense MLP and the experts of a layer keep. Inputs of
    products are kept in the format in which the products read them. An MLP that works on tiles of
    tokens keeps one tile at a time."""
    hidden = f.gemm_bytes if f.low_precision_activations else f.activation_bytes
    width = shard.tokens / mlp_tiles(f, shard) / shard.tp * layer.dense_width
    if layer.dense_width > 0:
        # The outputs of the up-projections. A gated MLP has two, and the second is DENSE_HALF.
        pieces[DENSE] = width * hidden
        pieces[DENSE_HALF] = width * hidden * (layer.dense_matrices - 2)
        pieces[DENSE_ACT] = width * f.gemm_bytes  # the activated output, input of the last product
    if layer.sparse:
        routed = routed_tokens(layer, shard)
        width = routed * layer.expert_width / shard.etp
        pieces[GROUPED] = width * hidden * (layer.expert_matrices - 1)
        # The experts' input tokens are dropped with the products if these can be repeated alone.
        # Tokens from other devices (ep > 1) come again only if the exchange is repeated too.
        piece_of_tokens = GROUPED if shard.ep == 1 else EXPERTS
        pieces[piece_of_tokens] += routed * f.gemm_bytes * layer.expert_input
        pieces[EXPERT_ACT] = width * f.gemm_bytes


@compiled
def mlp_tiles(f: Facts, shard: Shard) -> float:
    """Return the number of tiles into which a dense network cuts its tokens. A tile has as many
    tokens as the hidden size has elements (DeepSpeed runtime/sequence_parallel/ulysses_sp.py,
    TiledMLP)."""
    return math.ceil(shard.tokens / f.hidden_size) if f.tiled_mlp else 1.0


@compiled
def eager_activations(
    f: Facts, layer: LayerFacts, stream: float, heads: float, pieces: Array
) -> None:
    """Add to `pieces` the bytes that eager PyTorch keeps of a gated (Llama-like) layer, which fused
    kernels would compute anew. An RMSNorm keeps its fp32 input and the output before its weight,
    rotary embeddings keep their input, and a gated activation keeps the activated gate. `stream` is
    the elements of the residual stream, and `heads` the bytes of queries and keys."""
    if not f.fused_norm:
        pieces[NORM] += layer.num_norms * stream * (4 + 2)
    pieces[NORM] += heads  # Rotary embeddings are repeated with the norms.
    # DENSE_ACT and EXPERT_ACT have the input of the last product; the activated gate is as wide.
    pieces[DENSE_ACT] *= 1 + f.activation_bytes / f.gemm_bytes
    pieces[EXPERT_ACT] *= 1 + f.activation_bytes / f.gemm_bytes


@compiled
def logits_on_device(f: Facts, shard: Shard) -> float:
    """Return the number of logits of a micro-batch on one device."""
    logits = shard.tokens * f.vocab_size
    return logits / shard.tp if f.parallel_loss else logits


@compiled
def logit_bytes(f: Facts, shard: Shard) -> float:
    """Return the bytes of logits and of their gradient, which are alive together."""
    over_tensor = f.loss_memory_bytes_over_tensor
    return logits_on_device(f, shard) * (over_tensor if shard.tp > 1 else f.loss_memory_bytes)


@compiled
def kept_logit_bytes(f: Facts, shard: Shard) -> float:
    """Return the bytes of a micro-batch's logits that a pipeline's last stage keeps until the step
    ends (torch.distributed.pipelining schedules.py merges the outputs of all micro-batches)."""
    return logits_on_device(f, shard) * f.activation_bytes
