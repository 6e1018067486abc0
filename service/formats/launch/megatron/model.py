"""A model in the arguments of Megatron-Core, by name: what megatron_writer and
megatron_bridge_writer say of it in their own spelling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from models.spec.architecture import Architecture
from models.spec.attention import Attention
from models.spec.feed_forward import Mlp, Moe
from service.formats.launch.job import Inexpressible

_VOCABULARY_DIVISORS = (128, 64, 32, 16, 8, 4, 2)


def model_arguments(format_: str, model: Architecture, tp: int) -> dict[str, Any]:
    """The arguments, by name, that make a model. Raises Inexpressible where none do."""
    attention = _attention(format_, model)
    dense, moe = _feed_forward(format_, model)
    gated = all(network.gated for network in (dense, moe) if network)
    _require_plain_layers(format_, model)
    arguments: dict[str, Any] = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": _dense_width(dense, moe),
        "num_attention_heads": attention.num_heads,
        **_heads(attention),
        "swiglu": gated,
        "normalization": "LayerNorm" if model.layers[0].norm_bias else "RMSNorm",
        **_biases(model, attention),
        "untie_embeddings_and_output_weights": not model.tie_word_embeddings,
        "position_embedding_type": "learned_absolute" if model.learned_positions else "rope",
        **_window(format_, model),
        **_vocabulary(model, tp),
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
    }
    if moe:
        arguments |= _experts(model, moe)
    if model.mtp_layers:
        arguments["mtp_num_layers"] = model.mtp_layers
    return arguments


def model_notes(model: Architecture, tp: int) -> Iterator[str]:
    """What differs between the model and the one that Megatron makes."""
    if model.vocab_size % tp:
        padded = -(-model.vocab_size // tp) * tp
        yield f"The vocabulary of {model.vocab_size} is padded to {padded}, a multiple of tp({tp})."
    networks = [layer.feed_forward for layer in model.kinds if layer.feed_forward]
    biases = {each.output_bias for each in model.attentions} | {each.bias for each in networks}
    if biases == {True, False}:
        yield "Megatron-Core has a bias in every linear layer or in none but of queries and keys."


def _require_plain_layers(format_: str, model: Architecture) -> None:
    """Raise Inexpressible for layers that Megatron's arguments do not make."""
    for layer in model.kinds:
        if layer.recurrence or layer.attention is None or layer.feed_forward is None:
            cure = "every layer has attention and a feed-forward network"
            raise Inexpressible(format_, "model.layers", model.name, cure)
        if layer.residual_streams > 1:
            cure = "there is one residual stream"
            raise Inexpressible(format_, "model.residual_streams", layer.residual_streams, cure)
        if layer.num_norms != 2 or layer.post_norms:
            cure = "a layer has two norms, before attention and before the MLP"
            raise Inexpressible(format_, "model.num_norms", layer.num_norms, cure)
        if layer.parallel:
            cure = "the MLP runs behind attention, not beside it"
            raise Inexpressible(format_, "model.parallel_blocks", True, cure)


def _attention(format_: str, model: Architecture) -> Attention:
    """The attention of every layer, but for its window."""
    kinds = {replace(each, window=None, chunked=False) for each in model.attentions}
    if len(kinds) != 1:
        cure = "all layers have attention, the same but for its window"
        raise Inexpressible(format_, "model", model.name, cure)
    attention = kinds.pop()
    if not attention.is_mla and attention.v_head_dim != attention.head_dim:
        cure = "values are as wide as keys, except in multi-head latent attention"
        raise Inexpressible(format_, "model", model.name, cure)
    if attention.is_sparse or attention.gate_size or attention.values_are_keys:
        cure = "queries see all keys or a window, and outputs have no gate"
        raise Inexpressible(format_, "model", model.name, cure)
    if attention.qk_norm_all_heads:
        cure = "queries and keys are normalised with one weight that all heads share"
        raise Inexpressible(format_, "model.qk_norm", True, cure)
    return attention


def _feed_forward(format_: str, model: Architecture) -> tuple[Mlp | None, Moe | None]:
    """The MLP of dense layers and the experts of sparse ones."""
    networks = {layer.feed_forward for layer in model.kinds}
    dense = [network for network in networks if isinstance(network, Mlp)]
    sparse = [network for network in networks if isinstance(network, Moe)]
    if len(dense) > 1 or len(sparse) > 1:
        cure = "dense layers are alike, and sparse layers are"
        raise Inexpressible(format_, "model", model.name, cure)
    return next(iter(dense), None), next(iter(sparse), None)


