"""Models in MaxText's words: a name that it has a file for, or the sizes of its layers.

A *block* is MaxText's decoder_block: the family, such as llama2, whose layers the model has. A
*reservation* is a remark that a setting could matter and is not taken into account.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.errors import Invalid
from models.spec import catalogue
from models.spec.architecture import MAX_LAYERS, Architecture, MlaShape, MoeShape
from models.spec.attention import Attention
from models.spec.feed_forward import Mlp, Moe
from service.formats.launch.maxtext.package import model_file
from service.formats.launch.named_model import model_of_catalogue
from service.formats.settings.field import shown
from service.formats.settings.field_table import FieldTable
from service.formats.settings.settings import Settings
from service.formats.settings.stop import Stopped
from service.formats.shell.faults import invalid_launch
from service.nearest_names import suggestion

_DENSE_BLOCKS = ("default", "llama2", "mistral", "qwen2", "qwen3")
_SPARSE_BLOCKS = ("mixtral", "qwen3_moe", "deepseek")
_WITH_MUON = {
    "deepseek", "deepseek4", "qwen3", "qwen3_moe", "qwen3_custom_moe", "qwen3_next", "gpt_oss",
    "gemma3", "llama2",
}  # fmt: skip
"""The blocks that Muon is taken for (configs/types.py, Muon dimension numbers)."""
_DESCRIBE_MODEL = "describe the model beside the launch, as `model`"
_LARGEST_SIZE = 10**9  # far more than any size of a model
_SCALE = "global_parameter_scale"
_SIZES = (
    "base_emb_dim", "base_num_query_heads", "base_num_kv_heads", "base_mlp_dim",
    "base_num_decoder_layers", "base_moe_mlp_dim", "head_dim", "vocab_size", "num_experts",
    "num_experts_per_tok", "first_num_dense_layers", "shared_experts", "kv_lora_rank",
    "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "sliding_window_size",
)  # fmt: skip
"""Settings that change a named model."""


# -- writing


def model_settings(architecture: Architecture, table: FieldTable) -> dict[str, Any]:
    """Returns the settings that make a model: the name of MaxText's file for it, or its sizes.
    Returns none where MaxText has neither a file for it nor such layers."""
    name = _name_of_file(architecture, table.facts["models"])
    settings: dict[str, Any] = {"model_name": name} if name else _size_settings(architecture)
    if settings and architecture.mtp_layers:
        settings["mtp_num_layers"] = architecture.mtp_layers
    return settings


def _name_of_file(architecture: Architecture, models: Mapping[str, str]) -> str | None:
    """Returns the name of MaxText's file for this model, whatever its number of multi-token
    prediction modules; None where it has no file. `models` maps its names to those of the
    catalogue."""
    for name, catalogue_name in models.items():
        model = replace(catalogue.architecture(catalogue_name), mtp_layers=architecture.mtp_layers)
        if catalogue.matching_name(architecture, [model]):
            return name
    return None


def _size_settings(architecture: Architecture) -> dict[str, Any]:
    """Returns the size settings of a model whose layers are all like Llama's or Mixtral's; none
    for any other model."""
    if len(architecture.kinds) > 1 or architecture.final_norm_bias or architecture.lm_head_bias:
        return {}
    layer = architecture.kinds[0]
    attention = layer.attention
    network = layer.feed_forward
    if attention is None or attention.is_mla or network is None:
        return {}
    # Anything that plain layers of these sizes do not have would be lost.
    if _with_plain_layers(architecture, attention, network) != architecture:
        return {}
    settings: dict[str, Any] = {
        "model_name": "default",
        "decoder_block": "mixtral" if layer.moe else "llama2",
        "base_emb_dim": architecture.hidden_size,
        "base_num_query_heads": attention.num_attention_heads,
        "base_num_kv_heads": attention.num_key_value_heads,
        "head_dim": attention.head_dim,
        "base_num_decoder_layers": architecture.num_layers,
        "vocab_size": architecture.vocab_size,
        "logits_via_embedding": architecture.tie_word_embeddings,
    }
    if layer.moe is None:
        return {**settings, "base_mlp_dim": network.intermediate_size}
    return {
        **settings,
        "base_mlp_dim": layer.moe.intermediate_size,
        "base_moe_mlp_dim": layer.moe.intermediate_size,
        "num_experts": layer.moe.num_experts,
        "num_experts_per_tok": layer.moe.experts_per_token,
    }


def _with_plain_layers(
    architecture: Architecture, attention: Attention, network: Mlp | Moe
) -> Architecture:
    """Returns a model like this one with layers of Llama or Mixtral, of the sizes of its first
    layer's attention and network. Where both models are equal, MaxText's size settings say all."""
    moe = None
    if isinstance(network, Moe):
        moe = MoeShape(
            num_experts=network.num_experts,
            experts_per_token=network.experts_per_token,
            moe_intermediate_size=network.intermediate_size,
        )
    return Architecture.from_shape(
        name=architecture.name,
        num_layers=architecture.num_layers,
        hidden_size=architecture.hidden_size,
        intermediate_size=network.intermediate_size,
        num_attention_heads=attention.num_attention_heads,
        num_key_value_heads=attention.num_key_value_heads,
        head_dim=attention.head_dim,
        vocab_size=architecture.vocab_size,
        tie_word_embeddings=architecture.tie_word_embeddings,
        moe=moe,
        mtp_layers=architecture.mtp_layers,
    )


def takes_muon(values: Mapping[str, Any]) -> bool:
    """Returns True where MaxText supports the optimizer Muon for the model's decoder block."""
    of_file = model_file(values.get("model_name", "")).get("decoder_block", "llama2")
    return values.get("decoder_block", of_file) in _WITH_MUON


