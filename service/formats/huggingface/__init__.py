"""Models and encoders of images that a Hugging Face `config.json` describes."""

from service.formats.huggingface.classes import text_towers
from service.formats.huggingface.details import details
from service.formats.huggingface.families import FAMILIES
from service.formats.huggingface.reading import (
    UNSUPPORTED,
    family,
    is_multimodal,
    is_quantized,
    read,
    read_tower,
    reads_tower,
)

__all__ = [
    "FAMILIES",
    "UNSUPPORTED",
    "details",
    "family",
    "is_multimodal",
    "is_quantized",
    "read",
    "read_tower",
    "reads_tower",
    "text_towers",
]
