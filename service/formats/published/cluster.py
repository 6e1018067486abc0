"""The clusters of published runs. A *row* is the JSON object that describes the cluster of a run.

A *level* is one kind of links of a fabric: scale-up links such as NVLink, or the network.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

from models.errors import Invalid, UnknownName
from models.spec import catalogue
from models.spec.hardware import Cluster, Fabric, Level, Torus
from service.formats.published.software import Row


def read_cluster(row: Row) -> Cluster:
    """Returns the cluster of a run: with the catalogue's fabric where the row names it, or else
    with the sizes and bandwidths that the row states. Raises Invalid without a number of chips."""
    chip = catalogue.chip(row["chip"])
    num_chips = row.get("num_chips")
    if not num_chips:
        raise Invalid("cluster.num_chips", num_chips, "not stated")
    if chip.fabric.torus is not None:
        return Cluster(
            chip=chip,
            fabric=chip.fabric,
            num_chips=num_chips,
            torus_shape=_torus_shape(row, chip.fabric.torus, num_chips),
        )
    named = _named_fabric(row)
    if named is not None:
        return Cluster(chip=chip, fabric=named, num_chips=num_chips)
    scale_up = chip.fabric.levels[0]  # levels go from the innermost links to the network
    size = row.get("scaleup_domain") or scale_up.size
    gbps = row.get("scaleout_gbps_per_chip")  # gigabits, where levels have gigabytes
    scale_out_gb_s = gbps / 8 if gbps else chip.fabric.levels[-1].gb_s_per_chip
    scale_out = Level(name="scale-out", gb_s_per_chip=scale_out_gb_s)
    levels = (replace(scale_up, size=size), scale_out)
    return Cluster(chip=chip, fabric=Fabric(id=chip.fabric.id, levels=levels), num_chips=num_chips)


def _named_fabric(row: Row) -> Fabric | None:
    """Returns the catalogue's fabric that the row names. None where it names none or one of
    another chip, or states a bandwidth, which then counts in place of the catalogue's."""
    text = row.get("fabric") or ""
    name = text.split(",")[0]  # "DGX A100, InfiniBand" -> "DGX A100"
    if not name or row.get("scaleout_gbps_per_chip"):
        return None
    try:
        fabric = catalogue.fabric_described_as(text) or catalogue.fabric(name)
    except UnknownName:
        return None
    is_of_chip = catalogue.fabric_chip(fabric.id) == catalogue.chip(row["chip"]).id
    return fabric if is_of_chip else None


def _torus_shape(row: Row, torus: Torus, num_chips: int) -> tuple[int, ...] | None:
    """Returns the shape of a slice, (8, 8, 4), as the row prints it. Without it, the usual shape
    where the run has several slices, and None where it has one: a Cluster has the usual shape
    then anyway."""
    # "TPU v4 8x8x4 torus" -> 8, 8, 4
    shape = re.search(r"\b(\d+)x(\d+)(?:x(\d+))?\b", row.get("fabric") or "")
    if shape is not None:
        dims = tuple(int(dim) for dim in shape.groups() if dim)
        # A shape that does not divide the chips is not that of the run's slices.
        return dims if num_chips % math.prod(dims) == 0 else None
    slice_chips = row.get("scaleup_domain")
    if slice_chips and slice_chips < num_chips and num_chips % slice_chips == 0:
        return torus.shape_for(slice_chips)
    return None
