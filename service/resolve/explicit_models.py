"""A model in explicit fields, layer by layer, as a request may send it: the words that
service.schemas.layer_list reads, without those that need not be said."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from itertools import groupby
from typing import Any

from pydantic import BaseModel

from models.spec.architecture import Architecture
from models.spec.attention import Attention
from models.spec.encoder import Encoder
from models.spec.feed_forward import Mlp, Moe
from models.spec.layer import Layer
from models.spec.recurrence import DeltaNet, Mamba2, Recurrence, ShortConvolution
from service.schemas.encoder import EncoderFields
from service.schemas.layer import LayerFields
from service.schemas.layer_list import LayerListFields
from service.schemas.mixers import (
    AttentionFields,
    CompressionFields,
    DeltaNetFields,
    IndexerFields,
    LightningFields,
    Mamba2Fields,
    MlaFields,
    ShortConvolutionFields,
)
from service.schemas.networks import LayerMoeFields, MlpFields
from service.schemas.repetition import repetitions

Words = dict[str, Any]


def explicit_fields(architecture: Architecture) -> Words:
    """The model of a request that means this architecture.

    It has no name, since a model that is changed is another. A layer stands in the list itself,
    unless it would stand there twice: then all have names.
    """
    kinds = architecture.kinds
    parts = repetitions([kind for kind, count in architecture.layer_runs for _ in range(count)])
    mentions = sum(len([*groupby(part)]) for _, part in parts)
    names = _kind_names(kinds) if mentions > len(kinds) else None
    written = [_layer(kind) for kind in kinds]
    return _said(
        LayerListFields,
        hidden_size=architecture.hidden_size,
        vocab_size=architecture.vocab_size,
        tie_word_embeddings=architecture.tie_word_embeddings,
        mtp_layers=architecture.mtp_layers,
        residual_streams=architecture.residual_streams,
        learned_positions=architecture.learned_positions,
        lm_head_bias=architecture.lm_head_bias,
        final_norm_weight=architecture.final_norm_weight,
        final_norm_bias=architecture.final_norm_bias,
        encoder=_encoder(architecture.encoder) if architecture.encoder else None,
        layers=[
            entry
            for times, part in parts
            for entry in (_named(times, part, names) if names else _written(times, part, written))
        ],
        layer_kinds=dict(zip(names, written, strict=True)) if names else {},
    )


def _said(form: type[BaseModel], **values: Any) -> Words:
    """The values that differ from the defaults of a form."""
    fields = form.model_fields
    return {
        name: value
        for name, value in values.items()
        if fields[name].is_required() or value != fields[name].default
    }


def _encoder(encoder: Encoder) -> Words:
    return _said(
        EncoderFields,
        hidden_size=encoder.hidden_size,
        layers=[_counted(len([*run]), _layer(kind)) for kind, run in groupby(encoder.layers)],
        tokens_per_sequence=encoder.tokens_per_sequence,
        tokens_per_image=encoder.tokens_per_image,
        patches_per_token=encoder.patches_per_token,
        patch_elements=encoder.patch_elements,
        projector=[list(matrix) for matrix in encoder.projector.matrices],
        projector_vectors=encoder.projector.vectors,
        other_parameters=encoder.other_parameters,
        trained=encoder.trained,
        projector_trained=encoder.projector_trained,
    )


# -- the list


def _named(times: int, part: list[int], names: list[str]) -> list[Any]:
    """A part of the list that repeats, of layers that have names."""
    layers = [names[kind] for kind in part]
    return layers if times == 1 else [{"repeat": times, "layers": layers}]


def _written(times: int, part: list[int], written: list[Words]) -> list[Any]:
    """A part of the list that repeats, of layers that are written out."""
    if len(part) == 1:
        return [_counted(times, written[part[0]])]
    layers = [_counted(len([*run]), written[kind]) for kind, run in groupby(part)]
    return layers if times == 1 else [{"repeat": times, "layers": layers}]


def _counted(count: int, layer: Words) -> Words:
    return layer if count == 1 else {"count": count, **layer}


def _kind_names(kinds: tuple[Layer, ...]) -> list[str]:
    """A name for each kind, of what it is made of, with a number where several would have it."""
    seen = Counter[str]()
    names = list[str]()
    for kind in kinds:
        name = _name(kind)
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return names


def _name(layer: Layer) -> str:
    parts = list[str]()
    if layer.attention:
        parts.append("local_attention" if layer.attention.sliding_window else "attention")
    if layer.recurrence:
        parts.append(layer.recurrence.kind)
    if layer.feed_forward:
        parts.append("moe" if layer.moe else "mlp")
    return "_".join(parts)


# -- one layer


def _layer(layer: Layer) -> Words:
    network = layer.feed_forward
    usual = layer.blocks == 2 and layer.num_norms == 1
    return _said(
        LayerFields,
        attention=_attention(layer.attention) if layer.attention else None,
        recurrence=_recurrence(layer.recurrence) if layer.recurrence else None,
        mlp=_said(MlpFields, **asdict(network)) if isinstance(network, Mlp) else None,
        moe=_moe(network) if isinstance(network, Moe) else None,
        num_norms=None if layer.num_norms == layer.blocks else layer.num_norms,
        post_norms=layer.post_norms,
        norm_weight=layer.norm_weight,
        norm_bias=layer.norm_bias,
        parallel_blocks=None if layer.parallel == usual else layer.parallel,
        attention_residuals=layer.attention_residuals,
    )


def _attention(attention: Attention) -> Words:
    usual_bias = attention.attention_bias and not attention.is_mla
    gate = "head" if attention.gate_per_head else "element"
    compression, indexer = attention.compression, attention.indexer
    return _said(
        AttentionFields,
        num_attention_heads=attention.num_attention_heads,
        **_heads(attention),
        o_lora_rank=attention.o_lora_rank,
        o_groups=attention.o_groups,
        sliding_window=attention.sliding_window,
        chunked_attention=attention.chunked_attention,
        attention_bias=attention.attention_bias,
        attention_output_bias=None
        if attention.attention_output_bias == usual_bias
        else not usual_bias,
        qk_norm=attention.qk_norm,
        qk_norm_all_heads=attention.qk_norm and attention.qk_norm_all_heads,
        kv_norm=attention.kv_norm,
        values_are_keys=attention.values_are_keys,
        sinks=attention.sinks,
        output_gate=gate if attention.output_gate else None,
        compression=_said(CompressionFields, **asdict(compression)) if compression else None,
        indexer=_said(IndexerFields, **asdict(indexer)) if indexer else None,
    )


def _heads(attention: Attention) -> Words:
    """Returns the fields of the heads of an attention. Sizes are written even where they have their
    usual values."""
    if not attention.is_mla:
        differs = attention.v_head_dim != attention.head_dim
        return {
            "num_key_value_heads": attention.num_key_value_heads,
            "head_dim": attention.head_dim,
            "v_head_dim": attention.v_head_dim if differs else None,
            "q_lora_rank": attention.q_lora_rank,
        }
    latent = _said(
        MlaFields,
        kv_lora_rank=attention.kv_lora_rank,
        qk_nope_head_dim=attention.head_dim - attention.qk_rope_head_dim,
        qk_rope_head_dim=attention.qk_rope_head_dim,
        v_head_dim=attention.v_head_dim,
        q_lora_rank=attention.q_lora_rank,
    )
    return {"mla": latent}


def _recurrence(recurrence: Recurrence) -> Words:
    if isinstance(recurrence, Mamba2):
        return _said(
            Mamba2Fields,
            kind=recurrence.kind,
            num_heads=recurrence.num_heads,
            head_dim=recurrence.value_head_dim,
            state_size=recurrence.key_head_dim,
            num_groups=recurrence.num_key_heads,
            conv_kernel=recurrence.conv_kernel,
            conv_bias=recurrence.conv_bias,
            bias=recurrence.bias,
            norm=recurrence.norm,
        )
    if isinstance(recurrence, ShortConvolution):
        return _said(
            ShortConvolutionFields,
            kind=recurrence.kind,
            num_channels=recurrence.values,
            conv_kernel=recurrence.conv_kernel,
            bias=recurrence.bias,
        )
    heads = {
        "num_heads": recurrence.num_heads,
        "num_key_heads": recurrence.num_key_heads,
        "key_head_dim": recurrence.key_head_dim,
        "value_head_dim": recurrence.value_head_dim,
        "conv_kernel": recurrence.conv_kernel,
    }
    if isinstance(recurrence, DeltaNet):
        return _said(
            DeltaNetFields,
            kind=recurrence.kind,
            **heads,
            decay_rank=recurrence.decay_rank,
            gate_rank=recurrence.gate_rank,
        )
    return _said(LightningFields, kind=recurrence.kind, **heads)


def _moe(moe: Moe) -> Words:
    chosen = moe.groups_per_token
    return _said(
        LayerMoeFields,
        num_experts=moe.num_experts,
        experts_per_token=moe.experts_per_token,
        moe_intermediate_size=moe.intermediate_size,
        shared_expert_intermediate_size=moe.shared_expert_intermediate_size or None,
        num_groups=moe.num_groups,
        groups_per_token=None if chosen == moe.num_groups else chosen,
        gated=moe.gated,
        bias=moe.bias,
        router_bias=None if moe.router_bias == moe.bias else moe.router_bias,
        shared_gate=moe.shared_gate,
        selection_bias=moe.selection_bias,
        selection_bias_is_parameter=moe.selection_bias_is_parameter,
        router_scales=moe.router_scales,
        latent_size=moe.latent_size,
        latent_norm=moe.latent_norm,
        zero_experts=moe.zero_experts,
    )
