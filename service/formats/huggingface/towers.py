"""An encoder of images with its projector, and the parts that encoders are made of. A *patch* is a
square of an image, the encoder's own token; some patches make one token of the language model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from models.spec.attention import Attention
from models.spec.encoder import Encoder, Projector
from models.spec.feed_forward import Mlp
from models.spec.layer import Layer
from service.formats.huggingface.config import MAX_LAYERS, Config


@dataclass(frozen=True, kw_only=True)
class Tower:
    """An encoder and its projector, without what a workload decides. Fields are as in Encoder."""

    hidden_size: int
    layers: tuple[Layer, ...]
    patches_per_token: int
    patch_elements: int
    other_parameters: int
    projector: Projector
    tokens_per_image: int | None = None
    """None where images may have any size."""

    def encoder(
        self, tokens_per_sequence: int, tokens_per_image: int | None, **trained: bool
    ) -> Encoder:
        """Returns the encoder for a workload. An image has `tokens_per_image` tokens, or else the
        number that the model fixes for every image, or else all image tokens of a sequence.
        `trained` has the fields of Encoder that say which of its parts are trained."""
        return Encoder(
            hidden_size=self.hidden_size,
            layers=self.layers,
            tokens_per_sequence=tokens_per_sequence,
            tokens_per_image=tokens_per_image or self.tokens_per_image or tokens_per_sequence,
            patches_per_token=self.patches_per_token,
            patch_elements=self.patch_elements,
            other_parameters=self.other_parameters,
            projector=self.projector,
            **trained,
        )


def side_of(cfg: Config, key: str) -> int:
    """Returns a length that the config has as one number, or as equal height and width. Raises
    Invalid where these differ."""
    value = cfg.get(key)
    if isinstance(value, (list, tuple)) and len(value) == 2 and value[0] == value[1]:
        return cfg.with_value(key, value[0]).size(key)
    return cfg.size(key)


def patches_of(vision: Config) -> int:
    """Returns the number of patches in an image of the size for which the positions are made."""
    num_patches = (side_of(vision, "image_size") // side_of(vision, "patch_size")) ** 2
    if not num_patches:
        raise vision.invalid("image_size", "must be at least patch_size")
    return num_patches


def merged_patches(vision: Config, tokens: int) -> int:
    """Returns the number of patches that make a token where an image has `tokens` of them. Raises
    Invalid where an image has fewer patches."""
    num_patches = patches_of(vision)
    if num_patches < tokens:
        rule = f"makes {num_patches} patches of an image, fewer than its {tokens} tokens"
        raise vision.invalid("patch_size", rule)
    return num_patches // tokens


def shuffled_patches(vision: Config, ratio: float) -> int:
    """Returns the number of patches that make a token where sampling down by a ratio r makes one
    token of 1/r x 1/r patches. Raises Invalid where an image has fewer patches."""
    merged = round(ratio**-2)
    if patches_of(vision) < merged:
        raise vision.invalid("image_size", f"has fewer than the {merged} patches of a token")
    return merged


def equal_layers(
    vision: Config,
    *,
    hidden: int | None = None,
    width: int | None = None,
    heads: str = "num_attention_heads",
    depth: str = "num_hidden_layers",
    bias: bool = True,
    attention_bias: bool | None = None,
    gated: bool = False,
    rms: bool = False,
    num_norms: int = 2,
    **attention: Any,
) -> tuple[Layer, ...]:
    """Returns the layers of an encoder, all equal. `heads` and `depth` are the keys of the numbers
    of heads and layers. With `bias` every matrix has a bias; `attention_bias` overrides that for
    queries, keys and values. RMS norms (`rms`) have no bias. `attention` has other fields of
    Attention."""
    hidden = hidden or vision.size("hidden_size")
    num_heads = vision.size(heads)
    if num_heads > hidden:
        raise vision.invalid(heads, f"must be at most the hidden size, {hidden}")
    shape = {
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_heads,
        "head_dim": hidden // num_heads,
        "v_head_dim": hidden // num_heads,
        **attention,
    }
    layer = Layer(
        attention=Attention(
            causal=False,
            attention_bias=bias if attention_bias is None else attention_bias,
            attention_output_bias=bias,
            **shape,
        ),
        feed_forward=Mlp(
            intermediate_size=width or vision.size("intermediate_size"), gated=gated, bias=bias
        ),
        num_norms=num_norms,
        norm_bias=not rms,
    )
    return (layer,) * vision.size(depth, most=MAX_LAYERS)


def projector_of(*sizes: int, bias: bool = True, norm: int = 0) -> Projector:
    """Returns a projector of matrices in sequence and a norm. `sizes` are the widths before,
    between and behind the matrices, and `norm` is the number of the norm's parameters."""
    matrices = tuple(zip(sizes, sizes[1:], strict=False))
    # The bias of a matrix is as wide as its output.
    return Projector(matrices=matrices, vectors=norm + (sum(sizes[1:]) if bias else 0))
