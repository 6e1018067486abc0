"""What a recompute policy makes of the pieces of a layer: seconds of work again, bytes kept."""

from __future__ import annotations

from models.columns import Array
from models.compilation.compiled import compiled
from models.cost.facts import LAST_PRODUCT, PolicyFacts
from models.cost.memory import Activations


@compiled
def computed_again(policy: PolicyFacts, forward: float, pieces: Array) -> float:
    """Seconds that a policy adds to a layer's backward."""
    if policy.whole:
        return forward - pieces[LAST_PRODUCT] if policy.skips_last else forward
    seconds = 0.0
    for piece in range(LAST_PRODUCT):
        if policy.pieces >> piece & 1:
            seconds += pieces[piece]
    return seconds


@compiled
def kept_bytes(policy: PolicyFacts, stored: Activations, pieces: Array) -> float:
    """Bytes that a layer keeps from forward to backward: its input, and what a policy does not
    repeat."""
    if policy.whole:
        return stored.input
    rest = 0.0
    for piece in range(LAST_PRODUCT):
        if not policy.pieces >> piece & 1:
            rest += pieces[piece]
    return stored.input + (stored.others + rest)
