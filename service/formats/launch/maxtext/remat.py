"""Recompute and offload of activations in MaxText's words: remat policies, which name the tensors
of a layer that are kept (maxtext 0.2.5 layers/nnx_decoders.py, get_remat_policy).

Norms and activation functions have no name, and so every policy computes them again. Without a
policy ("none") a layer is checkpointed all the same, and computed again as a whole. *Tensors* are
MaxText's names for what a layer keeps; *modules* are the parts of a layer that a layout recomputes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from models.spec.architecture import Architecture
from models.spec.layout import Layout
from models.spec.recompute import policy_code, recomputed
from service.formats.launch.job import Inexpressible

LAYER_INPUT = "decoder_layer_input"
_QKV_TENSORS = frozenset({"query_proj", "key_proj", "value_proj"})
_OUT_TENSORS = frozenset({"out_proj"})
_CONTEXT_TENSORS = frozenset({"context"})
_MLP_UP_TENSORS = frozenset({"mlpwi_0", "mlpwi_1"})
_MLP_TENSORS = _MLP_UP_TENSORS | {"mlpwo"}
_EXPERT_TENSORS = frozenset({"moe_mlpwi_0", "moe_mlpwi_1", "moe_mlpwo"})
TENSORS = (
    "context", "mlpwi", "mlpwi_0", "mlpwi_1", "mlpwo", "moe_mlpwi_0", "moe_mlpwi_1", "moe_mlpwo",
    "query_proj", "key_proj", "value_proj", "kv_proj", "qkv_proj", "query_wa_proj", "kv_wa_proj",
    "mla_q", "mla_kv", "attention_out", "out_proj", "moe_x_sorted", "moe_routing_maps",
    "indexer_cutoff_threshold", "engram",
)  # fmt: skip
"""The tensors that a custom policy may keep, beside the input of the layer."""
_POLICIES: Mapping[str, frozenset[str]] = {
    "minimal_with_context": _QKV_TENSORS | _OUT_TENSORS | _MLP_TENSORS | _CONTEXT_TENSORS,
    "minimal": _QKV_TENSORS | _OUT_TENSORS | _MLP_TENSORS,
    "save_dot_with_context_except_mlp": _QKV_TENSORS | _OUT_TENSORS | _CONTEXT_TENSORS,
    "save_dot_except_mlp": _QKV_TENSORS | _OUT_TENSORS,
    "save_dot_except_mlpwi": _QKV_TENSORS | _OUT_TENSORS | {"mlpwo"},
    "save_qkv_proj": _QKV_TENSORS,
    "save_out_proj": _OUT_TENSORS,
    "full": frozenset(),
}
"""The tensors that each policy keeps on the device."""
_OFFLOADING_POLICIES: Mapping[str, frozenset[str]] = {
    "minimal_offloaded": _QKV_TENSORS | _OUT_TENSORS | _MLP_TENSORS,
    "qkv_proj_offloaded": _QKV_TENSORS,
}
_ALIASES = {"minimal_flash": "minimal_with_context"}
POLICIES = (*_POLICIES, *_OFFLOADING_POLICIES, *_ALIASES, "custom", "none")
_ALWAYS_RECOMPUTED = ("layernorm", "mlp_act", "moe_act")
"""The modules that every policy computes again."""
_OPTIONALLY_RECOMPUTED = ("core_attn", "out_proj", "mla_up_proj", "mlp", "mlp_gate", "moe")
"""The modules that some policies compute again."""


def modules_of(architecture: Architecture | None, names: Collection[str]) -> tuple[str, ...]:
    """Returns the names of the modules that the model has, or all `names` for an unknown model.
    Names are as in models.spec.recompute, such as "mlp" and "core_attn"."""
    if architecture is None:
        return tuple(names)
    # `pieces` are the parts of a layer that a policy recomputes; a missing module has none.
    policies = {name: policy_code("selective", [name]) for name in names}
    return tuple(
        name
        for name, policy in policies.items()
        if any(recomputed(policy, kind).pieces for kind in architecture.kinds)
    )


# -- writing


def remat_settings(
    layout: Layout, architecture: Architecture, modules: Collection[str]
) -> dict[str, Any]:
    """Returns the settings of a layout's recompute and offload of activations. `modules` are
    recomputed where the layout's recompute is selective. Raises Inexpressible where no policy of
    MaxText does this."""
    if layout.recompute_layers:
        cure = "a policy holds for every layer; ask with 0"
        raise Inexpressible("layout.recompute_layers", layout.recompute_layers, cure)
    if layout.recompute == "none":
        cure = "every layer is checkpointed, without a policy as a whole; ask with selective"
        raise Inexpressible("layout.recompute", "none", cure)
    tensors = frozenset[str]()
    if layout.recompute == "selective":
        recomputes = {*modules_of(architecture, modules)}
        if unsupported := _cure_for_modules(architecture, recomputes):
            modules = sorted(recomputes)
            raise Inexpressible("layout.recompute_modules", modules, unsupported)
        tensors = _saved_tensors(architecture, recomputes)
    if layout.offload_activations:
        return _policy_settings(tensors, _OFFLOADING_POLICIES, "offload")
    return _policy_settings(tensors, _POLICIES, "device")


def _cure_for_modules(architecture: Architecture, recomputes: set[str]) -> str | None:
    """Returns advice on what to ask for instead of recomputing these modules; None where a
    policy of MaxText recomputes exactly them."""
    always = {*modules_of(architecture, _ALWAYS_RECOMPUTED)}
    # A network that is computed again has its activation function computed again, too.
    implied = {"mlp_act"} if "mlp" in recomputes else set()
    if "moe" in recomputes:
        implied |= {"moe_act", "mlp_act"}
    missing = always - recomputes - implied
    if missing:
        return f"every policy computes {', '.join(sorted(missing))} again; name these too"
    unknown = recomputes - always - {*_OPTIONALLY_RECOMPUTED}
    if unknown:
        return f"no policy names {', '.join(sorted(unknown))}; leave it out"
    if "mlp_gate" in recomputes and architecture.is_moe:
        return "experts that share it have the names of dense networks; leave it out"
    networks = {*modules_of(architecture, ("mlp", "moe"))}
    if recomputes & networks not in (set(), networks):  # some of them, and not all
        return "dense and sparse networks share their names; ask with both mlp and moe"
    return None


def _saved_tensors(architecture: Architecture, recomputes: set[str]) -> frozenset[str]:
    """Returns the names of the tensors that stay in memory when these modules are recomputed."""
    tensors = {*_QKV_TENSORS}
    # With the up-projections of latent attention recomputed, the latents are kept, not the heads.
    if "mla_up_proj" in recomputes:
        has_query_latent = any(attention.q_lora_rank for attention in architecture.attentions)
        tensors = {"kv_wa_proj", "query_wa_proj" if has_query_latent else "query_proj"}
    if "out_proj" not in recomputes:
        tensors |= _OUT_TENSORS
    if "core_attn" not in recomputes:
        tensors |= _CONTEXT_TENSORS
    if not recomputes & {"mlp", "moe"}:
        tensors |= _MLP_TENSORS
        if "mlp_gate" in recomputes:
            tensors.remove("mlpwi_1")  # the output of one of two matrices; the other is kept
        if architecture.is_moe:
            tensors |= _EXPERT_TENSORS
    return frozenset(tensors)


def _policy_settings(
    tensors: frozenset[str], policies: Mapping[str, frozenset[str]], place: str
) -> dict[str, Any]:
    """Returns the settings that keep exactly these tensors: one of the named `policies`, or else a
    custom policy that keeps each tensor in `place`, "device" or "offload". Experts always need a
    custom one, as no named policy keeps all of their products (layers/moe.py, moe_mlpwi_1)."""
    for name, kept in policies.items():
        if kept == tensors:
            return {"remat_policy": name}
    places = {name: place for name in TENSORS if name in tensors}
    # The input of a layer, from which the layer is recomputed, is kept in any case.
    return {"remat_policy": "custom", LAYER_INPUT: place, **places}


# -- reading


def read_remat(
    values: Mapping[str, Any], architecture: Architecture | None
) -> tuple[dict[str, Any], list[str]]:
    """Returns recompute and offload of activations as fields of the layout, and reasons why
    these differ from what MaxText does; no reasons where they are exact."""
    policy = values["remat_policy"] or "none"
    policy = _ALIASES.get(policy, policy)
    if policy == "none":
        return {"recompute": "full"}, []  # layers are checkpointed all the same, as a whole
    if policy == "custom":
        tensors = {name for name in TENSORS if values[name] != "remat"}
        on_host = {name for name in (*tensors, LAYER_INPUT) if values[name] == "offload"}
        offloads = bool(on_host)
        # Layouts offload all that is kept or none of it.
        is_mixed = offloads and not tensors <= on_host
    else:
        tensors = {*(_POLICIES.get(policy) or _OFFLOADING_POLICIES.get(policy) or ())}
        offloads = policy in _OFFLOADING_POLICIES
        is_mixed = False
    recompute, is_exact = _recompute_keeping(tensors, architecture, is_custom=policy == "custom")
    reasons = []
    if not is_exact:
        kept = ", ".join(sorted(tensors))
        reasons.append(f"it keeps {kept}, and is read as the nearest recompute")
    if is_mixed:
        reasons.append("all that it keeps is read as offloaded")
    return {**recompute, "offload_activations": offloads}, reasons


def _recompute_keeping(
    tensors: set[str], architecture: Architecture | None, *, is_custom: bool
) -> tuple[dict[str, Any], bool]:
    """Returns the recompute, as fields of the layout, under which these tensors stay in memory,
    and True; or the nearest such recompute, and False."""
    tensors = {*tensors}
    # Some names stand for several tensors.
    if "mlpwi" in tensors:
        tensors |= {"mlpwi_0", "mlpwi_1"}
    if tensors & {"qkv_proj", "kv_proj"}:
        tensors |= _QKV_TENSORS
    # Keys and values are kept as latents, from which heads are computed again, or as heads.
    keeps_latents = "kv_wa_proj" in tensors and "key_proj" not in tensors
    keeps_heads = tensors >= _QKV_TENSORS
    # Without the projections that attention reads, a layer is recomputed from its input. That is
    # exact where no other tensors are kept.
    if not (keeps_heads or keeps_latents):
        return {"recompute": "full"}, not tensors
    networks, is_exact = _recomputed_networks(tensors, architecture, is_custom=is_custom)
    modules = ["layernorm", *networks]
    modules += [] if "context" in tensors else ["core_attn"]
    modules += [] if tensors >= _OUT_TENSORS else ["out_proj"]
    modules += ["mla_up_proj"] if keeps_latents else []
    return {
        "recompute": "selective",
        "recompute_modules": list(modules_of(architecture, modules)),
    }, is_exact


def _recomputed_networks(
    tensors: set[str], architecture: Architecture | None, *, is_custom: bool
) -> tuple[list[str], bool]:
    """Returns the modules of feed-forward networks that are recomputed when these tensors stay
    in memory, and True where that list is exact. A kept output of a dense network counts only
    where a norm follows: JAX drops what backward does not read. The list names the modules of
    dense and of sparse networks; the caller drops those that the model lacks."""
    if architecture is not None and architecture.is_moe:
        # Only custom policies name the tensors of experts; named ones count by those of an MLP.
        if tensors >= (_EXPERT_TENSORS if is_custom else _MLP_TENSORS):
            return ["mlp_act", "moe_act"], True
        return ["mlp", "moe"], not tensors & (_MLP_TENSORS | _EXPERT_TENSORS)
    reads_output = architecture is not None and any(
        kind.norm_follows for kind in architecture.kinds
    )
    keeps_output = "mlpwo" in tensors
    # Without a kept input of the activation the whole network is recomputed, its output too. With
    # one of two kept, the gate is recomputed; with both, only the activation.
    if not tensors & _MLP_UP_TENSORS:
        return ["mlp", "moe"], not (reads_output and keeps_output)
    gate = [] if tensors >= _MLP_UP_TENSORS else ["mlp_gate"]
    return ["mlp_act", "moe_act", *gate], keeps_output or not reads_output
