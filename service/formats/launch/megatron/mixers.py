"""Attention and recurrences, which mix the tokens of a layer, in the arguments of Megatron-Core, by
name.

A *recurrence* is a mixer such as Mamba-2 or a gated delta net. An *indexer* chooses the keys that
sparse attention reads. `supported` is what Megatron does make, for an error about what it does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from models.spec.architecture import Architecture
from models.spec.attention import Attention
from models.spec.recurrence import DeltaNet, Mamba2
from service.formats.launch.job import UnknownLayers
from service.formats.megatron.layers import shares_indexer

_CONVOLUTION_OF_MAMBA = 4
"""Tokens that the convolution of Mamba-2 sees (megatron/core/ssm/mamba_mixer.py). No argument
changes it."""


def mixer_arguments(model: Architecture) -> dict[str, Any]:
    """Returns the arguments of the model's attention and recurrences, by name, whichever layers
    have them."""
    attention = common_attention(model)
    indexer = {} if attention.indexer is None else _indexer_arguments(model, attention)
    return {
        "num_attention_heads": attention.num_attention_heads,
        **_head_arguments(attention),
        **indexer,
        **_recurrence_arguments(model),
    }


def common_attention(model: Architecture) -> Attention:
    """Returns the attention that all layers have: Megatron has one for all. Only windows, and
    whether a layer shares an indexer, may differ. Raises UnknownLayers where anything else
    differs, where no layer has attention, and for attention that Megatron does not have."""
    if not model.attentions:
        supported = "some layer has attention"
        raise UnknownLayers("model.layers", model.name, supported)
    # The first layer that compresses keys is the one that the error names.
    for rate in (mixer.compression.rate for mixer in model.attentions if mixer.compression):
        supported = "in its releases queries see keys of single tokens, and not pooled ones"
        raise UnknownLayers("model.compression", rate, supported)
    if len({mixer.is_sparse for mixer in model.attentions}) > 1:
        supported = "all attention has indexers, or none has"
        raise UnknownLayers("model.indexer", model.name, supported)
    kinds = {
        replace(
            mixer,
            sliding_window=None,
            chunked_attention=False,
            indexer=mixer.indexer and replace(mixer.indexer, shared=False),
        )
        for mixer in model.attentions
    }
    if len(kinds) != 1:
        supported = "all attention is alike, but for its window"
        raise UnknownLayers("model", model.name, supported)
    attention = kinds.pop()
    _require_expressible_attention(model, attention)
    return attention


def _require_expressible_attention(model: Architecture, attention: Attention) -> None:
    """Raises UnknownLayers for projections, gates or norms in attention that Megatron-Core does
    not have."""
    if attention.values_are_keys or attention.o_lora_rank is not None:
        supported = "values have a projection of their own, and outputs one without a latent"
        raise UnknownLayers("model", model.name, supported)
    if not attention.is_mla and attention.q_lora_rank is not None:
        supported = "queries have a latent only where keys and values have one"
        raise UnknownLayers("model.q_lora_rank", attention.q_lora_rank, supported)
    if not attention.is_mla and attention.v_head_dim != attention.head_dim:
        supported = "values are as wide as keys, except in multi-head latent attention"
        raise UnknownLayers("model.v_head_dim", attention.v_head_dim, supported)
    if attention.output_gate and (attention.output_gate == "head" or attention.is_mla):
        supported = "a gate of outputs has an element for each of theirs, outside latent attention"
        raise UnknownLayers("model.output_gate", model.name, supported)
    if attention.qk_norm_all_heads:
        supported = "queries and keys are normalised with one weight that all heads share"
        raise UnknownLayers("model.qk_norm", True, supported)


def _head_arguments(attention: Attention) -> dict[str, Any]:
    """Returns the arguments of the number and width of attention heads, for multi-head latent
    attention or any other."""
    if attention.kv_lora_rank is not None:
        latent = {} if attention.q_lora_rank is None else {"q_lora_rank": attention.q_lora_rank}
        return {
            "multi_latent_attention": True,
            **latent,
            "kv_lora_rank": attention.kv_lora_rank,
            # Megatron counts the part of a head without rotary positions by itself.
            "qk_head_dim": attention.head_dim - attention.qk_rope_head_dim,
            "qk_pos_emb_head_dim": attention.qk_rope_head_dim,
            "v_head_dim": attention.v_head_dim,
            "qk_layernorm": True,  # of the latents
        }
    arguments: dict[str, Any] = {"kv_channels": attention.head_dim}
    if attention.num_key_value_heads != attention.num_attention_heads:
        arguments |= {
            "group_query_attention": True,
            "num_query_groups": attention.num_key_value_heads,
        }
    if attention.qk_norm:
        arguments["qk_layernorm"] = True
    if attention.sinks:
        arguments["softmax_type"] = "learnable"
    if attention.output_gate:
        arguments["attention_output_gate"] = True
    return arguments


# -- sparse attention


def _indexer_arguments(model: Architecture, attention: Attention) -> dict[str, Any]:
    """Returns the arguments of sparse attention, whose indexer chooses the keys (DeepSeek sparse
    attention). It has no fused rotary positions (megatron/core/transformer/
    experimental_attention_variant/dsa.py)."""
    indexer = attention.indexer
    if indexer is None or not attention.is_mla or not indexer.weighs_heads:
        supported = "an indexer adds up the scores of its heads, in multi-head latent attention"
        raise UnknownLayers("model.indexer", model.name, supported)
    arguments = {
        "experimental_attention_variant": "dsa",
        "dsa_indexer_n_heads": indexer.num_heads,
        "dsa_indexer_head_dim": indexer.head_dim,
        "dsa_indexer_topk": indexer.top_k,
        "apply_rope_fusion": False,
    }
    shared = shared_indexers(model)
    if not any(shared):
        return arguments
    period, offset = _period_and_offset_of_sharing(model, shared)
    return {
        **arguments,
        "dsa_indexer_topk_freq": period,
        "dsa_indexer_skip_topk_offset": offset,
    }


def shared_indexers(model: Architecture) -> list[bool]:
    """Returns, for each layer, whether it reuses the keys that an earlier layer's indexer chose."""
    shared = []
    for layer in model.layers:
        indexer = layer.attention.indexer if layer.attention else None
        shared.append(indexer is not None and indexer.shared)
    return shared


