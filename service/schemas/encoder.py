"""The encoder of images of a vision-language model, as callers give it."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import BaseModel, Field

from models.errors import Invalid
from models.spec.architecture import MAX_LAYERS
from models.spec.encoder import Encoder, Projector
from models.spec.layer import Layer
from service.json_pointers import prefix_errors
from service.schemas.common_fields import common_fields
from service.schemas.layer import LayerGroup
from service.schemas.wire import Size, Wire

Product = Annotated[list[Size], Field(min_length=2, max_length=2)]
Parameters = Annotated[int, Field(ge=0, le=10**11)]


class ImageFields(Wire):
    """The images of a workload, and the parts of their encoder that are trained."""

    tokens_per_sequence: Annotated[int, Field(ge=0, le=10**8)]
    """Tokens of images in a sequence, as the language model reads them, on average. With 0 the
    encoder is left out."""
    tokens_per_image: Size | None = None
    """Tokens of one image, tile or frame, which attention of the encoder does not leave. Unless
    given, as the model's images always are, or all tokens of a sequence are one image."""
    trained: bool = True
    projector_trained: bool = True
    """The projector is trained, as it always is where `trained` is true."""


class EncoderFields(ImageFields):
    """A vision transformer. Its attention is bidirectional."""

    hidden_size: Size
    layers: Annotated[list[LayerGroup], Field(min_length=1, max_length=MAX_LAYERS)]
    """From the first to the last, each with a `count`: attention and an `mlp`."""
    patches_per_token: Annotated[int, Field(ge=1, le=65536)] = 1
    """Patches that make one token of the language model: 4 where 2 x 2 are merged."""
    patch_elements: Size
    """Numbers that the embedding of a patch reads: channels x height x width x frames."""
    projector: Annotated[list[Product], Field(min_length=1, max_length=64)]
    """Elements in and out of each product that a token of an image has on its way to the language
    model."""
    projector_vectors: Parameters = 0
    """Parameters of the projector's biases and norms."""
    other_parameters: Parameters = 0
    """Parameters of the encoder beside layers and patch embedding: positions, biases, norms."""

    def build(self) -> Encoder | None:
        """Returns the encoder; None where a sequence has no image tokens. Raises Invalid where
        fields contradict each other."""
        if not self.tokens_per_sequence:
            return None
        layers = list[Layer]()
        for index, group in enumerate(self.layers):
            with prefix_errors(f"layers[{index}]"):
                layers += [self._layer(group)] * group.count
        if len(layers) > MAX_LAYERS:
            rule = f"makes {len(layers)} layers; an encoder has at most {MAX_LAYERS}"
            raise Invalid("layers", None, rule)
        converted = {
            "layers": tuple(layers),
            # Unless given, all tokens of a sequence are one image.
            "tokens_per_image": self.tokens_per_image or self.tokens_per_sequence,
            "projector": Projector(
                matrices=tuple((n_in, n_out) for n_in, n_out in self.projector),
                vectors=self.projector_vectors,
            ),
        }
        # All other fields have the same name and value in both classes.
        return Encoder(**common_fields(self, EncoderFields, Encoder) | converted)

    def _layer(self, group: LayerGroup) -> Layer:
        """Returns a layer of the encoder with bidirectional attention. Raises Invalid unless it has
        attention and an MLP, and nothing else."""
        # An encoder has a single residual stream.
        layer = group.build(self.hidden_size, 1)
        if layer.attention is None or layer.dense is None or layer.recurrence or layer.moe:
            # "" is the layer itself: the caller puts its place in front.
            raise Invalid("", None, "must have attention and an mlp, and nothing else")
        return replace(layer, attention=replace(layer.attention, causal=False))


class BesideConfig(BaseModel):
    """The members that a request may add to a config.json."""

    encoder: ImageFields | None = None
