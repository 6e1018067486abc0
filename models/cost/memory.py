"""Bytes per device: parameters, gradients, optimizer states, activations, buffers.

Activation counts follow Korthikanti et al. (arXiv 2205.05198) table 2, without dropout masks and
extended to grouped queries, MLA, gated MLPs and experts: what backward needs of each operation, in
bytes per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from models.columns import Array, Columns, total
from models.cost.shard import Shards
from models.spec.architecture import Architecture, Layer
from models.spec.problem import Problem
from models.spec.recompute import Recomputed

LOGIT_BYTES = {
    # fp32 logits and their 16-bit gradient, alive together (Korthikanti et al. §4.3 counts 4 for
    # logits)
    "fused": 6,
    "stepwise": 6,  # in place
    "compiled": 8,  # and 16-bit logits
    "pytorch": 16,  # and fp32 log-softmax and gradient
}
PARALLEL_LOGIT_BYTES = (
    20  # PyTorch's loss_parallel: log-softmax, gradient, exponent, sum and product, each fp32
)


@dataclass(frozen=True, slots=True)
class LayerBytes(Columns):
    """Of one layer on one device. `dense` and `expert` count parameters, `unit` those FSDP gathers
    at a time."""

    dense: Array
    expert: Array
    unit: Array


def layer_bytes(problem: Problem, layer: Layer, x: Shards) -> LayerBytes:
    h = problem.architecture.hidden_size
    expert = layer.moe.expert_parameters(h) if layer.moe else 0
    dense = layer.parameters(h) - expert
    attention = layer.attention
    whole = layer.replicated_parameters(h)
    shared = (
        0 if attention.is_mla else h * attention.kv_dim
    )  # key-value heads repeat where tp exceeds them
    kv = shared * attention.kv_share(x.tp)
    per_device = (dense - shared - whole) / x.tp + kv + whole, expert / (x.ep * x.etp)
    unit = per_device[0] + per_device[1]
    if problem.stack.gather_unit == "matrix":
        unit = np.maximum(_largest_matrix(layer, h) / x.tp, per_device[1] / 3)
    return LayerBytes(*per_device, unit)


def _largest_matrix(layer: Layer, hidden_size: int) -> int:
    sizes = [n_in * n_out for _, n_in, n_out in layer.attention.projections(hidden_size)]
    return max(sizes + [hidden_size * layer.dense.intermediate_size] if layer.dense else sizes)


def end_parameters(architecture: Architecture, x: Shards) -> tuple[Array, Array]:
    """Parameters of the embedding and of the head (with those of MTP modules beyond their layers),
    sharded over tp, and the final norm. A tied head has no matrix of its own."""
    count = architecture.parameters
    norm, layer = (
        architecture.hidden_size,
        architecture.layers[-1].parameters(architecture.hidden_size),
    )
    extra = architecture.mtp_layers * (architecture.mtp_parameters - layer)
    return count.embedding / x.tp, (count.lm_head + extra) / x.tp + norm


def logit_bytes(problem: Problem, x: Shards) -> Array:
    heads, stack = 1 + problem.architecture.mtp_layers, problem.stack
    size: Array | int = LOGIT_BYTES[stack.loss]
    if stack.loss == "pytorch" and stack.parallel_loss:
        size = np.where(x.tp > 1, PARALLEL_LOGIT_BYTES, size)
    return np.asarray(_logits(problem, x) * (size * heads / stack.loss_chunks))


def kept_logit_bytes(problem: Problem, x: Shards) -> Array:
    """Of a micro-batch, where a last stage keeps them (torch.distributed.pipelining schedules.py
    merges the outputs of all micro-batches and returns them; from memory)."""
    return np.asarray(_logits(problem, x) * problem.workload.number_format.activation_bytes)


def _logits(problem: Problem, x: Shards) -> Array:
    return np.asarray(
        x.tokens * problem.architecture.vocab_size / (x.tp if problem.stack.parallel_loss else 1)
    )


def kept_bytes(problem: Problem, layer: Layer, x: Shards, policies: Sequence[Recomputed]) -> Array:
    """Activations of a layer stored from forward to backward under each recompute policy,
    (policies, n)."""
    least, pieces = _activations(problem, layer, x)
    every = least + total(pieces.values())
    kept = []
    for again in policies:
        lost = [size for name, size in pieces.items() if name in again.pieces]
        kept.append(least if again.whole else every - total(lost) if lost else every)
    return np.stack([value + np.zeros(len(x)) for value in kept])


def _activations(problem: Problem, layer: Layer, x: Shards) -> tuple[Array, dict[str, Array]]:
    """Bytes of the input of a layer, and of what each piece of it (models.spec.recompute.PIECES),
    or "other", keeps besides. Norms and residuals shard over tp with sequence parallelism, the
    inside always."""
    h, attention = problem.architecture.hidden_size, layer.attention
    two = problem.workload.number_format.activation_bytes
    operand = (
        problem.workload.number_format.gemm_bytes
    )  # inputs of GEMMs are kept in the format they are read in
    hidden_operand = operand if problem.stack.low_precision_activations else two
    outer, inner = x.local_tokens, x.tokens / x.tp
    stream = outer * h
    latent = outer * two * ((attention.q_lora_rank or 0) + (attention.kv_lora_rank or 0))
    queries = attention.num_heads * attention.head_dim
    heads = inner * (queries + attention.kv_dim * attention.kv_share(x.tp) * x.tp) * two
    values = inner * attention.num_heads * attention.v_head_dim * two
    pieces = {
        # the stream between the blocks, what norms after them read, and attention's output
        "other": stream * two * (1 + max(layer.num_norms - 2, 0)) + latent + values,
        "norm": stream
        * operand
        * 2,  # the outputs of both norms, inputs of the projections after them
        "up" if attention.is_mla else "heads": heads,
    }
    if problem.materialises_scores:  # softmax output, dropout mask and output: 5 bytes a score
        pieces["attention"] = inner * attention.num_heads * problem.workload.seq_len * (2.5 * two)
    if dense := layer.dense:
        width = inner * dense.intermediate_size
        half = width * hidden_operand * (dense.matrices - 2)
        pieces |= {
            "dense": width * hidden_operand,
            "dense_half": half,
            "dense_act": width * operand,
        }
    if moe := layer.moe:
        routed = outer * moe.experts_per_token * x.etp
        width = routed * moe.intermediate_size / x.etp
        pieces["experts"] = (
            width * hidden_operand * (moe.expert.matrices - 1) + routed * operand * h
        )
        pieces["expert_act"] = width * operand
    if not problem.stack.fused and layer.feed_forward.gated:
        # What eager PyTorch keeps besides of a Llama-like layer, where no fused kernel computes it
        # anew: of an RMSNorm its fp32 input and the output before its weight, of rotary embeddings
        # their input, of a gated activation the activated gate. (LayerNorm and GELU, of models
        # without gates, are one kernel each.)
        norms = 0 if problem.stack.fused_norm else layer.num_norms * stream * (4 + 2)
        pieces["norm"] = pieces["norm"] + norms + heads
        for act in {"dense_act", "expert_act"} & set(pieces):
            pieces[act] = pieces[act] * (1 + two / operand)
    return stream * two, pieces
