"""The effect of a recompute policy on the pieces of a layer: seconds of work repeated, bytes
kept.

A *piece* is a share of a layer's forward that recompute may repeat by itself, such as its norms
(models.spec.recompute.PIECES). A policy has a bit for each piece that it repeats.
"""

from __future__ import annotations

from models.columns import Array
from models.compilation.compiled import compiled
from models.cost.facts import LAST_PRODUCT, PolicyFacts
from models.cost.memory import Activations


@compiled
def recompute_seconds(policy: PolicyFacts, forward: float, pieces: Array) -> float:
    """Return the seconds that a recompute policy adds to a layer's backward. `forward` is the
    layer's forward, and `pieces` the part of it that each piece takes, in seconds."""
    if policy.whole:
        # Backward does not need the result of the last product, and some stacks leave it out.
        return forward - pieces[LAST_PRODUCT] if policy.skips_last else forward
    # Every piece before LAST_PRODUCT, which no policy repeats by itself.
    seconds = 0.0
    for piece in range(LAST_PRODUCT):
        if policy.pieces >> piece & 1:
            seconds += pieces[piece]
    return seconds


@compiled
def kept_bytes(policy: PolicyFacts, stored: Activations, pieces: Array) -> float:
    """Return the bytes that a layer keeps from forward to backward under a recompute policy: its
    input, and what the policy does not recompute. `pieces` has the bytes of each piece, and
    `stored.others` are those that belong to no piece."""
    if policy.whole:
        return stored.input
    rest = 0.0
    # Every piece that a policy may repeat by itself: those before LAST_PRODUCT.
    for piece in range(LAST_PRODUCT):
        if not policy.pieces >> piece & 1:
            rest += pieces[piece]
    return stored.input + (stored.others + rest)
