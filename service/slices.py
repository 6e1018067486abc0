"""Google's names of TPU slices: v5p-256 has 256 TensorCores, two to a chip; v6e-256 has 256 chips.

https://cloud.google.com/tpu/docs/v5p, .../v5e, .../v6e
"""

from __future__ import annotations

import re

from models import catalogue
from models.errors import Invalid
from service.schemas.cluster import ClusterPreset

_COUNTED_PER_CHIP = {"v3": 2, "v4": 2, "v5p": 2, "v5e": 1, "v5litepod": 1, "v6e": 1}
_NAME = re.compile(rf"(?:tpu-)?({'|'.join(_COUNTED_PER_CHIP)})-([1-9]\d{{0,6}})", re.ASCII)


def is_slice(name: str) -> bool:
    return _NAME.fullmatch(name.lower()) is not None


def as_chips(preset: ClusterPreset) -> ClusterPreset:
    """The chip and the number of them that the name of a slice stands for; any other preset as it is."""
    match = _NAME.fullmatch(preset.preset.lower())
    if match is None:
        return preset
    chip, per_chip = f"tpu-{match[1]}", _COUNTED_PER_CHIP[match[1]]
    num_chips, rest = divmod(int(match[2]), per_chip)
    if rest:
        raise Invalid(
            "cluster.preset", preset.preset, f"is odd, but counts TensorCores, of which a chip has {per_chip}"
        )
    torus = catalogue.chip(chip).fabric.torus
    if torus and num_chips > torus.max_chips:
        largest = torus.max_chips * per_chip
        raise Invalid("cluster.preset", preset.preset, f"is no slice: the largest is {match[1]}-{largest}")
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
        raise Invalid("cluster.num_chips", preset.num_chips, f"{preset.preset} is {num_chips} chips")
    return preset.model_copy(update={"preset": chip, "num_chips": num_chips})
