"""Bytes per device: parameters, gradients, optimizer states, activations, buffers.

Activation counts follow Korthikanti et al. (arXiv 2205.05198) table 2, without dropout masks and extended to
grouped queries, MLA, gated MLPs and experts: what backward needs of each operation, in bytes per token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.architecture import Architecture, Layer
from models.array import Array
from models.problem import Problem
from models.shard import Shards

GATHERED_LOGIT_BYTES = 16  # 16-bit logits and gradient, fp32 logits, log-softmax and gradient: PyTorch's cross_entropy
LOGIT_BYTES = 6  # fp32 logits and their 16-bit gradient, alive together (Korthikanti et al. §4.3 counts 4 for logits)


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """Of one layer on one device. `dense` and `expert` count parameters, `unit` those FSDP gathers at a time.

    `kept[policy]`: bytes of activations stored from forward to backward under recompute none, selective, full.
    """

    dense: Array
    expert: Array
    unit: Array
    kept: tuple[Array, Array, Array]

    def take(self, rows: Array) -> LayerBytes:
        none, selective, full = (kept[rows] for kept in self.kept)
        return LayerBytes(self.dense[rows], self.expert[rows], self.unit[rows], (none, selective, full))


def layer_bytes(problem: Problem, layer: Layer, x: Shards) -> LayerBytes:
    h = problem.architecture.hidden_size
    expert = layer.moe.expert_parameters(h) if layer.moe else 0
    dense = layer.parameters(h) - expert
    kept = _activations(problem, layer, x)
    attention = layer.attention
    shared = 0 if attention.is_mla else h * attention.kv_dim  # key-value heads repeat where tp exceeds them
    kv = shared * attention.kv_share(x.tp)
    per_device = (dense - shared) / x.tp + kv, expert / (x.ep * x.etp)
    unit = per_device[0] + per_device[1]
    if problem.stack.gather_unit == "matrix":
        unit = np.maximum(_largest_matrix(layer, h) / x.tp, per_device[1] / 3)
    return LayerBytes(*per_device, unit, kept)


def _largest_matrix(layer: Layer, hidden_size: int) -> int:
    sizes = [n_in * n_out for _, n_in, n_out in layer.attention.projections(hidden_size)]
    return max(sizes + [hidden_size * layer.dense.intermediate_size] if layer.dense else sizes)


def end_parameters(architecture: Architecture, x: Shards) -> tuple[Array, Array]:
    """Parameters of the embedding and of the head (final norm and MTP's dense parts with it), sharded over tp."""
    count = architecture.parameters
    extra = 0
    if architecture.mtp_layers:
        experts = architecture.layers[-1].moe
        routed = experts.expert_parameters(architecture.hidden_size) if experts else 0
        extra = architecture.mtp_layers * (architecture.mtp_parameters - routed)
    head = architecture.vocab_size * architecture.hidden_size + extra
    return count.embedding / x.tp, head / x.tp


def mtp_expert_parameters(architecture: Architecture, x: Shards) -> Array:
    moe = architecture.layers[-1].moe
    if not architecture.mtp_layers or moe is None:
        return np.zeros(len(x))
    routed = moe.expert_parameters(architecture.hidden_size)
    return architecture.mtp_layers * routed / (x.ep * x.etp)


def logit_bytes(problem: Problem, x: Shards) -> Array:
    heads = 1 + problem.architecture.mtp_layers
    shards, size = (x.tp, LOGIT_BYTES) if problem.stack.parallel_loss else (1, GATHERED_LOGIT_BYTES)
    return np.asarray(x.tokens * problem.architecture.vocab_size / shards * size * heads)


def _activations(problem: Problem, layer: Layer, x: Shards) -> tuple[Array, Array, Array]:
    """Bytes kept per policy. Norms and residuals shard over tp with sequence parallelism, the inside always."""
    h, attention = problem.architecture.hidden_size, layer.attention
    two = problem.workload.number_format.activation_bytes
    operand = problem.workload.number_format.gemm_bytes  # inputs of GEMMs are kept in the format they are read in
    hidden_operand = operand if problem.stack.low_precision_activations else two
    outer, inner = x.local_tokens, x.tokens / x.tp

    layer_input = outer * h * two
    norms = outer * h * operand * 2  # the outputs of both norms, inputs of the projections after them
    residual = outer * h * two
    queries = attention.num_heads * attention.head_dim
    kv = attention.kv_dim * attention.kv_share(x.tp) * x.tp
    latent = outer * two * ((attention.q_lora_rank or 0) + (attention.kv_lora_rank or 0))
    heads = inner * (queries + kv) * two
    values = inner * attention.num_heads * attention.v_head_dim * two
    scores = np.zeros_like(inner)
    if problem.kernel in ("unfused", "fused_softmax"):  # softmax output, dropout mask and output: 5 bytes a score
        scores = inner * attention.num_heads * problem.workload.seq_len * (2.5 * two)
    products, act = np.zeros_like(inner), np.zeros_like(inner)
    if dense := layer.dense:
        products = products + inner * dense.intermediate_size * hidden_operand * (dense.matrices - 1)
        act = act + inner * dense.intermediate_size * operand
    if moe := layer.moe:
        routed = outer * moe.experts_per_token * x.etp
        width = moe.intermediate_size / x.etp
        products = products + routed * (hidden_operand * width * (moe.expert.matrices - 1) + operand * h)
        act = act + routed * operand * width
    up = heads if attention.is_mla else np.zeros_like(inner)
    light = norms + act + scores
    if not problem.stack.fused and layer.feed_forward.gated:
        light = light + _between_kernels(layer, outer * h, heads, act / operand * two)

    none = layer_input + light + residual + latent + heads + values + products
    selective = none - light - up
    return none, selective, layer_input


def _between_kernels(layer: Layer, stream: Array, heads: Array, activated: Array) -> Array:
    """What eager PyTorch keeps besides of a Llama-like layer, where no fused kernel computes it anew: of an RMSNorm its
    fp32 input and the output before its weight, of rotary embeddings their input, of a gated activation the activated
    gate. (LayerNorm and GELU, of models without gates, are one kernel each.)"""
    return layer.num_norms * stream * (4 + 2) + heads + activated
