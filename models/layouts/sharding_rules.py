"""The rules of how parameters, gradients and optimizer states are sharded.

A function whose docstring states a rule returns for each of n layouts whether it obeys, (n,); the
function after it words the error (models.layouts.rule.Rule).
"""

from __future__ import annotations

from models.columns import Array
from models.layouts.rule import Rule, holds_for_all, is_one_of
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem


def _sharding_shape(problem: Problem, layouts: Layouts) -> Array:
    """ZeRO stage 0 goes with `dp_shard` 1, and stages 1 to 3 with more, or with no data parallelism
    at all."""
    plain = (layouts.zero_stage == 0) & (layouts.dp_shard == 1)
    sharded = (layouts.zero_stage > 0) & ((layouts.dp_shard > 1) | (layouts.dp_replicate == 1))
    return plain | sharded


def _zero_stage_message(problem: Problem, layout: Layout) -> str:
    return (
        f"zero_stage({layout.zero_stage}) with dp_shard({layout.dp_shard}),"
        f" dp_replicate({layout.dp_replicate}): stage 0 replicates (dp_shard 1), stages 1 to 3"
        " shard (dp_shard above 1, or no data parallelism)"
    )


def _sharding_offered(problem: Problem, layouts: Layouts) -> Array:
    """The stack has the ZeRO stage, also beside replicas where there are some."""
    is_hybrid = (layouts.dp_replicate > 1) & (layouts.dp_shard > 1)
    # Stages that the stack runs and no search tries pass here: sharding_searched refuses them.
    unsearched = problem.stack.unsearched_zero_stages
    is_offered = is_one_of(layouts.zero_stage, (*problem.stack.zero_stages, *unsearched))
    goes_with_replicas = is_one_of(layouts.zero_stage, (*problem.stack.hybrid_stages, *unsearched))
    return is_offered & (~is_hybrid | goes_with_replicas)


def _sharding_searched(problem: Problem, layouts: Layouts) -> Array:
    """The ZeRO stage is one of `stack.zero_stages`, also where the stack runs others."""
    # Stages that the stack lacks altogether pass here: sharding_offered refuses them.
    unsearched = set(problem.stack.unsearched_zero_stages) - set(problem.stack.zero_stages)
    return ~is_one_of(layouts.zero_stage, unsearched)


def _unsearched_zero_message(problem: Problem, layout: Layout) -> str:
    searched = ", ".join(map(str, problem.stack.zero_stages))
    return f"layouts are searched with stack.zero_stages {searched}; add {layout.zero_stage} to it"


def _zero_stages_message(problem: Problem, layout: Layout) -> str:
    """Return the sentence that lists the ZeRO stages of the stack, and those beside replicas where
    the layout has replicas and shards."""
    beside_replicas = ""
    if layout.dp_replicate > 1 and layout.dp_shard > 1:
        hybrid = ", ".join(map(str, problem.stack.hybrid_stages)) or "none"
        beside_replicas = f", and beside replicas {hybrid}"
    stages = ", ".join(map(str, problem.stack.zero_stages))
    offered = f"stack {problem.stack.id} offers ZeRO stages {stages}{beside_replicas}"
    return f"{offered}; got {layout.zero_stage}"


def _muon_offered(problem: Problem, layouts: Layouts) -> Array:
    """The stack has the optimizer Muon with this ZeRO stage."""
    return is_one_of(layouts.zero_stage, problem.stack.muon_stages) | (
        problem.workload.optimizer != "muon"
    )


def _muon_message(problem: Problem, layout: Layout) -> str:
    stages = ", ".join(map(str, problem.stack.muon_stages))
    return f"stack {problem.stack.id} has Muon with ZeRO stages {stages}, not {layout.zero_stage}"


def _states_offered(problem: Problem, layouts: Layouts) -> Array:
    """The stack has the optimizer's moments, and the number format, with this ZeRO stage."""
    ok = holds_for_all(layouts)
    if problem.workload.optimizer == "adamw_bf16_moments":
        ok &= is_one_of(layouts.zero_stage, problem.stack.narrow_moment_stages)
    if problem.workload.precision == "fp8":
        ok &= is_one_of(layouts.zero_stage, problem.stack.fp8_stages)
    return ok