# -- reading


def read_model(
    values: Mapping[str, Any], settings: Settings, of_model: Mapping[str, Any]
) -> tuple[dict[str, Any] | None, Architecture | None]:
    """Returns the model as a request writes it, and as an Architecture; (None, None) where the
    launch does not describe one, with a reservation where it names one that is unknown here.
    `of_model` has the settings that only the file of the model sets."""
    given = settings.given
    table = settings.table
    if not given.keys() & {"model_name", "decoder_block", _SCALE, *_SIZES}:
        return None, None  # MaxText's default model is a toy, so the request must have the model
    name = values["model_name"].removesuffix("-Instruct")
    if name == "default":
        return _read_sizes(values, settings)
    # Models of the second table are read and never written, since MaxText pads their vocabulary
    # otherwise.
    models = {**table.facts["models"], **table.facts["other_vocabulary"]}
    if name not in models and name not in table.facts["other_models"]:
        rule = f"is no model of MaxText{suggestion(name, [*models, 'default'])}"
        raise invalid_launch(shown("model_name", name), rule)
    in_file = model_file(name)
    is_changed = values[_SCALE] != 1 or any(
        size in given and given[size] != in_file.get(size) for size in _SIZES
    )
    if name in models and not is_changed:
        mtp_layers = values["mtp_num_layers"]
        architecture = replace(catalogue.architecture(models[name]), mtp_layers=mtp_layers)
        return model_of_catalogue(models[name], mtp_layers), architecture
    if values["decoder_block"] not in (*_DENSE_BLOCKS, *_SPARSE_BLOCKS):
        reason = "the catalogue does not have this model"
        settings.add_reservation("model_name", reason, _DESCRIBE_MODEL, answered_by="model")
        return None, None
    # The sizes are read below. Other settings of the file may matter and not be modelled.
    for setting, value in of_model.items():
        settings.add_file_value_reservation(setting, value)
    return _read_sizes(values, settings)


