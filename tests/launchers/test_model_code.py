"""Configs of Hugging Face have the parameters that transformers builds from them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from models.errors import Invalid
from service.formats.huggingface import read
from service.formats.huggingface.classes import UNTIED
from tests.launchers import model_code
from tests.launchers.judging import PYTHON

pytestmark = [
    pytest.mark.launchers,
    pytest.mark.skipif(not PYTHON.exists(), reason="make test-launchers makes the environment"),
]
CONFIGS_OF_A_FAMILY = 6
_SMALL = {
    "attention_chunk_size": 16,
    "block_multiple_of": 16,
    "conv_L_cache": 3,
    "conv_kernel": 4,
    "d_model": 96,
    "decoder_sparse_step": 2,
    "dense_intermediate_size": 72,
    "expansion_ratio": 2,
    "expert_ffn_hidden_size": 40,
    "ffn_dim": 72,
    "ffn_hidden_size": 72,
    "first_k_dense_replace": 2,
    "global_attn_every_n_layers": 3,
    "hc_mult": 2,
    "head_dim": 24,
    "hidden_size": 96,
    "hidden_size_per_layer_input": 0,
    "index_block_size": 8,
    "index_head_dim": 16,
    "index_n_heads": 2,
    "index_topk": 16,
    "index_topk_blocks": 2,
    "interleave_moe_layer_step": 2,
    "intermediate_size": 80,
    "intermediate_size_mlp": 88,
    "kv_lora_rank": 32,
    "layer_group_size": 3,
    "linear_conv_kernel_dim": 4,
    "linear_head_dim": 16,
    "linear_key_head_dim": 16,
    "linear_num_heads": 6,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_value_head_dim": 24,
    "mamba_d_conv": 4,
    "mamba_d_ssm": 64,
    "mamba_d_state": 16,
    "mamba_expand": 2,
    "mamba_head_dim": 16,
    "mamba_n_groups": 2,
    "mamba_n_heads": 8,
    "mamba_num_heads": 8,
    "max_position_embeddings": 64,
    "max_window_layers": 3,
    "moe_intermediate_size": 40,
    "moe_k": 2,
    "moe_latent_size": 32,
    "moe_layer_end_index": -1,
    "moe_layer_interval": 1,
    "moe_layer_start_index": 1,
    "moe_num_experts": 8,
    "moe_num_shared_experts": 2,
    "moe_shared_expert_intermediate_size": 56,
    "moe_topk": 2,
    "n_embd": 96,
    "n_group": 1,
    "n_groups": 2,
    "n_head": 4,
    "n_heads": 4,
    "n_inner": 72,
    "n_layer": 6,
    "n_layers": 6,
    "n_positions": 64,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_attention_heads": 4,
    "num_dense_layers": 2,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_heads": 4,
    "num_hidden_layers": 6,
    "num_key_value_heads": 2,
    "num_kv_heads": 2,
    "num_layers": 6,
    "num_local_experts": 8,
    "num_shared_experts": 2,
    "num_sliding_attention_heads": 6,
    "o_groups": 2,
    "o_lora_rank": 20,
    "prefix_dense_intermediate_size": 64,
    "q_lora_rank": 40,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "share_expert_dim": 56,
    "shared_expert_intermediate_size": 56,
    "shared_intermediate_size": 48,
    "short_conv_kernel_size": 4,
    "sliding_window": 16,
    "ssm_state_size": 16,
    "top_k_experts": 2,
    "topk_group": 1,
    "v_head_dim": 24,
    "vocab_size": 130,
    "window_size": 16,
    "word_embed_proj_dim": 96,
    "zero_expert_num": 0,  # transformers has up-projections of these, which nothing reads
}
"""Sizes of a small model."""
_NOT_DRAWN = {
    "add_cross_attention",
    "is_encoder_decoder",
    "return_dict",
    "use_cache",
}
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def _random_config(family: str, fields: Mapping[str, Any], draw: random.Random) -> dict[str, Any]:
    """A small model of the family, with some of its switches written and turned."""
    config = {"model_type": family, **_TOKENS}
    if family in UNTIED:
        config["tie_word_embeddings"] = False
    for key, value in fields.items():
        if key in _NOT_DRAWN:
            continue
        if isinstance(value, bool):
            if draw.random() < 0.6:
                config[key] = draw.random() < 0.5
        elif key in _SMALL and (value is not None or draw.random() < 0.7):
            config[key] = _SMALL[key]
    return config


def test_the_defaults_are_those_of_the_classes() -> None:
    assert model_code.CLASSES.read_text() == model_code.classes()
    assert model_code.COUNTS.read_text() == model_code.counts()
    assert model_code.HYBRIDS.read_text() == model_code.hybrids()
    assert model_code.TOWERS.read_text() == model_code.towers()


def test_random_configs_of_every_family_have_the_parameters_of_the_model_code() -> None:
    draw = random.Random(5)
    configs = [
        _random_config(family, fields, draw)
        for family, fields in model_code.class_fields().items()
        for _ in range(CONFIGS_OF_A_FAMILY)
    ]
    compared = 0
    wrong = []
    for config, count in zip(configs, model_code.parameters(configs), strict=True):
        try:
            found = read(config).parameters.total
        except Invalid:
            continue
        if isinstance(count, int):
            compared += 1
            if found != count:
                wrong.append((config, found - count))
    assert not wrong
    assert compared > len(configs) / 2
