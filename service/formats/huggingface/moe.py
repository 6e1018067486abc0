"""Reads families with experts.

The rows of `families.json` name these functions. One with the name of a family rewrites its config
into the common keys. One that ends in `_kinds` says which layer is of which kind: what it mixes
tokens with, such as FULL or SLIDING attention. One that ends in `_sparse` says which have experts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from models.errors import Unsupported
from models.spec.attention import Attention
from models.spec.feed_forward import Moe
from service.formats.huggingface.config import MAX_LAYERS, Config, shown
from service.formats.huggingface.parts import experts, heads, latent
from service.formats.huggingface.patterns import (
    CHUNKED,
    FULL,
    SLIDING,
    full_every,
    num_layers,
    qwen_sparse,
)


def dbrx(cfg: Config) -> Config:
    """Returns the config with its key-value heads, which files have in the object `attn_config`.
    That object's tie_word_embeddings has no effect in the model's code, and is not read."""
    kv_heads = cfg.inner("attn_config").size("kv_n_heads")
    return cfg.with_value("num_key_value_heads", kv_heads)


def dbrx_experts(cfg: Config) -> Moe:
    part = experts(count="moe_num_experts", top_k="moe_top_k", width="ffn_hidden_size")
    return part(cfg.inner("ffn_config"))


def latent_or_heads(cfg: Config, kind: str) -> Attention:
    """Returns latent attention, or plain attention heads as in DeepSeek-VL2's small towers."""
    part = latent if cfg.flag("use_mla", default=True) else heads(bias="attention_bias")
    return part(cfg, kind)


def llama4_kinds(cfg: Config) -> Callable[[int], str]:
    """Returns a function from the index of a layer to its kind: layers with rotary positions
    have chunked attention, the others see the whole sequence."""
    if cfg.size_or_none("attention_chunk_size") is None:
        return lambda _: FULL
    period = cfg.size("no_rope_layer_interval", 4)
    # In spite of its name, this list has 1 for layers with rotary positions.
    rotary = cfg.switches("no_rope_layers", num_layers(cfg))
    # Without the list the last layer of each period has no rotary positions.
    return lambda index: CHUNKED if (rotary[index] if rotary else (index + 1) % period) else FULL


def llama4_sparse(cfg: Config) -> Callable[[int], bool]:
    """Returns a test of whether the layer at an index has experts: those that `moe_layers` lists,
    or else every interleave_moe_layer_step-th."""
    if cfg.get("moe_layers") is not None:
        chosen = cfg.indices("moe_layers", num_layers(cfg))
        return lambda index: index in chosen
    step = cfg.size("interleave_moe_layer_step")
    return lambda index: (index + 1) % step == 0


def ernie_sparse(cfg: Config) -> Callable[[int], bool]:
    """Returns a test of whether the layer at an index has experts: every moe_layer_interval-th from
    moe_layer_start_index to moe_layer_end_index, of which -1 is the last layer."""
    last = num_layers(cfg) - 1
    end = last
    if cfg.get("moe_layer_end_index") not in (None, -1):
        end = cfg.count("moe_layer_end_index", most=MAX_LAYERS)
    start = cfg.count("moe_layer_start_index")
    interval = cfg.size("moe_layer_interval", 1)
    return lambda index: start <= index <= end and (index + 1) % interval == 0


def minimax_m2(cfg: Config) -> Config:
    """Returns the config, with queries and keys normalised (`use_qk_norm`) where it does not say.
    Raises Unsupported for linear attention, other norms and shared experts. The family is read
    without modules of multi-token prediction: the published file switches them on, but neither
    transformers nor the published weights have any."""
    if not all(cfg.switches("attn_type_list", num_layers(cfg))):
        raise Unsupported(cfg.where("attn_type_list"), 0, "linear (lightning) attention layers")
    if cfg.word("qk_norm_type", "per_layer") != "per_layer":
        raise Unsupported(cfg.where("qk_norm_type"), cfg.get("qk_norm_type"), "norms of this kind")
    cfg.refuse_size("shared_intermediate_size", "shared experts of this family", default=0)
    return cfg.assuming(use_qk_norm=True)  # on where a file leaves it out


def same_in_all_layers(*keys: str) -> Callable[[Config], Config]:
    """Returns a function that replaces lists of one number for each layer by that number. It
    raises Unsupported where layers differ."""

    def prepare(cfg: Config) -> Config:
        """Returns the config with one number under each of `keys`."""
        for key in keys:
            value = cfg.get(key)
            if isinstance(value, list) and value:
                if any(of_layer != value[0] for of_layer in value):
                    missing = "experts that differ from layer to layer"
                    raise Unsupported(cfg.where(key), shown(value), missing)
                cfg = cfg.with_value(key, value[0])
        return cfg

    return prepare


def flint_kinds(cfg: Config) -> Callable[[int], str]:
    """Returns a function from the index of a layer to its kind. The first two layers, every
    fourth and the last see the whole sequence, the others a window."""
    last = num_layers(cfg) - 1
    return lambda index: FULL if index < 2 or index % 4 == 1 or index == last else SLIDING


def flint_sparse(cfg: Config) -> Callable[[int], bool]:
    """Returns a test of whether the layer at an index has experts: all but those in
    `mlp_only_layers`, which are the first two by default."""
    return qwen_sparse(cfg.assuming(mlp_only_layers=[0, 1]))


def cohere2_kinds(cfg: Config) -> Callable[[int], str]:
    """Returns a function from the index of a layer to its kind. Full attention has one period in
    the first `first_k_dense_replace` layers, and another one, which starts anew, behind them."""
    dense = cfg.count("first_k_dense_replace", 0)
    of_dense = full_every(1, "prefix_dense_sliding_window_pattern")(cfg)
    of_others = full_every(4, "sliding_window_pattern")(cfg)
    return lambda index: of_dense(index) if index < dense else of_others(index - dense)


def longcat_flash(cfg: Config) -> Config:
    """Returns the config with twice the layers. A layer of this model has attention and a dense
    MLP twice; its experts run beside all that follows the first attention. It is read as two
    layers. The first has the experts, and its dense MLP counts as their shared expert."""
    return cfg.with_value("num_hidden_layers", 2 * cfg.size("num_layers", most=MAX_LAYERS // 2))


def longcat_flash_sparse(cfg: Config) -> Callable[[int], bool]:
    """Returns a test of whether the layer at an index has experts. Each original layer is read as
    two, and the first of these has its experts."""
    return lambda index: index % 2 == 0


def longcat_flash_experts(cfg: Config) -> Moe:
    """Returns the experts of a layer. Zero experts among them compute nothing. The experts of a
    token count without its zero experts, whose average number follows because training balances
    the model so that all are chosen equally often (arXiv 2509.01322 §2.1)."""
    zero_experts = cfg.count("zero_expert_num")
    part = experts(
        count="n_routed_experts",
        top_k="moe_topk",
        width="expert_ffn_hidden_size",
        shared_width="ffn_hidden_size",  # the dense MLP beside them counts as shared
        selection_bias=True,
    )
    moe = part(cfg)
    # The share of a token's choices that fall on experts which compute.
    computing = moe.num_experts / (moe.num_experts + zero_experts)
    return replace(
        moe,
        experts_per_token=max(round(moe.experts_per_token * computing), 1),
        zero_experts=zero_experts,
    )
