"""A model in explicit fields, layer by layer, as a request may send it: the words that
service.schemas.layer_list reads, without those that need not be said."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import Any

from pydantic import BaseModel

from models.spec.architecture import Architecture
from models.spec.attention import Attention
from models.spec.encoder import Encoder
from models.spec.feed_forward import Mlp, Moe
from models.spec.layer import Layer
from models.spec.recurrence import DeltaNet, Mamba2, Recurrence, ShortConvolution
from service.schemas.common_fields import common_fields
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
from service.schemas.wire import UNNAMED

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
        architecture,
        name=UNNAMED,
        residual_streams=architecture.residual_streams,
        encoder=_encoder(architecture.encoder) if architecture.encoder else None,
        layers=[
            entry
            for times, part in parts
            for entry in (_named(times, part, names) if names else _written(times, part, written))
        ],
        layer_kinds=dict(zip(names, written, strict=True)) if names else {},
    )


def _said(form: type[BaseModel], value: object, **differing: Any) -> Words:
    """The fields of a form that say this value, but for those that have their defaults. The form
    has `differing` fields in words of its own, and all others by the names of the value."""
    values = common_fields(value, form, type(value)) | differing
    return {
        name: values[name]
        for name, field in form.model_fields.items()
        if name in values and (field.is_required() or values[name] != field.default)
    }


def _encoder(encoder: Encoder) -> Words:
    return _said(
        EncoderFields,
        encoder,
        layers=[_counted(len([*run]), _layer(kind)) for kind, run in groupby(encoder.layers)],
        projector=[list(matrix) for matrix in encoder.projector.matrices],
        projector_vectors=encoder.projector.vectors,
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
        layer,
        attention=_attention(layer.attention) if layer.attention else None,
        recurrence=_recurrence(layer.recurrence) if layer.recurrence else None,
        mlp=_said(MlpFields, network) if isinstance(network, Mlp) else None,
        moe=_moe(network) if isinstance(network, Moe) else None,
        num_norms=None if layer.num_norms == layer.blocks else layer.num_norms,
        parallel_blocks=None if layer.parallel == usual else layer.parallel,
    )


def _attention(attention: Attention) -> Words:
    usual_bias = attention.attention_bias and not attention.is_mla
    compression, indexer = attention.compression, attention.indexer
    return _said(
        AttentionFields,
        attention,
        **_heads(attention),
        attention_output_bias=None
        if attention.attention_output_bias == usual_bias
        else not usual_bias,
        qk_norm_all_heads=attention.qk_norm and attention.qk_norm_all_heads,
        compression=_said(CompressionFields, compression) if compression else None,
        indexer=_said(IndexerFields, indexer) if indexer else None,
    )


def _heads(attention: Attention) -> Words:
    """Returns the fields of the heads of an attention. Sizes are written even where they have their
    usual values."""
    if not attention.is_mla:
        differs = attention.v_head_dim != attention.head_dim
        return {"v_head_dim": attention.v_head_dim if differs else None}
    nope_head_dim = attention.head_dim - attention.qk_rope_head_dim
    latent = _said(MlaFields, attention, qk_nope_head_dim=nope_head_dim)
    said_by_latent = dict.fromkeys(("num_key_value_heads", "head_dim", "v_head_dim", "q_lora_rank"))
    return {"mla": latent, **said_by_latent}


def _recurrence(recurrence: Recurrence) -> Words:
    kind = recurrence.kind
    if isinstance(recurrence, Mamba2):
        return _said(
            Mamba2Fields,
            recurrence,
            kind=kind,
            head_dim=recurrence.value_head_dim,
            state_size=recurrence.key_head_dim,
            num_groups=recurrence.num_key_heads,
        )
    if isinstance(recurrence, ShortConvolution):
        return _said(ShortConvolutionFields, recurrence, kind=kind, num_channels=recurrence.values)
    form = DeltaNetFields if isinstance(recurrence, DeltaNet) else LightningFields
    return _said(form, recurrence, kind=kind)


def _moe(moe: Moe) -> Words:
    chosen = moe.groups_per_token
    return _said(
        LayerMoeFields,
        moe,
        moe_intermediate_size=moe.intermediate_size,
        shared_expert_intermediate_size=moe.shared_expert_intermediate_size or None,
        groups_per_token=None if chosen == moe.num_groups else chosen,
        router_bias=None if moe.router_bias == moe.bias else moe.router_bias,
    )
