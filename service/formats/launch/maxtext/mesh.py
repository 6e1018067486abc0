"""The mesh of MaxText: each axis has a degree within a slice (ici) and one across slices (dcn)
(maxtext 0.2.5 configs/base.yml, utils/maxtext_utils.py create_device_mesh).

A *slice* is a slice of a TPU torus, or on GPUs a scale-up domain such as a machine. *Inside* and
*outside* stand for within a slice and across slices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from models.spec.hardware import Cluster
from models.spec.layout import AXES, PLACEMENTS, Layout
from service.formats.launch.job import Inexpressible

MESH_AXES = ("data", "pipeline", "fsdp", "context", "tensor", "expert")
"""The axes that layouts use, as their settings name them, outermost first across slices. Within a
slice `pipeline` is the outermost."""
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
    """The value of custom_mesh_and_rule; "" for MaxText's own rules."""

    @property
    def has_experts(self) -> bool:
        """Returns True where the mesh has an `expert` axis of more than one device."""
        return math.prod(self.degrees["expert"]) > 1

    def settings(self) -> dict[str, int | str]:
        """Returns the settings of the mesh: {"ici_tensor_parallelism": 4,
        "dcn_data_parallelism": 2, …}."""
        settings: dict[str, int | str] = {}
        for side, kind in enumerate(("ici", "dcn")):
            for axis in MESH_AXES:
                settings[f"{kind}_{axis}_parallelism"] = self.degrees[axis][side]
        if self.rule:
            settings["custom_mesh_and_rule"] = self.rule
        return settings


