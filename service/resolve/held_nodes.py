"""The cluster that the nodes of an allocation make. An *allocation* is a list of nodes that the
caller holds. A *domain* is the chips that scale-up links join."""

from __future__ import annotations

import math
from collections import Counter

from models.errors import Invalid
from service.resolve.resolution import Resolver
from service.schemas.allocation import AllocationFields
from service.schemas.cluster import ClusterFields, ClusterPreset


def cluster_of_held_nodes(
    resolver: Resolver, cluster: ClusterPreset | ClusterFields, allocation: AllocationFields | None
) -> ClusterPreset | ClusterFields:
    """Returns the cluster with the chips that it asks for, or else with all of the allocation's
    nodes. Its scale-up domains, unless the request states their size, get the largest size that
    divides the chips of each domain of nodes: racks with 64 and with 48 chips make domains of 16.
    Raises Invalid where the nodes contradict each other or the cluster."""
    if allocation is None:
        return cluster
    _require_distinct(allocation)
    num_chips = allocation.chips
    if cluster.num_chips is not None and cluster.num_chips > num_chips:
        rule = f"is more than the {num_chips} chips of the allocation: leave it out"
        raise Invalid("cluster.num_chips", cluster.num_chips, rule)
    sized = cluster.model_copy(update={"num_chips": cluster.num_chips or num_chips})
    fabric = resolver.cluster(sized).cluster.fabric
    if fabric.torus is not None:
        rule = f"is of fabric {fabric.id}, a torus, whose slices are whole: leave it out"
        raise Invalid("allocation", None, rule)
    chips_of_domain = Counter[str]()
    for node in allocation.build():
        chips_of_domain[node.domain] += node.chips
    # Domains shrink only if the request leaves their size open and the nodes do not fill them.
    common_size = math.gcd(*chips_of_domain.values())
    if sized.chips_per_domain is not None or fabric.domain is None or common_size >= fabric.domain:
        return sized
    return sized.model_copy(update={"chips_per_domain": common_size})


def _require_distinct(allocation: AllocationFields) -> None:
    """Raises Invalid if two nodes have one name."""
    names = set[str]()
    for index, node in enumerate(allocation.nodes):
        if node.name in names:
            rule = "is the name of an earlier node too"
            raise Invalid(f"allocation.nodes[{index}].name", node.name, rule)
        names.add(node.name)
