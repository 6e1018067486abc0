"""The division of a cluster into machines, and what to ask Slurm for to get them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from models.spec.hardware import Cluster

MOST_IN_MACHINE = 16  # chips; a larger scale-up domain is a rack of trays
_CHIPS_PER_TRAY = 4  # of NVL72 racks, and of TPU hosts


@dataclass(frozen=True, slots=True)
class Machines:
    """Equal machines, each with some of the devices of a job."""

    nodes: int
    devices_per_node: int
    segment: int
    """The number of machines that share scale-up links; 1 where the links end at the machine."""
    is_whole: bool = True
    """All devices of each machine are of the job."""
    names: tuple[str, ...] = ()
    """The names of the machines in the order of ranks, where they are known."""

    @classmethod
    def of(cls, cluster: Cluster) -> Machines:
        """The machines of a job that holds as many devices of each."""
        domain = cluster.scale_up_domain_chips
        innermost = cluster.fabric.levels[0].size if cluster.fabric.levels else None
        chips = domain if cluster.is_torus else min(innermost or domain, domain)
        if chips > MOST_IN_MACHINE or cluster.is_torus:
            chips = _CHIPS_PER_TRAY
        held = math.gcd(chips, cluster.num_chips)
        machine = innermost or domain
        if machine > MOST_IN_MACHINE or cluster.is_torus:
            machine = _CHIPS_PER_TRAY
        devices = held * cluster.chip.devices_per_chip
        joined, remainder = divmod(cluster.scale_up_domain, devices)
        segment = joined if held == chips and not remainder else 1
        return cls(cluster.num_devices // devices, devices, segment, is_whole=held == machine)


def slurm_options(machines: Machines) -> dict[str, bool | int | str]:
    """Options of sbatch, without dashes, for one task a node, which starts a process a device.

    `exclusive` leaves the task all cores of a node: without it sites give one task one core.
    `segment` keeps as many nodes together as share scale-up links (Slurm topology/block).
    """
    options: dict[str, bool | int | str] = {
        "nodes": machines.nodes,
        "ntasks-per-node": 1,
        "gpus-per-node": machines.devices_per_node,
    }
    if machines.is_whole:
        options["exclusive"] = True
    if machines.names:
        options["nodelist"] = ",".join(machines.names)
    elif 1 < machines.segment < machines.nodes:
        options["segment"] = machines.segment
    return options
