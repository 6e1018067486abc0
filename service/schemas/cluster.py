"""A cluster as callers give it: a preset with a number of chips, or a chip and the links that join
it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal, Self, TypeVar

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    field_validator,
    model_validator,
)

from models.errors import Invalid
from models.spec.catalogue import chip_from
from models.spec.hardware import MAX_CHIPS, Chip, Cluster, Fabric, Level, Torus
from service.json_pointers import TAG_PREFIX
from service.schemas.wire import UNNAMED, BandwidthGbS, Degree, Label, Name, NameOrFields, Wire

Dtype = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8"]
Tflops = Annotated[float, Field(ge=1e-3, le=1e7)]
UsableMemoryGib = Annotated[float, Field(ge=0.1, le=1e5)]
Price = Annotated[float, Field(ge=0, le=1e6)]


class TorusFields(Wire):
    """A torus of links. `wrap`: "cubes" closes every ring of whole cubes, "length" those of
    `wrap_length` exactly."""

    ndim: Annotated[int, Field(ge=1, le=3)]
    max_chips: Degree
    gb_s_per_link: BandwidthGbS
    wrap: Literal["cubes", "length"]
    wrap_length: Annotated[int, Field(ge=1, le=10**4)]


class LevelFields(Wire):
    """Switched links: `size` chips reach each other at `gb_s_per_chip`; without a size all chips of
    the cluster do."""

    name: Label = "level"
    size: Degree | None = None
    gb_s_per_chip: BandwidthGbS
    peer_gb_s: BandwidthGbS | None = None
    """Bandwidth of the link to one peer, where there is no switch."""
    scale: Literal["up", "out"] = "out"
    """Whose latency it has. The innermost level is scale-up whatever it says; none is beyond one
    that scales out."""


class ScaleUpFields(Wire):
    """The fast links: a switched domain of `domain` chips, or a torus."""

    gb_s_per_chip: BandwidthGbS
    domain: Degree | None = None
    peer_gb_s: BandwidthGbS | None = None
    torus: TorusFields | None = None
    note: Label | None = None

    @model_validator(mode="after")
    def _require_one_form(self) -> Self:
        """Raises ValueError unless exactly one of domain and torus is given."""
        if (self.domain is None) == (self.torus is None):
            raise ValueError("needs either domain or torus")
        return self


class ChipFields(Wire):
    """An accelerator by its data sheet. Peaks are dense TFLOP/s of one chip; bandwidths GB/s one
    way."""

    name: Name = UNNAMED
    vendor: Label = ""
    generation: Annotated[
        str, StringConstraints(strip_whitespace=True, to_lower=True, min_length=1, max_length=60)
    ]
    """hopper, blackwell, ampere, tpu, cdna3, …: what the coefficients of a profile are shared
    by."""
    year: Annotated[int, Field(ge=1990, le=2100)] | None = None
    peak_tflops: dict[Dtype, Tflops]
    memory_gb: Annotated[float, Field(ge=0.1, le=1e5)]
    usable_memory_gib: UsableMemoryGib
    """GiB that a program can allocate."""
    memory_bandwidth_gb_s: Annotated[float, Field(ge=0.1, le=1e7)]
    host_memory_gb: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """The chip's share of its host's memory, which offload may fill; null: not known, and not held
    against it."""
    compute_units: Annotated[int, Field(ge=1, le=10**5)] = 1
    devices_per_chip: Annotated[int, Field(ge=1, le=16)] = 1
    tdp_w: Annotated[float, Field(gt=0, le=1e5)] | None = None
    scale_up: ScaleUpFields | None = None
    """Required where nothing else says how chips are joined: in a cluster, its `levels` or `torus`
    may."""
    scale_out_gb_s: BandwidthGbS | None = None
    """The chip's share of the network cards."""
    usd_per_chip_hour: Price | None = None
    price_source: Label | None = None
    sources: Annotated[list[Label], Field(max_length=50)] = []
    confidence: Label | None = None
    caveats: Label | None = None

    @field_validator("peak_tflops")
    @classmethod
    def _require_16_bit_peak(cls, peaks: dict[Dtype, Tflops]) -> dict[Dtype, Tflops]:
        """Raises ValueError where the chip has a peak in neither bf16 nor fp16, which predictions
        of any precision need (models.spec.hardware)."""
        if not {"fp16", "bf16"} & peaks.keys():
            raise ValueError("needs bf16 or fp16")
        return peaks

    def build(self, id_: str) -> Chip:
        """Returns the chip under this id. Raises Invalid where it has no links."""
        if self.scale_up is None:
            rule = "is required, unless a cluster of the chip has levels or torus"
            raise Invalid("scale_up", None, rule)
        return chip_from({**self.model_dump(), "id": id_})


