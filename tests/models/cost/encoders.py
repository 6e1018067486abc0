"""An encoder of images that the tests of costs have in common."""

from __future__ import annotations

from dataclasses import replace

from models.spec.architecture import Architecture
from models.spec.attention import Attention
from models.spec.encoder import Encoder, Projector
from models.spec.feed_forward import Mlp
from models.spec.layer import Layer

LAYER = Layer(
    attention=Attention(
        num_attention_heads=8, num_key_value_heads=8, head_dim=128, v_head_dim=128, causal=False
    ),
    feed_forward=Mlp(intermediate_size=4096, gated=False),
)
ENCODER = Encoder(
    hidden_size=1024,
    layers=(LAYER,) * 8,
    tokens_per_sequence=1024,
    tokens_per_image=512,
    patches_per_token=4,
    patch_elements=768,
    other_parameters=500_000,
    projector=Projector(matrices=((4096, 4096), (4096, 4096)), vectors=10_000),
)
"""Of sizes that fill whole tiles."""
PROJECTOR_ALONE = replace(ENCODER, trained=False)
FROZEN = replace(ENCODER, trained=False, projector_trained=False)


def with_encoder(model: Architecture, encoder: Encoder = ENCODER) -> Architecture:
    return replace(model, encoder=encoder)
