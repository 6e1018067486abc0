"""Bytes per device: parameters and activations of a layer, and logits.

Activation counts follow Korthikanti et al. (arXiv 2205.05198) table 2, without dropout masks and
extended to grouped queries, MLA, gated MLPs and experts: what backward needs of each operation, in
bytes per token.
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
    NORM,
    OUT_PROJECTION,
    UP,
    Facts,
    LayerFacts,
)
from models.cost.shard import Shard, kv_share, routed_tokens


class PartSize(NamedTuple):
    """Parameters of one layer, or of an end of the model, on one device: outside and inside routed
    experts, of what FSDP gathers at a time (of layers alone), and those of both that are
    trained."""

    dense: float
    expert: float
    unit: float
    trained_dense: float
    trained_expert: float


class Activations(NamedTuple):
    """Bytes of a layer's input, and of all that it keeps besides, which no piece has that could be
    computed again by itself."""

    input: float
    others: float


@compiled
def layer_size(f: Facts, layer: LayerFacts, shard: Shard) -> PartSize:
    """Key-value heads are repeated where tp exceeds them."""
    whole, kv = layer.replicated_parameters, layer.kv_parameters
    sharded = (layer.dense_parameters - kv - whole) / shard.tp
    dense = sharded + kv * kv_share(layer, shard.tp) + whole
    expert = layer.expert_parameters / (shard.ep * shard.etp)
    unit = dense + expert
    if f.gathers_matrices:
        unit = max(layer.largest_matrix / shard.tp, expert / 3)
    if layer.trains_weights:
        return PartSize(dense, expert, unit, dense, expert)
    # Of an adapter the half is cut that lies on the side that its matrix is.
    trained = layer.trained_dense * (1 + 1 / shard.tp) / 2
    return PartSize(
        dense, expert, unit, trained, layer.trained_expert / shard.ep * (1 + 1 / shard.etp) / 2
    )


@compiled
def embedding_size(f: Facts, shard: Shard) -> PartSize:
    size = f.embedding_parameters / shard.tp
    return PartSize(size, 0.0, 0.0, size if f.trains_embedding else 0.0, 0.0)


@compiled
def head_size(f: Facts, shard: Shard) -> PartSize:
    """The final norm is whole on every device. A tied head has no matrix of its own."""
    size = f.head_parameters / shard.tp + f.hidden_size
    return PartSize(size, 0.0, 0.0, size if f.trains_head else 0.0, 0.0)


@compiled
def activations(f: Facts, layer: LayerFacts, shard: Shard, pieces: Array) -> Activations:
    """What a layer keeps of a micro-batch from forward to backward. Writes into `pieces` the bytes
    of those parts of it that recompute may drop.

    Norms and residuals are sharded over tp with sequence parallelism, the inside of blocks always.
    """
    pieces[:] = 0.0
    element = f.activation_bytes
    stream, inner = shard.local_tokens * f.hidden_size, shard.tokens / shard.tp
    latent = shard.local_tokens * (layer.q_lora_rank + layer.kv_lora_rank + layer.index_elements)
    values = inner * (layer.num_heads * layer.v_head_dim + 2 * layer.gate + layer.recurrence_kept)
    # the streams between the blocks, which an output projection gives; where there are several,
    # what each block reads of them; what norms after blocks read; and what mixers put out
    streams = f.residual_streams
    pieces[OUT_PROJECTION] = stream * streams * (layer.blocks - 1) * element
    read = (layer.blocks if streams > 1 else 0.0) + max(layer.num_norms - 2, 0.0)
    others = (stream * read + latent + values) * element
    others += shard.local_tokens * layer.chosen_keys * 4
    keys = layer.kv_dim * kv_share(layer, shard.tp) * shard.tp
    heads = inner * (layer.num_heads * layer.head_dim + keys) * element
    if layer.mla:
        pieces[UP] = heads
    else:
        others += heads
    # the outputs of both norms, which the projections after them read
    pieces[NORM] = stream * f.gemm_bytes * layer.blocks
    if f.materialises_scores:  # softmax output, dropout mask and output: 5 bytes of 2-byte scores
        pieces[ATTENTION] = inner * layer.num_heads * f.seq_len * (2.5 * element)
    network_activations(f, layer, shard, pieces)
    if not f.fused and layer.gated:
        eager_activations(f, layer, stream, heads, pieces)
    return Activations(stream * streams * element, others)


@compiled
def network_activations(f: Facts, layer: LayerFacts, shard: Shard, pieces: Array) -> None:
    """Inputs of products are kept in the format they are read in. Of a dense network that works on
    tiles of tokens there is one at a time."""
    hidden = f.gemm_bytes if f.low_precision_activations else f.activation_bytes
    width = shard.tokens / mlp_tiles(f, shard) / shard.tp * layer.dense_width
    if layer.dense_width > 0:
        pieces[DENSE] = width * hidden
        pieces[DENSE_HALF] = width * hidden * (layer.dense_matrices - 2)
        pieces[DENSE_ACT] = width * f.gemm_bytes
    if layer.sparse:
        routed = routed_tokens(layer, shard)
        width = routed * layer.expert_width / shard.etp
        pieces[GROUPED] = width * hidden * (layer.expert_matrices - 1)
        tokens = GROUPED if shard.ep == 1 else EXPERTS  # which have come from other devices
        pieces[tokens] += routed * f.gemm_bytes * layer.expert_input
        pieces[EXPERT_ACT] = width * f.gemm_bytes


@compiled
def mlp_tiles(f: Facts, shard: Shard) -> float:
    """Into how many tiles a dense network cuts its tokens: each has as many as the hidden size
    (DeepSpeed runtime/sequence_parallel/ulysses_sp.py, TiledMLP)."""
    return math.ceil(shard.tokens / f.hidden_size) if f.tiled_mlp else 1.0


@compiled
def eager_activations(
    f: Facts, layer: LayerFacts, stream: float, heads: float, pieces: Array
) -> None:
    """What eager PyTorch keeps besides of a Llama-like layer, where no fused kernel computes it
    anew: of an RMSNorm its fp32 input and the output before its weight, of rotary embeddings their
    input, of a gated activation the activated gate. (LayerNorm and GELU, of models without gates,
    are one kernel each.)"""
    if not f.fused_norm:
        pieces[NORM] += layer.num_norms * stream * (4 + 2)
    pieces[NORM] += heads
    pieces[DENSE_ACT] *= 1 + f.activation_bytes / f.gemm_bytes
    pieces[EXPERT_ACT] *= 1 + f.activation_bytes / f.gemm_bytes


@compiled
def logits_on_device(f: Facts, shard: Shard) -> float:
    """How many of a micro-batch."""
    logits = shard.tokens * f.vocab_size
    return logits / shard.tp if f.parallel_loss else logits


@compiled
def logit_bytes(f: Facts, shard: Shard) -> float:
    """Bytes of logits and of their gradient, which are alive together."""
    over_tensor = f.loss_memory_bytes_over_tensor
    return logits_on_device(f, shard) * (over_tensor if shard.tp > 1 else f.loss_memory_bytes)


@compiled
def kept_logit_bytes(f: Facts, shard: Shard) -> float:
    """Bytes of those of a micro-batch that a pipeline's last stage keeps until the step ends
    (torch.distributed.pipelining schedules.py merges the outputs of all micro-batches)."""
    return logits_on_device(f, shard) * f.activation_bytes
