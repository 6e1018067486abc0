"""Chips, the fabrics that join them, and the clusters they make.

Bandwidths are per direction and in GB/s = 1e9 bytes a second. A *device* is what a framework sees
as one accelerator; a TPU v7x chip is two. Degrees of a layout count devices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from typing import Literal

import numpy as np

from models.columns import Array
from models.errors import Invalid
from models.spec.device_order import DeviceOrders

GIB = 2**30
MAX_CHIPS = 10**6
_TRAY = 4  # chips of a rack are taken by whole trays


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Switched links: `size` chips reach each other at `gb_s_per_chip` (None: every chip of the
    cluster).

    `scale` tells scale-up links (NVLink, xGMI) from the network; the innermost level is always
    scale-up. `peer_gb_s` is set where there is no switch: chips of a full mesh reach one peer over
    one link only, so a group of g chips drives g - 1 links.
    """

    name: str
    gb_s_per_chip: float
    size: int | None = None
    scale: Literal["up", "out"] = "out"
    peer_gb_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Torus:
    """A slice of chips in a `ndim`-dimensional torus with `gb_s_per_link` one way on each link.

    `wrap` says which dims close into rings: "cubes": all, when every dim is a multiple of
    `wrap_length` (TPU v4, v5p, v7x: optical switches close whole 4x4x4 cubes); "length": those of
    exactly `wrap_length` (v5e, v6e: 16).
    """

    ndim: int
    max_chips: int
    gb_s_per_link: float
    wrap: Literal["cubes", "length"]
    wrap_length: int

    def wraps(self, shape: tuple[int, ...]) -> tuple[bool, ...]:
        if self.wrap == "cubes":
            whole = all(n % self.wrap_length == 0 for n in shape)
            return tuple(whole for _ in shape)
        return tuple(n == self.wrap_length for n in shape)

    def is_slice(self, shape: tuple[int, ...]) -> bool:
        """Whether a slice may have this shape.

        Slices of 3D pods are whole 4x4x4 cubes from 64 chips on; smaller ones, and 2D slices, are
        powers of two (https://cloud.google.com/tpu/docs/v5p, .../v6e).
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
        shapes = (
            tuple(unit * n for n in s)
            for s in _factor_tuples(num_chips // unit**self.ndim, self.ndim)
        )
        return min(
            filter(self.is_slice, shapes), key=lambda shape: (max(shape), sum(shape)), default=None
        )

    def _unit(self, num_chips: int) -> int:
        """What every dim of a slice of so many chips is a multiple of."""
        return self.wrap_length if self.ndim == 3 and num_chips >= self.wrap_length**3 else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Links from the inside out: an optional torus, then nested switched levels."""

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
        """The levels within a scale-up domain, or which join slices of a torus into one."""
        return tuple(takewhile(lambda level: level.scale == "up", self.levels))

    @property
    def domain(self) -> int | None:
        """Chips of a switched scale-up domain; None where there is none, or one joins every
        chip."""
        return self.scale_up[-1].size if self.torus is None and self.scale_up else None

    def require_domain(self, field: str, value: object) -> None:
        """Raise Invalid where `field` asks for another domain, and there is none."""
        if self.domain is None:
            raise Invalid(
                field, value, f"fabric {self.id} has no scale-up domain of a size to change"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """An accelerator as its data sheet has it. Peaks are dense TFLOP/s; `None` prices are unknown.
    `host_memory_gb`: a chip's share of the memory of a host that it is sold in, which offload may
    fill; `None`: not known.
    """

    id: str
    name: str
    vendor: str
    generation: str
    peak_tflops: Mapping[str, float] = field(hash=False)
    memory_gb: float
    usable_memory_gib: float
    memory_bandwidth_gb_s: float
    fabric: Fabric
    host_memory_gb: float | None = None
    compute_units: int = 1
    gemm_tile: int = 128
    devices_per_chip: int = 1
    year: int | None = None
    tdp_w: float | None = None
    usd_per_chip_hour: float | None = None
    aliases: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    caveats: str | None = None

    def matmul_dtype(self, dtype: str) -> str:
        """In which products of `dtype` are made: without TF32 those of fp32."""
        return "fp32" if dtype == "tf32" and "tf32" not in self.peak_tflops else dtype

    def peak_flops(self, dtype: str) -> float:
        """Dense FLOP/s of one chip at `dtype`."""
        made = self.matmul_dtype(dtype)
        if made not in self.peak_tflops:
            have = ", ".join(sorted(self.peak_tflops))
            raise Invalid(
                "workload.precision",
                dtype,
                f"{self.name} has no published {dtype} peak (it has {have})",
            )
        return self.peak_tflops[made] * 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Dim:
    """One step outwards in a cluster: domains of `domain` devices, joined at `gb_s` per device.

    kind "switch": a device reaches any other of its domain at `gb_s`. kind "ring": a dim of a
    torus; `gb_s` is one link, one way. `scale` tells whose latency and efficiency apply.
    """

    name: str
    kind: Literal["switch", "ring"]
    scale: Literal["up", "out"]
    domain: int
    gb_s: float
    wraps: bool = False
    peer_gb_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """`num_chips` of one chip on one fabric.

    `torus_shape` fixes the slice (else the most cubic); `chips_per_domain` how many chips of each
    switched scale-up domain the job holds (64 of 72, say; else as `_chips_per_domain` has it).
    """

    chip: Chip
    fabric: Fabric
    num_chips: int
    torus_shape: tuple[int, ...] | None = None
    chips_per_domain: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.num_chips <= MAX_CHIPS:
            raise Invalid("cluster.num_chips", self.num_chips, f"must be between 1 and {MAX_CHIPS}")
        largest = self.fabric.levels[-1].size if self.fabric.levels else None
        if self.fabric.torus and not self.fabric.levels:
            largest = self.fabric.torus.max_chips
        if largest is not None and self.num_chips > largest:
            more = (
                ""
                if any(level.scale == "out" for level in self.fabric.levels)
                else ": it has no scale_out_gb_s"
            )
            rule = f"fabric {self.fabric.id} joins at most {largest} chips{more}"
            raise Invalid("cluster.num_chips", self.num_chips, rule)

    @property
    def num_devices(self) -> int:
        return self.num_chips * self.chip.devices_per_chip

    @property
    def fills_fabric(self) -> bool:
        """Whether the job leaves out no node of the whole."""
        levels = self.fabric.levels
        largest = levels[-1].size if levels else None
        return largest is not None and self.num_chips + (levels[0].size or 0) > largest

    def has_same_links(self, other: Cluster) -> bool:
        """Whether links join as many devices as those of another with such chips, however many more
        they could."""
        return self.dims == other.dims and self.fills_fabric == other.fills_fabric

    @property
    def usd_per_hour(self) -> float | None:
        """Of all chips, where the chip has a price."""
        price = self.chip.usd_per_chip_hour
        return None if price is None else price * self.num_chips

    @property
    def host_bytes(self) -> float:
        """Of a device's share of host memory; infinite where that is not known."""
        known = self.chip.host_memory_gb
        return math.inf if known is None else known * 1e9 / self.chip.devices_per_chip

    @property
    def usable_bytes(self) -> float:
        """Memory of one device that a program can use."""
        return self.chip.usable_memory_gib * GIB / self.chip.devices_per_chip

    @property
    def memory_bytes_s(self) -> float:
        return self.chip.memory_bandwidth_gb_s * 1e9 / self.chip.devices_per_chip

    def peak_flops(self, dtype: str) -> float:
        """Dense FLOP/s of one device."""
        return self.chip.peak_flops(dtype) / self.chip.devices_per_chip

    @property
    def peak_flops_16(self) -> float:
        """Dense 16-bit FLOP/s of one device."""
        return self.peak_flops("bf16" if "bf16" in self.chip.peak_tflops else "fp16")

    @cached_property
    def slice_shape(self) -> tuple[int, ...]:
        """The torus dims of one slice; several slices are joined by the switched levels."""
        torus = self.fabric.torus
        if torus is None:
            return ()
        if self.torus_shape is not None:
            if self.num_chips % math.prod(self.torus_shape):
                rule = (
                    f"{'x'.join(map(str, self.torus_shape))} must divide num_chips ="
                    f" {self.num_chips}"
                )
                raise Invalid("cluster.torus_shape", self.torus_shape, rule)
            return self.torus_shape
        for slices in range(1, self.num_chips + 1):
            if self.num_chips % slices == 0 and (
                shape := torus.shape_for(self.num_chips // slices)
            ):
                return shape
        return (1,) * torus.ndim

    @property
    def wraps(self) -> tuple[tuple[int, bool], ...]:
        """Of every dim of a slice, how long it is and whether its ends are joined."""
        torus, shape = self.fabric.torus, self.slice_shape
        return () if torus is None else tuple(zip(shape, torus.wraps(shape), strict=True))

    @cached_property
    def dims(self) -> tuple[Dim, ...]:
        """From the inside out, without those the job does not reach; equal neighbours merged."""
        per_chip, n = self.chip.devices_per_chip, self.num_devices
        dims: list[Dim] = []
        domain = per_chip
        if self.fabric.torus is not None:
            torus = self.fabric.torus
            if (
                per_chip > 1
            ):  # the dies of a package: six times one torus dim (TPU v7x, MaxText custom_model.md)
                dims.append(
                    Dim(
                        name="die",
                        kind="switch",
                        scale="up",
                        domain=per_chip,
                        gb_s=6 * torus.gb_s_per_link,
                    )
                )
            shape = self.slice_shape
            for axis, length, wraps in zip(
                "zyx", reversed(shape), reversed(torus.wraps(shape)), strict=False
            ):
                domain *= length
                link = torus.gb_s_per_link / per_chip
                dims.append(
                    Dim(name=axis, kind="ring", scale="up", domain=domain, gb_s=link, wraps=wraps)
                )
        in_domain = 0 if self.fabric.torus else len(self.fabric.scale_up)
        for index, level in enumerate(self.fabric.levels):
            size = n if level.size is None else min(level.size * per_chip, n)
            if index < in_domain:
                size = min(size, self._chips_per_domain * per_chip)
            dims.append(
                Dim(
                    name=level.name,
                    kind="switch",
                    scale=level.scale,
                    domain=size,
                    gb_s=level.gb_s_per_chip / per_chip,
                    peer_gb_s=level.peer_gb_s,
                )
            )
        return _reached(dims, n)

    def with_changes(
        self,
        *,
        scale_up: float = 1.0,
        scale_out: float = 1.0,
        domain: int | None = None,
        num_chips: int | None = None,
    ) -> Cluster:
        """With so many times the scale-up and scale-out bandwidth, another number of chips in a
        scale-up domain, or another number of chips; raises Invalid where the fabric has no such
        thing to change."""
        fabric, torus = self.fabric, self.fabric.torus
        if domain is not None:
            fabric.require_domain("domain", domain)
        levels = []
        for level in fabric.levels:
            up = level.scale == "up"
            peers = (
                None
                if level.peer_gb_s is None
                else level.peer_gb_s * (scale_up if up else scale_out)
            )
            gb_s = level.gb_s_per_chip * (scale_up if up else scale_out)
            levels.append(replace(level, gb_s_per_chip=gb_s, peer_gb_s=peers))
        if domain is not None:
            last = len(fabric.scale_up) - 1
            inner = [level for level in levels[:last] if (level.size or domain) < domain]
            outer = [level for level in levels[last + 1 :] if (level.size or domain + 1) > domain]
            levels = [*inner, replace(levels[last], size=domain), *outer]
        torus = torus and replace(torus, gb_s_per_link=torus.gb_s_per_link * scale_up)
        sized = self.with_num_chips(num_chips or self.num_chips)
        return replace(
            sized,
            fabric=replace(fabric, levels=tuple(levels), torus=torus),
            chips_per_domain=sized.chips_per_domain if domain is None else None,
        )

    def with_num_chips(self, num_chips: int) -> Cluster:
        """With so many chips: of each scale-up domain as many as it holds now, or all where they
        are fewer. Slices keep a shape that is fixed where whole ones make them up, but for a single
        slice, which grows and shrinks."""
        held, slice_ = self.chips_per_domain, math.prod(self.torus_shape or ())
        whole = num_chips % slice_ == 0 and (num_chips == self.num_chips or slice_ < self.num_chips)
        return replace(
            self,
            num_chips=num_chips,
            torus_shape=self.torus_shape if whole else None,
            chips_per_domain=held and min(held, num_chips),
        )

    @cached_property
    def device_orders(self) -> DeviceOrders:
        rings = {
            dim.name: (at, dim.wraps) for at, dim in enumerate(self.dims) if dim.kind == "ring"
        }
        return DeviceOrders.of([dim.domain for dim in self.dims] or [1], rings)

    @property
    def scale_out_mask(self) -> Array:
        """Which of the dims lie beyond the scale-up domain."""
        return np.array([dim.scale == "out" for dim in self.dims] or [False])

    @property
    def scale_up_domain(self) -> int:
        """Devices joined by the fast links."""
        return max((d.domain for d in self.dims if d.scale == "up"), default=1)

    @property
    def scale_up_domain_chips(self) -> int:
        """Chips of these."""
        return self.scale_up_domain // self.chip.devices_per_chip

    @cached_property
    def _chips_per_domain(self) -> int:
        """The most, above half a domain, that fill every domain alike in whole trays: 256 chips on
        racks of 72 are 4 x
        64. Where there is no such number, domains are full and the last one is not."""
        n = self.num_chips
        size = min(self.fabric.domain or n, n)
        if self.chips_per_domain is not None:
            if not 1 <= self.chips_per_domain <= size:
                raise Invalid(
                    "cluster.chips_per_domain",
                    self.chips_per_domain,
                    f"must be between 1 and {size}",
                )
            return self.chips_per_domain
        if n % size == 0:
            return size
        even = [u for u in range(size, size // 2, -1) if n % u == 0 and u % _TRAY == 0]
        return even[0] if even else size


def _reached(dims: list[Dim], n: int) -> tuple[Dim, ...]:
    """Drop what adds no device, clip to the job, merge switched neighbours of equal links, close at
    `n`."""
    kept: list[Dim] = []
    for dim in dims:
        previous = kept[-1].domain if kept else 1
        if dim.domain <= previous or previous >= n:
            continue
        if (
            kept
            and dim.peer_gb_s is None
            and _links(kept[-1]) == _links(dim)
            and dim.kind == "switch"
        ):
            kept.pop()
        kept.append(dim)
    joined = kept[-1].domain if kept else 1
    if joined < n:
        rule = f"the fabric joins only {joined} devices in one slice or domain; give an outer level"
        raise Invalid("cluster.num_chips", n, rule)
    return tuple(kept)


def _links(dim: Dim) -> tuple[str, str, float]:
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
