"""Megatron models whose layers are of several kinds, as a list of layers in their wire form.

A hybrid has a letter for each block in --hybrid-layer-pattern, which --hybrid-override-pattern was
before (megatron/core/models/hybrid/hybrid_layer_allocation.py). Other models have gated delta nets
in some of their layers, or sparse attention in all
(megatron/core/models/gpt/experimental_attention_variant_module_specs.py). A *mixer* is what mixes
the tokens of a layer: attention or a recurrence. A *switch* says of one layer that it has a part.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from service.formats.megatron.values import Arguments

PATTERN = "hybrid_layer_pattern"
PATTERNS = (PATTERN, "hybrid_override_pattern")
_VARIANT = "experimental_attention_variant"
_LETTERS = "MG*+D-E"
_PATTERN_TEXT = re.compile(rf"[{re.escape(_LETTERS)}|]+(/[{re.escape(_LETTERS)}]+)*")
_MAMBA_EXPANSION = 2
"""The width of Mamba-2 divided by the hidden size, where the number of its heads is not given."""


def needs_layer_list(args: Arguments) -> bool:
    """Returns True where the model needs a list of layers: they differ, or have parts that a
    plain shape cannot express."""
    named = (*PATTERNS, _VARIANT, "moe_latent_size")
    return any(args.text(name) for name in named) or args.boolean("attention_output_gate")


def pattern_of(args: Arguments) -> str | None:
    """Returns the layer pattern of a hybrid, such as "M-M*-|M-M-"; None for any other model.
    Raises Invalid for letters that Megatron does not have."""
    name = next((name for name in PATTERNS if args.text(name)), None)
    if name is None:
        return None
    pattern = (args.text(name) or "").strip("'\"")
    if not _PATTERN_TEXT.fullmatch(pattern):
        rule = f"must be made of the letters {' '.join(_LETTERS)}, | between chunks, and / behind"
        raise args.invalid(name, rule)
    return pattern


def chunks_of(pattern: str) -> list[str]:
    """Returns the letters of each pipeline chunk of a layer pattern: ["M-M*-", "M-M-"] for
    "M-M*-|M-M-". The multi-token prediction behind a / is left out."""
    return pattern.partition("/")[0].split("|")


def layer_list(
    args: Arguments, parts: Mapping[str, Any], switches: Mapping[str, list[bool]]
) -> dict[str, Any]:
    """Returns the `layers` and `layer_kinds` of a model as a request writes them, made of these
    parts: "attention", "mlp" and, where some layer has experts, "moe". `layers` has a name for each
    layer, such as "attention_moe" or a letter of the pattern, and `layer_kinds` what it stands for.

    `switches` is only read for models without a layer pattern. Its lists "sparse", "window" and
    "recurrence" have a switch for each layer.
    """
    pattern = pattern_of(args)
    if pattern is not None:
        letters = [*"".join(chunks_of(pattern))]
        blocks = _blocks_by_letter(args, pattern, parts)
        return {"layers": letters, "layer_kinds": {letter: blocks[letter] for letter in letters}}
    kinds: dict[str, Any] = {}
    names = []
    for index, sparse in enumerate(switches["sparse"]):
        name, mixer = _named_mixer(args, parts["attention"], switches, index)
        network = "moe" if sparse else "mlp"
        names.append(f"{name}_{network}")
        kinds[names[-1]] = {**mixer, network: parts[network]}
    return {"layers": names, "layer_kinds": kinds}


# -- hybrids


def _blocks_by_letter(args: Arguments, pattern: str, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns, for each letter of the model's pattern, the part that it stands for: {"-":
    {"mlp": …}, "M": {"recurrence": …}}. The letters for attention are * and + (latent attention)
    and D (with an indexer), M is Mamba-2, G a gated delta net, and E experts."""
    blocks: dict[str, Any] = {"-": {"mlp": parts["mlp"]}}
    # A model has one kind of attention, so "attention" is latent where the pattern has + or D.
    if set("*+D") & set(pattern):
        blocks |= {letter: {"attention": parts["attention"]} for letter in "*+"}
    if "D" in pattern:
        blocks["D"] = {"attention": {**parts["attention"], "indexer": _indexer_fields(args)}}
    if "M" in pattern:
        blocks["M"] = {"recurrence": _mamba_fields(args)}
    if "G" in pattern:
        blocks["G"] = {"recurrence": _delta_net_fields(args)}
    if "E" in pattern:
        if "moe" not in parts:
            raise args.invalid("num_experts", "is required for the letter E of the pattern")
        blocks["E"] = {"moe": parts["moe"]}
    return blocks