def mesh_of(layout: Layout, cluster: Cluster) -> Mesh:
    """Returns the mesh that places ranks as the layout does. Raises Inexpressible where MaxText
    has none."""
    split = _split_over_slices(layout, cluster)
    expert, rule = _expert_axis(layout)  # `rule` is "" unless experts use the context axis too
    shard_inside, shard_outside = split["dp_shard"]
    # The expert axis takes as many of dp_shard's ranks within a slice as it can.
    inside = math.gcd(expert, shard_inside)
    outside = expert // inside
    if shard_outside % outside:
        cure = "the expert axis would lie over a part of a slice; ask with another ep or dp_shard"
        raise Inexpressible("layout.ep", layout.ep, cure)
    data = split["dp_replicate"]
    # The fsdp axis has the ranks of dp_shard that the expert axis leaves.
    fsdp = (shard_inside // inside, shard_outside // outside)
    if layout.zero_stage < 3:  # parameters are whole on all ranks of data parallelism
        data, fsdp = (data[0] * fsdp[0], data[1] * fsdp[1]), (1, 1)
    degrees: Degrees = {
        "data": data,
        "pipeline": split["pp"],
        "fsdp": fsdp,
        "context": split["cp"],
        "tensor": split["tp"],
        "expert": (inside, outside),
    }
    return Mesh(degrees, rule)


def devices_per_slice(cluster: Cluster) -> int:
    """Returns the number of devices that ICI links join: a slice of a torus, or else a scale-up
    domain."""
    if cluster.is_torus:
        return math.prod(cluster.slice_shape) * cluster.chip.devices_per_chip
    return min(cluster.scale_up_domain, cluster.num_devices)


def _split_over_slices(layout: Layout, cluster: Cluster) -> Degrees:
    """Returns the degrees of each axis of a layout within a slice and across slices: {"tp": (8,
    1), "dp_shard": (32, 4), …}. Raises Inexpressible where an axis does not divide a slice or
    cover whole ones."""
    size = devices_per_slice(cluster)
    split: Degrees = {}
    stride = 1  # the product of the degrees of the axes so far, which lie further inside
    for axis in layout.placement:
        degree = getattr(layout, axis)
        # An axis takes what is left of the slice, and continues across slices.
        inside = math.gcd(stride * degree, size) // stride if stride < size else 1
        # The axes so far must fill a whole part of a slice, or whole slices.
        is_nested = size % stride == 0 or stride % size == 0
        if not is_nested or inside == 0 or degree % inside:
            cure = (
                f"ask with a degree of {axis} that divides a slice of {size} devices, or covers it"
            )
            raise Inexpressible("layout.placement", list(layout.placement), cure)
        split[axis] = (inside, degree // inside)
        stride *= degree
    if math.prod(inside for inside, _ in split.values()) != size:
        cure = f"ask with axes that fill slices of {size} devices"
        raise Inexpressible("layout.placement", list(layout.placement), cure)
    _require_axis_order(layout, cluster, split)
    return split


def _require_axis_order(layout: Layout, cluster: Cluster, split: Degrees) -> None:
    """Raises Inexpressible where slices are joined by several levels of links and MaxText would
    place the axes on these levels in another order. `split` has the degrees within and across
    slices."""
    # Where all slices are joined by one level of links, the order across them changes nothing.
    if sum(dim.scale == "out" for dim in cluster.dims) < 2:
        return
    outside = [axis for axis in layout.placement if split[axis][1] > 1]
    if outside != [axis for axis in ACROSS if axis in outside]:
        cure = f"ask with the order {', '.join(ACROSS)} across slices, innermost first"
        raise Inexpressible("layout.placement", list(layout.placement), cure)


def _expert_axis(layout: Layout) -> tuple[int, str]:
    """Returns the degree of the `expert` axis, which divides dp_shard, and the mesh rule:
    EXPERT_RULE where experts are divided over context parallelism too, else ""."""
    if layout.dp_shard % layout.ep == 0:
        return layout.ep, ""
    # Else experts are divided over the context axis and the expert axis, whose product is ep.
    beside_context, remainder = divmod(layout.ep, layout.cp)
    if remainder == 0 and layout.dp_shard % beside_context == 0 and layout.tp == 1:
        return beside_context, EXPERT_RULE
    cure = (
        f"the expert axis is a part of dp_shard({layout.dp_shard}), with tp 1 beside"
        f" cp({layout.cp}) too; ask with an ep that divides dp_shard"
    )
    raise Inexpressible("layout.ep", layout.ep, cure)


def splits_physical_axes(mesh: Mesh, cluster: Cluster) -> bool:
    """Returns True where some axis of the mesh is not a product of whole dims of the torus,
    which JAX refuses unless allow_split_physical_axes is set. JAX takes the axes one by one,
    innermost first, and gives each as many free dims as it can (jax/_src/mesh_utils.py,
    _create_device_mesh_for_nd_torus)."""
    if not cluster.is_torus:
        return False
    # Where a chip has several devices, they make a dim of their own. The order of dims decides only
    # between sets of as many dims with the same product.
    cores = cluster.chip.devices_per_chip
    dims = [*([cores] if cores > 1 else []), *reversed(cluster.slice_shape)]
    # Within a slice the pipeline is outermost, in front of the order of MESH_AXES.
    outermost_first = sorted(MESH_AXES, key=lambda axis: axis != "pipeline")
    for axis in reversed(outermost_first):
        degree = mesh.degrees[axis][0]
        if degree == 1:
            continue
        indices = _dims_with_product(dims, degree)
        if indices is None:
            return True
        for index in indices:
            dims[index] = 0  # no other axis can take it
    return False


def _dims_with_product(dims: Sequence[int], degree: int) -> tuple[int, ...] | None:
    """Returns the indices of the dims of a torus that JAX gives to an axis: the largest set of
    dims whose product is the axis' degree. None where no dims multiply to it."""
    for count in range(len(dims), 0, -1):
        for indices in combinations(range(len(dims)), count):
            if math.prod(dims[index] for index in indices) == degree:
                return indices
    return None


def placement_of(split: Mapping[str, tuple[int, int]]) -> tuple[list[str], bool]:
    """Returns the order of a layout's axes, innermost first, and True where that order is exact.
    It is not where several axes lie both within slices and across them: a layout has one place
    for each axis. `split` has each axis' degrees within and across slices."""
    # A straddling axis lies both within slices and across them, and so comes between the others.
    straddling = [axis for axis in AXES if min(split[axis]) > 1]
    # MaxText's order of axes is AXES within slices, and ACROSS across them.
    outside = [axis for axis in ACROSS if split[axis][0] == 1 < split[axis][1]]
    inside = [axis for axis in AXES if split[axis][1] == 1 < split[axis][0]]
    active = [*inside, *straddling, *outside]  # axes of degree 1 may stand anywhere
    order = next(  # PLACEMENTS has every order of the axes
        order for order in PLACEMENTS if [axis for axis in order if axis in active] == active
    )
    return list(order), len(straddling) < 2
