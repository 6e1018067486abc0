"""The test of one layout against memory, in compiled code, with the probability that is asked for
(models.cost.memory_uncertainty)."""

from __future__ import annotations

import math
from typing import NamedTuple

from models.columns import Array
from models.compilation.compiled import inlined
from models.cost.step import ACTIVATIONS, FRAGMENTATION, LOGITS, RUNTIME


class Margin(NamedTuple):
    """Holds what a device and its host have, and how far predictions of memory may be off."""

    capacity: float
    """The most bytes that a layout may be predicted to need on a device."""
    usable: float
    """Bytes that a device has."""
    host: float
    """Bytes of a device's share of host memory."""
    deviations: float
    """The standard deviations of the logarithm of memory that a layout must have left."""
    spread: float
    """The standard deviation of the logarithm of measured peaks around predictions."""
    unidentified: float
    """The part of `spread` that comes from coefficients that no run has informed."""
    activation_variance: float
    """The variance of the logarithm of the coefficient of activations, from terms that no run has
    informed."""
    logit_variance: float
    """The variance of the logarithm of the coefficient of logits, from terms that no run has
    informed."""
    fragmentation_variance: float
    """The variance of the logarithm of the coefficient of fragmentation, from terms that no run has
    informed."""


@inlined
def fits(margin: Margin, memory: Array, on_host: float) -> bool:
    """Say whether a device and its host have room for memory of these terms, and for so many bytes
    on the host."""
    reserved = memory.sum() - memory[RUNTIME]
    needed = reserved + memory[RUNTIME]
    if needed > margin.capacity:
        return False
    factor = safety_factor(margin, memory, reserved)
    return needed + (factor - 1) * reserved <= margin.usable and factor * on_host <= margin.host


@inlined
def safety_factor(margin: Margin, memory: Array, reserved: float) -> float:
    """Return how many times its predicted reserved memory a layout must have room for."""
    if margin.deviations == 0:
        return 1.0
    allocated = max(reserved - memory[FRAGMENTATION], 1.0)
    variance = margin.activation_variance * (memory[ACTIVATIONS] / allocated) ** 2
    variance += margin.logit_variance * (memory[LOGITS] / allocated) ** 2
    variance += margin.fragmentation_variance * (memory[FRAGMENTATION] / max(reserved, 1.0)) ** 2
    # The measured spread has some of this variance in it already.
    more = max(variance - margin.unidentified**2, 0.0)
    return math.exp(margin.deviations * math.sqrt(margin.spread**2 + more))
