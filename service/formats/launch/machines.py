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
        """Returns the machines of a cluster, all with equally many devices. A torus, or a rack with
        more chips than MOST_IN_MACHINE, is divided into its trays."""
        domain = cluster.scale_up_domain_chips
        # `machine_chips` is the size of a machine. `domain_chips` are the chips of a machine that
        # lie in one scale-up domain, which may be smaller.
        machine_chips = cluster.fabric.levels[0].size if cluster.fabric.levels else None
        machine_chips = machine_chips or domain
        domain_chips = min(machine_chips, domain)
        # The machines of a torus, or of a rack that is one domain, are its trays.
        if cluster.is_torus or machine_chips > MOST_IN_MACHINE:
            machine_chips = _CHIPS_PER_TRAY
        if cluster.is_torus or domain_chips > MOST_IN_MACHINE:
            domain_chips = _CHIPS_PER_TRAY
        chips = math.gcd(domain_chips, cluster.num_chips)  # as many on every machine
        devices = chips * cluster.chip.devices_per_chip
        # A segment keeps a scale-up domain together, which whole machines must therefore fill.
        machines_per_domain, remainder = divmod(cluster.scale_up_domain, devices)
        has_domains = chips == domain_chips and not remainder
        return cls(
            nodes=cluster.num_devices // devices,
            devices_per_node=devices,
            segment=machines_per_domain if has_domains else 1,
            is_whole=chips == machine_chips,
        )


def slurm_options(machines: Machines) -> dict[str, bool | int | str]:
    """Returns the options of sbatch, without dashes, for one task on each node; the task starts one
    process for each device.

    `exclusive` leaves the task all cores of a node: without it sites give one task one core.
    `segment` keeps together as many nodes as share scale-up links (Slurm topology/block).
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
