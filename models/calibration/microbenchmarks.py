"""Micro-benchmarks of collectives and of matrix products (GEMMs), and the coefficients that they
tell.

A coefficient stands for what training achieves, which is less than a benchmark does. So a benchmark
is compared with published results of the same benchmark, on which the priors rest. The distance of
this machine from the published ones, on the coefficient's unbounded scale, is the offset that the
fleet's own coefficient is expected to have. The scale is the log of a time, or the log-odds of a
rate that is a fraction of its peak. A *fleet* is the machines of one deployment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from models.calibration.fleet_effects import published_benchmarks
from models.columns import Array
from models.cost import single_operations
from models.spec.problem import Problem
from models.spec.profile import Coefficients, to_natural, to_unbounded

Operation = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
Size = Literal["small", "large"]

# A collective's time is bandwidth from the first size on, and latency up to the second.
LARGE_BYTES = 2**26
SMALL_BYTES = 2**16
# A product so large that its tail and its launch count for little.
LARGE_FLOPS = 1e12
_GEMM_COEFFICIENTS = {"fp8": "gemm_8", "int8": "gemm_8", "fp4": "gemm_4"}
# Offsets are searched for within this distance, on the unbounded scale.
_SEARCH_RANGE = 6.0
# No machine is so far from another: an offset beyond it is the end of the search range.
MAX_OFFSET = 5.9
# The best rate, as a fraction, that an offset may explain. A faster measurement went another way,
# such as a reduction within the switches.
_BEST_RATE = 0.99
# Within this ratio a measurement is no faster than the best rate.
_AS_FAST = 1.01
# Bisections of the search range, which is then as narrow as a float allows.
_BISECTIONS = 50


@dataclass(frozen=True, slots=True)
class CollectiveTimings:
    """Measured seconds of one collective at several sizes, over all devices of the problem's
    cluster.

    Sizes are in bytes, as nccl-tests prints them. A size is that of the whole vector, of which each
    rank holds a part before a gather or after a scatter. For send_recv it is that of the message
    from each rank to the next.
    """

    problem: Problem
    operation: Operation
    sizes: Array
    seconds: Array


@dataclass(frozen=True, slots=True)
class GemmTimings:
    """Measured seconds of matrix products m x k by k x n of one number format, on one device of the
    problem's cluster."""

    problem: Problem
    m: Array
    n: Array
    k: Array
    seconds: Array

    @property
    def flops(self) -> Array:
        return 2.0 * self.m * self.n * self.k

    def where(self, selected: Array) -> GemmTimings:
        """Return the timings of the products that a mask selects."""
        m, n, k = self.m[selected], self.n[selected], self.k[selected]
        return GemmTimings(self.problem, m, n, k, self.seconds[selected])


def collective_seconds(timings: CollectiveTimings, coefficients: Coefficients) -> Array:
    """Return predicted seconds for each size."""
    cost = single_operations.collective_cost(timings.problem, timings.operation, coefficients)
    handshake = coefficients.send_s if timings.operation == "send_recv" else 0.0
    return np.asarray(cost.byte_s * timings.sizes + cost.latency_s + handshake)


def gemm_seconds(timings: GemmTimings, coefficients: Coefficients) -> Array:
    """Return predicted seconds for each product."""
    m, k, n = timings.m, timings.k, timings.n
    return single_operations.gemm_seconds(timings.problem, m, k, n, coefficients)


def published_collective_seconds(timings: CollectiveTimings, published: Coefficients) -> Array:
    """Return the seconds that published machines take for each size, to show beside measured ones.
    They are NaN where no benchmark was published, and for sizes between small and large, which
    tell neither latency nor bandwidth alone."""
    ratio = np.full(len(timings.sizes), np.nan)
    ratio[timings.sizes <= SMALL_BYTES] = _published_ratio(timings, "small", otherwise=np.nan)
    ratio[timings.sizes >= LARGE_BYTES] = _published_ratio(timings, "large", otherwise=np.nan)
    return np.asarray(collective_seconds(timings, published) * ratio)


def collective_offsets(timings: CollectiveTimings, published: Coefficients) -> dict[str, float]:
    """Return, by coefficient, how far this machine lies from published ones, on the unbounded
    scale. Large messages tell the bandwidth, and small ones the latency of a collective call, which
    sends do not have."""
    offsets: dict[str, float] = {}
    is_large = timings.sizes >= LARGE_BYTES
    if is_large.any():
        name = _bandwidth_coefficient(timings)
        offsets[name] = _collective_offset(timings, "large", is_large, name, published)
    is_small = timings.sizes <= SMALL_BYTES
    if is_small.any() and timings.operation != "send_recv":
        offset = _collective_offset(timings, "small", is_small, "collective_s", published)
        if abs(offset) < MAX_OFFSET:  # beyond it, something else than the call takes the time
            offsets["collective_s"] = offset
    return offsets


def _collective_offset(
    timings: CollectiveTimings, size: Size, selected: Array, name: str, published: Coefficients
) -> float:
    """Return the offset of the coefficient `name` that explains the messages of one size, which the
    mask `selected` has."""
    # Where a benchmark of this operation was published, its times stand for those of the model.
    measured = timings.seconds[selected] / _published_ratio(timings, size)
    part = replace(timings, sizes=timings.sizes[selected], seconds=measured)
    return _solve_offset(name, published, partial(collective_seconds, part), measured)