def _read_sizes(
    values: Mapping[str, Any], settings: Settings
) -> tuple[dict[str, Any] | None, Architecture | None]:
    """Returns the model that the size settings make, as a request writes it and as an
    Architecture; (None, None) and a reservation for layers that are unknown here. Raises Invalid
    for impossible sizes."""
    block = values["decoder_block"]
    if block not in (*_DENSE_BLOCKS, *_SPARSE_BLOCKS):
        reason = "its layers are not described"
        settings.add_reservation("decoder_block", reason, _DESCRIBE_MODEL, answered_by="model")
        return None, None
    if values["num_experts"] > 1 and block in _DENSE_BLOCKS:
        settings.add_reservation("num_experts", f"layers of decoder_block={block} have no experts")
    values = _with_scaled_sizes(values)  # under the same names, by global_parameter_scale
    _require_sizes(values)
    shape: dict[str, Any] = {
        "name": f"maxtext-{block}",
        "num_layers": values["base_num_decoder_layers"],
        "hidden_size": values["base_emb_dim"],
        "intermediate_size": values["base_mlp_dim"],
        "num_attention_heads": values["base_num_query_heads"],
        "num_key_value_heads": values["base_num_kv_heads"],
        "head_dim": values["head_dim"],
        "vocab_size": values["vocab_size"],
        "gated_mlp": len(values["mlp_activations"]) > 1,
        "tie_word_embeddings": values["logits_via_embedding"],
        "qk_norm": values["use_qk_norm"],
        "attention_bias": values["attention_bias"],
        "mtp_layers": values["mtp_num_layers"],
    }
    if values["sliding_window_size"] and values["attention_type"] == "local_sliding":
        shape["sliding_window"] = values["sliding_window_size"]
    mla = _mla_sizes(values)
    moe = _moe_sizes(values)
    try:
        architecture = Architecture.from_shape(
            **shape,
            mla=MlaShape(**mla) if mla else None,
            moe=MoeShape(**moe) if moe else None,
        )
    except Invalid as error:
        raise invalid_launch(f"{error.field}={error.value}", error.rule) from None
    parts = {"mla": mla, "moe": moe}
    return {**shape, **{name: part for name, part in parts.items() if part}}, architecture


def _require_sizes(values: Mapping[str, Any]) -> None:
    """Raises Invalid where a size of the model is missing or out of range."""
    needed = ["base_emb_dim", "base_num_query_heads", "base_num_kv_heads", "base_mlp_dim"]
    needed += ["base_num_decoder_layers", "head_dim", "vocab_size"]
    for name in needed:
        most = MAX_LAYERS if name == "base_num_decoder_layers" else _LARGEST_SIZE
        if not 1 <= values[name] <= most:
            raise invalid_launch(shown(name, values[name]), f"must be between 1 and {most}")


def _with_scaled_sizes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values with the model enlarged by global_parameter_scale, a power of two
    (configs/types.py, get_individual_scales): factors of two go to heads and the network first,
    then to the width, then to the number of layers. Raises Stopped for any other scale."""
    scale = values[_SCALE]
    if scale < 1 or scale & (scale - 1):
        rule = "must be a power of two: set the sizes themselves for others"
        raise Stopped(_SCALE, scale, rule, f"{_SCALE}={2 ** max(scale.bit_length() - 1, 0)}")
    # A scale of 2 ** n is n doublings. Of every three, the heads and the network, the width and the
    # depth get one each. Of one or two that are left, the heads come first.
    doublings, remainder = divmod(scale.bit_length() - 1, 3)
    heads = doublings + (remainder > 0)
    width = doublings + (remainder > 1)
    shifts = {
        "base_emb_dim": width,
        "base_num_query_heads": heads,
        "base_num_kv_heads": heads,
        "base_mlp_dim": heads,
        "base_num_decoder_layers": doublings,
    }
    if values["base_moe_mlp_dim"] > 0:
        shifts["base_moe_mlp_dim"] = heads
    return {**values, **{name: values[name] << shift for name, shift in shifts.items()}}


def _mla_sizes(values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the sizes of multi-head latent attention as a request writes them; None for other
    attention."""
    if values["attention_type"] != "mla":
        return None
    names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    sizes = {name: values[name] for name in names}
    return {**sizes, "q_lora_rank": values["q_lora_rank"] or None}  # 0: queries have no latent


def _moe_sizes(values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the sizes of the experts as a request writes them; None for a dense model, such as
    one with a decoder block that has no experts, whatever their number."""
    if values["num_experts"] < 2 or values["decoder_block"] in _DENSE_BLOCKS:
        return None
    width = values["base_moe_mlp_dim"]
    groups = max(values["n_routing_groups"], 1)
    return {
        "num_experts": values["num_experts"],
        "experts_per_token": values["num_experts_per_tok"],
        # Where their width is not set, experts are as wide as a dense network.
        "moe_intermediate_size": values["base_mlp_dim"] if width < 1 else width,
        "num_shared_experts": values["shared_experts"],
        "first_k_dense": values["first_num_dense_layers"],
        "num_groups": groups,
        "groups_per_token": min(max(values["topk_routing_group"], 1), groups),
    }
