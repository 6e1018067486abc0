"""The model of Megatron's arguments, in its wire form: the fields of a shape where its layers are
alike, and otherwise a list of layers (`layers`).

A layer is *sparse* where it has experts, and *dense* where it has an MLP. A *period* of n says
something of one layer in n. A *pattern* gives each layer's blocks as letters, "M-M*-".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from service.formats.megatron.layer_pattern import layer_switches
from service.formats.megatron.layers import layer_list, needs_layer_list, pattern_of, variant_of
from service.formats.megatron.values import Arguments

_MAX_LAYERS = 1024  # as many as requests take
_PERIOD = re.compile(r"\+?0{0,9}[1-9]\d{0,11}", re.ASCII)
_WINDOW = re.compile(r"[(\[]\s{0,9}(-?\d{1,9})\s{0,9},\s{0,9}-?\d{1,9}\s{0,9}[)\]]", re.ASCII)
_EXPERT_ARGUMENTS = (
    "moe_router_topk", "moe_layer_freq", "moe_ffn_hidden_size", "expert_model_parallel_size",
)  # fmt: skip
"""Every dump that has one of these has `num_experts` too."""

_UNSUPPORTED = {
    "heterogeneous_layers_config_path": "layers that differ one by one",
    "num_experts_switch": "experts of a switch transformer",
}
"""Arguments that switch on what the cost model does not describe, and what that is."""


def num_layers(args: Arguments) -> int:
    """Returns the number of layers. Raises Invalid where it is missing or too large."""
    layers = args.required("num_layers")
    if layers > _MAX_LAYERS:
        raise args.invalid("num_layers", f"must be at most {_MAX_LAYERS}")
    return layers


def read_model(args: Arguments) -> dict[str, Any]:
    """Returns the model of the arguments as a request writes it. Raises Invalid where a deciding
    argument is missing, which may have been cut off a dump, and Unsupported for models that cannot
    be expressed."""
    _require_described(args)
    layers = num_layers(args)
    # A dump has these switches even where they are off. One that is missing was cut off, and may
    # have been on.
    args.require_any("swiglu", "quick_geglu", part="model")
    args.require_any("untie_embeddings_and_output_weights", part="model")
    if any(name in args for name in _EXPERT_ARGUMENTS):
        args.require_any("num_experts", part="model")
    if args.text("kv_lora_rank") is not None:
        args.require_any("multi_latent_attention", part="model")
    model: dict[str, Any] = {
        "hidden_size": args.required("hidden_size"),
        **_vocabulary_field(args),
        "tie_word_embeddings": not args.boolean("untie_embeddings_and_output_weights"),
        "mtp_layers": args.integer("mtp_num_layers", least=0) or 0,
    }
    is_mixed = needs_layer_list(args)
    return {**model, **(_listed_layers(args, layers) if is_mixed else _shape_fields(args, layers))}


def _require_described(args: Arguments) -> None:
    """Raises Unsupported for arguments whose effect on the model a request cannot express."""
    for name, missing in _UNSUPPORTED.items():
        if args.text(name) not in (None, "False"):
            raise args.unsupported(name, missing)
    if args.boolean("is_hybrid_model") and pattern_of(args) is None:
        raise args.unsupported("is_hybrid_model", "layers that no pattern names")
    variant_of(args)  # raises Unsupported for attention of an unknown kind


def _shape_fields(args: Arguments, layers: int) -> dict[str, Any]:
    """Returns the sizes of a model whose layers are alike, as a request writes them."""
    model: dict[str, Any] = {
        "num_layers": layers,
        "intermediate_size": args.required("ffn_hidden_size"),
        "num_attention_heads": args.required("num_attention_heads"),
        "gated_mlp": _is_gated(args),
        # With latent attention, qk_layernorm means norms of the latents. They are always counted.
        "qk_norm": args.boolean("qk_layernorm") and not args.boolean("multi_latent_attention"),
        "attention_bias": args.boolean("add_qkv_bias") or args.boolean("add_bias_linear"),
        "attention_output_bias": args.boolean("add_bias_linear"),
        **_window_fields(args, layers),
    }
    if args.boolean("multi_latent_attention"):
        model["mla"] = _mla_fields(args)
    else:
        model |= _head_fields(args)
    if args.text("num_experts") is not None:
        model["moe"] = _moe_fields(args, layers)
    return model


def _is_gated(args: Arguments) -> bool:
    return args.boolean("swiglu") or args.boolean("quick_geglu")


def _listed_layers(args: Arguments, layers: int) -> dict[str, Any]:
    """Returns the fields of a model with several kinds of layers: the kind of each layer, and the
    attention, MLP or experts that each kind is made of, as a request lists them."""
    has_experts = args.text("num_experts") is not None
    # A layer pattern says itself which layers have experts, so these lists are not read then.
    sparse = [has_experts] * layers
    if has_experts and args.text("moe_layer_freq") and pattern_of(args) is None:
        sparse = _layer_pattern(args, "moe_layer_freq", layers, _first_of_period)
    recurs = [False] * layers
    if variant_of(args) == "gated_delta_net":
        recurs = _layer_pattern(args, "linear_attention_freq", layers, _all_but_last_of_period)
    mlp = {
        "intermediate_size": args.required("ffn_hidden_size"),
        "gated": _is_gated(args),
        "bias": args.boolean("add_bias_linear"),
    }
    # For each layer: whether it has experts, a recurrence, and a window.
    switches = {"sparse": sparse, "recurrence": recurs, "window": _windowed_layers(args, layers)}
    experts = {"moe": _listed_experts(args)} if has_experts else {}
    parts = {"mlp": mlp, **experts, "attention": _attention_fields(args)}
    return layer_list(args, parts, switches)


def _attention_fields(args: Arguments) -> dict[str, Any]:
    """Returns the attention of a listed layer, as a request writes it."""
    # In a layer pattern, + and D are latent attention, D with an indexer.
    has_latent_letter = bool(set("+D") & set(pattern_of(args) or ""))
    is_latent = args.boolean("multi_latent_attention") or has_latent_letter
    fields: dict[str, Any] = {
        "num_attention_heads": args.required("num_attention_heads"),
        **({"mla": _mla_fields(args)} if is_latent else _head_fields(args)),
        # With latent attention, qk_layernorm means norms of the latents. They are always counted.
        "qk_norm": args.boolean("qk_layernorm") and not is_latent,
        "attention_bias": args.boolean("add_qkv_bias") or args.boolean("add_bias_linear"),
        "attention_output_bias": args.boolean("add_bias_linear"),
        "sinks": args.text("softmax_type") == "learnable",
    }
    if args.boolean("attention_output_gate"):
        fields["output_gate"] = "element"
    if (size := _window_size(args)) is not None:
        fields["sliding_window"] = size
    return fields


def _listed_experts(args: Arguments) -> dict[str, Any]:
    """Returns the experts of a listed layer, as a request writes them."""
    return {
        **_expert_fields(args),
        "gated": _is_gated(args),
        "shared_gate": args.boolean("moe_shared_expert_gate"),
        "latent_size": args.integer("moe_latent_size"),
    }


def _vocabulary_field(args: Arguments) -> dict[str, int]:
    """Returns the field for the size of the padded vocabulary; no field where a typed command
    line leaves it to the tokenizer. Raises Invalid where a dump has no size."""
    size = args.integer("padded_vocab_size") or args.integer("vocab_size")
    if size is None and args.flags is not None:
        return {}
    return {"vocab_size": size or args.required("vocab_size")}  # raises where there is no size


def _head_fields(args: Arguments) -> dict[str, int]:
    """Returns the key-value heads and the elements of a head, as a request writes them. Raises
    Invalid where a dump lacks the switch for grouped queries, which may have been cut off."""
    args.require_any("group_query_attention", part="model")
    is_grouped = args.boolean("group_query_attention")
    kv_heads = args.required("num_query_groups" if is_grouped else "num_attention_heads")
    head_dim = args.integer("kv_channels")
    heads = {"num_key_value_heads": kv_heads}
    # By default, here and in a request, the heads divide the hidden size.
    return heads if head_dim is None else {**heads, "head_dim": head_dim}


def _mla_fields(args: Arguments) -> dict[str, int | None]:
    """Returns the sizes of multi-head latent attention, as a request writes them."""
    return {
        "q_lora_rank": args.integer("q_lora_rank"),
        "kv_lora_rank": args.required("kv_lora_rank"),
        "qk_nope_head_dim": args.required("qk_head_dim"),
        "qk_rope_head_dim": args.required("qk_pos_emb_head_dim"),
        "v_head_dim": args.required("v_head_dim"),
    }


def _window_fields(args: Arguments, layers: int) -> dict[str, int]:
    """Returns the sliding window of a model whose layers are otherwise alike. With
    window_attn_skip_freq n, every n-th layer sees the whole sequence. Raises Unsupported where
    such layers stand at irregular distances."""
    size = _window_size(args)
    if size is None:
        return {}
    has_window = _windowed_layers(args, layers)
    if all(has_window):
        return {"sliding_window": size}
    period = has_window.index(False) + 1  # the first layer without a window ends a period
    if has_window != [_all_but_last_of_period(period, index) for index in range(layers)]:
        raise args.unsupported(
            "window_attn_skip_freq", "full attention at other than regular distances"
        )
    return {"sliding_window": size, "full_attention_period": period}


def _window_size(args: Arguments) -> int | None:
    """Returns the number of keys that a query of a windowed layer sees; None without a window.
    window_size (127, 0) counts the keys on the query's left and right, without its own: 128 in
    all."""
    text = args.text("window_size")
    if text is None:
        return None
    match = _WINDOW.fullmatch(text)
    if match is None:
        raise args.invalid("window_size", "must be two whole numbers")
    # -1 means all keys on the left. Those on the right are masked, since attention is causal.
    left = int(match.group(1))
    return None if left < 0 else left + 1


def _windowed_layers(args: Arguments, layers: int) -> list[bool]:
    """Returns, for each layer, whether its attention has the window."""
    if args.text("window_attn_skip_freq") is None:
        return [True] * layers
    return _layer_pattern(args, "window_attn_skip_freq", layers, _all_but_last_of_period)


def _moe_fields(args: Arguments, layers: int) -> dict[str, int | bool]:
    """Returns the experts of a model whose layers are alike, and which of its layers have them."""
    first, period = _sparse_layers(args, layers)
    return {**_expert_fields(args), "first_k_dense": first, "moe_layer_freq": period}


def _expert_fields(args: Arguments) -> dict[str, int | bool]:
    """Returns the sizes of the experts, as a request writes them."""
    # By default experts are as wide as a dense MLP.
    width = args.integer("moe_ffn_hidden_size") or args.required("ffn_hidden_size")
    return {
        "num_experts": args.required("num_experts", least=2),
        "experts_per_token": args.required("moe_router_topk"),
        "moe_intermediate_size": width,
        "bias": args.boolean("add_bias_linear"),
        **_group_fields(args),
        **_shared_expert_fields(args),
    }


def _group_fields(args: Arguments) -> dict[str, int]:
    """Returns the groups among which experts are chosen; none without --moe-router-group-topk,
    where groups limit nothing."""
    groups = args.integer("moe_router_num_groups")
    top_k = args.integer("moe_router_group_topk")
    return {"num_groups": groups, "groups_per_token": top_k} if groups and top_k else {}


def _shared_expert_fields(args: Arguments) -> dict[str, int]:
    # Megatron's width is that of all shared experts together, so they count as one.
    width = args.integer("moe_shared_expert_intermediate_size", least=0)
    return {"num_shared_experts": 1, "shared_expert_intermediate_size": width} if width else {}


def _sparse_layers(args: Arguments, layers: int) -> tuple[int, int]:
    """Returns the number of dense layers in front, and the period of sparse layers behind them.
    Raises Invalid where no layer is sparse, and Unsupported where sparse layers stand irregularly.

    Megatron makes the first layer of each period sparse, and a request the last. The numbers of
    dense and sparse layers are the same, only their order differs.
    """
    sparse = _layer_pattern(args, "moe_layer_freq", layers, _first_of_period)
    if not any(sparse):
        raise args.invalid("moe_layer_freq", f"leaves none of the {layers} layers sparse")
    first = sparse.index(True)
    if all(sparse[first:]):
        return first, 1
    # Otherwise try sparse layers at one distance, the last of each period as a request has them.
    distance = sparse.index(True, first + 1) - first if sum(sparse) > 1 else layers
    # Fewer dense layers in front than a period has belong to the first period.
    num_dense_first = first if first >= distance else 0
    last_of_each_period = [
        index >= num_dense_first and (index + 1) % distance == 0 for index in range(layers)
    ]
    if sparse == last_of_each_period:
        return num_dense_first, distance
    # Otherwise one sparse layer anywhere in each period will do: its place changes no cost.
    period = layers // sum(sparse)
    counts = [sum(sparse[start : start + period]) for start in range(0, layers, period)]
    if any(count != 1 for count in counts) or layers % period:
        raise args.unsupported("moe_layer_freq", "sparse layers at other than regular distances")
    return 0, period


def require_layer_pattern(args: Arguments, name: str, layers: int) -> bool:
    """Raises Stopped for an argument that is given and has not a switch for each layer. Otherwise
    returns True, so that a caller who collects stops can tell that there was none."""
    # A period says something of every layer, so any rule for periods will do here.
    return args.text(name) is None or bool(_layer_pattern(args, name, layers, _first_of_period))


def _first_of_period(period: int, index: int) -> bool:
    """Returns True for the first layer of each period."""
    return index % period == 0


def _all_but_last_of_period(period: int, index: int) -> bool:
    """Returns True for every layer of a period but the last."""
    return (index + 1) % period > 0


def _layer_pattern(
    args: Arguments, name: str, layers: int, is_on: Callable[[int, int], bool]
) -> list[bool]:
    """Returns a switch for each layer, from an expression such as "([0]*3+[1]*58)" or from a
    period. `is_on` takes the period and the index of a layer, and returns that layer's switch.
    Raises Stopped for any other text."""
    text = (args.text(name) or "1").replace(" ", "")  # the default of moe_layer_freq
    if _PERIOD.fullmatch(text):
        return [is_on(int(text), index) for index in range(layers)]
    switches = layer_switches(text, layers)
    if len(switches) != layers:
        rule = f"must be a whole number, or a list of 0 and 1 for each of the {layers} layers"
        raise args.stopped(name, rule)
    return switches
