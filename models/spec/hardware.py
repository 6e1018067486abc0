"""Chips, the fabrics that join them, and the clusters they make.

Bandwidths are per direction, in GB/s = 1e9 bytes a second. A *device* is what a framework sees as
one accelerator: most chips are one device, a TPU v7x chip is two. Degrees of a layout count
devices. A *domain* is the set of devices that one level of links joins, together with all levels
inside it. A *slice* is a set of chips whose links form a torus. A *dim* is a dimension of a torus
or a level of switched links.
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
MAX_CHIPS = 10**6  # the largest cluster that a request may have
DATA_SHEET_ONLY = "data sheet only"
"""The confidence in the figures of a chip that is announced and on which nothing has been
measured."""
_CHIPS_PER_TRAY = 4  # a job takes the chips of a rack by whole trays


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level of switched links, over which groups of chips reach each other."""

    name: str
    gb_s_per_chip: float
    size: int | None = None
    """The number of chips that reach each other; None stands for every chip of the cluster."""
    scale: Literal["up", "out"] = "out"
    """The kind of links: scale-up links (NVLink, xGMI), or the network. The innermost level of a
    fabric without a torus is always scale-up."""
    peer_gb_s: float | None = None
    """The bandwidth to one peer where there is no switch. In a full mesh each chip reaches a peer
    over one link only, so a group of g chips drives g - 1 of a chip's links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Torus:
    """A slice of chips whose links form a torus."""

    ndim: int
    max_chips: int
    """The most chips in a slice."""
    gb_s_per_link: float
    """The bandwidth of each link, one way; a chip has two links along every dim."""
    wrap: Literal["cubes", "length"]
    """The rule by which dims close into rings. With "cubes" all of them do, when every dim is a
    multiple of `wrap_length` (TPU v4, v5p and v7x, where optical switches close whole 4x4x4 cubes).
    With "length" dims of exactly `wrap_length` do (16 on v5e and v6e)."""
    wrap_length: int

    def wraps(self, shape: tuple[int, ...]) -> tuple[bool, ...]:
        """Return, for every dim of a slice of this shape, true where it closes into a ring."""
        if self.wrap == "cubes":
            whole = all(n % self.wrap_length == 0 for n in shape)
            return tuple(whole for _ in shape)
        return tuple(n == self.wrap_length for n in shape)

    def is_slice(self, shape: tuple[int, ...]) -> bool:
        """Say whether a slice may have this shape.

        From 64 chips on, slices of three dims are whole 4x4x4 cubes. Smaller slices, and slices of
        two dims, have powers of two as dims (https://cloud.google.com/tpu/docs/v5p, .../v6e).
        """
        num_chips = math.prod(shape)
        unit = self._common_divisor(num_chips)  # the side of a cube, or 1 without cubes
        # n & (n - 1) is 0 for powers of two.
        whole = all(n % unit == 0 if unit > 1 else n & (n - 1) == 0 for n in shape)
        return num_chips <= self.max_chips and whole

    def shape_for(self, num_chips: int) -> tuple[int, ...] | None:
        """Return the most cubic slice shape of `num_chips`; None where there is none."""
        # Shapes are counted in units: the side of a cube where slices are whole cubes, or 1.
        unit = self._common_divisor(num_chips)
        if num_chips > self.max_chips or num_chips % unit**self.ndim:
            return None
        # Sides in rising order only: a permutation of a shape is the same slice.
        in_units = _ordered_factors(num_chips // unit**self.ndim, self.ndim)
        shapes = [tuple(unit * n for n in shape) for shape in in_units]
        slices = filter(self.is_slice, shapes)
        return min(slices, key=lambda shape: (max(shape), sum(shape)), default=None)

    def _common_divisor(self, num_chips: int) -> int:
        """Return the number that must divide every dim of a slice with so many chips: the side of a
        cube for slices of three dims that are at least one cube, and else 1."""
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
                rule = "sizes must grow from the inside out; only the last may be open"
                raise Invalid("levels", sizes, rule)
        # Without a torus, the innermost level is the scale-up domain.
        if self.torus is None and self.levels:
            innermost = replace(self.levels[0], scale="up")
            object.__setattr__(self, "levels", (innermost, *self.levels[1:]))
        if any(level.scale == "up" for level in self.levels[len(self.scale_up) :]):
            scales = [level.scale for level in self.levels]
            rule = "scale-up levels come first: none lies beyond one that scales out"
            raise Invalid("levels", scales, rule)

    @property
    def scale_up(self) -> tuple[Level, ...]:
        """The levels within a scale-up domain. With a torus, they join several slices into one
        domain."""
        return tuple(takewhile(lambda level: level.scale == "up", self.levels))

    @property
    def domain(self) -> int | None:
        """The number of chips in a switched scale-up domain; None where there is no such domain, or
        where one domain joins every chip."""
        return self.scale_up[-1].size if self.torus is None and self.scale_up else None

    def require_domain(self, field: str, value: object) -> None:
        """Raise Invalid if the fabric has no switched scale-up domain, whose size `field` would
        change to `value`."""
        if self.domain is None:
            rule = f"fabric {self.id} has no scale-up domain of a size to change"
            raise Invalid(field, value, rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """An accelerator as its data sheet describes it. A price, power or year is None where it is not
    known."""

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
    """The share of a host's memory that one chip has, which offload may fill; None where it is not
    known."""
    compute_units: int = 1
    """Units (SMs, CUs, cores) that each work on one tile of a matrix product."""
    gemm_tile: int = 128
    """The side of a tile of a matrix product, in elements."""
    devices_per_chip: int = 1
    year: int | None = None
    tdp_w: float | None = None
    usd_per_chip_hour: float | None = None
    aliases: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    confidence: str | None = None
    """The confidence in the figures: high, medium or low, or DATA_SHEET_ONLY."""
    caveats: str | None = None

    @property
    def is_data_sheet_only(self) -> bool:
        return self.confidence == DATA_SHEET_ONLY

    def matmul_dtype(self, dtype: str) -> str:
        """Return the number format that matrix products of `dtype` are computed in: fp32 in place
        of TF32 on chips without TF32."""
        return "fp32" if dtype == "tf32" and "tf32" not in self.peak_tflops else dtype

    def peak_flops(self, dtype: str) -> float:
        """Return the dense FLOP/s of one chip at `dtype`. Raise Invalid where no peak is
        published."""
        computed = self.matmul_dtype(dtype)  # fp32 for tf32 on chips without TF32
        if computed not in self.peak_tflops:
            have = ", ".join(sorted(self.peak_tflops))
            rule = f"{self.name} has no published {dtype} peak (it has {have})"
            raise Invalid("workload.precision", dtype, rule)
        return self.peak_tflops[computed] * 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Dim:
    """A dim is one step outwards in a cluster: links that join smaller domains of devices into a
    larger one."""

    name: str
    kind: Literal["switch", "ring"]
    """The way in which devices are joined: through a "switch", a device reaches any other of its
    domain; a "ring" is a dim of a torus."""
    scale: Literal["up", "out"]
    """The class of links whose latency and efficiency apply: scale-up links, or the network."""
    domain: int
    """The number of devices that the dim joins, together with all dims inside it."""
    gb_s: float
    """The bandwidth one way, in GB/s: of one device through a switch, or of one link of a ring."""
    wraps: bool = False
    """A ring closes."""
    peer_gb_s: float | None = None
    """The bandwidth to one peer in GB/s where there is no switch (see Level)."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The chips of one job: `num_chips` of one kind on one fabric."""

    chip: Chip
    fabric: Fabric
    num_chips: int
    torus_shape: tuple[int, ...] | None = None
    """The shape of a slice of a torus; None stands for the most cubic one."""
    chips_per_domain: int | None = None
    """The number of chips that the job holds of each switched scale-up domain, such as 64 of 72.
    None stands for the number that `_chips_per_domain` works out."""

    def __post_init__(self) -> None:
        if not 1 <= self.num_chips <= MAX_CHIPS:
            raise Invalid("cluster.num_chips", self.num_chips, f"must be between 1 and {MAX_CHIPS}")
        # The outermost level, or else the torus, limits the chips that the fabric joins.
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
        """True where the scale-up links are a torus. Layouts then say in which order its devices
        are numbered (`torus_axes`, `torus_block`)."""
        return self.fabric.torus is not None

    @property
    def fills_fabric(self) -> bool:
        """True where the fabric has a limited size, of which the job leaves less than a node free.
        It then cannot replace a node in trouble by another, and every step waits for that
        node (models.cost.overlap)."""
        levels = self.fabric.levels
        largest = levels[-1].size if levels else None
        # The innermost level is a node.
        return largest is not None and self.num_chips + (levels[0].size or 0) > largest

    def has_same_links(self, other: Cluster) -> bool:
        """Say whether the devices of two clusters of the same chips are joined by equal links. Two
        fabrics may differ in how many further devices they could join."""
        return self.dims == other.dims and self.fills_fabric == other.fills_fabric

    @property
    def usd_per_hour(self) -> float | None:
        """The price of all chips; None where the price of one is not known."""
        price = self.chip.usd_per_chip_hour
        return None if price is None else price * self.num_chips

    @property
    def host_bytes(self) -> float:
        """A device's share of host memory in bytes; infinite where that is not known."""
        chip = self.chip
        if chip.host_memory_gb is None:
            return math.inf
        return chip.host_memory_gb * 1e9 / chip.devices_per_chip

    @property
    def usable_bytes(self) -> float:
        """The memory of one device that a program can use, in bytes."""
        return self.chip.usable_memory_gib * GIB / self.chip.devices_per_chip

    @property
    def memory_bytes_s(self) -> float:
        """The memory bandwidth of one device, in bytes a second."""
        return self.chip.memory_bandwidth_gb_s * 1e9 / self.chip.devices_per_chip

    def peak_flops(self, dtype: str) -> float:
        """Return the dense FLOP/s of one device."""
        return self.chip.peak_flops(dtype) / self.chip.devices_per_chip

    @property
    def peak_flops_16(self) -> float:
        """Dense 16-bit FLOP/s of one device: those of bf16, or of fp16 on chips without bf16."""
        return self.peak_flops("bf16" if "bf16" in self.chip.peak_tflops else "fp16")

    @cached_property
    def slice_shape(self) -> tuple[int, ...]:
        """The lengths of the dims of one slice of a torus, such as (4, 4, 8); empty where there is
        no torus. Unless `torus_shape` gives it, the job has as few slices as it can, each as cubic
        as it can be. Raise Invalid where `torus_shape` does not divide the chips."""
        torus = self.fabric.torus
        if torus is None:
            return ()
        if self.torus_shape is not None:
            if self.num_chips % math.prod(self.torus_shape):
                shape = "x".join(map(str, self.torus_shape))
                rule = f"{shape} must divide num_chips = {self.num_chips}"
                raise Invalid("cluster.torus_shape", self.torus_shape, rule)
            return self.torus_shape
        counts = (count for count in range(1, self.num_chips + 1) if self.num_chips % count == 0)
        shapes = (torus.shape_for(self.num_chips // count) for count in counts)
        # The fewest slices come first. The last count gives slices of a single chip, which every
        # torus has.
        return next(filter(None, shapes), (1,) * torus.ndim)

    @property
    def slice_dims(self) -> tuple[tuple[int, bool], ...]:
        """The dims of a slice, each as its length and whether it closes into a ring; empty where
        there is no torus."""
        torus = self.fabric.torus
        if torus is None:
            return ()
        return tuple(zip(self.slice_shape, torus.wraps(self.slice_shape), strict=True))

    @cached_property
    def dims(self) -> tuple[Dim, ...]:
        """The dims of the torus and the switched levels from the inside out, without those that the
        job does not reach; neighbours with equal links are merged. Raise Invalid where the links do
        not join all devices."""
        return _merge_dims([*self._torus_dims(), *self._switched_dims()], self.num_devices)

    def _torus_dims(self) -> Iterator[Dim]:
        """Yield the dies of a chip, then the dims of a slice from the last one, the innermost, to
        the first."""
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
        link_gb_s = torus.gb_s_per_link / per_chip  # the devices of a chip share its links
        for name, (length, wraps) in zip("zyx", reversed(self.slice_dims), strict=False):
            domain *= length
            yield Dim(
                name=name, kind="ring", scale="up", domain=domain, gb_s=link_gb_s, wraps=wraps
            )

    def _switched_dims(self) -> Iterator[Dim]:
        """Yield a dim for each switched level, from the inside out. Its `domain` counts all devices
        of the job that it joins, with those of inner levels. A job may hold fewer chips of each
        scale-up domain than the domain has."""
        per_chip = self.chip.devices_per_chip
        # With a torus, scale-up levels join whole slices, of which a job holds all chips.
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
        """Return the cluster with its scale-up and scale-out bandwidth multiplied by these factors,
        with a scale-up domain of `domain` chips, and with `num_chips` chips. Raise Invalid where
        the fabric has no domain to change."""
        fabric = self.fabric
        if domain is not None:
            fabric.require_domain("domain", domain)
        levels = []
        for level in fabric.levels:
            factor = scale_up if level.scale == "up" else scale_out
            peer_gb_s = None if level.peer_gb_s is None else level.peer_gb_s * factor
            gb_s = level.gb_s_per_chip * factor
            levels.append(replace(level, gb_s_per_chip=gb_s, peer_gb_s=peer_gb_s))
        if domain is not None:
            # The domain is the last scale-up level. Smaller levels inside it stay, and so do larger
            # ones outside. A level without a size joins all chips: it is outside, and never inside.
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
            # A number that was given for the old domain says nothing of the new one.
            chips_per_domain=sized.chips_per_domain if domain is None else None,
        )

    def with_num_chips(self, num_chips: int) -> Cluster:
        """Return the cluster with another number of chips.

        A job that holds a given number of chips of each scale-up domain keeps that number, or takes
        fewer where there are fewer chips in all. The shape of several slices is kept where whole
        slices make up the new number. The shape of a single slice is not kept, since that slice
        grows or shrinks.
        """
        per_domain, shape = self.chips_per_domain, self.torus_shape
        if shape is not None:
            slice_chips = math.prod(shape)
            may_stay = num_chips == self.num_chips or slice_chips < self.num_chips
            shape = shape if may_stay and num_chips % slice_chips == 0 else None
        return replace(
            self,
            num_chips=num_chips,
            torus_shape=shape,
            chips_per_domain=per_domain and min(per_domain, num_chips),  # None stays None
        )

    @cached_property
    def device_orders(self) -> DeviceOrders:
        """The numbering of the devices under every filling of the torus, if there is one. A filling
        is an order in which a torus is numbered (models.spec.device_order)."""
        domains = tuple(dim.domain for dim in self.dims) or (1,)
        rings = [(index, dim) for index, dim in enumerate(self.dims) if dim.kind == "ring"]
        return orders_of(domains, tuple((dim.name, index, dim.wraps) for index, dim in rings))

    @property
    def scale_out_mask(self) -> Array:
        """A mask of the dims beyond the scale-up domain, of shape (dims,). A single device, which
        has no dims, has one entry, which is false."""
        return np.array([dim.scale == "out" for dim in self.dims] or [False])

    @property
    def scale_up_domain(self) -> int:
        """The number of devices that scale-up links join; 1 where none are joined by them."""
        return max((dim.domain for dim in self.dims if dim.scale == "up"), default=1)

    @property
    def scale_up_domain_chips(self) -> int:
        """The number of chips that scale-up links join."""
        return self.scale_up_domain // self.chip.devices_per_chip

    @cached_property
    def _chips_per_domain(self) -> int:
        """The number of chips that the job holds of each scale-up domain.

        Unless given, it is the largest number above half a domain that fills every domain alike in
        whole trays: 256 chips on racks of 72 are 4 x 64. Where there is no such number, all domains
        but the last are full.
        """
        n = self.num_chips
        # A fabric without a switched domain of limited size counts as one domain.
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


def _merge_dims(dims: list[Dim], n: int) -> tuple[Dim, ...]:
    """Return those of `dims`, which come from the inside out, that join the n devices of a job.
    Dims that add no device are left out, and switched neighbours with equal links are merged. Raise
    Invalid where all dims together join fewer than n devices."""
    merged: list[Dim] = []
    joined = 1  # devices that the dims so far join
    for dim in dims:
        if dim.domain <= joined or joined >= n:  # it adds no device, or the job needs none more
            continue
        # Levels with links between peers stay apart: their rate depends on the members of a group.
        may_merge = dim.kind == "switch" and dim.peer_gb_s is None
        links = dim.kind, dim.scale, dim.gb_s
        if merged and may_merge and links == (merged[-1].kind, merged[-1].scale, merged[-1].gb_s):
            merged.pop()  # the outer dim joins all that the inner one joins
        merged.append(dim)
        joined = dim.domain
    if joined < n:
        rule = f"the fabric joins only {joined} devices in one slice or domain; give an outer level"
        raise Invalid("cluster.num_chips", n, rule)
    return tuple(merged)


def _ordered_factors(n: int, ndim: int) -> list[tuple[int, ...]]:
    """Return the non-decreasing tuples of `ndim` positive integers whose product is `n`: the shapes
    that a slice of n chips may have on a torus. For n = 8 and ndim = 2: (1, 8) and (2, 4)."""
    if ndim == 1:
        return [(n,)]
    # The smallest factor is at most the ndim-th root of n, and the others are no smaller than it.
    return [
        (d, *rest)
        for d in range(1, round(n ** (1 / ndim)) + 1)
        if n % d == 0
        for rest in _ordered_factors(n // d, ndim - 1)
        if rest[0] >= d
    ]
