"""The encoder of a vision-language model, which makes tokens for the language model from images.

It is a vision *tower* of layers, followed by a projector. A *patch* is a token of the tower.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from models.errors import Invalid
from models.spec.layer import Layer


@dataclass(frozen=True, slots=True, kw_only=True)
class Projector:
    """A projector turns the output of the encoder into tokens of the language model."""

    matrices: tuple[tuple[int, int], ...]
    """The matrices, as (elements in, elements out), that each token of an image is multiplied
    with."""
    vectors: int = 0
    """Parameters of biases and norms."""

    @property
    def parameters(self) -> int:
        return sum(n_in * n_out for n_in, n_out in self.matrices) + self.vectors


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """A vision transformer makes tokens from images, which stand among the tokens of the language
    model. Its attention is bidirectional, within an image. Raise Invalid where the encoder is
    trained through a frozen projector."""

    hidden_size: int
    layers: tuple[Layer, ...]
    tokens_per_sequence: int
    """Tokens of images in a sequence of the language model, on average."""
    tokens_per_image: int
    """Tokens of one image, or of one tile or frame where attention stays within those."""
    patches_per_token: int
    """Patches, the encoder's own tokens, that make one token of the language model."""
    patch_elements: int
    """Elements of a patch that its embedding reads."""
    other_parameters: int
    """Parameters of the tower beside its layers and the matrix of the patch embedding."""
    projector: Projector
    trained: bool = True
    projector_trained: bool = True

    def __post_init__(self) -> None:
        if self.trained and not self.projector_trained:
            rule = "must be true where the encoder is trained: gradients pass the projector"
            raise Invalid("projector_trained", False, rule)

    @property
    def patches_per_sequence(self) -> int:
        return self.tokens_per_sequence * self.patches_per_token

    @property
    def patches_per_image(self) -> int:
        return self.tokens_per_image * self.patches_per_token

    @cached_property
    def kinds(self) -> tuple[Layer, ...]:
        """The distinct layers, in order of first appearance."""
        return tuple(dict.fromkeys(self.layers))

    @property
    def num_attention_heads(self) -> int:
        """The number of heads, which is that of the first layer. Tensor parallelism cuts the
        encoder only where it divides this number, and so cuts none without attention."""
        attention = self.layers[0].attention
        return attention.num_attention_heads if attention else 1

    @property
    def parameters(self) -> int:
        """The parameters of the tower and of the projector."""
        layers = sum(layer.parameters(self.hidden_size) for layer in self.layers)
        embedding = self.patch_elements * self.hidden_size
        return layers + embedding + self.other_parameters + self.projector.parameters
