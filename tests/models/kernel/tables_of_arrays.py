"""Partitions that were worked out over arrays, as the compiled functions read them."""

from __future__ import annotations

import numpy as np

from models.columns import Array
from models.cost.stage_partition import Stages
from models.kernel.rows import StageTables


def tables_of_arrays(stages: Stages) -> StageTables:
    """The partitions of `stages`, which has each once, in their order."""

    def table(values: Array) -> Array:
        return np.ascontiguousarray(np.moveaxis(values, -1, 0))

    order, steady = stages.order, stages.steady
    corners = table(order.corners)
    return StageTables(
        different=stages.different,
        amounts=table(stages.amounts.transpose(1, 0, 2)),
        first_alike=table(stages.index),
        kind=table(order.kind),
        corners=corners,
        corner_count=1 + (corners < corners[:, -1:]).sum(axis=1),
        first=table(stages.rounds[0].transpose(1, 0, 2)).astype(float),
        last=table(stages.rounds[1].transpose(1, 0, 2)).astype(float),
        path_out=table(steady.passes[0]),
        path_back=table(steady.passes[1]),
        path_ahead=table(steady.passes[2]),
        path_moves=steady.moves.astype(float),
        path_last=steady.last.astype(float),
    )