def _states_message(problem: Problem, layout: Layout) -> str:
    """Return the sentence that says with which ZeRO stages the stack has 16-bit moments, or fp8
    where the moments are not what breaks the rule."""
    is_narrow = layout.zero_stage not in problem.stack.narrow_moment_stages
    is_of_moments = problem.workload.optimizer == "adamw_bf16_moments" and is_narrow
    what = problem.workload.optimizer if is_of_moments else problem.workload.precision
    stages = problem.stack.narrow_moment_stages if is_of_moments else problem.stack.fp8_stages
    offered = ", ".join(map(str, stages))
    return (
        f"stack {problem.stack.id} has {what} with ZeRO stages {offered}, not {layout.zero_stage}"
    )


def _sharding_in_pipeline(problem: Problem, layouts: Layouts) -> Array:
    """The stack has this ZeRO stage beside a pipeline."""
    return (layouts.zero_stage <= problem.stack.max_zero_in_pipeline) | (layouts.pp == 1)


def _zero_pipeline_message(problem: Problem, layout: Layout) -> str:
    return (
        f"stack {problem.stack.id} has ZeRO up to {problem.stack.max_zero_in_pipeline} beside a"
        f" pipeline, not {layout.zero_stage}"
    )


def _sharding_in_context(problem: Problem, layouts: Layouts) -> Array:
    """The stack has this ZeRO stage beside context parallelism."""
    return (layouts.zero_stage >= problem.stack.min_zero_in_context) | (layouts.cp == 1)


def _zero_context_message(problem: Problem, layout: Layout) -> str:
    return (
        f"stack {problem.stack.id} shards parameters over context parallelism too: cp({layout.cp})"
        f" needs ZeRO {problem.stack.min_zero_in_context} or more, not {layout.zero_stage}"
    )


def _sharding_beside_experts(problem: Problem, layouts: Layouts) -> Array:
    """ZeRO stage 3 with expert parallelism has no context parallelism, unless the stack has all
    three together."""
    has_both = (layouts.ep > 1) & (layouts.cp > 1)
    return (layouts.zero_stage <= 2) | ~has_both | (not problem.stack.experts_alone)


def _zero_experts_message(problem: Problem, layout: Layout) -> str:
    return (
        f"stack {problem.stack.id} has ZeRO 3 with ep({layout.ep}) only without context"
        f" parallelism; got cp({layout.cp})"
    )


def _sharding_axes_need_zero_3(problem: Problem, layouts: Layouts) -> Array:
    """The axes of context and expert parallelism need ZeRO stage 3 where they shard parameters."""
    if not problem.stack.shards_over_context_and_experts:
        return holds_for_all(layouts)
    uses_these_axes = (layouts.cp > 1) | (layouts.ep > 1)
    return (layouts.zero_stage == 3) | ~uses_these_axes


def _zero_sharding_axes_message(problem: Problem, layout: Layout) -> str:
    return (
        f"stack {problem.stack.id} shards parameters over context and expert parallelism too:"
        f" cp({layout.cp}) and ep({layout.ep}) need ZeRO 3, not {layout.zero_stage}"
    )


def _reshard_offered(problem: Problem, layouts: Layouts) -> Array:
    """With ZeRO stage 3 the stack can drop gathered parameters, or keep them, as the layout
    does."""
    return (layouts.zero_stage < 3) | is_one_of(layouts.reshard, problem.stack.reshard)


def _reshard_message(problem: Problem, layout: Layout) -> str:
    offered = ", ".join(str(value).lower() for value in problem.stack.reshard)
    return f"stack {problem.stack.id} offers reshard after forward: {offered}"


SHARDING_RULES = (
    Rule("layout.zero_stage", _sharding_shape, _zero_stage_message),
    Rule("layout.zero_stage", _sharding_offered, _zero_stages_message),
    Rule("layout.zero_stage", _sharding_searched, _unsearched_zero_message, kind="search"),
    Rule("layout.zero_stage", _muon_offered, _muon_message),
    Rule("layout.zero_stage", _states_offered, _states_message),
    Rule("layout.zero_stage", _sharding_in_pipeline, _zero_pipeline_message),
    Rule("layout.zero_stage", _sharding_in_context, _zero_context_message),
    Rule("layout.zero_stage", _sharding_beside_experts, _zero_experts_message),
    Rule("layout.zero_stage", _sharding_axes_need_zero_3, _zero_sharding_axes_message),
    Rule("layout.reshard", _reshard_offered, _reshard_message),
)