ChipForm = NameOrFields[ChipFields]


class ClusterSize(Wire):
    """The part of a fabric that a job has."""

    num_chips: Degree | None = None
    torus_shape: Annotated[list[Degree], Field(min_length=1, max_length=3)] | None = None
    """The slice; without it the most cubic one."""
    chips_per_domain: Degree | None = None
    """Chips of each scale-up domain that the job holds, 64 of 72 say. Without it the most, above
    half a domain and a multiple of 4 (whole trays), that fill every domain alike; where there is no
    such number, domains are full and the last one is not."""
    scale_out_gb_s: BandwidthGbS | None = None
    """Beyond the scale-up domain, per chip; without it that of the fabric."""
    usable_memory_gib: UsableMemoryGib | None = None
    """GiB that a program can allocate on a chip; without it what the catalogue says. The driver,
    other processes or a limit may leave less."""
    usd_per_chip_hour: Price | None = None

    def build(self, chip: Chip, fabric: Fabric) -> Cluster:
        """Returns this part of the fabric as a cluster, with the overrides that the request gives.
        Raises Invalid where the fabric cannot join so many chips."""
        self._require_suitable_fabric(fabric)
        num_chips = self.num_chips
        if num_chips is None and self.torus_shape is not None:
            num_chips = math.prod(self.torus_shape)
        if num_chips is None:
            rule = "is required: the entry fixes no number of chips"
            raise Invalid("cluster.num_chips", None, rule)
        if self.scale_out_gb_s is not None:
            if fabric.scale_up and fabric.scale_up[-1].size is None:
                rule = (
                    f"level {fabric.scale_up[-1].name} joins every chip: there is nothing beyond it"
                )
                raise Invalid("cluster.scale_out_gb_s", self.scale_out_gb_s, rule)
            fabric = _with_scale_out(fabric, self.scale_out_gb_s)
        if self.usable_memory_gib is not None:
            require_memory("cluster.usable_memory_gib", self.usable_memory_gib, chip.memory_gb)
            chip = replace(chip, usable_memory_gib=self.usable_memory_gib)
        if self.usd_per_chip_hour is not None:
            chip = replace(chip, usd_per_chip_hour=self.usd_per_chip_hour)
        cluster = Cluster(
            chip=chip,
            fabric=fabric,
            num_chips=num_chips,
            torus_shape=tuple(self.torus_shape) if self.torus_shape else None,
            chips_per_domain=self.chips_per_domain,
        )
        _ = cluster.dims  # raises where the fabric does not join the chips
        return cluster

    def _require_suitable_fabric(self, fabric: Fabric) -> None:
        """Raises Invalid where the request gives a torus shape or a domain size, and the fabric is
        not of that kind."""
        if self.torus_shape is not None:
            if fabric.torus is None:
                rule = f"fabric {fabric.id} is no torus"
                raise Invalid("cluster.torus_shape", self.torus_shape, rule)
            if len(self.torus_shape) != fabric.torus.ndim:
                rule = f"must have {fabric.torus.ndim} dims"
                raise Invalid("cluster.torus_shape", self.torus_shape, rule)
        if self.chips_per_domain is not None and fabric.torus is not None:
            rule = "a torus has no switched domain"
            raise Invalid("cluster.chips_per_domain", self.chips_per_domain, rule)


class ClusterPreset(ClusterSize):
    """A chip or a fabric of the catalogue, by name."""

    preset: Name
    """`h100`, `dgx-h100-superpod`, …; a TPU slice by Google's name fixes the number of chips:
    `v5p-256` has 128, and so has `tpu7x-4x4x8`, in that shape. `name@2` is the second version of an
    entry that was registered here."""


