"""A model as callers give it: the name of a catalogue entry, perhaps with an encoder of images, a
Hugging Face config.json, its shape, or its layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Self

from pydantic import Discriminator, Field, RootModel, Tag, model_validator

from models.errors import Invalid
from models.spec.architecture import Architecture, MlaShape, MoeShape
from service.formats import huggingface
from service.json_pointers import TAG_PREFIX, prefix_errors
from service.schemas.encoder import BesideConfig, EncoderFields, ImageFields
from service.schemas.layer import Layers
from service.schemas.layer_list import LayerListFields, is_layer_list
from service.schemas.mixers import Heads, MlaFields, Window
from service.schemas.networks import MoeFields
from service.schemas.wire import UNNAMED, Name, Size, Wire

_CONFIG_KEYS = {"model_type", "architectures", "text_config", "language_config", "llm_config"}


class ShapeFields(Wire):
    """A decoder-only transformer whose layers are alike, in the fields people write down."""

    name: Name = UNNAMED
    num_layers: Layers
    hidden_size: Size
    intermediate_size: Size
    num_attention_heads: Heads
    vocab_size: Size
    num_key_value_heads: Heads | None = None
    head_dim: Size | None = None
    gated_mlp: bool = True
    """SwiGLU and the like: three matrices, not two."""
    tie_word_embeddings: bool = False
    qk_norm: bool = False
    attention_bias: bool = False
    attention_output_bias: bool | None = None
    """Bias of the output projection, where it is not as queries, keys and values have it."""
    num_norms: Annotated[int, Field(ge=1, le=4)] = 2
    """Norms of a layer on the residual stream: 4 with norms after attention and MLP too, 1 where
    both run side by side."""
    parallel_blocks: bool | None = None
    """Attention and MLP run side by side. Unless said, they do where a layer has one norm."""
    sliding_window: Window | None = None
    """Keys a query of a local layer sees."""
    chunked_attention: bool = False
    full_attention_period: Layers | None = None
    """With `sliding_window`: every n-th layer sees the whole sequence."""
    mla: MlaFields | None = None
    moe: MoeFields | None = None
    mtp_layers: Annotated[int, Field(ge=0, le=16)] = 0
    """Multi-token-prediction modules."""
    encoder: EncoderFields | None = None
    """The encoder of images in a vision-language model."""

    @property
    def is_named(self) -> bool:
        return self.name != UNNAMED

    def build(self) -> Architecture:
        """Returns the architecture. Raises Invalid where fields contradict each other."""
        shape = dict(self)
        del shape["encoder"]  # a shape is that of the language model alone
        shape["mla"] = self.mla and MlaShape(**dict(self.mla))
        shape["moe"] = self.moe and MoeShape(**dict(self.moe))
        with prefix_errors("encoder"):
            encoder = self.encoder.build() if self.encoder else None
        if self.moe:
            with prefix_errors("moe"):
                self.moe.require_reach()
        built = replace(Architecture.from_shape(**shape), encoder=encoder)
        if self.moe and not built.is_moe:
            are_all_dense = self.moe.first_k_dense >= self.num_layers
            name = "first_k_dense" if are_all_dense else "moe_layer_freq"
            rule = f"leaves none of the {self.num_layers} layers sparse"
            raise Invalid(f"moe.{name}", getattr(self.moe, name), rule)
        return built


class HuggingFaceConfig(RootModel[dict[str, Any]]):
    """A Hugging Face `config.json` as it is; recognised by `model_type`. An `encoder` may be added
    to it, with what a workload has of images: without it only the language model counts."""

    @model_validator(mode="after")
    def _validate_encoder(self) -> Self:
        """Reads the encoder, so that its errors are found when the request is validated."""
        _ = self.encoder
        return self

    @property
    def encoder(self) -> ImageFields | None:
        """Returns the encoder of images that a request adds to the config; None where there is
        none, or where the member may be the config's own."""
        model_type = self.root.get("model_type")
        if isinstance(model_type, str) and model_type in huggingface.UNSUPPORTED:
            return None  # this model may have an encoder of its own
        return BesideConfig.model_validate({"encoder": self.root.get("encoder")}).encoder

    @property
    def is_named(self) -> bool:
        return bool(self.root.get("_name_or_path"))

    def build(self) -> Architecture:
        """Returns the architecture that the config describes, with an encoder of images if one is
        added. Raises Invalid where it cannot be read."""
        if isinstance(layers := self.root.get("layers"), list):
            rule = (
                "is not read beside model_type, whose config has its layers in its own words: leave"
                " model_type out and give explicit fields, or leave layers out"
            )
            raise Invalid("layers", layers, rule)
        config = {key: value for key, value in self.root.items() if key != "encoder"}
        built, images = huggingface.read(config), self.encoder
        # With 0 tokens of images the encoder has nothing to do, and is left out.
        if images is None or not images.tokens_per_sequence:
            return built
        tower = huggingface.read_tower(config, built)
        with prefix_errors("encoder"):
            encoder = tower.encoder(**dict(images))
        return replace(built, encoder=encoder)


class NamedModelFields(Wire):
    """A model of the catalogue, perhaps with an encoder of images beside it."""

    name: Name
    encoder: EncoderFields | None = None


def _is_named(value: object) -> bool:
    """Returns whether the value consists of the name of a model, and perhaps an encoder."""
    return isinstance(value, NamedModelFields) or (
        isinstance(value, Mapping)
        and "name" in value
        and value.keys() <= NamedModelFields.model_fields.keys()
    )


def is_config(value: object) -> bool:
    return isinstance(value, Mapping) and bool(_CONFIG_KEYS & value.keys())


def model_tag(value: object, other_object: str = "shape") -> str:
    """Returns the tag of the form in which a model is written. Pydantic then validates the model in
    that form alone, and reports no errors of the other forms. `other_object` is the form of an
    object that is in none of the other forms."""
    if isinstance(value, HuggingFaceConfig) or is_config(value):
        return f"{TAG_PREFIX}config"
    if isinstance(value, LayerListFields) or is_layer_list(value):
        return f"{TAG_PREFIX}layers"
    if _is_named(value):
        return f"{TAG_PREFIX}named"
    is_object = isinstance(value, (Mapping, ShapeFields))
    return f"{TAG_PREFIX}{other_object if is_object else 'name'}"


ModelName = Annotated[Name, Tag(f"{TAG_PREFIX}name")]
NamedModel = Annotated[NamedModelFields, Tag(f"{TAG_PREFIX}named")]
ModelConfig = Annotated[HuggingFaceConfig, Tag(f"{TAG_PREFIX}config")]
ModelLayers = Annotated[LayerListFields, Tag(f"{TAG_PREFIX}layers")]
_Shape = Annotated[ShapeFields, Tag(f"{TAG_PREFIX}shape")]

DescribedModel = Annotated[ModelLayers | _Shape, Discriminator(model_tag)]
"""A model in the words of this service alone."""
OwnModel = Annotated[ModelConfig | ModelLayers | _Shape, Discriminator(model_tag)]
"""A model that is described, and not named."""
Model = Annotated[
    ModelName | NamedModel | ModelConfig | ModelLayers | _Shape, Discriminator(model_tag)
]
