"""How simple a layout is to run: one documented order.

Fewer axes in use is simpler. Pipelining costs most (schedules, uneven stages, bubbles, awkward
losses), then expert parallelism across scale-up domains, then tensor parallelism; offload and full
recompute cost something. The points only order layouts: a difference of ten means nothing more than
"simpler".
"""

from __future__ import annotations

import numpy as np

from models.columns import Array, SharedRows
from models.layouts.placement import Group, Groups, groups
from models.spec.layout import AFAB, DEFAULT_PLACEMENT, ONE_F_ONE_B, Layouts
from models.spec.problem import Problem
from models.spec.recompute import FULL, NONE

POINTS: dict[str, int] = {
    "pipeline": 100,
    "pipeline_depth": 2,  # every doubling of its stages beyond two
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


TERM_WORDS: dict[str, str] = {
    "pipeline": "a pipeline",
    "pipeline_depth": "more than two stages",
    "pipeline_schedule": "a schedule beyond 1F1B",
    "pipeline_partition": "stages of unequal length",
    "expert_across_domains": "expert parallelism across domains",
    "expert_tensor": "tensor parallelism of experts",
    "expert": "expert parallelism",
    "tensor_across_domains": "tensor parallelism across domains",
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
"""What has the points of each reason."""


def complexity_terms(problem: Problem, layouts: Layouts) -> dict[str, Array]:
    """Points by reason, arrays of shape (n,)."""
    placed = groups(problem.cluster, layouts)
    held = _of_degrees(layouts) | _of_placement(problem, layouts, placed) | _of_policy(layouts)
    return {
        name: points * np.asarray(held[name], dtype=np.int64) for name, points in POINTS.items()
    }


def complexity(problem: Problem, layouts: Layouts) -> Array:
    return np.sum(list(complexity_terms(problem, layouts).values()), axis=0)


def points_of_degrees(layouts: Layouts) -> Array:
    """The part that the degrees of a mesh decide; no layout on it has less."""
    return _points(_of_degrees(layouts))


def points_of_mesh(problem: Problem, layouts: Layouts, placed: Groups) -> Array:
    """The part that degrees and placement decide; no policy has less."""
    return _points(_of_degrees(layouts) | _of_placement(problem, layouts, placed))


def points_of_policy(layouts: Layouts) -> Array:
    """The rest."""
    return _points(_of_policy(layouts))


def _points(held: dict[str, Array]) -> Array:
    return np.sum(
        [POINTS[name] * np.asarray(value, dtype=np.int64) for name, value in held.items()], axis=0
    )


def _of_degrees(x: Layouts) -> dict[str, Array]:
    return {
        "pipeline": x.pp > 1,
        "pipeline_depth": np.maximum(np.ceil(np.log2(x.pp)) - 1, 0),
        "expert_tensor": x.etp > 1,
        "expert": x.ep > 1,
        "tensor": x.tp > 1,
        "context": x.cp > 1,
        "hybrid_sharding": (x.dp_replicate > 1) & (x.dp_shard > 1),
    }


def _of_placement(problem: Problem, x: Layouts, placed: Groups) -> dict[str, Array]:
    def crosses(axis: SharedRows[Group]) -> Array:
        return axis.per_row(axis.table.crosses(problem.cluster.scale_out_mask))

    return {
        "expert_across_domains": (x.ep > 1) & crosses(placed.ep),
        "tensor_across_domains": (x.tp > 1) & crosses(placed.tp),
        "placement": x.placement != DEFAULT_PLACEMENT,
        "torus_block": x.torus_block > 1,
    }


def _of_policy(x: Layouts) -> dict[str, Array]:
    return {
        "pipeline_schedule": (x.pp > 1) & (x.schedule != ONE_F_ONE_B) & (x.schedule != AFAB),
        "pipeline_partition": (x.pp > 1) & x.balanced,
        "offload_optimizer": x.offload_optimizer,
        "offload_activations": x.offload_activations,
        "full_recompute": x.recompute == FULL,
        "selective_recompute": (x.recompute != NONE) & (x.recompute != FULL),
        "kept_gathered": (x.zero_stage == 3) & ~x.reshard,
        "sharded": x.zero_stage > 0,
    }
