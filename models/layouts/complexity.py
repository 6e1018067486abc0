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

# The points of each reason why a layout is not the simplest, and the words that name it.
_REASONS: dict[str, tuple[int, str]] = {
    "pipeline": (100, "a pipeline"),
    # for every doubling of the stages beyond two, which is as awkward as unequal stages
    "pipeline_depth": (15, "a pipeline of more than two stages"),
    # anything beyond 1F1B or all-forward-all-backward
    "pipeline_schedule": (25, "a pipeline schedule beyond 1F1B"),
    "pipeline_partition": (15, "pipeline stages of unequal length"),
    "expert_across_domains": (50, "expert parallelism across scale-up domains"),
    "expert_tensor": (15, "tensor parallelism of experts"),
    "expert": (20, "expert parallelism"),
    "tensor_across_domains": (30, "tensor parallelism across scale-up domains"),
    "tensor": (30, "tensor parallelism"),
    "context": (25, "context parallelism"),
    "hybrid_sharding": (8, "replicas beside shards"),
    "offload_optimizer": (12, "offload of the optimizer"),
    "offload_activations": (12, "offload of activations"),
    "full_recompute": (6, "full recompute"),
    "selective_recompute": (3, "selective recompute"),
    "kept_gathered": (2, "parameters that stay gathered"),
    "sharded": (1, "ZeRO"),
    "placement": (4, "axes in an unusual order"),  # another one than tp < cp < dp < pp
    "torus_block": (4, "blocks of a torus"),
}

POINTS: dict[str, int] = {name: points for name, (points, _) in _REASONS.items()}
"""The points of each reason why a layout is not the simplest one."""

MOST_POINTS = 1 + sum(POINTS.values()) + POINTS["pipeline_depth"] * 20
"""A number of points that no layout reaches: those of all reasons at once, and of a pipeline 21
doublings deeper than two stages."""

TERM_WORDS: dict[str, str] = {name: words for name, (_, words) in _REASONS.items()}
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
    """Return the points that the degrees of a mesh alone decide, (n,). No layout with these degrees
    has fewer."""
    return _points(_degree_counts(layouts))


def points_of_policy(layouts: Layouts) -> Array:
    """Return the points of schedule, sharding and memory policy, (n,), which depend neither on
    degrees nor on placement."""
    return _points(_policy_counts(layouts))


def _points(counts: dict[str, Array]) -> Array:
    """Return the points of n layouts, (n,), given how often each reason of POINTS counts for each
    of them, (n,) by its name."""
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

    def crosses_domains(axis: SharedRows[AxisGroups]) -> Array:
        """Return for each layout whether a group of this axis lies in several domains, (n,)."""
        # The layouts share a table of groups, and per_row reads it for each layout.
        return axis.per_row(axis.table.crosses(problem.cluster.scale_out_mask))

    return {
        "expert_across_domains": (layouts.ep > 1) & crosses_domains(placed.ep),
        "tensor_across_domains": (layouts.tp > 1) & crosses_domains(placed.tp),
        "placement": layouts.placement != DEFAULT_PLACEMENT,
        "torus_block": layouts.torus_block > 1,
    }


def _policy_counts(layouts: Layouts) -> dict[str, Array]:
    """Return counts of the reasons that schedule, sharding and memory policy give, by keys of
    POINTS, each (n,)."""
    has_plain_schedule = (layouts.schedule == ONE_F_ONE_B) | (layouts.schedule == AFAB)
    return {
        "pipeline_schedule": (layouts.pp > 1) & ~has_plain_schedule,
        "pipeline_partition": (layouts.pp > 1) & layouts.balanced,
        "offload_optimizer": layouts.offload_optimizer,
        "offload_activations": layouts.offload_activations,
        "full_recompute": layouts.recompute == FULL,
        "selective_recompute": (layouts.recompute != NONE) & (layouts.recompute != FULL),
        "kept_gathered": (layouts.zero_stage == 3) & ~layouts.reshard,
        "sharded": layouts.zero_stage > 0,
    }
