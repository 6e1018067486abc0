"""Chips, the fabrics that join them, and the clusters they make.

Bandwidths are per direction, in GB/s = 1e9 bytes a second. A *device* is what a framework sees as
one accelerator: most chips are one device, a TPU v7x chip is two. Degrees of a layout count
devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from typing import Literal

import numpy as np

from models.columns import Array
from models.errors import Invalid
from models.spec.device_order import DeviceOrders, orders_of

GIB = 2**30
MAX_CHIPS = 10**6
DATA_SHEET_ONLY = "data sheet only"
"""The confidence in the figures of a chip that is announced, and on which nothing has been
measured."""
_CHIPS_PER_TRAY = 4  # a job takes the chips of a rack by whole trays


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level of switched links, over which groups of chips reach each other."""

    name: str
    gb_s_per_chip: float
    size: int | None = None
    """How many chips reach each other; None means every chip of the cluster."""
    scale: Literal["up", "out"] = "out"
    """Whether these are scale-up links (NVLink, xGMI) or the network. The innermost level of a
    fabric without a torus is always scale-up."""
    peer_gb_s: float | None = None
    """The bandwidth to one peer where there is no switch. In a full mesh of chips each reaches a
    peer over one link only, and so a group of g chips drives g - 1 of a chip's links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Torus:
    """A slice of chips whose links form a torus."""

    ndim: int
    max_chips: int
    """The most chips of a slice."""
    gb_s_per_link: float
    """The bandwidth of each link, one way; a chip has two links along every dim."""
    wrap: Literal["cubes", "length"]
    """Which dims close into rings. "cubes": all of them, when every dim is a multiple of
    `wrap_length` (TPU v4, v5p and v7x, where optical switches close whole 4x4x4 cubes). "length":
    dims of exactly `wrap_length` (16 on v5e and v6e)."""
    wrap_length: int

    def wraps(self, shape: tuple[int, ...]) -> tuple[bool, ...]:
        """For every dim of a slice of this shape, whether it closes into a ring."""
        if self.wrap == "cubes":
            whole = all(n % self.wrap_length == 0 for n in shape)
            return tuple(whole for _ in shape)
        return tuple(n == self.wrap_length for n in shape)

    def is_slice(self, shape: tuple[int, ...]) -> bool:
        """Whether a slice may have this shape.

        Slices of three dims are whole 4x4x4 cubes from 64 chips on. The dims of smaller ones, and
        of slices of two dims, are powers of two (https://cloud.google.com/tpu/docs/v5p, .../v6e).
        """
        num_chips = math.prod(shape)
        unit = self._unit(num_chips)
        whole = all(n % unit == 0 if unit > 1 else n & (n - 1) == 0 for n in shape)
        return num_chips <= self.max_chips and whole

    def shape_for(self, num_chips: int) -> tuple[int, ...] | None:
        """The most cubic slice shape of `num_chips`, or None if there is none."""
        unit = self._unit(num_chips)
        if num_chips > self.max_chips or num_chips % unit**self.ndim:
            return None
        in_units = _factor_tuples(num_chips // unit**self.ndim, self.ndim)
        shapes = [tuple(unit * n for n in shape) for shape in in_units]
        slices = filter(self.is_slice, shapes)
        return min(slices, key=lambda shape: (max(shape), sum(shape)), default=None)

    def _unit(self, num_chips: int) -> int:
        """The number that every dim of a slice of so many chips is a multiple of."""
        return self.wrap_length if self.ndim == 3 and num_chips >= self.wrap_length**3 else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The links between chips, from the inside out: an optional torus, then nested switched
    levels."""

    id: str
    levels: tuple[Level, ...]
    torus: Torus | None = None
    source: str = ""

    def __post_init__(self) -> None:
        sizes = [level.size for level in self.levels]
        for inner, outer in zip(sizes, sizes[1:], strict=False):
            if inner is None or (outer is not None and outer <= inner):
                raise Invalid(
                    "levels",
                    sizes,
                    "sizes must grow from the inside out; only the last may be open",
                )
        if self.torus is None and self.levels:
            innermost = replace(self.levels[0], scale="up")
            object.__setattr__(self, "levels", (innermost, *self.levels[1:]))
        if any(level.scale == "up" for level in self.levels[len(self.scale_up) :]):
            scales = [level.scale for level in self.levels]
            raise Invalid(
                "levels", scales, "scale-up levels come first: none lies beyond one that scales out"
            )

    @property
    def scale_up(self) -> tuple[Level, ...]:
        """The levels within a scale-up domain. With a torus, they join several slices into one
        domain."""
        return tuple(takewhile(lambda level: level.scale == "up", self.levels))

    @property
    def domain(self) -> int | None:
        """The number of chips in a switched scale-up domain; None where there is none, or where one
        joins every chip."""
        return self.scale_up[-1].size if self.torus is None and self.scale_up else None

    def require_domain(self, field: str, value: object) -> None:
        """Raise Invalid where `field` asks for a domain of another size and there is no domain."""
        if self.domain is None:
            raise Invalid(
                field, value, f"fabric {self.id} has no scale-up domain of a size to change"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """An accelerator as its data sheet has it. A price, power or year of None is not known."""

    id: str
    name: str
    vendor: str
    generation: str
    peak_tflops: Mapping[str, float] = field(hash=False)
    """Dense TFLOP/s by number format."""
    memory_gb: float
    """The memory that the chip is sold with, in 1e9 bytes."""
    usable_memory_gib: float
    """The part of the memory that a program can use, in 2**30 bytes."""
    memory_bandwidth_gb_s: float
    fabric: Fabric
    """The links that the data sheet names: the scale-up domain or torus, and the NICs."""
    host_memory_gb: float | None = None
    """A chip's share of the memory of a host that it is sold in, which offload may fill; None is
    not known."""
    compute_units: int = 1
    """Units (SMs, CUs, cores) that work on one tile of a matrix product each."""
    gemm_tile: int = 128
    """The side of such a tile."""
    devices_per_chip: int = 1
    year: int | None = None
    tdp_w: float | None = None
    usd_per_chip_hour: float | None = None
    aliases: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    confidence: str | None = None
    """How sure the figures are: high, medium or low, or DATA_SHEET_ONLY."""
    caveats: str | None = None

    @property
    def is_data_sheet_only(self) -> bool:
        return self.confidence == DATA_SHEET_ONLY

    def matmul_dtype(self, dtype: str) -> str:
        """The number format that matrix products of `dtype` are computed in: fp32 in place of TF32
        on chips without it."""
        return "fp32" if dtype == "tf32" and "tf32" not in self.peak_tflops else dtype

    def peak_flops(self, dtype: str) -> float:
        """Dense FLOP/s of one chip at `dtype`. Raises Invalid where no peak is published."""
        computed = self.matmul_dtype(dtype)
        if computed not in self.peak_tflops:
            have = ", ".join(sorted(self.peak_tflops))
            rule = f"{self.name} has no published {dtype} peak (it has {have})"
            raise Invalid("workload.precision", dtype, rule)
        return self.peak_tflops[computed] * 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Dim:
    """One step outwards in a cluster: links that join smaller domains of devices into a larger."""

    name: str
    kind: Literal["switch", "ring"]
    """Whether a device reaches any other of its domain, or this is a dim of a torus."""
    scale: Literal["up", "out"]
    """Whether the latency and efficiency of scale-up links apply, or those of the network."""
    domain: int
    """How many devices the dim joins, with all dims inside it."""
    gb_s: float
    """The bandwidth of one device through a switch, or of one link of a ring; one way."""
    wraps: bool = False
    """Whether a ring closes."""
    peer_gb_s: float | None = None
    """The bandwidth to one peer where there is no switch, as in Level."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The chips of one job: `num_chips` of one kind on one fabric."""

    chip: Chip
    fabric: Fabric
    num_chips: int
    torus_shape: tuple[int, ...] | None = None
    """The shape of a slice of a torus; None takes the most cubic one."""
    chips_per_domain: int | None = None
    """How many chips of each switched scale-up domain the job holds, 64 of 72 say; None takes what
    `_chips_per_domain` says."""

    def __post_init__(self) -> None:
        if not 1 <= self.num_chips <= MAX_CHIPS:
            raise Invalid("cluster.num_chips", self.num_chips, f"must be between 1 and {MAX_CHIPS}")
        largest = self.fabric.levels[-1].size if self.fabric.levels else None
        if self.fabric.torus and not self.fabric.levels:
            largest = self.fabric.torus.max_chips
        if largest is not None and self.num_chips > largest:
            scales_out = any(level.scale == "out" for level in self.fabric.levels)
            reason = "" if scales_out else ": it has no scale_out_gb_s"
            rule = f"fabric {self.fabric.id} joins at most {largest} chips{reason}"
            raise Invalid("cluster.num_chips", self.num_chips, rule)

    @property
    def num_devices(self) -> int:
        return self.num_chips * self.chip.devices_per_chip

    @property
    def is_torus(self) -> bool:
        """Whether the scale-up links are a torus, of which a layout has knobs."""
        return self.fabric.torus is not None

    @property
    def fills_fabric(self) -> bool:
        """Whether the job leaves out no node of a fabric of limited size."""
        levels = self.fabric.levels
        largest = levels[-1].size if levels else None
        return largest is not None and self.num_chips + (levels[0].size or 0) > largest

    def has_same_links(self, other: Cluster) -> bool:
        """Whether the links join the devices of this cluster as they do those of another with the
        same chips, however many more devices the fabrics could join."""
        return self.dims == other.dims and self.fills_fabric == other.fills_fabric

    @property
    def usd_per_hour(self) -> float | None:
        """The price of all chips, where that of one is known."""
        price = self.chip.usd_per_chip_hour
        return None if price is None else price * self.num_chips

    @property
    def host_bytes(self) -> float:
        """A device's share of host memory in bytes; infinite where that is not known."""
        known = self.chip.host_memory_gb
        return math.inf if known is None else known * 1e9 / self.chip.devices_per_chip

    @property
    def usable_bytes(self) -> float:
        """The memory of one device that a program can use, in bytes."""
        return self.chip.usable_memory_gib * GIB / self.chip.devices_per_chip

    @property
    def memory_bytes_s(self) -> float:
        """The memory bandwidth of one device, in bytes a second."""
        return self.chip.memory_bandwidth_gb_s * 1e9 / self.chip.devices_per_chip

    def peak_flops(self, dtype: str) -> float:
        """Dense FLOP/s of one device."""
        return self.chip.peak_flops(dtype) / self.chip.devices_per_chip

    @property
    def peak_flops_16(self) -> float:
        """Dense 16-bit FLOP/s of one device: of bf16, or fp16 on chips without it."""
        return self.peak_flops("bf16" if "bf16" in self.chip.peak_tflops else "fp16")

    @cached_property
    def slice_shape(self) -> tuple[int, ...]:
        """The dims of one slice of a torus; empty where there is no torus. Several slices are
        joined by the switched levels. Raises Invalid where `torus_shape` does not divide the
        chips."""
        torus = self.fabric.torus
        if torus is None:
            return ()
        if self.torus_shape is not None:
            if self.num_chips % math.prod(self.torus_shape):
                shape = "x".join(map(str, self.torus_shape))
                rule = f"{shape} must divide num_chips = {self.num_chips}"
                raise Invalid("cluster.torus_shape", self.torus_shape, rule)
            return self.torus_shape
        for slices in range(1, self.num_chips + 1):
            if self.num_chips % slices == 0:
                most_cubic = torus.shape_for(self.num_chips // slices)
                if most_cubic:
                    return most_cubic
        return (1,) * torus.ndim

    @property
    def wraps(self) -> tuple[tuple[int, bool], ...]:
        """For every dim of a slice, how long it is and whether it closes into a ring."""
        torus = self.fabric.torus
        if torus is None:
            return ()
        return tuple(zip(self.slice_shape, torus.wraps(self.slice_shape), strict=True))

    @cached_property
    def dims(self) -> tuple[Dim, ...]:
        """The dims from the inside out, without those that the job does not reach; equal neighbours
        are merged. Raises Invalid where the links do not join all devices."""
        return _merged([*self._torus_dims(), *self._switched_dims()], self.num_devices)

    def _torus_dims(self) -> Iterator[Dim]:
        """The dies of a chip, and the dims of a slice from the last, the innermost, to the
        first."""
        torus = self.fabric.torus
        if torus is None:
            return
        per_chip = self.chip.devices_per_chip
        if per_chip > 1:
            # The dies of a package are joined at six times the rate of one torus dim (TPU v7x,
            # MaxText custom_model.md).
            gb_s = 6 * torus.gb_s_per_link
            yield Dim(name="die", kind="switch", scale="up", domain=per_chip, gb_s=gb_s)
        domain = per_chip
        link_gb_s = torus.gb_s_per_link / per_chip
        for name, (length, wraps) in zip("zyx", reversed(self.wraps), strict=False):
            domain *= length
            yield Dim(
                name=name, kind="ring", scale="up", domain=domain, gb_s=link_gb_s, wraps=wraps
            )

    def _switched_dims(self) -> Iterator[Dim]:
        per_chip = self.chip.devices_per_chip
        levels_in_domain = 0 if self.fabric.torus else len(self.fabric.scale_up)
        for index, level in enumerate(self.fabric.levels):
            domain = self.num_devices
            if level.size is not None:
                domain = min(level.size * per_chip, domain)
            if index < levels_in_domain:
                domain = min(domain, self._chips_per_domain * per_chip)
            yield Dim(
                name=level.name,
                kind="switch",
                scale=level.scale,
                domain=domain,
                gb_s=level.gb_s_per_chip / per_chip,
                peer_gb_s=level.peer_gb_s,
            )

    def with_changes(
        self,
        *,
        scale_up: float = 1.0,
        scale_out: float = 1.0,
        domain: int | None = None,
        num_chips: int | None = None,
    ) -> Cluster:
        """The cluster with its scale-up and scale-out bandwidth that many times as high, with
        another number of chips in a scale-up domain, or with another number of chips. Raises
        Invalid where the fabric has no domain to change."""
        fabric = self.fabric
        if domain is not None:
            fabric.require_domain("domain", domain)
        levels = []
        for level in fabric.levels:
            times = scale_up if level.scale == "up" else scale_out
            peer_gb_s = None if level.peer_gb_s is None else level.peer_gb_s * times
            gb_s = level.gb_s_per_chip * times
            levels.append(replace(level, gb_s_per_chip=gb_s, peer_gb_s=peer_gb_s))
        if domain is not None:
            # The domain is the last scale-up level. Levels stay that are smaller inside it, and
            # larger outside.
            last = len(fabric.scale_up) - 1
            inner = [level for level in levels[:last] if (level.size or domain) < domain]
            outer = [level for level in levels[last + 1 :] if (level.size or domain + 1) > domain]
            levels = [*inner, replace(levels[last], size=domain), *outer]
        torus = fabric.torus
        if torus:
            torus = replace(torus, gb_s_per_link=torus.gb_s_per_link * scale_up)
        sized = self.with_num_chips(num_chips or self.num_chips)
        return replace(
            sized,
            fabric=replace(fabric, levels=tuple(levels), torus=torus),
            chips_per_domain=sized.chips_per_domain if domain is None else None,
        )

    def with_num_chips(self, num_chips: int) -> Cluster:
        """The cluster with another number of chips.

        A job that holds a given number of chips of each scale-up domain keeps it, or takes fewer
        where there are fewer in all. A given shape of slices is kept where whole slices make up the
        new number; the shape of a single slice is not, since the slice grows or shrinks.
        """
        per_domain = self.chips_per_domain
        slice_chips = math.prod(self.torus_shape or ())
        has_several_slices = slice_chips < self.num_chips
        keeps_shape = num_chips % slice_chips == 0 and (
            num_chips == self.num_chips or has_several_slices
        )
        return replace(
            self,
            num_chips=num_chips,
            torus_shape=self.torus_shape if keeps_shape else None,
            chips_per_domain=per_domain and min(per_domain, num_chips),
        )

    @cached_property
    def device_orders(self) -> DeviceOrders:
        """The order of the devices under every filling of the torus, if there is one."""
        rings = (
            (dim.name, at, dim.wraps) for at, dim in enumerate(self.dims) if dim.kind == "ring"
        )
        return orders_of(tuple(dim.domain for dim in self.dims) or (1,), tuple(rings))

    @property
    def scale_out_mask(self) -> Array:
        """Which of `dims` lie beyond the scale-up domain, as a mask; one dim where there is
        none."""
        return np.array([dim.scale == "out" for dim in self.dims] or [False])

    @property
    def scale_up_domain(self) -> int:
        """How many devices scale-up links join."""
        return max((dim.domain for dim in self.dims if dim.scale == "up"), default=1)

    @property
    def scale_up_domain_chips(self) -> int:
        """How many chips scale-up links join."""
        return self.scale_up_domain // self.chip.devices_per_chip

    @cached_property
    def _chips_per_domain(self) -> int:
        """How many chips of each scale-up domain the job holds.

        Unless given, it is the largest number above half a domain that fills every domain alike in
        whole trays: 256 chips on racks of 72 are 4 x 64. Where there is no such number, all domains
        but the last are full.
        """
        n = self.num_chips
        size = min(self.fabric.domain or n, n)
        if self.chips_per_domain is not None:
            if not 1 <= self.chips_per_domain <= size:
                rule = f"must be between 1 and {size}"
                raise Invalid("cluster.chips_per_domain", self.chips_per_domain, rule)
            return self.chips_per_domain
        if n % size == 0:
            return size
        for chips in range(size, size // 2, -1):
            if n % chips == 0 and chips % _CHIPS_PER_TRAY == 0:
                return chips
        return size


def _merged(dims: list[Dim], n: int) -> tuple[Dim, ...]:
    """The dims that join the n devices of a job: without those that add no device, and with
    switched neighbours of equal links as one. Raises Invalid where they join fewer."""
    kept: list[Dim] = []
    for dim in dims:
        previous = kept[-1].domain if kept else 1
        if dim.domain <= previous or previous >= n:
            continue
        is_switch = dim.kind == "switch" and dim.peer_gb_s is None
        if kept and is_switch and _links(kept[-1]) == _links(dim):
            kept.pop()
        kept.append(dim)
    joined = kept[-1].domain if kept else 1
    if joined < n:
        rule = f"the fabric joins only {joined} devices in one slice or domain; give an outer level"
        raise Invalid("cluster.num_chips", n, rule)
    return tuple(kept)


def _links(dim: Dim) -> tuple[str, str, float]:
    """What tells the links of a dim from those of another."""
    return dim.kind, dim.scale, dim.gb_s


def _factor_tuples(n: int, ndim: int) -> list[tuple[int, ...]]:
    """Non-decreasing tuples of `ndim` positive integers whose product is `n`."""
    if ndim == 1:
        return [(n,)]
    return [
        (d, *rest)
        for d in range(1, round(n ** (1 / ndim)) + 1)
        if n % d == 0
        for rest in _factor_tuples(n // d, ndim - 1)
        if rest[0] >= d
    ]
