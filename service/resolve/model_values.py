"""The features of a model, in the words of its wire form."""

from __future__ import annotations

from models.spec.architecture import Architecture
from models.spec.feed_forward import Mlp, Moe


def model_values(architecture: Architecture) -> dict[str, object]:
    """The values of a model, in the words of its wire form, that all its layers of a kind share."""
    attentions = architecture.attentions
    blocks = [layer.feed_forward for layer in architecture.kinds]
    mlps = [block for block in blocks if isinstance(block, Mlp)]
    moes = [block for block in blocks if isinstance(block, Moe)]
    values: dict[str, set[object]] = {
        "num_layers": {architecture.num_layers},
        "hidden_size": {architecture.hidden_size},
        "num_attention_heads": {each.num_attention_heads for each in attentions},
        "num_key_value_heads": {each.num_key_value_heads for each in attentions},
        "intermediate_size": {each.intermediate_size for each in mlps},
        "gated_mlp": {each.gated for each in mlps} | {each.gated for each in moes},
        "head_dim": {each.head_dim for each in attentions if not each.is_mla},
        "kv_lora_rank": {each.kv_lora_rank for each in attentions if each.is_mla},
        "num_experts": {each.num_experts for each in moes} or {0},
        "experts_per_token": {each.experts_per_token for each in moes},
        "moe_intermediate_size": {each.intermediate_size for each in moes},
        "shared_expert_intermediate_size": {each.shared_expert_intermediate_size for each in moes},
        "tie_word_embeddings": {architecture.tie_word_embeddings},
    }
    return {name: next(iter(found)) for name, found in values.items() if len(found) == 1}
