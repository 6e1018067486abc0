"""The mesh of MaxText: each axis has a degree within a slice (ici) and one across slices (dcn)
(maxtext 0.2.5 configs/base.yml, utils/maxtext_utils.py create_device_mesh)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from models.spec.hardware import Cluster
from models.spec.layout import AXES, PLACEMENTS, Layout
from service.formats.launch.job import Inexpressible

MESH_AXES = ("data", "pipeline", "fsdp", "context", "tensor", "expert")
"""The axes that layouts use, as their settings name them, outermost first."""
ACROSS = ("tp", "cp", "dp_shard", "pp", "dp_replicate")
"""The order of a layout's axes across slices, innermost first."""
EXPERT_RULE = "cp-as-ep"
"""The mesh rule under which experts are divided over `context` and `expert` together; it has no
tensor axis."""

Degrees = dict[str, tuple[int, int]]
"""By axis, its degree within a slice and across slices."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """The degrees of all axes, and the rule for what they shard."""

    degrees: Mapping[str, tuple[int, int]]
    rule: str = ""

    @property
    def has_experts(self) -> bool:
        """Returns True where an axis of its own divides experts over devices."""
        return math.prod(self.degrees["expert"]) > 1

    def settings(self) -> dict[str, int | str]:
        settings: dict[str, int | str] = {}
        for side, kind in enumerate(("ici", "dcn")):
            for axis in MESH_AXES:
                settings[f"{kind}_{axis}_parallelism"] = self.degrees[axis][side]
        if self.rule:
            settings["custom_mesh_and_rule"] = self.rule
        return settings


def mesh_of(format_: str, layout: Layout, cluster: Cluster) -> Mesh:
    """The mesh of a layout. Raises Inexpressible where MaxText has none that is placed so."""
    split = _split_over_slices(format_, layout, cluster)
    expert, rule = _expert_axis(format_, layout)
    shard = split["dp_shard"]
    inside = math.gcd(expert, shard[0])
    outside = expert // inside
    if shard[1] % outside:
        cure = "the expert axis would lie over a part of a slice; ask with another ep or dp_shard"
        raise Inexpressible(format_, "layout.ep", layout.ep, cure)
    rest = (shard[0] // inside, shard[1] // outside)
    replicas = split["dp_replicate"]
    is_replicated = layout.zero_stage < 3
    degrees: Degrees = {
        "data": (replicas[0] * rest[0], replicas[1] * rest[1]) if is_replicated else replicas,
        "pipeline": split["pp"],
        "fsdp": (1, 1) if is_replicated else rest,
        "context": split["cp"],
        "tensor": split["tp"],
        "expert": (inside, outside),
    }
    return Mesh(degrees, rule)


def devices_per_slice(cluster: Cluster) -> int:
    """Returns the number of devices that ICI joins: those of a slice of a torus, else of a scale-up
    domain."""
    if cluster.is_torus:
        return math.prod(cluster.slice_shape) * cluster.chip.devices_per_chip
    return min(cluster.scale_up_domain, cluster.num_devices)


def _split_over_slices(format_: str, layout: Layout, cluster: Cluster) -> Degrees:
    """Each axis of a layout, divided into what lies within a slice and across slices."""
    size = devices_per_slice(cluster)
    split: Degrees = {}
    stride = 1
    for axis in layout.placement:
        degree = getattr(layout, axis)
        inside = math.gcd(stride * degree, size) // stride if stride < size else 1
        is_nested = size % stride == 0 or stride % size == 0
        if not is_nested or inside == 0 or degree % inside:
            cure = (
                f"ask with a degree of {axis} that divides a slice of {size} devices, or covers it"
            )
            raise Inexpressible(format_, "layout.placement", list(layout.placement), cure)
        split[axis] = (inside, degree // inside)
        stride *= degree
    if math.prod(inside for inside, _ in split.values()) != size:
        cure = f"ask with axes that fill slices of {size} devices"
        raise Inexpressible(format_, "layout.placement", list(layout.placement), cure)
    _require_order(format_, layout, cluster, split)
    return split


def _require_order(format_: str, layout: Layout, cluster: Cluster, split: Degrees) -> None:
    """Raises Inexpressible where several levels of links join slices and MaxText would order the
    axes across them otherwise."""
    if sum(dim.scale == "out" for dim in cluster.dims) < 2:
        return
    outside = [axis for axis in layout.placement if split[axis][1] > 1]
    if outside != [axis for axis in ACROSS if axis in outside]:
        cure = f"ask with the order {', '.join(ACROSS)} across slices, innermost first"
        raise Inexpressible(format_, "layout.placement", list(layout.placement), cure)


def _expert_axis(format_: str, layout: Layout) -> tuple[int, str]:
    """The degree of the axis of experts, which is a part of dp_shard, and the rule of the mesh."""
    if layout.dp_shard % layout.ep == 0:
        return layout.ep, ""
    beside_context, remainder = divmod(layout.ep, layout.cp)
    if remainder == 0 and layout.dp_shard % beside_context == 0 and layout.tp == 1:
        return beside_context, EXPERT_RULE
    cure = (
        f"the expert axis is a part of dp_shard({layout.dp_shard}), with tp 1 beside"
        f" cp({layout.cp}) too; ask with an ep that divides dp_shard"
    )
    raise Inexpressible(format_, "layout.ep", layout.ep, cure)


def splits_physical_axes(mesh: Mesh, cluster: Cluster) -> bool:
    """Returns True where some axis is no product of whole dims of the torus that are left for it.
    JAX refuses that unless it may split dims. It takes the axes one after the other, the innermost
    first, and gives each as many dims as it can (jax/_src/mesh_utils.py,
    _create_device_mesh_for_nd_torus)."""
    if not cluster.is_torus:
        return False
    cores = cluster.chip.devices_per_chip
    left = [*([cores] if cores > 1 else []), *reversed(cluster.slice_shape)]
    outermost_first = sorted(MESH_AXES, key=lambda axis: axis != "pipeline")
    for axis in reversed(outermost_first):
        degree = mesh.degrees[axis][0]
        if degree > 1:
            chosen = _first_dims(left, degree)
            if chosen is None:
                return True
            left = [0 if index in chosen else dim for index, dim in enumerate(left)]
    return False


def _first_dims(left: Sequence[int], degree: int) -> tuple[int, ...] | None:
    """The places of the dims whose product is a degree, the most dims first; None where there are
    none."""
    for count in range(len(left), 0, -1):
        for chosen in combinations(range(len(left)), count):
            if math.prod(left[index] for index in chosen) == degree:
                return chosen
    return None


def placement_of(split: Mapping[str, tuple[int, int]]) -> tuple[list[str], bool]:
    """The order of a layout's axes, innermost first, and whether each lies where it is split: no
    more than one axis can be both within slices and across them. Axes of one rank stand nowhere,
    and of the orders that are the same the first is taken."""
    straddling = [axis for axis in AXES if min(split[axis]) > 1]
    outside = [axis for axis in ACROSS if split[axis][0] == 1 < split[axis][1]]
    inside = [axis for axis in AXES if split[axis][1] == 1 < split[axis][0]]
    active = [*inside, *straddling, *outside]
    order = next(
        order for order in PLACEMENTS if [axis for axis in order if axis in active] == active
    )
    return list(order), len(straddling) < 2