class ClusterFields(ClusterSize):
    """A chip and the links that join it, from the inside out; without links, those of its data
    sheet."""

    chip: ChipForm
    """A name of /v1/catalog/chips, or the data sheet; `name@2` is the second version of a
    registered one."""
    levels: Annotated[list[LevelFields], Field(min_length=1, max_length=8)] | None = None
    torus: TorusFields | None = None

    @property
    def chip_with_links(self) -> str | ChipFields:
        """Returns the chip. If its data sheet names no links, without which no chip can be built,
        it gets the innermost ones of the cluster."""
        if not isinstance(self.chip, ChipFields) or self.chip.scale_up is not None:
            return self.chip
        links = self._innermost_links()
        return self.chip if links is None else self.chip.model_copy(update={"scale_up": links})

    def _innermost_links(self) -> ScaleUpFields | None:
        """Returns the torus or the first level of the cluster as scale-up links, for a chip that is
        described without any. None where the cluster has neither."""
        if self.torus is not None:
            # gb_s_per_chip is required, though only the torus counts where there is one.
            return ScaleUpFields(gb_s_per_chip=self.torus.gb_s_per_link, torus=self.torus)
        if self.levels is None:
            return None
        innermost = self.levels[0]
        return ScaleUpFields(
            gb_s_per_chip=innermost.gb_s_per_chip,
            domain=innermost.size or MAX_CHIPS,  # a level without a size joins every chip
            peer_gb_s=innermost.peer_gb_s,
        )

    def fabric(self, chip: Chip) -> Fabric:
        """Returns the fabric that the request describes, or the chip's own. Raises Invalid where
        the first level is no larger than a slice of the torus."""
        if self.levels is None and self.torus is None:
            return chip.fabric
        inner_size = self.levels[0].size if self.levels else None
        if self.torus and inner_size and inner_size <= self.torus.max_chips:
            rule = (
                f"must be above max_chips = {self.torus.max_chips} of the torus: levels join whole"
                " slices of it"
            )
            raise Invalid("levels[0].size", inner_size, rule)
        return Fabric(
            id="custom",
            levels=tuple(Level(**level.model_dump()) for level in self.levels or ()),
            torus=Torus(**self.torus.model_dump()) if self.torus else None,
        )


def require_memory(field: str, usable_memory_gib: float, memory_gb: float) -> None:
    """Raises Invalid for `field` where a chip has more usable memory than its data sheet can mean.

    Vendors mean either 1e9 or 2^30 bytes by GB. The larger one is taken as the limit.
    """
    if usable_memory_gib > memory_gb:
        units = "whether by GB the data sheet means 2^30 bytes, as GiB are, or 1e9"
        rule = f"must not exceed the memory of the chip, memory_gb = {memory_gb:g}, {units}"
        raise Invalid(field, usable_memory_gib, rule)


def _with_scale_out(fabric: Fabric, gb_s: float) -> Fabric:
    """Returns the fabric with this bandwidth in GB/s per chip on all levels beyond the scale-up
    domain."""
    outer = fabric.levels[len(fabric.scale_up) :]
    if not outer:
        outer = (Level(name="scale-out", gb_s_per_chip=gb_s),)
    changed = [replace(level, gb_s_per_chip=gb_s) for level in outer]
    return replace(fabric, levels=(*fabric.scale_up, *changed))


def _cluster_union_tag(value: object) -> str:
    """Returns the tag of the form in which a cluster is written: a preset, or a chip and its links.
    Pydantic then validates it in that form alone."""
    if isinstance(value, Mapping):
        has_fields = "preset" not in value and bool({"chip", "levels", "torus"} & value.keys())
    else:
        has_fields = isinstance(value, ClusterFields)
    return f"{TAG_PREFIX}fields" if has_fields else f"{TAG_PREFIX}preset"


def _reject_name(value: object) -> object:
    """Returns the value unchanged. Raises ValueError for a bare name, which needs a number of chips
    beside it."""
    if isinstance(value, str):
        raise ValueError(
            'must be an object: {"preset": …, "num_chips": …}, or the chip and its links'
        )
    return value


Preset = TypeVar("Preset")
Fields = TypeVar("Fields")
PresetOrFields = Annotated[
    Annotated[Preset, Tag(f"{TAG_PREFIX}preset")] | Annotated[Fields, Tag(f"{TAG_PREFIX}fields")],
    Discriminator(_cluster_union_tag),
    BeforeValidator(_reject_name),
]
ClusterForm = PresetOrFields[ClusterPreset, ClusterFields]
