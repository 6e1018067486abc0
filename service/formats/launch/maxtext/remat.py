"""Recompute and offload of activations in MaxText's words: remat policies, which name the tensors
of a layer that are kept (maxtext 0.2.5 layers/nnx_decoders.py, get_remat_policy).

Norms and activation functions have no name, and so every policy computes them again. Without a
policy ("none") a layer is checkpointed all the same, and computed again as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from models.spec.architecture import Architecture
from models.spec.layout import Layout
from models.spec.recompute import policy_code, recomputed
from service.formats.launch.job import Inexpressible

LAYER_INPUT = "decoder_layer_input"
_HEADS = frozenset({"query_proj", "key_proj", "value_proj"})
_LATENTS = frozenset({"query_wa_proj", "kv_wa_proj"})
_OUT = frozenset({"out_proj"})
_CONTEXT = frozenset({"context"})
_UP = frozenset({"mlpwi_0", "mlpwi_1"})
_MLP = _UP | {"mlpwo"}
_EXPERTS = frozenset({"moe_mlpwi_0", "moe_mlpwi_1", "moe_mlpwo"})
TENSORS = (
    "context", "mlpwi", "mlpwi_0", "mlpwi_1", "mlpwo", "moe_mlpwi_0", "moe_mlpwi_1", "moe_mlpwo",
    "query_proj", "key_proj", "value_proj", "kv_proj", "qkv_proj", "query_wa_proj", "kv_wa_proj",
    "mla_q", "mla_kv", "attention_out", "out_proj", "moe_x_sorted", "moe_routing_maps",
    "indexer_cutoff_threshold", "engram",
)  # fmt: skip
"""The tensors that a custom policy may keep, beside the input of the layer."""
_POLICIES: Mapping[str, frozenset[str]] = {
    "minimal_with_context": _HEADS | _OUT | _MLP | _CONTEXT,
    "minimal": _HEADS | _OUT | _MLP,
    "save_dot_with_context_except_mlp": _HEADS | _OUT | _CONTEXT,
    "save_dot_except_mlp": _HEADS | _OUT,
    "save_dot_except_mlpwi": _HEADS | _OUT | {"mlpwo"},
    "save_qkv_proj": _HEADS,
    "save_out_proj": _OUT,
    "full": frozenset(),
}
"""The tensors that each policy keeps on the device."""
_OFFLOADING: Mapping[str, frozenset[str]] = {
    "minimal_offloaded": _HEADS | _OUT | _MLP,
    "qkv_proj_offloaded": _HEADS,
}
_ALIASES = {"minimal_flash": "minimal_with_context"}
POLICIES = (*_POLICIES, *_OFFLOADING, *_ALIASES, "custom", "none")
_ALWAYS = ("layernorm", "mlp_act", "moe_act")


def modules_of(architecture: Architecture | None, names: Collection[str]) -> tuple[str, ...]:
    """Returns those of the named modules that the model has, or all of them where it is unknown.
    Names are those of models.spec.recompute."""
    if architecture is None:
        return tuple(names)
    return tuple(
        name
        for name in names
        if any(
            recomputed(policy_code("selective", [name]), kind).pieces for kind in architecture.kinds
        )
    )


# -- writing


def remat_settings(
    format_: str, layout: Layout, architecture: Architecture, modules: Collection[str]
) -> dict[str, Any]:
    """The settings of a layout's recompute and offload of activations; `modules` are those that
    selective recompute takes. Raises Inexpressible where no policy does this."""
    if layout.recompute_layers:
        cure = "a policy holds for every layer; ask with 0"
        raise Inexpressible(format_, "layout.recompute_layers", layout.recompute_layers, cure)
    if layout.recompute == "none":
        cure = "every layer is checkpointed, without a policy as a whole; ask with selective"
        raise Inexpressible(format_, "layout.recompute", "none", cure)
    kept = frozenset[str]()
    if layout.recompute == "selective":
        kept = _kept(format_, architecture, modules)
    if not layout.offload_activations:
        named = _name_of(kept, _POLICIES)
        return {"remat_policy": named} if named else _custom(kept, "device")
    named = _name_of(kept, _OFFLOADING)
    return {"remat_policy": named} if named else _custom(kept, "offload")


def _kept(format_: str, architecture: Architecture, modules: Collection[str]) -> frozenset[str]:
    """The tensors that selective recompute of some modules keeps."""
    given = set(modules_of(architecture, modules))
    always = set(modules_of(architecture, _ALWAYS))
    known = {*always, "core_attn", "out_proj", "mla_up_proj", "mlp", "mlp_gate", "moe"}
    networks = set(modules_of(architecture, ("mlp", "moe")))
    # A network that is computed again has its activation function computed again, too.
    missing = always - given - ({"mlp_act"} if "mlp" in given else set())
    missing -= {"moe_act", "mlp_act"} if "moe" in given else set()
    if missing:
        cure = f"every policy computes {', '.join(sorted(missing))} again; name these too"
        raise Inexpressible(format_, "layout.recompute_modules", sorted(given), cure)
    if given - known:
        cure = f"no policy names {', '.join(sorted(given - known))}; leave it out"
        raise Inexpressible(format_, "layout.recompute_modules", sorted(given), cure)
    if "mlp_gate" in given and architecture.is_moe:
        cure = "experts that share it have the names of dense networks; leave it out"
        raise Inexpressible(format_, "layout.recompute_modules", sorted(given), cure)
    if given & networks and given & networks != networks:
        cure = "dense and sparse networks share their names; ask with both mlp and moe"
        raise Inexpressible(format_, "layout.recompute_modules", sorted(given), cure)
    kept = _LATENTS if "mla_up_proj" in given else _HEADS
    kept |= frozenset() if "out_proj" in given else _OUT
    if "mla_up_proj" in given and not _has_query_latent(architecture):
        kept = (kept - {"query_wa_proj"}) | {"query_proj"}
    kept |= frozenset() if "core_attn" in given else _CONTEXT
    if given & networks:
        return kept
    kept |= _MLP - ({"mlpwi_1"} if "mlp_gate" in given else frozenset())
    return kept | (_EXPERTS if architecture.is_moe else frozenset())


def _has_query_latent(architecture: Architecture) -> bool:
    return any(attention.q_lora_rank for attention in architecture.attentions)


def _name_of(kept: frozenset[str], policies: Mapping[str, frozenset[str]]) -> str | None:
    """The policy that keeps just these. No named one keeps all products of experts (layers/moe.py,
    moe_mlpwi_1)."""
    return next((name for name, tensors in policies.items() if tensors == kept), None)


def _custom(kept: frozenset[str], place: str) -> dict[str, Any]:
    tensors = {name: place for name in TENSORS if name in kept}
    return {"remat_policy": "custom", LAYER_INPUT: place, **tensors}


# -- reading


def read_remat(
    values: Mapping[str, Any], architecture: Architecture | None
) -> tuple[dict[str, Any], list[str]]:
    """Recompute and offload of activations in the fields of LayoutFields, and why they are not
    quite what is computed."""
    policy = values["remat_policy"] or "none"
    policy = _ALIASES.get(policy, policy)
    if policy == "none":
        return {"recompute": "full"}, []  # layers are checkpointed all the same, as a whole
    if policy == "custom":
        kept = {name for name in TENSORS if values[name] != "remat"}
        on_host = {name for name in (*kept, LAYER_INPUT) if values[name] == "offload"}
        offloads = bool(on_host)
        is_mixed = bool(on_host) and not kept <= on_host
    else:
        kept = set(_POLICIES.get(policy) or _OFFLOADING.get(policy) or ())
        offloads = policy in _OFFLOADING
        is_mixed = False
    knobs, is_same = _classified(kept, architecture, is_custom=policy == "custom")
    unsure = []
    if not is_same:
        unsure.append(f"it keeps {', '.join(sorted(kept))}, and is read as the nearest recompute")
    if is_mixed:
        unsure.append("all that it keeps is read as offloaded")
    return {**knobs, "offload_activations": offloads}, unsure


def _classified(
    kept: Collection[str], architecture: Architecture | None, *, is_custom: bool
) -> tuple[dict[str, Any], bool]:
    """The recompute that keeps these tensors, and whether it is the same or the nearest."""
    tensors = set(kept)
    if "mlpwi" in tensors:
        tensors |= {"mlpwi_0", "mlpwi_1"}
    if tensors & {"qkv_proj", "kv_proj"}:
        tensors |= _HEADS
    keeps_latents = "kv_wa_proj" in tensors and "key_proj" not in tensors
    keeps_heads = tensors >= _HEADS
    if not (keeps_heads or keeps_latents):
        return {"recompute": "full"}, not tensors
    networks, is_same = _networks_again(tensors, architecture, is_custom=is_custom)
    modules = ["layernorm", *networks]
    modules += [] if "context" in tensors else ["core_attn"]
    modules += [] if tensors >= _OUT else ["out_proj"]
    modules += ["mla_up_proj"] if keeps_latents else []
    return {
        "recompute": "selective",
        "recompute_modules": list(modules_of(architecture, modules)),
    }, is_same


def _networks_again(
    tensors: Collection[str], architecture: Architecture | None, *, is_custom: bool
) -> tuple[list[str], bool]:
    """The modules of feed-forward networks that are computed again where these tensors are kept,
    and whether that is the same or the nearest. What a dense network puts out is kept for a norm
    that follows alone: JAX leaves out what backward reads nothing of."""
    tensors = set(tensors)
    if architecture is not None and architecture.is_moe:
        if tensors >= (_EXPERTS if is_custom else _MLP):
            return ["mlp_act", "moe_act"], True
        return ["mlp", "moe"], not tensors & (_MLP | _EXPERTS)
    is_read = architecture is not None and any(kind.norm_follows for kind in architecture.kinds)
    keeps_last = "mlpwo" in tensors
    if not tensors & _UP:
        return ["mlp", "moe"], not (is_read and keeps_last)
    gate = [] if tensors >= _UP else ["mlp_gate"]
    return ["mlp_act", "moe_act", *gate], keeps_last or not is_read
