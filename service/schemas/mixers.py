"""Mixers of the tokens in a layer, as callers give them: attention, or a recurrence. `build` makes
the value that the models compute with (models.spec)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Discriminator, Field, Tag

from models.errors import Invalid
from models.spec.attention import Attention, Compression, Indexer
from models.spec.recurrence import DeltaNet, LightningAttention, Mamba2, ShortConvolution
from service.json_pointers import TAG_PREFIX
from service.schemas.common_fields import common_fields
from service.schemas.wire import Size, Wire

Heads = Annotated[int, Field(ge=1, le=65536)]
Window = Annotated[int, Field(ge=1, le=10**8)]
ConvKernel = Annotated[int, Field(ge=0, le=1024)]


class MlaFields(Wire):
    """Multi-head latent attention."""

    kv_lora_rank: Size
    qk_nope_head_dim: Size
    qk_rope_head_dim: Size
    v_head_dim: Size
    q_lora_rank: Size | None = None


class CompressionFields(Wire):
    """Keys and values of many tokens are pooled to one entry each. A query sees all entries before
    it, or those that an indexer chooses, beside the keys of its `sliding_window` (DeepSeek-V4)."""

    rate: Window
    """Tokens of an entry."""
    overlap: bool = False
    """Entries are pooled from their own tokens and from those of the entry before."""


class IndexerFields(Wire):
    """Heads of its own choose which keys, or pooled entries, a query sees (DeepSeek-V3.2)."""

    num_heads: Heads
    head_dim: Size
    top_k: Window
    """Entries that a query sees."""
    weighs_heads: bool = True
    """Scores of heads are added with weights; otherwise the largest counts."""
    norm_parameters: Annotated[int, Field(ge=0, le=2**24)] = 0
    """Parameters of the norms of its queries and keys."""
    shared: bool = False
    """It is that of a layer before, and this layer reads the same keys."""


class AttentionFields(Wire):
    """Causal self-attention: multi-head, grouped-query, or with `mla` multi-head latent."""

    num_attention_heads: Heads
    num_key_value_heads: Heads | None = None
    """Heads of keys and values; as many as `num_attention_heads` unless given."""
    head_dim: Size | None = None
    """Size of a query and a key; hidden_size / num_attention_heads unless given."""
    v_head_dim: Size | None = None
    """Size of a value, where it is not `head_dim`."""
    mla: MlaFields | None = None
    """Says what heads are, in place of `num_key_value_heads`, `head_dim`, `v_head_dim` and
    `q_lora_rank`."""
    q_lora_rank: Size | None = None
    """Size of a latent that queries are made from."""
    o_lora_rank: Size | None = None
    """Size of a latent between each of `o_groups` groups of heads and the output (DeepSeek-V4)."""
    o_groups: Heads = 1
    """Groups of heads, for `o_lora_rank`."""
    sliding_window: Window | None = None
    """Keys that a query sees at most: the last ones, or those of its chunk."""
    chunked_attention: bool = False
    """`sliding_window` is the length of a chunk (Llama 4)."""
    attention_bias: bool = False
    """The projections have a bias."""
    attention_output_bias: bool | None = None
    """The output projection has a bias. Unless given, it has one where the others do and there is
    no `mla`."""
    qk_norm: bool = False
    """Queries and keys are normalised."""
    qk_norm_all_heads: bool = False
    """With a weight for each head, not one that heads share."""
    kv_norm: bool = False
    """Keys that are values too have a norm."""
    values_are_keys: bool = False
    """One projection gives both (DeepSeek-V4, full layers of Gemma 4)."""
    sinks: bool = False
    """A learned logit for each head (gpt-oss)."""
    output_gate: Literal["element", "head"] | None = None
    """The outputs of heads are multiplied with a gate for each element (Qwen3-Next) or each head
    (Step-3.5)."""
    compression: CompressionFields | None = None
    """Queries see pooled keys (DeepSeek-V4)."""
    indexer: IndexerFields | None = None
    """Queries see the keys, or pooled keys, that it chooses (DeepSeek-V3.2)."""

    def build(self, hidden_size: int) -> Attention:
        """Returns the attention of a layer of this width. Raises Invalid where fields contradict
        each other."""
        self._require_consistent()
        # All other fields have the same name and value in both classes.
        converted = {
            **self._heads(hidden_size),
            "attention_output_bias": self._output_bias,
            "compression": Compression(**dict(self.compression)) if self.compression else None,
            "indexer": Indexer(**dict(self.indexer)) if self.indexer else None,
        }
        return Attention(**common_fields(self, AttentionFields, Attention) | converted)

    @property
    def _output_bias(self) -> bool:
        """Returns whether the output projection has a bias. Unless it is given, it follows the
        other projections, except with `mla`."""
        if self.attention_output_bias is None:
            return self.attention_bias and self.mla is None
        return self.attention_output_bias

    def _require_consistent(self) -> None:
        """Raises Invalid where a field lacks the one that it needs, contradicts `mla`, or does not
        divide the heads."""
        for name, required in _ATTENTION_NEEDS.items():
            if getattr(self, name) and not getattr(self, required):
                rule = f"needs {required}: give it too, or leave {name} out"
                raise Invalid(name, getattr(self, name), rule)
        if self.mla:
            for name in _FIXED_BY_MLA:
                if getattr(self, name):
                    rule = "is said by mla: leave it out, or leave mla out"
                    raise Invalid(name, getattr(self, name), rule)
        if self.o_groups > 1 and self.o_lora_rank is None:
            raise Invalid("o_groups", self.o_groups, "needs o_lora_rank: give it too")
        for name in ("num_key_value_heads", "o_groups"):
            parts = getattr(self, name) or 1  # one that is not given divides the heads
            if self.num_attention_heads % parts:
                rule = f"must divide num_attention_heads = {self.num_attention_heads}"
                raise Invalid(name, parts, rule)

    def _heads(self, hidden_size: int) -> dict[str, Any]:
        """Returns the numbers of heads, their sizes and the ranks of their projections, by field of
        Attention. Raises Invalid where the size of a head cannot be derived."""
        heads = self.num_attention_heads
        if mla := self.mla:
            return {
                "num_attention_heads": heads,
                "num_key_value_heads": heads,  # each head expands its own from the latent
                "head_dim": mla.qk_nope_head_dim + mla.qk_rope_head_dim,
                "v_head_dim": mla.v_head_dim,
                "qk_rope_head_dim": mla.qk_rope_head_dim,
                "kv_lora_rank": mla.kv_lora_rank,
                "q_lora_rank": mla.q_lora_rank,
            }
        if self.head_dim is None and hidden_size % heads:
            quotient = f"{hidden_size}/{heads}"
            rule = f"must be given: hidden_size / num_attention_heads = {quotient} is not whole"
            raise Invalid("head_dim", None, rule)
        head_dim = hidden_size // heads if self.head_dim is None else self.head_dim
        return {
            "num_attention_heads": heads,
            "num_key_value_heads": self.num_key_value_heads or heads,
            "head_dim": head_dim,
            "v_head_dim": self.v_head_dim or head_dim,
            "q_lora_rank": self.q_lora_rank,
        }


_ATTENTION_NEEDS = {
    "chunked_attention": "sliding_window",
    "qk_norm_all_heads": "qk_norm",
    "kv_norm": "values_are_keys",
}
"""Fields that mean something only beside another."""
_FIXED_BY_MLA = ("num_key_value_heads", "head_dim", "v_head_dim", "q_lora_rank", "values_are_keys")


class Mamba2Fields(Wire):
    """Mamba-2, a state-space model."""

    kind: Literal["mamba2"]
    """`mamba2`."""
    num_heads: Heads
    head_dim: Size
    state_size: Size
    num_groups: Heads = 1
    """Groups of B and C, each for as many heads."""
    conv_kernel: ConvKernel = 4
    """Tokens that its convolution sees; 0 where there is none."""
    conv_bias: bool = True
    bias: bool = False
    """The projections have a bias."""
    norm: bool = True
    """Its output is normalised."""

    def build(self) -> Mamba2:
        """Returns the recurrence. Raises Invalid where the groups do not divide the heads."""
        _require_divisor("num_groups", self.num_groups, self.num_heads)
        return Mamba2(
            **common_fields(self, Mamba2Fields, Mamba2),
            num_key_heads=self.num_groups,
            key_head_dim=self.state_size,
            value_head_dim=self.head_dim,
        )


class LinearHeadFields(Wire):
    """The heads of linear attention."""

    num_heads: Heads
    """Heads of values."""
    num_key_heads: Heads | None = None
    """Heads of queries and keys, each for as many of values; as many unless given."""
    key_head_dim: Size
    value_head_dim: Size | None = None
    """`key_head_dim` unless given."""

    def heads(self) -> dict[str, int]:
        """Returns the numbers of heads and their sizes, by field of Recurrence. Raises Invalid
        where the key heads do not divide the heads."""
        key_heads = self.num_key_heads or self.num_heads
        _require_divisor("num_key_heads", key_heads, self.num_heads)
        return {
            "num_heads": self.num_heads,
            "num_key_heads": key_heads,
            "key_head_dim": self.key_head_dim,
            "value_head_dim": self.value_head_dim or self.key_head_dim,
        }


class DeltaNetFields(LinearHeadFields):
    """The gated delta rule."""

    kind: Literal["gated_delta_net", "kimi_delta_attention"]
    """`gated_delta_net` has a decay for each head (Qwen3-Next), `kimi_delta_attention` one for each
    element of a key (Kimi Linear)."""
    conv_kernel: ConvKernel = 4
    """Tokens that its convolution sees; 0 where there is none."""
    decay_rank: Size | None = None
    """Elements that decays are projected through; null: one matrix."""
    gate_rank: Size | None = None
    """Elements that the gate of the output is projected through; null: one matrix."""

    def build(self) -> DeltaNet:
        """Returns the recurrence. Kimi's variant has a decay for each element, the plain one for
        each head."""
        return DeltaNet(
            **self.heads(),
            conv_kernel=self.conv_kernel,
            decay_per_element=self.kind == "kimi_delta_attention",
            decay_rank=self.decay_rank,
            gate_rank=self.gate_rank,
        )


class LightningFields(LinearHeadFields):
    """Linear attention with a fixed decay for each head (MiniMax-01)."""

    kind: Literal["lightning_attention"]
    """`lightning_attention`."""
    conv_kernel: ConvKernel = 0
    """Tokens that its convolution sees; 0 where there is none."""

    def build(self) -> LightningAttention:
        return LightningAttention(**self.heads(), conv_kernel=self.conv_kernel)


class ShortConvolutionFields(Wire):
    """A convolution over the last few tokens between two gates (LFM2)."""

    kind: Literal["short_convolution"]
    """`short_convolution`."""
    num_channels: Size
    """Channels; as many as the hidden size in all published models."""
    conv_kernel: Annotated[int, Field(ge=1, le=1024)] = 3
    """Tokens that it sees."""
    bias: bool = False
    """The convolution and its projections have a bias."""

    def build(self) -> ShortConvolution:
        return ShortConvolution.of(self.num_channels, self.conv_kernel, bias=self.bias)


class _AnyRecurrence(BaseModel):
    """The member that tells the kinds apart, so that an unknown one is an error of this field
    alone."""

    kind: Literal[
        "mamba2",
        "gated_delta_net",
        "kimi_delta_attention",
        "lightning_attention",
        "short_convolution",
    ]


def _require_kind(value: object) -> object:
    """Returns the value unchanged. Raises ValidationError for a mapping of an unknown kind. Without
    this, it would be read as one of the kinds, whose fields it lacks."""
    if isinstance(value, Mapping):
        _AnyRecurrence.model_validate(value)
    return value


def _recurrence_tag(value: object) -> str:
    """Returns the tag of the schema that pydantic reads a recurrence with, by its `kind`."""
    kind = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)
    tags = {
        "mamba2": "mamba2",
        "lightning_attention": "lightning",
        "short_convolution": "convolution",
    }
    # Both other kinds are delta nets. Unknown ones are refused before (`_require_kind`).
    return f"{TAG_PREFIX}{tags.get(str(kind), 'delta')}"


RecurrenceForm = Annotated[
    Annotated[Mamba2Fields, Tag(f"{TAG_PREFIX}mamba2")]
    | Annotated[DeltaNetFields, Tag(f"{TAG_PREFIX}delta")]
    | Annotated[LightningFields, Tag(f"{TAG_PREFIX}lightning")]
    | Annotated[ShortConvolutionFields, Tag(f"{TAG_PREFIX}convolution")],
    Discriminator(_recurrence_tag),
    BeforeValidator(_require_kind),
]


def _require_divisor(field: str, parts: int, num_heads: int) -> None:
    if num_heads % parts:
        raise Invalid(field, parts, f"must divide num_heads = {num_heads}")