def _bandwidth_coefficient(timings: CollectiveTimings) -> str:
    """Return the name of the coefficient that the bandwidth of this collective depends on."""
    if timings.operation == "all_to_all":
        return "alltoall"
    return "scaleout" if _spans_domains(timings) else "scaleup"


def _spans_domains(timings: CollectiveTimings) -> bool:
    return any(dim.scale == "out" for dim in timings.problem.cluster.dims)


def _published_ratio(timings: CollectiveTimings, size: Size, otherwise: float = 1.0) -> float:
    """Return the ratio of published seconds of the operation to the model's, for this generation,
    extent and size; `otherwise` where none was published. By default that is 1, which compares with
    the model itself."""
    extent = "several domains" if _spans_domains(timings) else "one domain"
    by_generation = published_benchmarks().get(timings.operation, {})
    by_extent = by_generation.get(timings.problem.cluster.chip.generation, {})
    return float(by_extent.get(extent, {}).get(size, otherwise))


def gemm_offsets(timings: Sequence[GemmTimings], published: Coefficients) -> dict[str, float]:
    """Return, by coefficient, how far this chip's rates lie from published ones, on the unbounded
    scale. Number formats that share a coefficient are taken together; all of 16 bits and more have
    gemm_16. Small products are left out, because launches and tails dominate them."""
    by_coefficient = defaultdict[str, list[GemmTimings]](list)
    for products in timings:
        is_large = products.flops >= LARGE_FLOPS
        if is_large.any():
            number_format = products.problem.workload.number_format.gemm
            name = _GEMM_COEFFICIENTS.get(number_format, "gemm_16")
            by_coefficient[name].append(products.where(is_large))
    return {name: _gemm_offset(name, large, published) for name, large in by_coefficient.items()}


def _gemm_offset(name: str, timings: Sequence[GemmTimings], published: Coefficients) -> float:
    """Return the offset of the coefficient `name` that explains these products best."""

    def seconds(coefficients: Coefficients) -> Array:
        """Return the model's seconds for all products, of whatever number format."""
        return np.concatenate([gemm_seconds(products, coefficients) for products in timings])

    measured = np.concatenate([products.seconds for products in timings])
    return _solve_offset(name, published, seconds, measured)


def _solve_offset(
    name: str, published: Coefficients, seconds: Callable[[Coefficients], Array], measured: Array
) -> float:
    """Return the offset of a coefficient at which the model's seconds equal the measured ones, in
    the median. `seconds` returns the model's for given coefficients. The offset is found by
    bisection within _SEARCH_RANGE.

    A measurement may be faster than the best rate allows, because something else decides there.
    Many offsets are then as good as that rate, and the one nearest to zero is taken.
    """
    is_time = name.endswith("_s")  # a larger time is slower, and a larger rate is faster
    centre = to_unbounded(name, float(getattr(published, name)))
    low = -_SEARCH_RANGE
    # No rate is raised above the best one.
    high = _SEARCH_RANGE if is_time else max(to_unbounded(name, _BEST_RATE) - centre, 0.0)

    def seconds_at(offset: float) -> Array:
        """Return the model's seconds with this offset, added on the unbounded scale."""
        return seconds(replace(published, **{name: to_natural(name, centre + offset)}))

    def is_slower(offset: float, limit: Array) -> bool:
        """Return whether the model with this offset takes longer than `limit`, in the median."""
        return float(np.median(np.log(seconds_at(offset) / limit))) > 0

    # Even the best rate takes longer than measured: solve for the time at that rate instead, but
    # 1% longer (_AS_FAST), so that of the offsets which all give it the nearest to zero is found.
    if not is_time and is_slower(high, measured / _AS_FAST):
        measured = seconds_at(high) * _AS_FAST
        low = 0.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        # Too slow means a time that is too large, or a rate that is too small.
        if is_slower(middle, measured) == is_time:
            high = middle
        else:
            low = middle
    return (low + high) / 2


def remaining_slowdown(
    timings: CollectiveTimings | GemmTimings, offsets: Mapping[str, float], published: Coefficients
) -> float:
    """Return the model's seconds with these offsets over the measured ones: the median over large
    messages or products; 1 where there are none. It is near 1 where the offsets explain the
    measured times, and far above 1 where those are faster than any machine is."""
    # With the offsets, coefficients are those of this machine and not of published ones.
    coefficients = replace(published, **coefficients_with_offsets(published, offsets))
    if isinstance(timings, CollectiveTimings):
        # As for the offsets, published seconds, where there are some, stand for the model's.
        is_large = timings.sizes >= LARGE_BYTES
        seconds = collective_seconds(timings, coefficients) * _published_ratio(timings, "large")
    else:
        is_large = timings.flops >= LARGE_FLOPS
        seconds = gemm_seconds(timings, coefficients)
    if not is_large.any():
        return 1.0
    return float(np.median((seconds / timings.seconds)[is_large]))


def coefficients_with_offsets(base: Coefficients, offsets: Mapping[str, float]) -> dict[str, float]:
    """Return the values of those coefficients of `base` that have an offset, with the offset added
    on the unbounded scale. They are what training should achieve on this machine."""
    return {
        name: float(to_natural(name, to_unbounded(name, float(getattr(base, name))) + offset))
        for name, offset in offsets.items()
    }