def _dense_width(dense: Mlp | None, moe: Moe | None) -> int:
    if dense:
        return dense.intermediate_size
    return moe.intermediate_size if moe else 0


def _heads(attention: Attention) -> dict[str, Any]:
    if attention.kv_lora_rank is not None:
        latent = {} if attention.q_lora_rank is None else {"q_lora_rank": attention.q_lora_rank}
        return {
            "multi_latent_attention": True,
            **latent,
            "kv_lora_rank": attention.kv_lora_rank,
            "qk_head_dim": attention.head_dim - attention.rope_head_dim,
            "qk_pos_emb_head_dim": attention.rope_head_dim,
            "v_head_dim": attention.v_head_dim,
            "qk_layernorm": True,  # of the latents
        }
    arguments: dict[str, Any] = {"kv_channels": attention.head_dim}
    if attention.num_kv_heads != attention.num_heads:
        arguments |= {"group_query_attention": True, "num_query_groups": attention.num_kv_heads}
    if attention.qk_norm:
        arguments["qk_layernorm"] = True
    if attention.sinks:
        arguments["softmax_type"] = "learnable"
    return arguments


def has_biases(model: Architecture) -> bool:
    """Whether linear layers have biases, and not those of queries and keys alone."""
    networks = any(kind.feed_forward and kind.feed_forward.bias for kind in model.kinds)
    return networks or any(each.output_bias for each in model.attentions)


def _biases(model: Architecture, attention: Attention) -> dict[str, Any]:
    if has_biases(model):
        return {"add_bias_linear": True}
    return {"add_bias_linear": False, "add_qkv_bias": attention.qkv_bias}


def _window(format_: str, model: Architecture) -> dict[str, Any]:
    windows = [layer.attention.window if layer.attention else None for layer in model.layers]
    sizes = set(windows) - {None}
    if not sizes:
        return {}
    if len(sizes) > 1 or any(each.chunked for each in model.attentions):
        cure = "layers have one sliding window or none, and no chunks"
        raise Inexpressible(format_, "model.sliding_window", model.name, cure)
    found: dict[str, Any] = {"window_size": [max(size or 0 for size in windows) - 1, 0]}
    if None in windows:
        found["window_attn_skip_freq"] = list_expression([size is not None for size in windows])
    return found


def _vocabulary(model: Architecture, tp: int) -> dict[str, int]:
    """The vocabulary, padded no further than it must be."""
    divisor = next(
        (each for each in _VOCABULARY_DIVISORS if model.vocab_size % (each * tp) == 0), 1
    )
    return {"vocab_size": model.vocab_size, "make_vocab_size_divisible_by": divisor}


def _experts(model: Architecture, moe: Moe) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "num_experts": moe.num_experts,
        "moe_router_topk": moe.experts_per_token,
        "moe_ffn_hidden_size": moe.intermediate_size,
    }
    sparse = [layer.moe is not None for layer in model.layers]
    if not all(sparse):
        arguments["moe_layer_freq"] = list_expression(sparse)
    if moe.shared_intermediate_size:
        arguments["moe_shared_expert_intermediate_size"] = moe.shared_intermediate_size
    if moe.shared_gate:
        arguments["moe_shared_expert_gate"] = True
    if moe.groups_per_token < moe.num_groups:
        arguments["moe_router_num_groups"] = moe.num_groups
        arguments["moe_router_group_topk"] = moe.groups_per_token
    return arguments


def list_expression(switches: Sequence[bool]) -> str:
    """A switch for each layer as Megatron reads it: ([0]*3+[1]*58), or ([1,0])*12 where they take
    turns."""
    for period in range(2, len(switches) // 2 + 1):
        start = list(switches[:period])
        times, rest = divmod(len(switches), period)
        if not rest and start * times == list(switches) and len(set(start)) > 1:
            return f"([{','.join(str(int(each)) for each in start)}])*{times}"
    runs = [(value, len(list(run))) for value, run in groupby(switches)]
    return f"({'+'.join(f'[{int(value)}]*{count}' for value, count in runs)})"
