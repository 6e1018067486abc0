"""The features of a model by their names in requests, by which the model of a launch or a log is
compared with that of a request."""

from __future__ import annotations

from models.spec.architecture import Architecture
from models.spec.feed_forward import Mlp, Moe


def model_values(architecture: Architecture) -> dict[str, object]:
    """Returns the values of a model by their names in requests. A value that differs between its
    layers, such as the number of heads of a hybrid model, is left out."""
    attentions = architecture.attentions
    blocks = [layer.feed_forward for layer in architecture.kinds]
    mlps = [block for block in blocks if isinstance(block, Mlp)]
    moes = [block for block in blocks if isinstance(block, Moe)]
    distinct_values: dict[str, set[object]] = {
        "num_layers": {architecture.num_layers},
        "hidden_size": {architecture.hidden_size},
        "num_attention_heads": {attention.num_attention_heads for attention in attentions},
        "num_key_value_heads": {attention.num_key_value_heads for attention in attentions},
        "intermediate_size": {mlp.intermediate_size for mlp in mlps},
        "gated_mlp": {mlp.gated for mlp in mlps} | {moe.gated for moe in moes},
        "head_dim": {attention.head_dim for attention in attentions if not attention.is_mla},
        "kv_lora_rank": {attention.kv_lora_rank for attention in attentions if attention.is_mla},
        "num_experts": {moe.num_experts for moe in moes} or {0},  # 0 where no layer has experts
        "experts_per_token": {moe.experts_per_token for moe in moes},
        "moe_intermediate_size": {moe.intermediate_size for moe in moes},
        "shared_expert_intermediate_size": {moe.shared_expert_intermediate_size for moe in moes},
        "tie_word_embeddings": {architecture.tie_word_embeddings},
    }
    return {name: values.pop() for name, values in distinct_values.items() if len(values) == 1}
