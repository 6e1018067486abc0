"""The complexity of a layout, which says how simple it is to run: one documented order.

Fewer axes in use is simpler. Pipelining costs most (schedules, uneven stages, bubbles, awkward
losses), then expert parallelism across scale-up domains, then tensor parallelism; offload and full
recompute cost something. Points only order layouts: a difference of ten means no more than
"simpler".
"""

from __future__ import annotations

import numpy as np

from models.columns import Array, SharedRows
from models.layouts.placement import AxisGroups, LayoutGroups, groups
from models.spec.layout import AFAB, DEFAULT_PLACEMENT, ONE_F_ONE_B, Layouts
from models.spec.problem import Problem
from models.spec.recompute import FULL, NONE

POINTS: dict[str, int] = {
    "pipeline": 100,
    "pipeline_depth": 15,  # every doubling of its stages beyond two, as awkward as unequal ones
    "pipeline_schedule": 25,  # anything beyond 1F1B or all-forward-all-backward
    "pipeline_partition": 15,  # stages of unequal length
    "expert_across_domains": 50,
    "expert_tensor": 15,
    "expert": 20,
    "tensor_across_domains": 30,
    "tensor": 30,
    "context": 25,
    "hybrid_sharding": 8,
    "offload_optimizer": 12,
    "offload_activations": 12,
    "full_recompute": 6,
    "selective_recompute": 3,
    "kept_gathered": 2,
    "sharded": 1,
    "placement": 4,  # axes in another order than tp < cp < dp < pp
    "torus_block": 4,
}
"""The points of each reason why a layout is not the simplest one."""

MOST_POINTS = 1 + sum(POINTS.values()) + POINTS["pipeline_depth"] * 20
"""A number of points that no layout reaches: those of all reasons at once, and of a pipeline 21
doublings deeper than two stages."""

TERM_WORDS: dict[str, str] = {
    "pipeline": "a pipeline",
    "pipeline_depth": "a pipeline of more than two stages",
    "pipeline_schedule": "a pipeline schedule beyond 1F1B",
    "pipeline_partition": "pipeline stages of unequal length",
    "expert_across_domains": "expert parallelism across scale-up domains",
    "expert_tensor": "tensor parallelism of experts",
    "expert": "expert parallelism",
    "tensor_across_domains": "tensor parallelism across scale-up domains",
    "tensor": "tensor parallelism",
    "context": "context parallelism",
    "hybrid_sharding": "replicas beside shards",
    "offload_optimizer": "offload of the optimizer",
    "offload_activations": "offload of activations",
    "full_recompute": "full recompute",
    "selective_recompute": "selective recompute",
    "kept_gathered": "parameters that stay gathered",
    "sharded": "ZeRO",
    "placement": "axes in an unusual order",
    "torus_block": "blocks of a torus",
}
"""The words by which answers name each reason for points."""


def complexity_terms(problem: Problem, layouts: Layouts) -> dict[str, Array]:
    """Return the points of complexity of n layouts, (n,), by the reason for them, a key of
    POINTS."""
    placed = groups(problem.cluster, layouts)
    counts = (
        _degree_counts(layouts)
        | _placement_counts(problem, layouts, placed)
        | _policy_counts(layouts)
    )
    return {
        name: points * np.asarray(counts[name], dtype=np.int64) for name, points in POINTS.items()
    }


def complexity(problem: Problem, layouts: Layouts) -> Array:
    """Return all points of each of n layouts, (n,): the fewer, the simpler."""
    return np.sum(list(complexity_terms(problem, layouts).values()), axis=0)


def points_of_degrees(layouts: Layouts) -> Array:
    """Return the points that the degrees of a mesh decide, (n,). No layout on the mesh has
    fewer."""
    return _points(_degree_counts(layouts))


def points_of_policy(layouts: Layouts) -> Array:
    """Return the points of schedule, sharding and memory policy, (n,), which depend neither on
    degrees nor on placement."""
    return _points(_policy_counts(layouts))


def _points(counts: dict[str, Array]) -> Array:
    """Return the sum of points of these counts, (n,). Keys are those of POINTS."""
    return np.sum(
        [POINTS[name] * np.asarray(count, dtype=np.int64) for name, count in counts.items()], axis=0
    )


# The functions below return how often a layout has each reason: true or false for all but the depth
# of a pipeline.


def _degree_counts(layouts: Layouts) -> dict[str, Array]:
    """Return counts of the reasons that degrees of parallelism give, by keys of POINTS, each (n,).
    The depth of a pipeline is the doublings of its stages beyond two."""
    return {
        "pipeline": layouts.pp > 1,
        "pipeline_depth": np.maximum(np.ceil(np.log2(layouts.pp)) - 1, 0),
        "expert_tensor": layouts.etp > 1,
        "expert": layouts.ep > 1,
        "tensor": layouts.tp > 1,
        "context": layouts.cp > 1,
        "hybrid_sharding": (layouts.dp_replicate > 1) & (layouts.dp_shard > 1),
    }


def _placement_counts(problem: Problem, layouts: Layouts, placed: LayoutGroups) -> dict[str, Array]:
    """Return counts of the reasons that the placement on the fabric gives, by keys of POINTS, each
    (n,). `placed` has the groups of these layouts."""

    def crosses(axis: SharedRows[AxisGroups]) -> Array:
        return axis.per_row(axis.table.crosses(problem.cluster.scale_out_mask))

    return {
        "expert_across_domains": (layouts.ep > 1) & crosses(placed.ep),
        "tensor_across_domains": (layouts.tp > 1) & crosses(placed.tp),
        "placement": layouts.placement != DEFAULT_PLACEMENT,
        "torus_block": layouts.torus_block > 1,
    }


def _policy_counts(layouts: Layouts) -> dict[str, Array]:
    """Return counts of the reasons that schedule, sharding and memory policy give, by keys of
    POINTS, each (n,)."""
    return {
        "pipeline_schedule": (layouts.pp > 1)
        & (layouts.schedule != ONE_F_ONE_B)
        & (layouts.schedule != AFAB),
        "pipeline_partition": (layouts.pp > 1) & layouts.balanced,
        "offload_optimizer": layouts.offload_optimizer,
        "offload_activations": layouts.offload_activations,
        "full_recompute": layouts.recompute == FULL,
        "selective_recompute": (layouts.recompute != NONE) & (layouts.recompute != FULL),
        "kept_gathered": (layouts.zero_stage == 3) & ~layouts.reshard,
        "sharded": layouts.zero_stage > 0,
    }