def _mamba_fields(args: Arguments) -> dict[str, Any]:
    """Returns the sizes of Mamba-2 as a request writes them, with Megatron's defaults."""
    head_dim = args.integer("mamba_head_dim") or 64
    heads = args.integer("mamba_num_heads")
    return {
        "kind": "mamba2",
        "num_heads": heads or _MAMBA_EXPANSION * args.required("hidden_size") // head_dim,
        "head_dim": head_dim,
        "state_size": args.integer("mamba_state_dim") or 128,
        "num_groups": args.integer("mamba_num_groups") or 8,
    }


# -- other models


def _named_mixer(
    args: Arguments, attention: Mapping[str, Any], switches: Mapping[str, list[bool]], index: int
) -> tuple[str, dict[str, Any]]:
    """Returns a name for the mixer of the layer at this index, and the mixer, attention or a
    recurrence, as a request writes it."""
    if switches["recurrence"][index]:
        return "linear_attention", {"recurrence": _delta_net_fields(args)}
    mixer = dict(attention)
    name = "attention"
    if not switches["window"][index]:
        mixer.pop("sliding_window", None)
    elif "sliding_window" in mixer:
        name = "local_attention"
    if args.text(_VARIANT) != "dsa":
        return name, {"attention": mixer}
    # An indexer scores keys, of which attention sees the best; some layers share an earlier one's.
    period = args.integer("dsa_indexer_topk_freq") or 1
    offset = args.integer("dsa_indexer_skip_topk_offset", least=0) or 0
    shared = shares_indexer(index, period, offset)
    indexer = {**_indexer_fields(args), **({"shared": True} if shared else {})}
    return f"{name}_shared" if shared else name, {"attention": {**mixer, "indexer": indexer}}


def variant_of(args: Arguments) -> str | None:
    """Returns the attention variant, "gated_delta_net" or "dsa"; None without one. Raises
    Unsupported for any other."""
    variant = args.text(_VARIANT)
    if variant not in (None, "gated_delta_net", "dsa"):
        raise args.unsupported(_VARIANT, "attention of this kind")
    return variant


def _delta_net_fields(args: Arguments) -> dict[str, Any]:
    """Returns the sizes of the gated delta net as a request writes them, with Megatron's
    defaults."""
    return {
        "kind": "gated_delta_net",
        "num_heads": args.integer("linear_num_value_heads") or 32,
        "num_key_heads": args.integer("linear_num_key_heads") or 16,
        "key_head_dim": args.integer("linear_key_head_dim") or 128,
        "value_head_dim": args.integer("linear_value_head_dim") or 128,
        "conv_kernel": args.integer("linear_conv_kernel_dim") or 4,
    }


def _indexer_fields(args: Arguments) -> dict[str, Any]:
    """Returns the indexer of sparse attention as a request writes it. Its keys have a norm with
    a bias."""
    head_dim = args.required("dsa_indexer_head_dim")
    return {
        "num_heads": args.required("dsa_indexer_n_heads"),
        "head_dim": head_dim,
        "top_k": args.required("dsa_indexer_topk"),
        "norm_parameters": 2 * head_dim,
    }


def shares_indexer(index: int, period: int, offset: int) -> bool:
    """Returns True where the layer at this index, from 0, uses the keys that an earlier layer's
    indexer chose (core/transformer/experimental_attention_variant/dsa.py,
    is_dsa_skip_topk_layer)."""
    # Layers up to number `offset` choose keys themselves; of those behind, each `period`-th does.
    return max(index + 1 - max(offset, 1), 0) % period != 0
