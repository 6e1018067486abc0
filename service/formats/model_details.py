"""Details of a model that change neither time nor memory."""

from __future__ import annotations

from dataclasses import dataclass

from service.formats.rope_scaling import RopeScaling


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDetails:
    """The facts in the config of a model that change neither time nor memory, and that a framework
    must know all the same; None where they are not known."""

    rope_theta: float | None = None
    """The base of rotary positions."""
    rotary_share: float | None = None
    """The share of a head that has them."""
    has_positions: bool = True
    """True where attention has positions. They are rotary unless they are learned."""
    rope_scaling: RopeScaling | None = None
    """The stretching of rotary positions beyond the length that the model was first trained at."""
    norm_epsilon: float | None = None
    """The number that norms add to the variance."""
    context_length: int | None = None
    """The longest sequence that the model is made for."""
    activation: str | None = None
    """The activation of networks, by the name that transformers has for it."""


NO_DETAILS = ModelDetails()
