"""The test of layouts against memory. This one test serves predictions and the search, which runs
it for every layout whose memory it works out.

Where layouts must fit with a probability, the predicted memory times a safety factor has to fit
(models.cost.memory_uncertainty). Where the prediction itself has to fit, that factor is 1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from models.columns import Array
from models.compilation.compiled import compiled, inlined
from models.cost.memory_terms import ACTIVATIONS, FRAGMENTATION, LOGITS, MEMORY, RUNTIME

_LEAST_BYTES = 1.0
"""A divisor for shares of memory, so that a layout that reserves nothing has shares of zero."""


class MemorySpread(NamedTuple):
    """Holds how far measured memory may lie from its prediction, by what the memory consists of."""

    measured: float
    """The standard deviation of the logarithm of measured peaks around predictions."""
    unidentified: float
    """The part of `measured` that comes from coefficients that no run has informed."""
    activation_variance: float
    """The variance of the logarithm of the coefficient of activations, from terms that no run has
    informed."""
    logit_variance: float
    """The variance of the logarithm of the coefficient of logits, from terms that no run has
    informed."""
    fragmentation_variance: float
    """The variance of the logarithm of the coefficient of fragmentation, from terms that no run has
    informed."""


class Margin(NamedTuple):
    """Holds what a device and its host have, and how much of it a layout must leave."""

    capacity: float
    """The most bytes that a layout may be predicted to need on a device."""
    usable: float
    """Bytes that a device has."""
    host: float
    """Bytes of a device's share of host memory."""
    deviations: float
    """The standard deviations of the logarithm of memory that a layout must have left."""
    spread: MemorySpread


NO_SPREAD = MemorySpread(
    measured=0.0,
    unidentified=0.0,
    activation_variance=0.0,
    logit_variance=0.0,
    fragmentation_variance=0.0,
)
"""The spread where the prediction itself must fit, whatever its uncertainty."""


def fits(margin: Margin, memory: Array, on_host: Array) -> Array:
    """Return for each of n layouts whether it fits, (n,). `memory` has bytes by term (n, terms),
    and `on_host` bytes on the host (n,)."""
    are_fitting = np.empty(len(memory), dtype=bool)
    _fill_fits(margin, memory, on_host, are_fitting)
    return are_fitting


def memory_spreads(spread: MemorySpread, memory: Array) -> Array:
    """Return the standard deviation of the natural logarithm of what each of n layouts reserves,
    (n,). `memory` are bytes by term (n, terms)."""
    spreads = np.empty(len(memory))
    _fill_spreads(spread, memory, spreads)
    return spreads


@compiled
def _fill_fits(margin: Margin, memory: Array, on_host: Array, are_fitting: Array) -> None:
    for i in range(len(memory)):
        are_fitting[i] = fits_memory(margin, memory[i], on_host[i])


@compiled
def _fill_spreads(spread: MemorySpread, memory: Array, spreads: Array) -> None:
    for i in range(len(memory)):
        spreads[i] = memory_spread(spread, memory[i])


@inlined
def fits_memory(margin: Margin, memory: Array, on_host: float) -> bool:
    """Say whether a layout fits. `memory` has its bytes on the device by term, and `on_host` is its
    bytes on the host. The safety factor scales all of these but the runtime's. The capacity is a
    limit of the prediction itself."""
    reserved = allocated_bytes(memory) + memory[FRAGMENTATION]
    needed = reserved + memory[RUNTIME]
    if needed > margin.capacity:
        return False
    factor = safety_factor(margin, memory)
    # The left side is factor * reserved + runtime, and exactly `needed` where the factor is 1.
    return needed + (factor - 1) * reserved <= margin.usable and factor * on_host <= margin.host


@inlined
def allocated_bytes(memory: Array) -> float:
    """Return the bytes that the framework allocates for tensors: the sum of all terms of `memory`
    but those of the runtime and of fragmentation."""
    allocated = 0.0
    for term in range(len(MEMORY)):
        if term not in (RUNTIME, FRAGMENTATION):
            allocated += memory[term]
    return allocated


@inlined
def safety_factor(margin: Margin, memory: Array) -> float:
    """Return the factor that a layout's predicted memory is multiplied by before it is tested, so
    that it fits with the margin's probability; 1 where the prediction itself must fit."""
    if margin.deviations == 0:
        return 1.0
    return math.exp(margin.deviations * memory_spread(margin.spread, memory))


@inlined
def memory_spread(spread: MemorySpread, memory: Array) -> float:
    """Return the standard deviation of the natural logarithm of the bytes that a layout reserves.
    Uncertain coefficients add to the measured spread in proportion to what they scale: activations
    and logits a share of allocated memory, fragmentation a share of reserved memory."""
    allocated = allocated_bytes(memory)
    reserved = max(allocated + memory[FRAGMENTATION], _LEAST_BYTES)
    allocated = max(allocated, _LEAST_BYTES)
    variance = spread.activation_variance * (memory[ACTIVATIONS] / allocated) ** 2
    variance += spread.logit_variance * (memory[LOGITS] / allocated) ** 2
    variance += spread.fragmentation_variance * (memory[FRAGMENTATION] / reserved) ** 2
    # The measured spread has some of this variance in it already.
    more = max(variance - spread.unidentified**2, 0.0)
    return math.sqrt(spread.measured**2 + more)
