"""Reads the mesh of a launch of MaxText: the degrees of its axes within slices (ici) and across
slices (dcn), as the degrees, the ZeRO stage and the placement of a layout.

A *slice* is a slice of a TPU torus, or on GPUs a scale-up domain. A *stop* is a setting with which
MaxText refuses to start. A *reservation* is a remark that a setting could matter and is not, or not
fully, taken into account.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

from models.spec import catalogue
from service.formats.launch.maxtext.mesh import EXPERT_RULE, Degrees, placement_of
from service.formats.settings.settings import Settings
from service.formats.settings.stop import Stopped, Stops
from service.formats.shell.faults import invalid_launch
from service.formats.shell.tpu_slices import Slices

_AXES: Mapping[str, tuple[str, ...]] = {
    "pp": ("pipeline",),
    "cp": ("context", "context_usp_ulysses"),
    "tp": ("tensor", "tensor_sequence"),
    "fsdp": ("fsdp", "fsdp_transpose"),
    "expert": ("expert",),
    "data": ("data",),
}
"""The axes of the mesh by what they do. `fsdp_transpose` shards the batch as `fsdp` does, but the
other side of a matrix (configs/types.py, logical_axis_rules)."""
_NEAR_AXES = ("context_usp_ulysses",)
"""Axes that are not modelled, and are read as the nearest axis."""
_AXIS_NOT_DESCRIBED = (
    "what this axis of the mesh shards is not described, or read as the nearest axis",
    "use the axes data, fsdp, tensor, context, expert and pipeline",
)
_UNREAD_AXES = ("diloco", "sequence", "context_autoregressive", "autoregressive")
"""Axes that are not modelled, and are not read."""


class MeshReader:
    """Reads the mesh of one launch. `values` has every setting, by default where the launch gives
    none, and `slices` are those that the launch asks its scheduler for."""

    def __init__(
        self, values: Mapping[str, Any], settings: Settings, slices: Slices | None
    ) -> None:
        self.values = values
        self.settings = settings
        self.slices = slices
        self.num_devices: int | None = None
        """The number of devices; None while a degree is not known."""
        self.devices_setting: str | None = None
        """The setting from which the number of devices follows."""

    def degrees(self, stops: Stops) -> Degrees:
        """Returns the degrees within and across slices: {"tp": (8, 1), "fsdp": (4, 2), …}. A
        degree of -1 across slices is filled in where their number is known. Any other degree of
        -1 is returned as 0, which stands for unknown. Where MaxText refuses the degrees, notes a
        stop and returns those of an FSDP that takes all devices."""
        default_mesh = {**dict.fromkeys(_AXES, (1, 1)), "fsdp": (0, 1)}
        return stops.attempt(self._degrees, instead=default_mesh)

    def _degrees(self) -> Degrees:
        """Returns the degrees within and across slices. Raises Stopped for those that MaxText
        refuses."""
        inside = _Side("ici", self.values, self.settings)
        across = _Side("dcn", self.values, self.settings)
        self._fill(inside, across)
        return {
            role: (inside.product_of(axes), across.product_of(axes)) for role, axes in _AXES.items()
        }

    def _fill(self, inside: _Side, across: _Side) -> None:
        """Replaces a degree of -1 across slices where their number is known. Sets the number of
        devices where all degrees are known. Raises Stopped where degrees contradict the slices or
        the devices of a slice."""
        count = self._num_slices()
        if count:
            across.require(count, "slices")
            across.fill(count)
        # A program that compiles for another topology does not use the slices that it runs on.
        if self.slices and count and self.settings.given.get("compile_topology") in (None, ""):
            devices = self.slices.num_chips * catalogue.chip(self.slices.chip).devices_per_chip
            inside.require(devices // count, "devices of a slice")
        if inside.is_known and across.is_known:
            # A message about the number of devices says to change this setting.
            self.devices_setting = inside.setting(inside.axis_to_change)
            self.num_devices = inside.product * across.product

    def _num_slices(self) -> int | None:
        """Returns the number of slices, by a setting or else by the scheduler; None where neither
        says it."""
        for name in ("num_slices", "compile_topology_num_slices"):
            count = self.settings.given.get(name)
            if count and count > 0:
                return int(count)
        return None if self.slices is None else self.slices.count

    def layout(self, degrees: Degrees) -> dict[str, Any]:
        """Returns the degrees of the layout, its ZeRO stage and its placement. Data-parallel
        degrees of 0 are not known, and left out. Raises Invalid where a model-parallel degree is
        not known."""
        total = {role: math.prod(degrees[role]) for role in _AXES}
        layout: dict[str, Any] = {
            "pp": total["pp"],
            "cp": total["cp"],
            "tp": total["tp"],
            "ep": total["expert"] * (total["cp"] if self._experts_over_context() else 1),
            "sequence_parallel": total["tp"] > 1,  # the tensor axis shards norms and residuals too
        }
        for axis in ("pp", "cp", "tp"):
            if layout[axis] == 0:
                rule = "is -1: say the degree, or how many devices and slices the job has"
                raise invalid_launch(f"the axis of {axis}", rule)
        layout["zero_stage"], split = self._data_parallel(degrees, total)
        for axis, inside_and_across in split.items():
            if math.prod(inside_and_across):
                layout[axis] = math.prod(inside_and_across)
        split |= {axis: degrees[axis] for axis in ("pp", "cp", "tp")}
        if all(map(math.prod, split.values())):  # no degree is unknown
            placement, is_exact = placement_of(split)
            layout["placement"] = placement
            if not is_exact:
                self.settings.add_text_reservation(
                    "degrees within slices and across them",
                    "several axes lie in both, and are read as one after the other",
                    "let one axis cross slices",
                )
        return layout

    def _experts_over_context(self) -> bool:
        """Returns True where the mesh divides experts over context parallelism too. Records a
        reservation for any other custom mesh."""
        rule = self.values["custom_mesh_and_rule"]
        if rule not in ("", None, EXPERT_RULE):
            reason = "what this mesh shards is not described, and read as the default mesh"
            self.settings.add_reservation("custom_mesh_and_rule", reason, "leave it out")
        return bool(rule == EXPERT_RULE)

    def _data_parallel(self, degrees: Degrees, total: Mapping[str, int]) -> tuple[int, Degrees]:
        """Returns the ZeRO stage, and the data-parallel degrees within and across slices:
        {"dp_shard": (8, 2), "dp_replicate": (1, 1)}. Weights are sharded over the axes fsdp,
        expert and context; without these each rank holds all of them, and stage 1 shards the
        optimizer. `total` has the products of the degrees."""
        data = degrees["data"]
        # A product of 0 stands for a degree that is not known, which may shard.
        if total["fsdp"] != 1 or total["expert"] > 1 or total["cp"] > 1:
            pairs = zip(degrees["fsdp"], degrees["expert"], strict=True)
            inside, across = (fsdp * expert for fsdp, expert in pairs)
            split = {"dp_shard": (inside, across), "dp_replicate": data}
            if total["fsdp"] != 1 or total["expert"] != 1 or total["data"] == 1:
                return 3, split
            # No ZeRO stage shards over context alone, beside replicas.
            self.settings.add_text_reservation(
                "context parallelism beside data parallelism",
                "weights are sharded over context, and read as whole",
                "use ici_fsdp_parallelism in place of ici_data_parallelism",
            )
            return 0, split
        if self.values["shard_optimizer_over_data"]:
            return 1, {"dp_shard": data, "dp_replicate": (1, 1)}
        # On one replica no stage shards anything; an offloaded optimizer is read as stage 3.
        offloads_one_replica = data == (1, 1) and self.values["optimizer_memory_host_offload"]
        return 3 if offloads_one_replica else 0, {"dp_shard": (1, 1), "dp_replicate": data}


class _Side:
    """The degrees of all axes within a slice (prefix "ici") or across slices ("dcn"). A degree of
    -1 takes the devices or slices that the others leave."""

    def __init__(self, prefix: str, values: Mapping[str, Any], settings: Settings) -> None:
        """Reads the degrees. Adds a reservation for axes that are not modelled. Raises Stopped
        for degrees that MaxText refuses."""
        self.prefix = prefix
        self.degrees: dict[str, int] = {}
        for axis in (*chain.from_iterable(_AXES.values()), *_UNREAD_AXES):
            setting = self.setting(axis)
            degree = values[setting]
            if degree < 1 and degree != -1:
                raise Stopped(setting, degree, "must be at least 1, or -1", f"{setting}=1")
            # _UNREAD_AXES count for nothing, and _NEAR_AXES as the axis most like them.
            if degree != 1 and axis in (*_UNREAD_AXES, *_NEAR_AXES):
                settings.add_reservation(setting, *_AXIS_NOT_DESCRIBED)
            self.degrees[axis] = degree
        free = [self.setting(axis) for axis, degree in self.degrees.items() if degree == -1]
        if len(free) > 1:
            rule = f"goes with a number for {', '.join(free[1:])}: one axis may be -1"
            raise Stopped(free[0], -1, rule)

    def setting(self, axis: str) -> str:
        return f"{self.prefix}_{axis}_parallelism"

    @property
    def is_known(self) -> bool:
        return -1 not in self.degrees.values()

    @property
    def product(self) -> int:
        """Returns the product of the degrees other than -1."""
        return math.prod(degree for degree in self.degrees.values() if degree != -1)

    def product_of(self, axes: Iterable[str]) -> int:
        """Returns the product of the degrees of these axes; 0 where one of them is -1."""
        return math.prod(max(self.degrees[axis], 0) for axis in axes)

    @property
    def axis_to_change(self) -> str:
        """Returns the axis whose degree is -1, or else the largest, as the one that an error
        message says to change."""
        return min(self.degrees, key=lambda axis: (self.degrees[axis] != -1, -self.degrees[axis]))

    def require(self, count: int, counted: str) -> None:
        """Raises Stopped where the degrees do not multiply to this number of slices, or of devices
        of a slice. `counted` says of what."""
        others = self.product
        axis = self.axis_to_change
        setting = self.setting(axis)
        degree = self.degrees[axis]
        if not self.is_known and count % others:
            rule = f"and the other {self.prefix} degrees multiply to {others}, of which"
            rule += f" {count} {counted} must be a multiple"
            raise Stopped(setting, degree, rule)
        if self.is_known and count != others:
            rule = f"and the other {self.prefix} degrees multiply to {others}, where the number of"
            rule += f" {counted} is {count}"
            fitting, remainder = divmod(count * degree, others)
            raise Stopped(setting, degree, rule, "" if remainder else f"{setting}={fitting}")

    def fill(self, slices: int) -> None:
        """Replaces the degree of -1 by what the other degrees leave of this number of slices. Only
        degrees across slices are filled in."""
        for axis, degree in self.degrees.items():
            if degree == -1:
                self.degrees[axis] = slices // self.product
