"""Whether a layout fits into memory, as surely as is asked (models.cost.memory_uncertainty)."""

from __future__ import annotations

import math
from typing import NamedTuple

from models.columns import Array
from models.compilation.compiled import inlined
from models.cost.step import ACTIVATIONS, FRAGMENTATION, LOGITS, RUNTIME


class Margin(NamedTuple):
    """What a device and its host have, and how far predictions of memory may be off."""

    capacity: float
    """Bytes that a layout may be predicted to need on a device."""
    usable: float
    """Bytes that a device has,"""
    host: float
    """and its share of a host."""
    deviations: float
    """How many standard deviations of the logarithm of memory must be left."""
    spread: float
    """That of measured peaks around predictions,"""
    unidentified: float
    """and the part of it that comes from coefficients that no run has informed."""
    activation_variance: float
    """Variance of the logarithm of each coefficient, from what no run has informed."""
    logit_variance: float
    fragmentation_variance: float


@inlined
def fits(margin: Margin, memory: Array, on_host: float) -> bool:
    """Whether memory of these terms, and so many bytes on the host, are there."""
    reserved = memory.sum() - memory[RUNTIME]
    needed = reserved + memory[RUNTIME]
    if needed > margin.capacity:
        return False
    factor = safety_factor(margin, memory, reserved)
    return needed + (factor - 1) * reserved <= margin.usable and factor * on_host <= margin.host


@inlined
def safety_factor(margin: Margin, memory: Array, reserved: float) -> float:
    """How many times its predicted reserved memory a layout must have room for."""
    if margin.deviations == 0:
        return 1.0
    allocated = max(reserved - memory[FRAGMENTATION], 1.0)
    variance = margin.activation_variance * (memory[ACTIVATIONS] / allocated) ** 2
    variance += margin.logit_variance * (memory[LOGITS] / allocated) ** 2
    variance += margin.fragmentation_variance * (memory[FRAGMENTATION] / max(reserved, 1.0)) ** 2
    more = max(variance - margin.unidentified**2, 0.0)
    return math.exp(margin.deviations * math.sqrt(margin.spread**2 + more))
