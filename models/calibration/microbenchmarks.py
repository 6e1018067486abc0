"""Parts of a step on their own, as micro-benchmarks measure them, and what a measurement says of a
coefficient.

A coefficient stands for what training achieves, not for what a benchmark does. So a benchmark is
held against what was published of the same benchmark (the priors rest on that): by how much this
machine's figure differs, on the coefficient's unbounded scale, is what the fleet's offset is told.
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
from models.cost.collectives import Cost, Network
from models.cost.kernels import Kernels
from models.layouts.placement import groups
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import Coefficients, to_natural, to_unbounded

Operation = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
LARGE_BYTES = 2**26  # from here on bandwidth decides
SMALL_BYTES = 2**16  # up to here latency does
LARGE_FLOPS = 1e12  # a product whose tail and launch count for little
_RATES = {"fp8": "gemm_8", "int8": "gemm_8", "fp4": "gemm_4"}
_WIDEST = 6.0  # on the unbounded scale
FARTHEST = 5.9  # beyond it no machine is from another: the search ran against its end
_MOST = 0.99  # of a rate: what is faster goes other ways, as reductions within switches do
_AS_FAST = 1.01
_HALVINGS = 50


@dataclass(frozen=True, slots=True)
class Sweep:
    """A collective of several sizes over all devices of the problem's cluster.

    Sizes count as nccl-tests prints them: the bytes of the whole vector, which each rank holds a
    part of where it is gathered or scattered; what each rank sends to the next one.
    """

    problem: Problem
    operation: Operation
    sizes: Array
    seconds: Array


@dataclass(frozen=True, slots=True)
class Products:
    """Matrix products m x k by k x n of one format on one device of the problem's cluster."""

    problem: Problem
    m: Array
    n: Array
    k: Array
    seconds: Array

    @property
    def flops(self) -> Array:
        return 2.0 * self.m * self.n * self.k


def sweep_seconds(sweep: Sweep, c: Coefficients) -> Array:
    cluster = sweep.problem.cluster
    group = groups(cluster, Layouts.of([Layout(dp_shard=cluster.num_devices)])).dp_shard.table
    network = Network(cluster.dims, c)
    cost: dict[Operation, Callable[[], Cost]] = {
        "all_reduce": lambda: network.reduce(group),
        "all_gather": lambda: network.gather(group),
        "reduce_scatter": lambda: network.gather(group),
        "all_to_all": lambda: network.all_to_all(group),
        "send_recv": lambda: network.send(group),
    }
    found = cost[sweep.operation]()
    handshake = c.send_s if sweep.operation == "send_recv" else 0.0
    return np.asarray(found.byte_s * sweep.sizes + found.latency_s + handshake)


def product_seconds(products: Products, c: Coefficients) -> Array:
    return np.asarray(
        Kernels(products.problem, c).linear(products.m, products.k, products.n).forward
    )


def published_seconds(sweep: Sweep, published: Coefficients) -> Array:
    """What published benchmarks of the operation took; NaN where none tells, as between small sizes
    and large ones."""
    ratios = {which: _published(sweep, which) for which in ("small", "large")}
    small, large = (np.nan if ratio is None else ratio for ratio in ratios.values())
    ratio = np.where(
        sweep.sizes >= LARGE_BYTES, large, np.where(sweep.sizes <= SMALL_BYTES, small, np.nan)
    )
    return np.asarray(sweep_seconds(sweep, published) * ratio)


def offsets(sweep: Sweep, published: Coefficients) -> dict[str, float]:
    """By coefficient, how far this machine lies from the published ones, on the unbounded scale:
    the bandwidth from large messages, the latency of a collective from small ones."""
    large, small = (
        sweep.sizes >= LARGE_BYTES,
        (sweep.sizes <= SMALL_BYTES) & (sweep.operation != "send_recv"),
    )
    found: dict[str, float] = {}
    for name, which, mine in ((_deciding(sweep), "large", large), ("collective_s", "small", small)):
        if mine.any():
            part = replace(
                sweep,
                sizes=sweep.sizes[mine],
                seconds=sweep.seconds[mine] / _published_over_model(sweep, which),
            )
            offset = _solved(name, published, partial(sweep_seconds, part), part.seconds)
            if (
                which == "large" or abs(offset) < FARTHEST
            ):  # a latency may lie elsewhere than in the call
                found[name] = offset
    return found


