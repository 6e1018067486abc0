"""The nodes that the script of a launch asks Slurm and its launchers for, or the slices of TPUs,
beside the cluster of the request. A *domain* is the chips that scale-up links, such as NVLink,
join."""

from __future__ import annotations

from models.errors import Invalid
from models.spec import catalogue
from models.spec.hardware import Chip, Cluster, Fabric
from service.formats.launch.machines import MOST_IN_MACHINE
from service.formats.shell.command import Command, split_command
from service.formats.shell.files import LaunchFiles


def command_in(text: str, files: LaunchFiles) -> Command | None:
    """Returns the command in a launch's text; None if the text is a document, such as YAML,
    or cannot be read as a script."""
    try:
        return split_command(text, files)
    except (Invalid, RecursionError):
        return None


def chips_on_node(command: Command | None, cluster: Cluster) -> int | None:
    """Returns the number of chips on each node of the script, if a domain of the fabric would join
    more: scale-up links then end at the node. None if the script states no such nodes, or if the
    domain is larger than a machine, such as a rack that joins its nodes by scale-up links."""
    domain, chips = cluster.fabric.domain, _stated_chips(command, cluster)
    if domain is None or chips is None:
        return None
    return chips if chips < domain <= MOST_IN_MACHINE else None


def machine_of_nodes(command: Command | None, cluster: Cluster) -> str | None:
    """Returns the preset of a machine with as many chips as a node of the script has, for chips
    that are also sold singly, such as GH200. None if the chips are not, or no such machine is
    known."""
    chips = _stated_chips(command, cluster)
    # Chips that are sold singly have domains of one chip: no scale-up links leave it.
    if cluster.fabric.domain != 1 or chips is None:
        return None
    for fabric in catalogue.fabrics().values():
        is_machine = bool(fabric.levels) and fabric.levels[0].size == chips
        # Such a fabric names no particular network, and fits whatever joins the machines.
        has_any_network = [level.name for level in fabric.levels[1:]] == ["network"]
        if is_machine and has_any_network and _has_equal_chip(fabric, cluster.chip):
            return fabric.id
    return None


def slice_shape(command: Command | None, cluster: Cluster) -> tuple[int, ...] | None:
    """Returns the shape of each slice of the script. None if the script asks for no slices, or for
    others than the cluster has, or if the one slice that it asks for has the usual shape."""
    slices = None if command is None else command.slices
    torus = cluster.fabric.torus
    if slices is None or torus is None or slices.num_chips != cluster.num_chips:
        return None
    shape = slices.shape or torus.shape_for(slices.chips_of_slice)
    if shape is None or len(shape) != torus.ndim or shape == cluster.slice_shape:
        return None
    return shape


def _stated_chips(command: Command | None, cluster: Cluster) -> int | None:
    """Returns the number of chips on each node, as the script states it by its ranks. None if it
    does not, if it has one node or one rank a node (a process that may drive all chips of the
    node), or if its nodes do not make the whole cluster."""
    if command is None or not command.nnodes or not command.nproc_per_node:
        return None
    devices = command.nproc_per_node
    chips, remainder = divmod(devices, cluster.chip.devices_per_chip)
    if command.nnodes == 1 or devices == 1 or remainder:
        return None
    return chips if command.nnodes * devices == cluster.num_devices else None


def _has_equal_chip(fabric: Fabric, chip: Chip) -> bool:
    """Returns whether the fabric's chip equals this one in generation, peaks and memory. Such chips
    differ only in their host processor."""
    other = catalogue.chip(catalogue.fabric_chip(fabric.id))
    compared = ("generation", "peak_tflops", "memory_gb", "memory_bandwidth_gb_s")
    return all(getattr(other, name) == getattr(chip, name) for name in compared)
