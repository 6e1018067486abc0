"""A model as callers give it: the name of a catalogue entry, a Hugging Face config.json, or its
shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Discriminator, Field, RootModel, Tag, model_validator

from models.errors import Invalid
from models.spec.architecture import MAX_LAYERS, Architecture, MlaShape, MoeShape
from service.formats import huggingface
from service.json_pointers import TAG_PREFIX
from service.schemas.wire import UNNAMED, Name, Size, Wire

_CONFIG_KEYS = {"model_type", "architectures", "text_config", "language_config", "llm_config"}

Layers = Annotated[int, Field(ge=1, le=MAX_LAYERS)]


class MlaFields(Wire):
    """Multi-head latent attention."""

    kv_lora_rank: Size
    qk_nope_head_dim: Size
    qk_rope_head_dim: Size
    v_head_dim: Size
    q_lora_rank: Size | None = None


class MoeFields(Wire):
    """Experts. The first `first_k_dense` layers are dense; from there every `moe_layer_freq`-th
    layer is sparse."""

    num_experts: Annotated[int, Field(ge=2, le=65536)]
    experts_per_token: Annotated[int, Field(ge=1, le=65536)]
    moe_intermediate_size: Size
    num_shared_experts: Annotated[int, Field(ge=0, le=1024)] = 0
    shared_expert_intermediate_size: Size | None = None
    """Width of the shared expert where it is not `num_shared_experts` times that of a routed
    one."""
    first_k_dense: Annotated[int, Field(ge=0, le=1024)] = 0
    moe_layer_freq: Layers = 1
    bias: bool = False
    """Of the router and of every expert, as gpt-oss has."""
    num_groups: Annotated[int, Field(ge=1, le=1024)] = 1
    """Of experts; a token's are of `groups_per_token` of them, as DeepSeek-V3's are of 4 of 8."""
    groups_per_token: Annotated[int, Field(ge=1, le=1024)] | None = None
    """All of them unless given."""

    @model_validator(mode="after")
    def _enough_experts(self) -> Self:
        if self.experts_per_token > self.num_experts:
            raise ValueError(f"experts_per_token must be at most num_experts = {self.num_experts}")
        if self.num_experts % self.num_groups:
            raise ValueError(f"num_groups must divide num_experts = {self.num_experts}")
        chosen = self.num_groups if self.groups_per_token is None else self.groups_per_token
        if chosen > self.num_groups:
            raise ValueError(f"groups_per_token must be at most num_groups = {self.num_groups}")
        reach = chosen * (self.num_experts // self.num_groups)
        if self.experts_per_token > reach:
            raise ValueError(
                f"experts_per_token must be at most the {reach} experts of groups_per_token groups"
            )
        return self


class ShapeFields(Wire):
    """A decoder-only transformer in the fields people write down."""

    name: Name = UNNAMED
    num_layers: Layers
    hidden_size: Size
    intermediate_size: Size
    num_attention_heads: Annotated[int, Field(ge=1, le=65536)]
    vocab_size: Size
    num_key_value_heads: Annotated[int, Field(ge=1, le=65536)] | None = None
    head_dim: Size | None = None
    gated_mlp: bool = True
    """SwiGLU and the like: three matrices, not two."""
    tie_word_embeddings: bool = False
    qk_norm: bool = False
    attention_bias: bool = False
    attention_output_bias: bool | None = None
    """Of the output projection, where it is not as queries, keys and values have it."""
    num_norms: Annotated[int, Field(ge=1, le=4)] = 2
    """Of a layer, on the residual stream: 4 with norms after attention and MLP too, 1 where both
    run side by side."""
    parallel_blocks: bool | None = None
    """Whether attention and MLP run side by side; unless said, where a layer has one norm."""
    sliding_window: Annotated[int, Field(ge=1, le=10**8)] | None = None
    """Keys a query of a local layer sees."""
    chunked_attention: bool = False
    full_attention_period: Layers | None = None
    """With `sliding_window`: every n-th layer sees the whole sequence."""
    mla: MlaFields | None = None
    moe: MoeFields | None = None
    mtp_layers: Annotated[int, Field(ge=0, le=16)] = 0
    """Multi-token-prediction modules."""

    @property
    def is_named(self) -> bool:
        return self.name != UNNAMED

    def build(self) -> Architecture:
        fields = {name: getattr(self, name) for name in ShapeFields.model_fields}
        mla = MlaShape(**self.mla.model_dump()) if self.mla else None
        moe = MoeShape(**self.moe.model_dump()) if self.moe else None
        built = Architecture.from_shape(**{**fields, "mla": mla, "moe": moe})
        if moe and not built.is_moe:
            name = "first_k_dense" if moe.first_k_dense >= self.num_layers else "moe_layer_freq"
            raise Invalid(
                f"moe.{name}",
                getattr(moe, name),
                f"leaves none of the {self.num_layers} layers sparse",
            )
        return built


class HuggingFaceConfig(RootModel[dict[str, Any]]):
    """A Hugging Face `config.json` as it is; recognised by `model_type`."""

    @property
    def is_named(self) -> bool:
        return bool(self.root.get("_name_or_path"))

    def build(self) -> Architecture:
        return huggingface.read(self.root)


def is_config(value: object) -> bool:
    return isinstance(value, Mapping) and bool(_CONFIG_KEYS & value.keys())


def _union_tag(value: object) -> str:
    if isinstance(value, (str, RootModel)):
        return f"{TAG_PREFIX}name" if isinstance(value, str) else f"{TAG_PREFIX}config"
    if not isinstance(value, (Mapping, ShapeFields)):
        return f"{TAG_PREFIX}name"
    return f"{TAG_PREFIX}config" if is_config(value) else f"{TAG_PREFIX}shape"


Model = Annotated[
    Annotated[Name, Tag(f"{TAG_PREFIX}name")]
    | Annotated[HuggingFaceConfig, Tag(f"{TAG_PREFIX}config")]
    | Annotated[ShapeFields, Tag(f"{TAG_PREFIX}shape")],
    Discriminator(_union_tag),
]

OwnModel = Annotated[
    Annotated[HuggingFaceConfig, Tag(f"{TAG_PREFIX}config")]
    | Annotated[ShapeFields, Tag(f"{TAG_PREFIX}shape")],
    Discriminator(_union_tag),
]
"""A model that is described, and not named."""
