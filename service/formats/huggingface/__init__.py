"""Models and encoders of images that a Hugging Face `config.json` describes."""

from service.formats.huggingface.classes import text_towers
from service.formats.huggingface.details import (
    activation,
    context_length,
    norm_epsilon,
    rope_scaling,
    rope_theta,
    rotary_share,
)
from service.formats.huggingface.families import FAMILIES
from service.formats.huggingface.reading import (
    UNSUPPORTED,
    family,
    has_positions,
    is_multimodal,
    is_quantized,
    read,
    read_tower,
    reads_tower,
)

__all__ = [
    "FAMILIES",
    "UNSUPPORTED",
    "activation",
    "context_length",
    "family",
    "has_positions",
    "is_multimodal",
    "is_quantized",
    "norm_epsilon",
    "read",
    "read_tower",
    "reads_tower",
    "rope_scaling",
    "rope_theta",
    "rotary_share",
    "text_towers",
]
