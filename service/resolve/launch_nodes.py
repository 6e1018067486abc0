"""The nodes that the script of a launch asks Slurm and its launchers for, beside the cluster of the
request."""

from __future__ import annotations

from models.errors import Invalid
from models.spec.hardware import Cluster
from service.formats.launch.machines import MOST_IN_MACHINE
from service.formats.launch.shell_words import Command, split_command


def command_in(text: str) -> Command | None:
    """The command of a launch; None where its text is a document."""
    try:
        return split_command(text)
    except (Invalid, RecursionError):
        return None


def chips_on_node(command: Command | None, cluster: Cluster) -> int | None:
    """How many chips each node of the script has, where scale-up links would join more: those of a
    whole machine, which they end at. A domain that is a rack of machines is larger than a node
    anyway. None where the script does not say it.

    One rank on a node may be a process that drives all of its chips.
    """
    domain = cluster.fabric.domain
    if command is None or domain is None or not command.nnodes or not command.nproc_per_node:
        return None
    devices = command.nproc_per_node
    chips, rest = divmod(devices, cluster.chip.devices_per_chip)
    is_all = command.nnodes * devices == cluster.num_devices
    is_part = command.nnodes > 1 and devices > 1 and chips < domain <= MOST_IN_MACHINE
    return chips if is_all and is_part and not rest else None
