"""The TPU slices, or machines with GPUs, that xpk is asked for (xpk 1.16.0,
core/system_characteristics.py)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from service.formats.shell.launchers import positive_integer

_TYPE = re.compile(r"(?P<name>[a-z]\w{0,20})-(?P<size>\d{1,5}(?:x\d{1,3}){0,2})", re.ASCII)
_GPU_TYPE = re.compile(
    r"(?P<chip>(?:gb|[ahbl])\d{1,3}(?:-mega)?(?:-\d{1,3}gb)?)-(?P<count>\d)(?:-nolssd)?", re.ASCII
)
_TYPES = ("tpu_type", "device_type")
_CHIPS = {
    "v4": "v4",
    "v5p": "v5p",
    "v5litepod": "v5e",
    "v5e": "v5e",
    "v6e": "v6e",
    "tpu7x": "tpu7x",
}
_OF_TWO_CORES = ("v4", "v5p", "tpu7x")
"""Generations whose types count TensorCores, of which a chip has two; the others count chips."""


@dataclass(frozen=True, slots=True)
class Slices:
    """The slices of a job, which are equal."""

    chip: str
    count: int
    chips_of_slice: int
    shape: tuple[int, ...] | None = None
    """The shape of a slice, where its type says it."""

    @property
    def num_chips(self) -> int:
        return self.count * self.chips_of_slice


@dataclass(frozen=True, slots=True)
class GpuMachines:
    """Equal machines with GPUs."""

    chip: str
    nodes: int
    gpus_per_node: int


def slices_of(options: Mapping[str, str]) -> Slices | None:
    """Returns the TPU slices that xpk's options ask for; None where they name no TPU. The
    names of `options` have underscores."""
    written = next((options[name] for name in _TYPES if name in options), "")
    match = _TYPE.fullmatch(written)
    chip = _CHIPS.get(match["name"]) if match else None
    if match is None or chip is None:
        return None
    # "v5p-128" counts TensorCores, while a topology such as "4x4x8" counts chips.
    counts = tuple(map(int, match["size"].split("x")))
    is_shape = len(counts) > 1
    counted_per_chip = 2 if not is_shape and chip in _OF_TWO_CORES else 1
    return Slices(
        chip=chip,
        count=positive_integer(options.get("num_slices")) or 1,
        chips_of_slice=math.prod(counts) // counted_per_chip,
        shape=counts if is_shape else None,
    )


def gpu_machines_of(options: Mapping[str, str]) -> GpuMachines | None:
    """Returns the machines that xpk's options ask for, by a type such as h100-mega-80gb-8; None
    where they name no GPU. The names of `options` have underscores."""
    match = _GPU_TYPE.fullmatch(options.get("device_type", ""))
    if match is None:
        return None
    nodes = positive_integer(options.get("num_nodes")) or 1
    return GpuMachines(match["chip"], nodes, int(match["count"]))
