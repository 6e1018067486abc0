"""Reads families with recurrences, or with attention over chosen or pooled keys.

The rows of `families.json` name these functions. One with the name of a family rewrites its config
into the common keys, and one that ends in `_kinds` says which layer is of which kind: FULL or
SLIDING attention, or a recurrence (LINEAR). An *indexer* chooses the keys of sparse attention; a
*pooled* key stands for those of several tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from models.errors import Unsupported
from models.spec.attention import Attention
from models.spec.feed_forward import Moe
from models.spec.layer import Layer
from service.formats.huggingface.config import Config
from service.formats.huggingface.mixers import LayerPart, expanded
from service.formats.huggingface.parts import experts, heads, latent
from service.formats.huggingface.patterns import (
    FULL,
    INDEXED,
    LINEAR,
    SLIDING,
    all_of,
    attention_every,
    num_layers,
    stated_or,
)

_SHARED_INDEX = "shared"
_CHOSEN_BLOCKS = "minimax_m3_sparse"
_SPARSELY_POOLED, _HEAVILY_POOLED = "compressed_sparse_attention", "heavily_compressed_attention"


def _untied(cfg: Config) -> Config:
    """Returns the config with embeddings and head untied, since some families' code never ties
    them, whatever the config says."""
    return cfg.with_value("tie_word_embeddings", False)


def olmo_kinds(cfg: Config) -> Callable[[int], str]:
    """Returns a function from the index of a layer to its kind. Every fourth layer has attention;
    in a model of fewer layers the last has it."""
    return attention_every(min(4, num_layers(cfg)))(cfg)


def minimax_kinds(cfg: Config) -> Callable[[int], str]:
    """Returns a function from the index of a layer to its kind. `attn_type_list`, which files for
    MiniMax's own code have, is 1 where a layer has attention. Without it every second layer has
    attention, from the first on."""
    attention = cfg.switches("attn_type_list", num_layers(cfg))
    if attention:
        return lambda index: FULL if attention[index] else LINEAR
    return lambda index: LINEAR if index % 2 else FULL


def bamba_kinds(cfg: Config) -> Callable[[int], str]:
    """Returns a function from the index of a layer to its kind: attention in
    `attn_layer_indices`, else a recurrence."""
    attention = cfg.indices("attn_layer_indices", num_layers(cfg))
    return lambda index: FULL if index in attention else LINEAR


def minimax_heads(cfg: Config, kind: str) -> Attention:
    return replace(heads()(cfg, kind), sliding_window=cfg.size_or_none("sliding_window"))


def minimax(cfg: Config) -> Config:
    """Returns the config. Raises Unsupported for shared experts."""
    cfg.refuse_size("shared_intermediate_size", "shared experts of this family", default=0)
    return cfg


def falcon_h1(cfg: Config) -> Config:
    """Returns the config as it is. Raises Unsupported where only one of Mamba's two projections
    has a bias, since the cost model has one switch for both."""
    if cfg.flag("projectors_bias") != cfg.flag("mamba_proj_bias"):
        missing = "biases of one of Mamba's two projections"
        raise Unsupported(cfg.where("projectors_bias"), cfg.get("projectors_bias"), missing)
    return cfg


def falcon_h1_width(cfg: Config) -> int:
    return cfg.size_or_none("mamba_d_ssm") or expanded(cfg)


def granite_sparse(cfg: Config) -> Callable[[int], bool]:
    """Returns a test of whether the layer at an index has experts: all have them, or none."""
    has_experts = cfg.count("num_local_experts") > 0
    return lambda index: has_experts


def has_rotary_positions(cfg: Config) -> bool:
    return cfg.get("position_embedding_type") == "rope"


def never_has_positions(cfg: Config) -> bool:
    """Returns False, for `has_positions`: these families' attention has no positions, because
    their recurrences order the tokens."""
    return False


_LETTERS = {"M": LINEAR, "*": FULL, "-": "mlp", "E": "moe"}


def nemotron_h(cfg: Config) -> Config:
    """Returns the config with the kinds of its layers as a list, and with the number of layers,
    which newer files imply by that list. The model's code uses `use_bias` in place of
    `mamba_proj_bias`. A module of multi-token prediction is counted like the last layer, although
    it has attention besides."""
    key = "layer_types" if cfg.get("layer_types") is not None else "hybrid_override_pattern"
    kinds = cfg.get(key)
    if isinstance(kinds, (str, list)) and not cfg.is_written("num_hidden_layers"):
        cfg = cfg.with_value("num_hidden_layers", len(kinds))
    if key != "layer_types":
        cfg = cfg.with_value("layer_types", _kinds_from_letters(cfg, key))
    return _untied(cfg.with_value("mamba_proj_bias", cfg.flag("use_bias")))


def _kinds_from_letters(cfg: Config, key: str) -> list[str]:
    """Returns the kinds of layers that stand as letters under the key, one letter for each
    layer. Raises Invalid for other letters or another length."""
    pattern = cfg.word(key)
    if len(pattern) != num_layers(cfg) or not set(pattern) <= set(_LETTERS):
        rule = f"must have one of {' '.join(_LETTERS)} for each of the {num_layers(cfg)} layers"
        raise cfg.invalid(key, rule)
    return [_LETTERS[letter] for letter in pattern]


def nemotron_h_experts(cfg: Config) -> Moe:
    """Returns the experts of a layer, ungated and with an optional latent. Raises Unsupported
    for biases of shared experts alone."""
    cfg.refuse("mlp_bias", "biases of shared experts alone")
    part = experts(
        count="n_routed_experts",
        shared_width="moe_shared_expert_intermediate_size",
        selection_bias=True,
    )
    return replace(part(cfg), gated=False, latent_size=cfg.size_or_none("moe_latent_size"))


def kimi(cfg: Config) -> Config:
    """Returns the config of Kimi Linear or Kimi-K3 with the sizes of delta attention as keys of its
    own; files from before transformers 5 have them in an object. What K3 adds is off by default."""
    cfg = _untied(cfg).assuming(
        attn_res_block_size=None,
        first_k_dense_replace=1,
        latent_moe_use_norm=False,
        mla_use_output_gate=False,
        routed_expert_hidden_size=None,
        use_full_rank_gate=False,
    )
    if cfg.get("linear_attn_config") is None:
        return cfg
    inner = cfg.inner("linear_attn_config")
    cfg = cfg.with_value("linear_head_dim", inner.size("head_dim"))
    cfg = cfg.with_value("linear_num_heads", inner.size("num_heads"))
    cfg = cfg.with_value("linear_conv_kernel_dim", inner.size("short_conv_kernel_size"))
    return cfg.with_value("use_full_rank_gate", inner.flag("use_full_rank_gate", default=False))


def kimi_kinds(cfg: Config) -> Callable[[int], str]:
    """Returns a function from the index of a layer to its kind. Files list the layers with
    attention and with delta attention, counted from 1. Without lists every fourth has attention,
    from the fifth on."""
    if cfg.get("linear_attn_config") is None:
        return lambda index: LINEAR if index % 4 or not index else FULL
    count = num_layers(cfg)
    inner = cfg.inner("linear_attn_config")
    full = inner.indices("full_attn_layers", count + 1)
    linear = inner.indices("kda_layers", count + 1)
    if full & linear or full | linear != set(range(1, count + 1)):
        rule = f"and kda_layers must have each of the layers 1 to {count} once"
        raise inner.invalid("full_attn_layers", rule)
    return lambda index: FULL if index + 1 in full else LINEAR


def kimi_heads(cfg: Config, kind: str) -> Attention:
    """Returns latent attention, with a gate of the output where the config switches it on."""
    attention = latent(cfg, kind)
    return (
        replace(attention, output_gate="element") if cfg.flag("mla_use_output_gate") else attention
    )


def kimi_layer(part: LayerPart) -> LayerPart:
    """Returns a reader of the layers that `part` reads, with attention residuals where the config
    has them."""

    def read(cfg: Config) -> Layer:
        """Returns the layer that `part` reads, with attention residuals where the config has
        them."""
        has_residuals = cfg.size_or_none("attn_res_block_size") is not None
        return replace(part(cfg), attention_residuals=has_residuals)

    return read


def kimi_experts(cfg: Config) -> Moe:
    """Returns the experts of a layer. Where the config has a `routed_expert_hidden_size`, they
    read a latent of the token of that size, which may have a norm."""
    part = experts(shared="n_shared_experts", selection_bias=True)
    return replace(
        part(cfg),
        latent_size=cfg.size_or_none("routed_expert_hidden_size"),
        latent_norm=cfg.flag("latent_moe_use_norm"),
    )


def bailing(cfg: Config) -> Config:
    """Returns the config of a hybrid Bailing model with the sizes of its delta attention, which has
    as many heads, of the same size, as its attention."""
    cfg = cfg.with_value("linear_head_dim", cfg.size("head_dim"))
    cfg = cfg.with_value("linear_num_heads", cfg.size("num_attention_heads"))
    cfg = cfg.with_value("linear_conv_kernel_dim", cfg.size("short_conv_kernel_size"))
    return _untied(cfg)


def bailing_heads(cfg: Config, kind: str) -> Attention:
    return replace(latent(cfg, kind), output_gate="head")


def _glm_index_kinds(cfg: Config) -> Callable[[int], str]:
    """Returns a function from the index of a layer to its kind: it has an indexer of its own, or
    uses the keys that an earlier layer's indexer chose. The config states the kinds as a list, as
    letters F and S, or as a period and an offset (GLM-5.1)."""
    stated = cfg.words("indexer_types", num_layers(cfg)) or _full_or_shared_indexers(cfg)
    if stated:
        # The first layer has no earlier one whose indexer it could share.
        if stated[0] != "full" or not set(stated) <= {"full", _SHARED_INDEX}:
            rule = f"must be made of full and {_SHARED_INDEX}, and begin with full"
            raise cfg.invalid("indexer_types", rule)
        return lambda index: INDEXED if stated[index] == "full" else _SHARED_INDEX
    period = cfg.size("index_topk_freq", 1)
    offset = cfg.count("index_skip_topk_offset", 2)

    def kind_of(index: int) -> str:
        # Layers up to number `offset` have indexers; of those behind, each `period`-th has one.
        behind = max(index + 1 - offset, 0)
        return _SHARED_INDEX if behind % period else INDEXED

    return kind_of


def _full_or_shared_indexers(cfg: Config) -> list[str]:
    """Returns for each layer whether its indexer is "full" or shared, from the letters F and S or
    from a list of these words; empty where the config has no such pattern."""
    pattern = cfg.get("index_topk_pattern")
    if not isinstance(pattern, str):
        return cfg.words("index_topk_pattern", num_layers(cfg))
    if len(pattern) != num_layers(cfg) or not set(pattern) <= {"F", "S"}:
        rule = f"must have F or S for each of the {num_layers(cfg)} layers"
        raise cfg.invalid("index_topk_pattern", rule)
    return ["full" if letter == "F" else _SHARED_INDEX for letter in pattern]


def glm_kinds(cfg: Config) -> Callable[[int], str]:
    """Returns a function from the index of a layer to its kind. Layers attend to keys that an
    indexer chooses, unless `layer_types` states another kind."""
    stated = stated_or(all_of(INDEXED))(cfg)
    kind_of = _glm_index_kinds(cfg)
    return lambda index: kind_of(index) if stated(index) == INDEXED else stated(index)


# By the number of tokens that a pooled key stands for; 0 for a window without pooled keys.
_POOLING_OF_RATIO = {0: SLIDING, 4: _SPARSELY_POOLED, 128: _HEAVILY_POOLED}


def deepseek_v4(cfg: Config) -> Config:
    """Returns the config with lists cut to the model's layers, and with the rates at which keys
    are pooled. The lists may go on with layers of multi-token prediction. Experts that a hash of
    the token chooses count as routed experts, whose cost is the same."""
    count = num_layers(cfg)
    for key in ("layer_types", "compress_ratios"):
        value = cfg.get(key)
        if isinstance(value, list):
            cfg = cfg.with_value(key, value[:count])
    if not set(cfg.words("mlp_layer_types", count)) <= {"hash_moe", "moe"}:
        raise cfg.invalid("mlp_layer_types", "must be made of hash_moe and moe")
    # Every layer has experts, and the words of this list are not those that the reader of feed-
    # forward networks takes (dense and sparse).
    cfg = cfg.with_value("mlp_layer_types", None)
    # By kind of layer: compressed sparse attention (csa), heavily compressed attention (hca).
    cfg = cfg.assuming(compress_rate_csa=4, compress_rate_hca=128)
    if cfg.get("compress_rates") is None:
        return cfg
    rates = cfg.inner("compress_rates")
    cfg = cfg.with_value("compress_rate_csa", rates.size(_SPARSELY_POOLED))
    return cfg.with_value("compress_rate_hca", rates.size(_HEAVILY_POOLED))


def deepseek_v4_kinds(cfg: Config) -> Callable[[int], str]:
    """Returns a function from the index of a layer to its kind, which says how it pools keys.
    The rates are in `compress_ratios`; without that key the first two layers and then every
    second one pool heavily."""
    ratios = cfg.get("compress_ratios")
    if ratios is None:
        return lambda index: _SPARSELY_POOLED if index > 1 and index % 2 else _HEAVILY_POOLED
    if (
        not isinstance(ratios, Sequence)
        or len(ratios) != num_layers(cfg)
        or any(type(ratio) is not int or ratio not in _POOLING_OF_RATIO for ratio in ratios)
    ):
        rule = f"must have 0, 4 or 128 for each of the {num_layers(cfg)} layers"
        raise cfg.invalid("compress_ratios", rule)
    return lambda index: _POOLING_OF_RATIO[ratios[index]]


_INDEX_OF_MINIMAX = {
    "index_n_heads": "sparse_num_index_heads",
    "index_head_dim": "sparse_index_dim",
    "index_block_size": "sparse_block_size",
    "index_topk_blocks": "sparse_topk_blocks",
}


def minimax_m3(cfg: Config) -> Config:
    """Returns the config with the indexer's sizes as keys of its own; files from before
    transformers 5 have them in an object. Raises Unsupported for an indexer with values."""
    if cfg.get("sparse_attention_config") is None:
        return cfg
    inner = cfg.inner("sparse_attention_config")
    for key, other in _INDEX_OF_MINIMAX.items():
        cfg = cfg.with_value(key, inner.size(other))
    chosen = inner.switches("sparse_attention_freq", num_layers(cfg))
    without_values = inner.switches("sparse_disable_index_value", num_layers(cfg))
    # A list that the file leaves out is empty here, and then nothing is compared.
    for is_sparse, lacks_values in zip(chosen, without_values, strict=False):
        if is_sparse and not lacks_values:
            missing = "values of the indexer"
            raise Unsupported(inner.where("sparse_disable_index_value"), 0, missing)
    if chosen and cfg.get("layer_types") is None:
        kinds = [_CHOSEN_BLOCKS if is_sparse else FULL for is_sparse in chosen]
        cfg = cfg.with_value("layer_types", kinds)
    return cfg
