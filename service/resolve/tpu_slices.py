"""Google's names of TPU slices: v5p-256 and tpu7x-256 have 256 TensorCores, two to a chip; v6e-256
has 256 chips; tpu7x-4x4x8 is named by its shape.

https://cloud.google.com/tpu/docs/v5p, .../v5e, .../v6e, .../tpu7x
"""

from __future__ import annotations

import math
import re

from models.errors import Invalid, UnknownName
from models.spec import catalogue
from models.spec.hardware import Torus
from service.schemas.cluster import ClusterPreset

_COUNTED_PER_CHIP = {"v3": 2, "v4": 2, "v5p": 2, "v5e": 1, "v5litepod": 1, "v6e": 1, "v7x": 2}
"""TensorCores or chips that a chip counts for in the number that a slice's name has."""

_COUNTED_NAME = re.compile(
    rf"(?:tpu[- ]?)?({'|'.join(_COUNTED_PER_CHIP)}|7x)-([1-9]\d{{0,6}})", re.ASCII
)
_SHAPED_NAME = re.compile(
    r"(?:tpu[- ]?)?(v\d[a-z]*|\d[a-z])-([1-9]\d{0,3}(?:x[1-9]\d{0,3}){1,2})", re.ASCII
)


def is_slice_name(name: str) -> bool:
    return any(form.fullmatch(name.lower()) for form in (_COUNTED_NAME, _SHAPED_NAME))


def expand_slice_name(preset: ClusterPreset) -> ClusterPreset:
    """Returns the preset with the chip, and the number or shape of chips, that a slice's name
    stands for: v5p-256 is 128 chips of tpu-v5p.

    A preset that is not named like a slice comes back unchanged. Raises Invalid if no slice has
    that name, or if the preset also gives another number or shape.
    """
    name = preset.preset.lower()
    if match := _SHAPED_NAME.fullmatch(name):
        shape = [int(length) for length in match[2].split("x")]
        return _expand_shape(preset, match[1], shape)
    if match := _COUNTED_NAME.fullmatch(name):
        return _expand_count(preset, match[1], int(match[2]))
    return preset


def _chip_name(version: str) -> str:
    """Returns the chip's name in the catalogue for a version in a slice's name: tpu-v7x for 7x."""
    return f"tpu-{version}" if version.startswith("v") else f"tpu-v{version}"


def _expand_shape(preset: ClusterPreset, version: str, shape: list[int]) -> ClusterPreset:
    """Returns the preset for a slice that is named by its shape, such as v5p-4x4x8. Raises Invalid
    for a shape that is not offered, or that contradicts the preset."""
    try:
        chip = catalogue.chip(_chip_name(version))
    except UnknownName:
        return preset  # its name is then refused as unknown
    # A shape with another number of dims is refused with the cluster (ClusterSize).
    torus = chip.fabric.torus
    if torus and len(shape) == torus.ndim and not torus.is_slice(tuple(shape)):
        raise Invalid("cluster.preset", preset.preset, _shape_rule(torus))
    num_chips = math.prod(shape)
    if preset.num_chips not in (None, num_chips):
        rule = f"{preset.preset} has {num_chips}"
        raise Invalid("cluster.num_chips", preset.num_chips, rule)
    if preset.torus_shape not in (None, shape):
        rule = f"{preset.preset} has {shape}"
        raise Invalid("cluster.torus_shape", preset.torus_shape, rule)
    return preset.model_copy(
        update={"preset": chip.id, "num_chips": num_chips, "torus_shape": shape}
    )


def _shape_rule(torus: Torus) -> str:
    """Returns the rule that a shape breaks which no slice of this torus has."""
    cubes = ""
    if torus.ndim == 3:
        side = torus.wrap_length
        cubes = f"whole cubes of {side} a side from {side**3} chips on, "
    return (
        f"is no slice: those are {cubes}powers of two a side else, and at most"
        f" {torus.max_chips} chips"
    )


def _expand_count(preset: ClusterPreset, version: str, count: int) -> ClusterPreset:
    """Returns the preset for a slice that is named by a count, such as v5p-256. The count may be of
    TensorCores. Raises Invalid if it makes no slice or contradicts the preset."""
    chip = _chip_name(version)
    per_chip = _COUNTED_PER_CHIP[chip.removeprefix("tpu-")]  # 2 where the count is of TensorCores
    num_chips, remainder = divmod(count, per_chip)
    if remainder:
        rule = f"is odd, but counts TensorCores, of which a chip has {per_chip}"
        raise Invalid("cluster.preset", preset.preset, rule)
    if torus := catalogue.chip(chip).fabric.torus:
        _require_slice(preset, torus, num_chips, version, per_chip)
    if preset.num_chips not in (None, num_chips):
        rule = f"{preset.preset} is {num_chips} chips"
        raise Invalid("cluster.num_chips", preset.num_chips, rule)
    if preset.torus_shape is not None and math.prod(preset.torus_shape) != num_chips:
        rule = (
            f"{preset.preset} is one slice of {num_chips} chips; for several slices give {chip} and"
            " num_chips"
        )
        raise Invalid("cluster.torus_shape", preset.torus_shape, rule)
    return preset.model_copy(update={"preset": chip, "num_chips": num_chips})


def _require_slice(
    preset: ClusterPreset, torus: Torus, num_chips: int, version: str, per_chip: int
) -> None:
    """Raises Invalid if no slice has this number of chips. The error names the nearest slices.
    `per_chip` is 2 for versions whose names count TensorCores, and 1 for those that count chips."""
    if num_chips > torus.max_chips:
        rule = f"is no slice: the largest is {version}-{torus.max_chips * per_chip}"
        raise Invalid("cluster.preset", preset.preset, rule)
    if torus.shape_for(num_chips) is not None:
        return
    sizes = [n for n in range(1, torus.max_chips + 1) if torus.shape_for(n)]
    smaller = max(n for n in sizes if n < num_chips)
    larger = min(n for n in sizes if n > num_chips)
    rule = (
        f"is no slice: the nearest are {version}-{smaller * per_chip} and"
        f" {version}-{larger * per_chip}; for several slices give {_chip_name(version)} and"
        " num_chips"
    )
    raise Invalid("cluster.preset", preset.preset, rule)