def _deciding(sweep: Sweep) -> str:
    if sweep.operation == "all_to_all":
        return "alltoall"
    return "scaleout" if _beyond(sweep) else "scaleup"


def _beyond(sweep: Sweep) -> bool:
    return any(dim.scale == "out" for dim in sweep.problem.cluster.dims)


def _published_over_model(sweep: Sweep, which: str) -> float:
    """1 where there are none."""
    ratio = _published(sweep, which)
    return 1.0 if ratio is None else ratio


def _published(sweep: Sweep, which: str) -> float | None:
    """What published benchmarks of the operation took over what the model says of them, if there
    are any."""
    where = "several domains" if _beyond(sweep) else "one domain"
    by_generation = published_benchmarks().get(sweep.operation, {})
    return by_generation.get(sweep.problem.cluster.chip.generation, {}).get(where, {}).get(which)


def offsets_of_products(products: Sequence[Products], published: Coefficients) -> dict[str, float]:
    """The same of products; formats that run at one rate tell it together."""
    alike = defaultdict[str, list[Products]](list)
    for each in products:
        if (mine := each.flops >= LARGE_FLOPS).any():
            taken = (value[mine] for value in (each.m, each.n, each.k, each.seconds))
            name = _RATES.get(each.problem.workload.number_format.gemm, "gemm_16")
            alike[name].append(Products(each.problem, *taken))
    return {name: _of_rate(name, large, published) for name, large in alike.items()}


def _of_rate(name: str, products: Sequence[Products], published: Coefficients) -> float:
    def seconds(c: Coefficients) -> Array:
        return np.concatenate([product_seconds(each, c) for each in products])

    return _solved(name, published, seconds, np.concatenate([each.seconds for each in products]))


def _solved(
    name: str, published: Coefficients, seconds: Callable[[Coefficients], Array], measured: Array
) -> float:
    """The offset at which the model takes as long as was measured, typically; at most _WIDEST
    either way. Of a rate that nearest to none that is as fast as any, where the measurement is
    faster still: something else decides there."""
    centre, rising = to_unbounded(name, float(getattr(published, name))), name.endswith("_s")
    low, high = -_WIDEST, _WIDEST if rising else max(to_unbounded(name, _MOST) - centre, 0.0)

    def with_offset(offset: float) -> Array:
        return seconds(replace(published, **{name: to_natural(name, centre + offset)}))

    def slower_than(limit: Array, offset: float) -> bool:
        return float(np.median(np.log(with_offset(offset) / limit))) > 0

    if not rising and slower_than(measured / _AS_FAST, high):
        measured, low = with_offset(high) * _AS_FAST, 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        slower = slower_than(measured, middle)
        low, high = (low, middle) if slower == rising else (middle, high)
    return (low + high) / 2


def left_over(part: Sweep | Products, found: Mapping[str, float], published: Coefficients) -> float:
    """How many times longer the model still takes than was measured, typically, of what is
    large."""
    c = replace(published, **targets(found, published))
    if isinstance(part, Sweep):
        large, seconds = (
            part.sizes >= LARGE_BYTES,
            sweep_seconds(part, c) * _published_over_model(part, "large"),
        )
    else:
        large, seconds = part.flops >= LARGE_FLOPS, product_seconds(part, c)
    return float(np.median((seconds / part.seconds)[large])) if large.any() else 1.0


def targets(found: Mapping[str, float], trained: Coefficients) -> dict[str, float]:
    """The coefficients that training should achieve on a machine so far from the published ones."""
    return {
        name: float(to_natural(name, to_unbounded(name, float(getattr(trained, name))) + offset))
        for name, offset in found.items()
    }
