"""Google's names of TPU slices: v5p-256 and tpu7x-256 have 256 TensorCores, two to a chip; v6e-256
has 256 chips; tpu7x-4x4x8 is named by its shape.

https://cloud.google.com/tpu/docs/v5p, .../v5e, .../v6e, .../tpu7x
"""

from __future__ import annotations

import math
import re

from models.errors import Invalid, UnknownName
from models.spec import catalogue
from service.schemas.cluster import ClusterPreset

_COUNTED_PER_CHIP = {"v3": 2, "v4": 2, "v5p": 2, "v5e": 1, "v5litepod": 1, "v6e": 1, "v7x": 2}
_NAME = re.compile(rf"(?:tpu-?)?({'|'.join(_COUNTED_PER_CHIP)}|7x)-([1-9]\d{{0,6}})", re.ASCII)
_SHAPED = re.compile(r"(?:tpu-?)?(v\d[a-z]*|7x)-([1-9]\d{0,3}(?:x[1-9]\d{0,3}){1,2})", re.ASCII)


def is_slice(name: str) -> bool:
    return any(form.fullmatch(name.lower()) for form in (_NAME, _SHAPED))


def as_chips(preset: ClusterPreset) -> ClusterPreset:
    """The chip and the number of them that the name of a slice stands for; any other preset as it
    is."""
    name = preset.preset.lower()
    if match := _SHAPED.fullmatch(name):
        return _shaped(preset, match[1], [int(length) for length in match[2].split("x")])
    if match := _NAME.fullmatch(name):
        return _counted(preset, match)
    return preset


def _shaped(preset: ClusterPreset, chip: str, shape: list[int]) -> ClusterPreset:
    try:
        found = catalogue.chip(f"tpu-{'v' * (chip[0] != 'v')}{chip}")
    except UnknownName:
        return preset
    torus = found.fabric.torus
    if torus and len(shape) == torus.ndim and not torus.is_slice(tuple(shape)):
        cubes = (
            f"whole cubes of {torus.wrap_length} a side from {torus.wrap_length**3} chips on, "
            * (torus.ndim == 3)
        )
        rule = (
            f"is no slice: those are {cubes}powers of two a side else, and at most"
            f" {torus.max_chips} chips"
        )
        raise Invalid("cluster.preset", preset.preset, rule)
    for field, given, named in (
        ("num_chips", preset.num_chips, math.prod(shape)),
        ("torus_shape", preset.torus_shape, shape),
    ):
        if given not in (None, named):
            raise Invalid(f"cluster.{field}", given, f"{preset.preset} has {named}")
    return preset.model_copy(
        update={"preset": found.id, "num_chips": math.prod(shape), "torus_shape": shape}
    )


def _counted(preset: ClusterPreset, match: re.Match[str]) -> ClusterPreset:
    name = match[1] if match[1].startswith("v") else f"v{match[1]}"
    chip, per_chip = f"tpu-{name}", _COUNTED_PER_CHIP[name]
    num_chips, rest = divmod(int(match[2]), per_chip)
    if rest:
        raise Invalid(
            "cluster.preset",
            preset.preset,
            f"is odd, but counts TensorCores, of which a chip has {per_chip}",
        )
    torus = catalogue.chip(chip).fabric.torus
    if torus and num_chips > torus.max_chips:
        largest = torus.max_chips * per_chip
        raise Invalid(
            "cluster.preset", preset.preset, f"is no slice: the largest is {match[1]}-{largest}"
        )
    if torus and torus.shape_for(num_chips) is None:
        sizes = [n for n in range(1, torus.max_chips + 1) if torus.shape_for(n)]
        near = [max(n for n in sizes if n < num_chips), min(n for n in sizes if n > num_chips)]
        names = " and ".join(f"{match[1]}-{n * per_chip}" for n in near)
        raise Invalid(
            "cluster.preset",
            preset.preset,
            f"is no slice: the nearest are {names}; for several slices give {chip} and num_chips",
        )
    if preset.num_chips not in (None, num_chips):
        raise Invalid(
            "cluster.num_chips", preset.num_chips, f"{preset.preset} is {num_chips} chips"
        )
    if preset.torus_shape is not None and math.prod(preset.torus_shape) != num_chips:
        rule = (
            f"{preset.preset} is one slice of {num_chips} chips; for several slices give {chip} and"
            " num_chips"
        )
        raise Invalid("cluster.torus_shape", preset.torus_shape, rule)
    return preset.model_copy(update={"preset": chip, "num_chips": num_chips})
