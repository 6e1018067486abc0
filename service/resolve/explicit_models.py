"""A model in explicit fields, layer by layer, as a request may send it: the fields that
service.schemas.layer_list reads, without those at their defaults. Equal layers are of one *kind*;
`Members` are fields of a request."""

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

Members = dict[str, Any]


def explicit_fields(architecture: Architecture) -> Members:
    """Returns the fields of a request that describe this architecture layer by layer.

    The model is unnamed, because a user who edits the fields describes another model. Layers are
    written out in the list, unless one would be written twice: then each kind of layer has a name,
    and the list has the names.
    """
    kinds = architecture.kinds
    kind_of_layer = [kind for kind, count in architecture.layer_runs for _ in range(count)]
    parts = repetitions(kind_of_layer)  # (times, layers) of each repeated stretch
    # Within a part, equal layers in a row are one entry with a count. With more entries than kinds,
    # some kind would be written out twice.
    num_entries = sum(len([*groupby(part)]) for _, part in parts)
    names = _kind_names(kinds) if num_entries > len(kinds) else None
    layers_of_kinds = [_layer(kind) for kind in kinds]
    entries = list[Any]()
    for times, part in parts:
        if names is None and len(part) == 1:
            entries.append(_counted(times, layers_of_kinds[part[0]]))
        elif names is None:
            runs = [(kind, len([*run])) for kind, run in groupby(part)]
            layers = [_counted(count, layers_of_kinds[kind]) for kind, count in runs]
            entries += _repeated(times, layers)
        else:
            entries += _repeated(times, [names[kind] for kind in part])
    return _non_default_fields(
        LayerListFields,
        architecture,
        name=UNNAMED,
        residual_streams=architecture.residual_streams,
        encoder=_encoder(architecture.encoder) if architecture.encoder else None,
        layers=entries,
        layer_kinds={} if names is None else dict(zip(names, layers_of_kinds, strict=True)),
    )


def _non_default_fields(schema: type[BaseModel], value: object, **overrides: Any) -> Members:
    """Returns the fields with which a request in this schema describes `value`, an object of the
    package models: {"intermediate_size": 14336} for an Mlp. A field's value is the object's
    attribute of the same name, unless `overrides` gives another. Fields that have the schema's
    default are left out."""
    values = common_fields(value, schema, type(value)) | overrides
    return {
        name: values[name]
        for name, field in schema.model_fields.items()
        if name in values and (field.is_required() or values[name] != field.default)
    }


def _encoder(encoder: Encoder) -> Members:
    """Returns the fields that describe an encoder, with equal consecutive layers counted."""
    return _non_default_fields(
        EncoderFields,
        encoder,
        layers=[_counted(len([*run]), _layer(kind)) for kind, run in groupby(encoder.layers)],
        projector=[list(matrix) for matrix in encoder.projector.matrices],
        projector_vectors=encoder.projector.vectors,
    )


# -- the list


def _repeated(times: int, layers: list[Any]) -> list[Any]:
    """Returns the entries of a list of layers in which these come several times, such as
    [{"repeat": 4, "layers": ["mlp", "moe"]}]."""
    return layers if times == 1 else [{"repeat": times, "layers": layers}]


def _counted(count: int, layer: Members) -> Members:
    return layer if count == 1 else {"count": count, **layer}


def _kind_names(kinds: tuple[Layer, ...]) -> list[str]:
    """Returns a name for each kind of layer, made of its blocks, such as "attention_moe". A name
    that comes again gets a number, as "attention_moe_2"."""
    uses = Counter[str]()
    names = list[str]()
    for kind in kinds:
        name = _kind_name(kind)
        uses[name] += 1
        names.append(name if uses[name] == 1 else f"{name}_{uses[name]}")
    return names