def _period_and_offset_of_sharing(model: Architecture, shared: Sequence[bool]) -> tuple[int, int]:
    """Returns the period and the offset by which Megatron shares indexers in exactly the layers
    that `shared` has True for. Raises UnknownLayers where no pair does."""
    layers = range(len(shared))
    for period in range(2, len(shared) + 1):
        for offset in range(1, len(shared) + 1):
            if [shares_indexer(index, period, offset) for index in layers] == list(shared):
                return period, offset
    supported = "indexers are shared at regular distances"
    raise UnknownLayers("model.indexer.shared", model.name, supported)


# -- recurrences


def _recurrence_arguments(model: Architecture) -> dict[str, Any]:
    """Returns the arguments of the model's Mamba-2 layers and gated delta nets. Raises
    UnknownLayers for other recurrences, and where two of one kind differ."""
    recurrences = dict.fromkeys(model.recurrences)
    arguments: dict[str, Any] = {}
    for recurrence in recurrences:
        if isinstance(recurrence, Mamba2):
            arguments |= _mamba_arguments(recurrence)
        elif isinstance(recurrence, DeltaNet):
            arguments |= _delta_net_arguments(recurrence)
        else:
            supported = "the recurrences of its releases are Mamba-2 and gated delta nets"
            raise UnknownLayers("model.recurrence.kind", recurrence.kind, supported)
    if len({type(recurrence) for recurrence in recurrences}) < len(recurrences):
        supported = "all recurrences of a kind are alike"
        raise UnknownLayers("model.recurrence", model.name, supported)
    return arguments


def _mamba_arguments(mamba: Mamba2) -> dict[str, Any]:
    """Returns the sizes of Mamba-2 layers as arguments. Raises UnknownLayers where Megatron has
    no such convolution, norm or bias."""
    if mamba.conv_kernel != _CONVOLUTION_OF_MAMBA:
        supported = f"Mamba-2 has a convolution over {_CONVOLUTION_OF_MAMBA} tokens"
        raise UnknownLayers("model.recurrence.conv_kernel", mamba.conv_kernel, supported)
    if mamba.bias or not mamba.conv_bias or not mamba.norm:
        supported = "Mamba-2 has a norm, and a bias of its convolution alone"
        raise UnknownLayers("model.recurrence.kind", mamba.kind, supported)
    # Recurrences have the names of linear attention: Mamba-2's state is as wide as a key.
    return {
        "mamba_state_dim": mamba.key_head_dim,
        "mamba_head_dim": mamba.value_head_dim,
        "mamba_num_groups": mamba.num_key_heads,
        "mamba_num_heads": mamba.num_heads,
    }


def _delta_net_arguments(net: DeltaNet) -> dict[str, Any]:
    """Returns the sizes of gated delta nets as arguments. Raises UnknownLayers where Megatron
    has no such decay, gate or convolution."""
    if net.decay_per_element or net.decay_rank or net.gate_rank or not net.conv_kernel:
        supported = "a delta net has one decay a head, a gate of full rank and a convolution"
        raise UnknownLayers("model.recurrence.kind", net.kind, supported)
    return {
        "linear_conv_kernel_dim": net.conv_kernel,
        "linear_key_head_dim": net.key_head_dim,
        "linear_value_head_dim": net.value_head_dim,
        "linear_num_key_heads": net.num_key_heads,
        "linear_num_value_heads": net.num_heads,
    }
