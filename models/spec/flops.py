"""FLOPs of a training step, and MFU under its named conventions.

A matrix multiplication of M x K by K x N takes 2·M·N·K FLOPs forward and twice that backward. For a
token and N weights that makes the "6N" of Kaplan et al. (arXiv 2001.08361) and PaLM (arXiv
2204.02311, appendix B). N counts the weights that a token is multiplied with: the output head is
among them, the input embedding, which is a look-up, is not. Sources that count both add 6·V·h FLOPs
a token: 7% for Llama-3.1-8B.

Attention adds 2·keys·heads·(query-key dim + value dim) FLOPs a token forward. The conventions
differ in the number of keys: "causal" counts those that a query may see (half of them on average),
"full" the whole sequence or window, "none" nothing. Recompute is never counted in MFU.
"""

from __future__ import annotations

from typing import Literal

from models.spec.architecture import Architecture, Attention, Layer
from models.spec.workload import Workload

AttentionCount = Literal["causal", "full", "none"]


def mean_keys(attention: Attention, seq_len: int) -> float:
    """How many keys a query sees on average: s/2 of a sequence of s tokens, w - w²/2s with a
    sliding window w < s, and half a chunk where attention is chunked."""
    window = attention.window
    if window is None or window >= seq_len:
        return seq_len / 2
    if attention.chunked:
        return window / 2
    return window - window * window / (2 * seq_len)


def counted_keys(attention: Attention, seq_len: int, count: AttentionCount) -> float:
    """How many keys of each query a convention counts."""
    if count == "none":
        return 0.0
    if count == "causal":
        return mean_keys(attention, seq_len)
    return min(attention.window or seq_len, seq_len)


def attention_flops(attention: Attention, keys: float) -> float:
    """Forward FLOPs of one token in scores and their product with the values."""
    return 2 * keys * attention.num_heads * (attention.head_dim + attention.v_head_dim)


def matmul_parameters(layer: Layer, hidden_size: int) -> int:
    """How many weights of a layer one token is multiplied with."""
    total = sum(n_in * n_out for _, n_in, n_out in layer.attention.projections(hidden_size))
    if layer.dense:
        total += layer.dense.matrices * hidden_size * layer.dense.intermediate_size
    if moe := layer.moe:
        width = moe.experts_per_token * moe.intermediate_size
        total += moe.expert.matrices * hidden_size * width + hidden_size * moe.num_experts
    return total


def layer_forward_flops(
    architecture: Architecture, layer: Layer, seq_len: int, count: AttentionCount = "causal"
) -> float:
    """Forward FLOPs of one token through one layer."""
    keys = counted_keys(layer.attention, seq_len, count)
    products = 2 * matmul_parameters(layer, architecture.hidden_size)
    return products + attention_flops(layer.attention, keys)


def head_forward_flops(
    architecture: Architecture, seq_len: int, count: AttentionCount = "causal", *, mtp: bool = True
) -> float:
    """Forward FLOPs of one token through the output head and, if `mtp`, through the modules of
    multi-token prediction: each a layer like the last, a projection from 2h to h, and the head once
    more."""
    h = architecture.hidden_size
    head = 2 * h * architecture.vocab_size
    modules = architecture.mtp_layers if mtp else 0
    last = layer_forward_flops(architecture, architecture.layers[-1], seq_len, count)
    return head + modules * (last + 4 * h * h + head)


def forward_flops_per_token(
    architecture: Architecture, seq_len: int, count: AttentionCount = "causal", *, mtp: bool = True
) -> float:
    """Forward FLOPs of one token through the whole model."""
    body = sum(
        n * layer_forward_flops(architecture, architecture.kinds[kind], seq_len, count)
        for kind, n in architecture.layer_runs
    )
    return body + head_forward_flops(architecture, seq_len, count, mtp=mtp)


def model_flops(
    architecture: Architecture,
    workload: Workload,
    count: AttentionCount = "causal",
    *,
    mtp: bool = True,
) -> float:
    """FLOPs of one training step: forward, and backward, which takes twice as many; no
    recompute."""
    per_token = forward_flops_per_token(architecture, workload.seq_len, count, mtp=mtp)
    return 3 * per_token * workload.tokens


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
    """The step time in seconds behind a published FLOP/s per chip, in the convention of the source.

    Where the source counted recompute, a step has four forward passes' worth of FLOPs, not three.
    """
    passes = 4 / 3 if recompute_counted else 1.0
    flops = passes * model_flops(architecture, workload, count, mtp=mtp)
    return flops / (flops_per_chip_s * num_chips)