def _kind_name(layer: Layer) -> str:
    """Returns a name of a layer's blocks, such as "local_attention_mlp"."""
    parts = list[str]()
    if layer.attention:
        parts.append("local_attention" if layer.attention.sliding_window else "attention")
    if layer.recurrence:
        parts.append(layer.recurrence.kind)
    if layer.feed_forward:
        parts.append("moe" if layer.moe else "mlp")
    return "_".join(parts)


# -- one layer


def _layer(layer: Layer) -> Members:
    """Returns the fields that describe a layer. A field that its other fields imply is None, its
    default, and left out."""
    network = layer.feed_forward
    # Requests that say nothing mean parallel blocks if mixer and network share one norm.
    default_parallel = layer.blocks == 2 and layer.num_norms == 1
    return _non_default_fields(
        LayerFields,
        layer,
        attention=_attention(layer.attention) if layer.attention else None,
        recurrence=_recurrence(layer.recurrence) if layer.recurrence else None,
        mlp=_non_default_fields(MlpFields, network) if isinstance(network, Mlp) else None,
        moe=_moe(network) if isinstance(network, Moe) else None,
        num_norms=None if layer.num_norms == layer.blocks else layer.num_norms,
        parallel_blocks=None if layer.parallel == default_parallel else layer.parallel,
    )


def _attention(attention: Attention) -> Members:
    """Returns the fields that describe an attention. A field that its other fields imply is None,
    its default, and left out."""
    compression, indexer = attention.compression, attention.indexer
    output_bias = attention.attention_output_bias
    default_bias = attention.attention_bias and not attention.is_mla  # as AttentionFields has it
    return _non_default_fields(
        AttentionFields,
        attention,
        **_special_head_fields(attention),
        attention_output_bias=None if output_bias == default_bias else output_bias,
        qk_norm_all_heads=attention.qk_norm and attention.qk_norm_all_heads,
        compression=_non_default_fields(CompressionFields, compression) if compression else None,
        indexer=_non_default_fields(IndexerFields, indexer) if indexer else None,
    )


def _special_head_fields(attention: Attention) -> Members:
    """Returns the fields of an attention's heads that are not copied by name. Multi-head latent
    attention has its heads in `mla`, and None, which leaves a field out, for the usual ones."""
    if not attention.is_mla:
        differs = attention.v_head_dim != attention.head_dim
        return {"v_head_dim": attention.v_head_dim if differs else None}
    nope_head_dim = attention.head_dim - attention.qk_rope_head_dim
    latent = _non_default_fields(MlaFields, attention, qk_nope_head_dim=nope_head_dim)
    left_to_mla = dict.fromkeys(("num_key_value_heads", "head_dim", "v_head_dim", "q_lora_rank"))
    return {"mla": latent, **left_to_mla}


def _recurrence(recurrence: Recurrence) -> Members:
    """Returns the fields that describe a recurrence. Mamba 2 and short convolutions have names of
    their own for sizes that other recurrences call heads and values."""
    kind = recurrence.kind
    if isinstance(recurrence, Mamba2):
        return _non_default_fields(
            Mamba2Fields,
            recurrence,
            kind=kind,
            head_dim=recurrence.value_head_dim,
            state_size=recurrence.key_head_dim,
            num_groups=recurrence.num_key_heads,
        )
    if isinstance(recurrence, ShortConvolution):
        return _non_default_fields(
            ShortConvolutionFields, recurrence, kind=kind, num_channels=recurrence.value_elements
        )
    form = DeltaNetFields if isinstance(recurrence, DeltaNet) else LightningFields
    return _non_default_fields(form, recurrence, kind=kind)


def _moe(moe: Moe) -> Members:
    """Returns the fields that describe a mixture of experts. A field that its other fields imply is
    None, its default, and left out."""
    groups = moe.groups_per_token
    return _non_default_fields(
        LayerMoeFields,
        moe,
        moe_intermediate_size=moe.intermediate_size,
        shared_expert_intermediate_size=moe.shared_expert_intermediate_size or None,
        groups_per_token=None if groups == moe.num_groups else groups,
        router_bias=None if moe.router_bias == moe.bias else moe.router_bias,
    )
