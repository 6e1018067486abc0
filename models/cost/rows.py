"""Layouts, and how their layers fall on stages, as compiled functions read them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from models.columns import Array
from models.spec.device_order import filling_code
from models.spec.layout import Layouts


class Row:
    """One layout (models.spec.layout.Layout)."""

    pp: int
    dp_replicate: int
    dp_shard: int
    cp: int
    tp: int
    ep: int
    etp: int
    placement: int
    filling: int
    """Of a torus (models.spec.device_order.filling_code)."""
    micro_batch: int
    sequence_parallel: bool
    policy: int
    """Which of the recompute policies of a question."""
    recompute_layers: int
    offload_activations: bool
    offload_optimizer: bool
    zero_stage: int
    reshard: bool
    schedule: int
    virtual_stages: int
    partition: int
    """Which of the partitions that StageTables has."""


ROW = np.dtype(
    [(name, "?" if kind == "bool" else "i4") for name, kind in Row.__annotations__.items()],
    align=True,
)


def rows_of(layouts: Layouts, policies: Array, partition: Array) -> Array:
    """Layouts as records, (n,), with the recompute policies and partitions that they have."""
    rows = np.empty(len(layouts), dtype=ROW)
    for name in ROW.names or ():
        if name == "policy":
            rows[name] = np.searchsorted(policies, layouts.recompute)
        elif name == "partition":
            rows[name] = partition
        elif name == "filling":
            rows[name] = filling_code(layouts.torus_axes, layouts.torus_block)
        else:
            rows[name] = getattr(layouts, name)
    return rows


class StageTables(NamedTuple):
    """The different stages of u partitions, at most s each (models.cost.stage_partition). What
    stands beyond those that a partition has means nothing; nor do further corners."""

    different: Array
    """(u,): how many stages of a partition differ."""
    amounts: Array
    """(u, s, parts): layers of each kind that a stage has, and how much of each end."""
    first_alike: Array
    """(u, s): the first stage that is like this one."""
    kind: Array
    """(u, stages): which of the different stages each stage is."""
    corners: Array
    """(u, corners): the stages where a stretch of equal ones begins or ends, ascending."""
    corner_count: Array
    """(u,): how many corners there are."""
    first: Array
    """(u, s, parts): of `amounts` the chunks of the first round, under interleaving."""
    last: Array
    """(u, s, parts): those of the last round."""
    path_out: Array
    """(u, parts): forwards that a micro-batch takes on the longest path while stages alternate."""
    path_back: Array
    """(u, parts): backwards on that path."""
    path_ahead: Array
    """(u, parts): both, on the longest path where all forwards come first."""
    path_moves: Array
    """(u,): how many stages down the first path goes with every group of micro-batches."""
    path_last: Array
    """(u,): the stage where the other one ends."""
