"""Reads the parts of a layer from a config: attention, MLPs and experts.

A *part*, or reader, is a function that reads a part of a layer from a config. A function with the
name of a part, such as `heads`, takes what is peculiar to a family and returns its reader; the rows
of `families.json` call it. A `Switch` is true, false, or the key of the config that says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from models.errors import Invalid
from models.spec.attention import Attention
from models.spec.feed_forward import Mlp, Moe
from service.formats.huggingface.config import MAX_LAYERS, Config

Switch: TypeAlias = bool | str
AttentionPart: TypeAlias = Callable[[Config, str], Attention]
"""Returns the attention of the layers of one kind, without their window."""
MlpPart: TypeAlias = Callable[[Config], Mlp]
MoePart: TypeAlias = Callable[[Config], Moe]


def heads(
    *,
    bias: Switch = False,
    output_bias: Switch | None = None,
    qk_norm: Switch = False,
    qk_norm_all_heads: bool = False,
    sinks: Switch = False,
    output_gate: Switch = False,
    gate_per_head: bool = False,
) -> AttentionPart:
    """Returns a reader of multi-head or grouped-query attention. `bias` is that of queries, keys
    and values, and of the output too unless `output_bias` is given. With `qk_norm_all_heads` the
    norm of queries and keys has a weight for each head. A switch that is a text names the key of
    the config that has its value."""

    gate: Literal["element", "head"] = "head" if gate_per_head else "element"

    def read(cfg: Config, kind: str) -> Attention:
        """Returns the attention of a config, with the arguments of `heads`. All kinds of layers
        have the same."""
        num_heads, kv_heads, head_dim = head_counts(cfg)
        qkv_bias = is_on(cfg, bias)
        return Attention(
            num_attention_heads=num_heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            v_head_dim=head_dim,
            attention_bias=qkv_bias,
            attention_output_bias=qkv_bias if output_bias is None else is_on(cfg, output_bias),
            qk_norm=is_on(cfg, qk_norm),
            qk_norm_all_heads=qk_norm_all_heads,
            sinks=is_on(cfg, sinks),
            output_gate=gate if is_on(cfg, output_gate) else None,  # one for each head or element
        )

    return read


def head_counts(cfg: Config) -> tuple[int, int, int]:
    """Returns the number of heads, the number of key-value heads, and the elements of a head. By
    default there are as many key-value heads as heads, and the heads divide the hidden size.
    Raises Invalid where key-value heads do not divide heads."""
    num_heads = cfg.size("num_attention_heads")
    kv_heads = cfg.size_or_none("num_key_value_heads") or num_heads
    if num_heads % kv_heads:
        rule = f"must divide {cfg.where('num_attention_heads')} = {num_heads}"
        raise cfg.invalid("num_key_value_heads", rule)
    return num_heads, kv_heads, cfg.size_or_none("head_dim") or hidden_per_head(cfg, "head_dim")


def hidden_per_head(cfg: Config, key: str) -> int:
    """Returns the hidden size divided by the heads. Raises Invalid, for the missing `key`, where
    that is not whole."""
    num_heads = cfg.size("num_attention_heads")
    hidden = cfg.size("hidden_size")
    if hidden % num_heads:
        quotient = f"{cfg.where('hidden_size')} / {cfg.where('num_attention_heads')}"
        rule = f"is required: {quotient} = {hidden}/{num_heads} is not whole"
        raise Invalid(cfg.where(key), None, rule)
    return hidden // num_heads


def latent(cfg: Config, kind: str) -> Attention:
    """Returns multi-head latent attention. The config's `head_dim` and `num_key_value_heads` do
    not apply to it. Raises Unsupported for biases."""
    cfg.refuse("attention_bias", "biases of the down-projections of latent attention")
    rope = cfg.size("qk_rope_head_dim")
    num_heads = cfg.size("num_attention_heads")
    return Attention(
        num_attention_heads=num_heads,
        num_key_value_heads=num_heads,
        head_dim=cfg.size("qk_nope_head_dim") + rope,
        v_head_dim=cfg.size_or_none("v_head_dim") or hidden_per_head(cfg, "v_head_dim"),
        q_lora_rank=cfg.size_or_none("q_lora_rank"),
        kv_lora_rank=cfg.size("kv_lora_rank"),
        qk_rope_head_dim=rope,
    )


def is_on(cfg: Config, switch: Switch) -> bool:
    """Returns the switch, or the truth value of the key that it names."""
    return cfg.flag(switch) if isinstance(switch, str) else switch


def gated(*, bias: Switch = False, width: str = "intermediate_size") -> MlpPart:
    """Returns a reader of gated MLPs, whose width is under the key `width`."""
    return lambda cfg: Mlp(intermediate_size=cfg.size(width), bias=is_on(cfg, bias))


def plain(
    *, bias: Switch = False, times_hidden: int | None = None, learned_activation: bool = False
) -> MlpPart:
    """Returns a reader of MLPs with two matrices. Without a width they have `times_hidden` times
    the hidden size."""

    def read(cfg: Config) -> Mlp:
        """Returns the MLP of a config, with the arguments of `plain`."""
        # Without `times_hidden` the config must have the width.
        default = times_hidden and times_hidden * cfg.size("hidden_size")
        size = cfg.size("intermediate_size", default)
        return Mlp(
            intermediate_size=size,
            gated=False,
            bias=is_on(cfg, bias),
            learned_activation=learned_activation,
        )

    return read


def experts(
    *,
    count: str = "num_experts",
    top_k: str = "num_experts_per_tok",
    width: str = "moe_intermediate_size",
    shared: str | int = 0,
    shared_width: str | None = None,
    shared_gate: bool = False,
    selection_bias: Switch = False,
    selection_bias_is_parameter: bool = False,
    bias: bool = False,
) -> MoePart:
    """Returns a reader of routed experts, by the keys that the family has for them.

    The shared expert has the width under the key `shared_width`, or else is `shared` times as wide
    as a routed one. `shared` is a number, or the key that has it. `bias` is that of the router and
    of every expert. `selection_bias` is added to the router's scores when experts are chosen; it
    counts as a parameter only with `selection_bias_is_parameter`, since others update it by a rule.
    """

    def read(cfg: Config) -> Moe:
        """Returns the experts of a config, with the arguments of `experts`. Raises Invalid where a
        token would have more experts than there are."""
        num_experts = cfg.size(count)
        per_token = cfg.size(top_k)
        if per_token > num_experts:
            raise cfg.invalid(top_k, f"must be at most {cfg.where(count)} = {num_experts}")
        num_groups, groups_per_token = _groups(cfg, num_experts, per_token)
        size = cfg.size(width)
        if shared_width:
            shared_size = cfg.count(shared_width)
        elif isinstance(shared, str):
            shared_size = size * cfg.count_or_zero(shared, most=MAX_LAYERS)
        else:
            shared_size = size * shared
        return Moe(
            num_experts=num_experts,
            experts_per_token=per_token,
            intermediate_size=size,
            shared_expert_intermediate_size=shared_size,
            shared_gate=shared_gate,
            selection_bias=is_on(cfg, selection_bias),
            selection_bias_is_parameter=selection_bias_is_parameter,
            bias=bias,
            router_bias=bias,
            num_groups=num_groups,
            groups_per_token=groups_per_token,
        )

    return read


def _groups(cfg: Config, num_experts: int, per_token: int) -> tuple[int, int]:
    """Returns the number of groups of experts, and the number of groups among which a token's
    experts are chosen; (1, 1) without groups. Raises Invalid for impossible numbers."""
    if cfg.null("n_group") or cfg.null("topk_group"):
        return 1, 1
    num_groups = cfg.size("n_group", 1)
    groups_per_token = cfg.size("topk_group", 1)
    if num_experts % num_groups:
        raise cfg.invalid("n_group", f"must divide {num_experts} experts")
    experts_in_reach = groups_per_token * (num_experts // num_groups)
    if groups_per_token > num_groups or per_token > experts_in_reach:
        rule = f"must be of n_group = {num_groups} groups that hold {per_token} experts"
        raise cfg.invalid("topk_group", rule)
    return num_groups, groups_per_token
