"""The families with layers of several kinds, by `model_type`: some have a recurrence, or attention
over chosen or pooled keys, or only a mixer or a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from models.errors import Unsupported
from models.spec.attention import Attention
from models.spec.feed_forward import Moe
from models.spec.layer import Layer
from service.formats._huggingface_config import Config
from service.formats._huggingface_family import Family, Norms, Refused
from service.formats._huggingface_mixers import (
    LayerPart,
    attends,
    attends_within,
    chosen_blocks,
    chosen_keys,
    delta_net,
    expanded,
    kimi_delta_attention,
    lightning_attention,
    mamba2,
    pooled_keys,
    recurs,
    side_by_side,
)
from service.formats._huggingface_parts import experts, gated, heads, latent, plain
from service.formats._huggingface_patterns import (
    FULL,
    SLIDING,
    Kinds,
    all_sparse,
    deepseek_sparse,
    num_layers,
    qwen_sparse,
    undescribed_kind,
)

LINEAR, INDEXED, HYBRID = "linear_attention", "indexed_attention", "hybrid"
_SHARED_INDEX = "shared"
_CHOSEN_BLOCKS = "minimax_m3_sparse"
_SPARSELY_POOLED, _HEAVILY_POOLED = "compressed_sparse_attention", "heavily_compressed_attention"
_RENAMED = {
    "mamba": LINEAR,
    "attention": FULL,
    "deepseek_sparse_attention": INDEXED,
}
"""Kinds of layers by their names in files from before transformers 5.20."""


@dataclass(frozen=True, kw_only=True)
class Hybrid(Family):
    """A family whose layers are of the kinds of `mixers`. Its `kinds` say which is of which, and
    its `attention` means nothing."""

    mixers: Mapping[str, LayerPart]
    one_block: bool = False
    """A layer has a mixer or a network, and `mixers` has both."""

    def layers(self, cfg: Config, norms: Norms) -> list[Layer]:
        kind_of = self.kinds(cfg)
        kinds = [kind_of(index) for index in range(num_layers(cfg))]
        of_kind = {kind: self._layer(cfg, kind) for kind in dict.fromkeys(kinds)}
        found = [of_kind[kind] for kind in kinds]
        if self.one_block:
            return [replace(layer, num_norms=1) for layer in found]
        pairs = zip(found, self.networks(cfg), strict=True)
        return [replace(layer, feed_forward=network) for layer, network in pairs]

    def _layer(self, cfg: Config, kind: str) -> Layer:
        if kind not in self.mixers:
            raise undescribed_kind(cfg, kind, self.mixers)
        return self.mixers[kind](cfg)


def stated_or(default: Kinds) -> Kinds:
    """The kinds of `layer_types` if the config has that key, or else those of the family."""

    def read(cfg: Config) -> Callable[[int], str]:
        stated = cfg.words("layer_types", num_layers(cfg))
        if not stated:
            return default(cfg)
        return [_RENAMED.get(kind, kind) for kind in stated].__getitem__

    return read


def _untied(cfg: Config) -> Config:
    """The model code of some families has a head of its own, whatever the config says."""
    return cfg.with_value("tie_word_embeddings", False)


def _all_of(kind: str) -> Kinds:
    return lambda cfg: lambda index: kind


def _attention_every(period: int, key: str | None = None) -> Kinds:
    """Every `period`-th layer has attention and the others a recurrence. The period may be in the
    config, under `key`."""

    def read(cfg: Config) -> Callable[[int], str]:
        found = cfg.size(key, period) if key else period
        return lambda index: LINEAR if (index + 1) % found else FULL

    return read


def _olmo_kinds(cfg: Config) -> Callable[[int], str]:
    """Every fourth layer has attention, or the last of fewer."""
    return _attention_every(min(4, num_layers(cfg)))(cfg)


def _minimax_kinds(cfg: Config) -> Callable[[int], str]:
    """`attn_type_list` has 1 for attention, in files beside the code of MiniMax; otherwise every
    second layer has it, from the first on."""
    attention = cfg.switches("attn_type_list", num_layers(cfg))
    if attention:
        return lambda index: FULL if attention[index] else LINEAR
    return lambda index: LINEAR if index % 2 else FULL


def _bamba_kinds(cfg: Config) -> Callable[[int], str]:
    attention = cfg.indices("attn_layer_indices", num_layers(cfg))
    return lambda index: FULL if index in attention else LINEAR


def _minimax_heads(cfg: Config, kind: str) -> Attention:
    return replace(heads()(cfg, kind), window=cfg.size_or_none("sliding_window"))


def _minimax(cfg: Config) -> Config:
    if width := cfg.count("shared_intermediate_size", 0):
        key = cfg.where("shared_intermediate_size")
        raise Unsupported(key, width, "shared experts of this family")
    return cfg


def _falcon_h1(cfg: Config) -> Config:
    if cfg.flag("projectors_bias") != cfg.flag("mamba_proj_bias"):
        missing = "biases of one of Mamba's two projections"
        raise Unsupported(cfg.where("projectors_bias"), cfg.get("projectors_bias"), missing)
    return cfg


def _falcon_h1_width(cfg: Config) -> int:
    return cfg.size_or_none("mamba_d_ssm") or expanded(cfg)


def _granite_sparse(cfg: Config) -> Callable[[int], bool]:
    has_experts = cfg.count("num_local_experts") > 0
    return lambda index: has_experts


def _leaves_them_to_recurrences(cfg: Config) -> bool:
    """Attention of these families has no positions."""
    return False


_LETTERS = {"M": LINEAR, "*": FULL, "-": "mlp", "E": "moe"}


def _nemotron_h(cfg: Config) -> Config:
    """The kinds of layers are a list or letters, and newer files say in no other way how many there
    are. The model code does not read `mamba_proj_bias`. A module of multi-token prediction, which
    has attention too, counts as a layer like the last."""
    key = "layer_types" if cfg.get("layer_types") is not None else "hybrid_override_pattern"
    kinds = cfg.get(key)
    if isinstance(kinds, (str, list)) and not cfg.is_written("num_hidden_layers"):
        cfg = cfg.with_value("num_hidden_layers", len(kinds))
    if key != "layer_types":
        cfg = cfg.with_value("layer_types", _spelled_out(cfg, key))
    return _untied(cfg.with_value("mamba_proj_bias", cfg.flag("use_bias")))


def _spelled_out(cfg: Config, key: str) -> list[str]:
    """The kinds of layers that a string has letters for."""
    pattern = cfg.word(key)
    if len(pattern) != num_layers(cfg) or not set(pattern) <= set(_LETTERS):
        rule = f"must have one of {' '.join(_LETTERS)} for each of the {num_layers(cfg)} layers"
        raise cfg.invalid(key, rule)
    return [_LETTERS[letter] for letter in pattern]


def _nemotron_h_experts(cfg: Config) -> Moe:
    cfg.refuse("mlp_bias", "biases of shared experts alone")
    part = experts(
        count="n_routed_experts",
        shared_width="moe_shared_expert_intermediate_size",
        selection_bias=True,
    )
    return replace(part(cfg), gated=False, latent_size=cfg.size_or_none("moe_latent_size"))


def _kimi(cfg: Config) -> Config:
    """Files from before transformers 5 have an object for the layers with delta attention. What
    Kimi-K3 adds is off in Kimi Linear."""
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
    return cfg.with_value("use_full_rank_gate", inner.flag("use_full_rank_gate", False))


def _kimi_kinds(cfg: Config) -> Callable[[int], str]:
    """Layers with attention and with delta attention are listed, and counted from 1; otherwise
    every fourth has attention, from the fifth on."""
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


def _kimi_heads(cfg: Config, kind: str) -> Attention:
    return replace(latent(cfg, kind), output_gate=cfg.flag("mla_use_output_gate"))


def _kimi_layer(part: LayerPart) -> LayerPart:
    def read(cfg: Config) -> Layer:
        has_residuals = cfg.size_or_none("attn_res_block_size") is not None
        return replace(part(cfg), attention_residuals=has_residuals)

    return read


def _kimi_experts(cfg: Config) -> Moe:
    part = experts(shared="n_shared_experts", selection_bias=True)
    return replace(
        part(cfg),
        latent_size=cfg.size_or_none("routed_expert_hidden_size"),
        latent_norm=cfg.flag("latent_moe_use_norm"),
    )


def _bailing(cfg: Config) -> Config:
    """Delta attention has the heads of attention."""
    cfg = cfg.with_value("linear_head_dim", cfg.size("head_dim"))
    cfg = cfg.with_value("linear_num_heads", cfg.size("num_attention_heads"))
    cfg = cfg.with_value("linear_conv_kernel_dim", cfg.size("short_conv_kernel_size"))
    return _untied(cfg)


def _bailing_heads(cfg: Config, kind: str) -> Attention:
    return replace(latent(cfg, kind), output_gate=True, gate_per_head=True)


def _glm_index_kinds(cfg: Config) -> Callable[[int], str]:
    """`indexer_types` says which layers read the keys that a layer before them chose, or letters
    do (F and S), or a period that begins with a layer of some offset (GLM-5.1)."""
    stated = cfg.words("indexer_types", num_layers(cfg)) or _letters_of_indexers(cfg)
    if stated:
        if stated[0] != "full" or not set(stated) <= {"full", _SHARED_INDEX}:
            rule = f"must be made of full and {_SHARED_INDEX}, and begin with full"
            raise cfg.invalid("indexer_types", rule)
        return lambda index: INDEXED if stated[index] == "full" else _SHARED_INDEX
    period = cfg.size("index_topk_freq", 1)
    offset = cfg.count("index_skip_topk_offset", 2)
    return lambda index: _SHARED_INDEX if max(index - offset + 1, 0) % period else INDEXED


def _letters_of_indexers(cfg: Config) -> list[str]:
    pattern = cfg.get("index_topk_pattern")
    if not isinstance(pattern, str):
        return cfg.words("index_topk_pattern", num_layers(cfg))
    if len(pattern) != num_layers(cfg) or not set(pattern) <= {"F", "S"}:
        rule = f"must have F or S for each of the {num_layers(cfg)} layers"
        raise cfg.invalid("index_topk_pattern", rule)
    return ["full" if letter == "F" else _SHARED_INDEX for letter in pattern]


def _glm_kinds(cfg: Config) -> Callable[[int], str]:
    """All layers attend to chosen keys; `layer_types`, if it is there, says that too."""
    stated = stated_or(_all_of(INDEXED))(cfg)
    kind_of = _glm_index_kinds(cfg)
    return lambda index: kind_of(index) if stated(index) == INDEXED else stated(index)


_POOLING_OF_RATIO = {0: SLIDING, 4: _SPARSELY_POOLED, 128: _HEAVILY_POOLED}


def _deepseek_v4(cfg: Config) -> Config:
    """Lists may go on with the layers of multi-token prediction. Older files have the rate of each
    layer, of which 0 is none. Experts that a hash of the token chooses cost what others do."""
    count = num_layers(cfg)
    for key in ("layer_types", "compress_ratios"):
        value = cfg.get(key)
        if isinstance(value, list):
            cfg = cfg.with_value(key, value[:count])
    if not set(cfg.words("mlp_layer_types", count)) <= {"hash_moe", "moe"}:
        raise cfg.invalid("mlp_layer_types", "must be made of hash_moe and moe")
    cfg = cfg.with_value("mlp_layer_types", None)
    cfg = cfg.assuming(compress_rate_csa=4, compress_rate_hca=128)
    if cfg.get("compress_rates") is None:
        return cfg
    rates = cfg.inner("compress_rates")
    cfg = cfg.with_value("compress_rate_csa", rates.size(_SPARSELY_POOLED))
    return cfg.with_value("compress_rate_hca", rates.size(_HEAVILY_POOLED))


def _deepseek_v4_kinds(cfg: Config) -> Callable[[int], str]:
    """Otherwise keys are pooled heavily in the first two layers and then in every second one."""
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


def _minimax_m3(cfg: Config) -> Config:
    """Files from before transformers 5 have an object for the indexer."""
    if cfg.get("sparse_attention_config") is None:
        return cfg
    inner = cfg.inner("sparse_attention_config")
    for key, other in _INDEX_OF_MINIMAX.items():
        cfg = cfg.with_value(key, inner.size(other))
    chosen = inner.switches("sparse_attention_freq", num_layers(cfg))
    without_values = inner.switches("sparse_disable_index_value", num_layers(cfg))
    if any(one and not other for one, other in zip(chosen, without_values, strict=False)):
        missing = "values of the indexer"
        raise Unsupported(inner.where("sparse_disable_index_value"), 0, missing)
    if chosen and cfg.get("layer_types") is None:
        kinds = [_CHOSEN_BLOCKS if one else FULL for one in chosen]
        cfg = cfg.with_value("layer_types", kinds)
    return cfg


def _minimax_m3_sparse(cfg: Config) -> Callable[[int], bool]:
    switches = cfg.switches("moe_layer_freq", num_layers(cfg))
    return switches.__getitem__ if switches else all_sparse(cfg)


_LARA_MINI_KINDS = (LINEAR, SLIDING, LINEAR, FULL, SLIDING)


def _lara_mini_kinds(cfg: Config) -> Callable[[int], str]:
    """Five kinds that repeat, as in the released model."""
    return lambda index: _LARA_MINI_KINDS[index % len(_LARA_MINI_KINDS)]


_QWEN = Hybrid(
    described=("linear_num_value_heads",),
    refused=(Refused("attn_output_gate", "attention of Qwen3.5 without a gate", False),),
    mixers={
        LINEAR: recurs(delta_net),
        FULL: attends(heads(bias="attention_bias", qk_norm=True, output_gate=True)),
    },
    kinds=stated_or(_attention_every(4, "full_attention_interval")),
)
_QWEN_EXPERTS = experts(shared_width="shared_expert_intermediate_size", shared_gate=True)
_MINIMAX = Hybrid(
    prepare=_minimax,
    mixers={
        LINEAR: recurs(lightning_attention(_minimax_heads)),
        FULL: attends(_minimax_heads),
    },
    kinds=stated_or(_minimax_kinds),
    experts=experts(count="num_local_experts", width="intermediate_size"),
)
_CHOSEN = Hybrid(
    described=("index_topk",),
    refused=(Refused("mlp_bias", "biases of the dense layers alone"),),
    mixers={INDEXED: chosen_keys(), _SHARED_INDEX: chosen_keys(shared=True)},
    kinds=stated_or(_all_of(INDEXED)),
    experts=experts(shared="n_shared_experts", selection_bias=True),
    sparse=deepseek_sparse,
)
_MINIMAX_M3_HEADS = heads(qk_norm=True)
_MINIMAX_M3 = Hybrid(
    prepare=_minimax_m3,
    refused=(
        Refused("attention_output_gate", "the gate of attention in this family"),
        Refused("use_qk_norm", "queries and keys of this family without norms", False),
    ),
    mixers={
        FULL: attends(_MINIMAX_M3_HEADS),
        _CHOSEN_BLOCKS: chosen_blocks(_MINIMAX_M3_HEADS),
    },
    kinds=stated_or(_all_of(FULL)),
    mlp=gated(width="dense_intermediate_size"),
    experts=experts(
        count="num_local_experts",
        width="intermediate_size",
        shared_width="shared_intermediate_size",
        selection_bias=True,
    ),
    sparse=_minimax_m3_sparse,
)

FAMILIES: Mapping[str, Hybrid] = {
    "bailing_hybrid": Hybrid(
        prepare=_bailing,
        mixers={
            LINEAR: recurs(kimi_delta_attention(full_rank_decay=True, full_rank_gate=True)),
            FULL: attends(_bailing_heads),
        },
        kinds=stated_or(_attention_every(6, "layer_group_size")),
        experts=experts(shared="n_shared_experts", selection_bias=True),
        sparse=deepseek_sparse,
    ),
    "bamba": Hybrid(
        described=("mamba_d_state",),
        mixers={
            LINEAR: recurs(mamba2(width=expanded)),
            FULL: attends(heads(bias="attention_bias")),
        },
        kinds=_bamba_kinds,
        mlp=gated(bias="mlp_bias"),
    ),
    "deepseek_v32": _CHOSEN,
    "deepseek_v4": Hybrid(
        described=("index_topk", "hc_mult"),
        prepare=_deepseek_v4,
        refused=(Refused("mlp_bias", "biases of shared experts alone"),),
        mixers={
            SLIDING: pooled_keys(),
            _SPARSELY_POOLED: pooled_keys("compress_rate_csa", indexed=True),
            _HEAVILY_POOLED: pooled_keys("compress_rate_hca"),
        },
        kinds=stated_or(_deepseek_v4_kinds),
        experts=experts(shared=1, selection_bias=True),
    ),
    "falcon_h1": Hybrid(
        described=("mamba_d_state",),
        prepare=_falcon_h1,
        mixers={
            HYBRID: side_by_side(
                heads(bias="attention_bias"),
                mamba2(norm="mamba_rms_norm", width=_falcon_h1_width),
            )
        },
        kinds=_all_of(HYBRID),
        mlp=gated(bias="mlp_bias"),
    ),
    "glm_moe_dsa": replace(_CHOSEN, kinds=_glm_kinds),
    "granitemoehybrid": Hybrid(
        has_positions=lambda cfg: cfg.get("position_embedding_type") == "rope",
        described=("mamba_d_state",),
        mixers={
            LINEAR: recurs(mamba2(width=expanded)),
            FULL: attends(heads(bias="attention_bias")),
        },
        kinds=stated_or(_all_of(LINEAR)),
        mlp=gated(width="shared_intermediate_size"),
        experts=experts(
            count="num_local_experts",
            width="intermediate_size",
            shared_width="shared_intermediate_size",
        ),
        sparse=_granite_sparse,
    ),
    "kimi_linear": Hybrid(
        has_positions=_leaves_them_to_recurrences,
        keys={"num_experts_per_tok": "num_experts_per_token", "n_group": "num_expert_group"},
        described=("linear_attn_config",),
        prepare=_kimi,
        mixers={
            LINEAR: _kimi_layer(
                recurs(
                    kimi_delta_attention(full_rank_decay=False, full_rank_gate="use_full_rank_gate")
                )
            ),
            FULL: _kimi_layer(attends(_kimi_heads)),
        },
        kinds=stated_or(_kimi_kinds),
        experts=_kimi_experts,
        sparse=deepseek_sparse,
    ),
    "lara_mini": Hybrid(
        described=("linear_num_value_heads",),
        mixers={
            LINEAR: recurs(delta_net),
            FULL: attends(heads(bias="attention_bias", qk_norm=True)),
            SLIDING: attends_within(heads(bias="attention_bias", qk_norm=True)),
        },
        kinds=stated_or(_lara_mini_kinds),
        experts=experts(shared_width="shared_expert_intermediate_size"),
    ),
    "mamba2": Hybrid(
        keys={
            "mamba_conv_bias": "use_conv_bias",
            "mamba_d_conv": "conv_kernel",
            "mamba_d_head": "head_dim",
            "mamba_d_state": "state_size",
            "mamba_expand": "expand",
            "mamba_n_groups": "n_groups",
            "mamba_n_heads": "num_heads",
            "mamba_proj_bias": "use_bias",
        },
        has_positions=_leaves_them_to_recurrences,
        one_block=True,
        mixers={LINEAR: recurs(mamba2(width=expanded))},
        kinds=_all_of(LINEAR),
    ),
    "minimax": _MINIMAX,
    "minimax_m1": _MINIMAX,
    "minimax_m3": _MINIMAX_M3,
    "minimax_m3_vl_text": _MINIMAX_M3,
    "minimax_text_01": _MINIMAX,
    "nemotron_h": Hybrid(
        has_positions=_leaves_them_to_recurrences,
        keys={
            "head_dim": "attention_head_dim",
            "layer_types": "layers_block_type",
            "mamba_conv_bias": "use_conv_bias",
            "mamba_d_conv": "conv_kernel",
            "mamba_d_head": "mamba_head_dim",
            "mamba_d_state": "ssm_state_size",
            "mamba_n_groups": "n_groups",
            "mamba_n_heads": "mamba_num_heads",
        },
        described=("ssm_state_size",),
        prepare=_nemotron_h,
        one_block=True,
        mixers={
            LINEAR: recurs(mamba2()),
            FULL: attends(heads()),
            "mlp": lambda cfg: Layer(feed_forward=plain(bias="mlp_bias")(cfg)),
            "moe": lambda cfg: Layer(feed_forward=_nemotron_h_experts(cfg)),
        },
        kinds=stated_or(_all_of(LINEAR)),
    ),
    "olmo_hybrid": Hybrid(
        described=("linear_num_value_heads",),
        mixers={
            LINEAR: recurs(delta_net),
            FULL: attends(
                heads(bias="attention_bias", qk_norm=True, qk_norm_all_heads=True),
                norms_behind=True,
            ),
        },
        kinds=stated_or(_olmo_kinds),
    ),
    "qwen3_5_moe_text": replace(_QWEN, experts=_QWEN_EXPERTS),
    "qwen3_5_text": _QWEN,
    "qwen3_next": replace(_QWEN, experts=_QWEN_EXPERTS, sparse=qwen_sparse),
}
