"""The rules of which degrees a stack offers, and how far they are searched.

A function whose docstring states a rule returns for each of n layouts whether it obeys, (n,); the
function after it words the error (models.layouts.rule.Rule).

What a stack *offers* is what its framework runs. What is *searched* may be less: layouts beyond it
are refused in a search, and predicted where a caller states them.
"""

from __future__ import annotations

import numpy as np

from models.columns import Array
from models.layouts.rule import Rule, holds_for_all, is_one_of
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem

_LIMITED_AXES = {
    "pp": "pipeline parallelism",
    "tp": "tensor parallelism",
    "cp": "context parallelism",
    "ep": "expert parallelism",
}


def _degrees_offered(problem: Problem, layouts: Layouts) -> Array:
    """The stack has every axis that is longer than 1, and axes together only where it has both."""
    s = problem.stack
    ok = (layouts.etp == 1) | s.expert_tensor_parallel
    for axis in _LIMITED_AXES:
        ok &= (getattr(layouts, axis) == 1) | _has_axis(problem, axis)
    ok &= (layouts.pp == 1) | (layouts.cp == 1) | s.context_in_pipeline
    # In a stack with `tensor_alone`, tp goes neither with a pipeline nor with context parallelism.
    is_beside_others = (layouts.tp > 1) & ((layouts.pp > 1) | (layouts.cp > 1))
    return ok & (~is_beside_others | (not s.tensor_alone))


def _has_axis(problem: Problem, axis: str) -> bool:
    """Say whether the stack has this axis of parallelism ("pp", "tp", "cp" or "ep"), whether or not
    the search uses it."""
    return getattr(problem.stack, f"max_{axis}") > 1 or axis in problem.stack.unsearched_axes


def _degrees_message(problem: Problem, layout: Layout) -> str:
    """Return the sentence that lists the axes, and the combinations of axes, that the layout uses
    and the stack lacks."""
    s = problem.stack
    missing = [
        f"no {words}: {axis}({getattr(layout, axis)}) must be 1"
        for axis, words in _LIMITED_AXES.items()
        if getattr(layout, axis) > 1 and not _has_axis(problem, axis)
    ]
    if layout.etp > 1 and not s.expert_tensor_parallel:
        missing.append(f"no tensor parallelism within experts: etp({layout.etp}) must be 1")
    if layout.pp > 1 and layout.cp > 1 and not s.context_in_pipeline:
        missing.append(
            f"no context parallelism within a pipeline: cp({layout.cp}) must be 1 beside"
            f" pp({layout.pp})"
        )
    if layout.tp > 1 and (layout.pp > 1 or layout.cp > 1) and s.tensor_alone:
        missing.append(
            f"no tensor parallelism beside other axes: tp({layout.tp}) must be 1 beside"
            f" pp({layout.pp}) and cp({layout.cp})"
        )
    return f"stack {s.id} has {', and '.join(missing)}"


def _degrees_searched(problem: Problem, layouts: Layouts) -> Array:
    """No degree is above `stack.max_pp`, `max_tp`, `max_cp` or `max_ep`; nor is `etp` above
    `max_tp`."""
    s = problem.stack
    ok = (layouts.etp <= max(s.max_tp, 1)) | (not s.expert_tensor_parallel)
    # Axes that the stack lacks pass here: the rule of offered degrees refuses them.
    for axis in _LIMITED_AXES:
        ok &= (getattr(layouts, axis) <= getattr(s, f"max_{axis}")) | (not _has_axis(problem, axis))
    return ok


def _searched_message(problem: Problem, layout: Layout) -> str:
    """Return the sentence that names the limits of the search which the layout's degrees exceed."""
    exceeded = limits_over(problem, layout)
    limits = ", ".join(f"stack.{name}({getattr(problem.stack, name)})" for name in exceeded)
    # The degree of the limit "max_tp" is "tp".
    got = ", ".join(f"{name.removeprefix('max_')}({value})" for name, value in exceeded.items())
    return f"layouts are searched up to {limits}, and this has {got}: raise that field"


def limits_over(problem: Problem, layout: Layout) -> dict[str, int]:
    """Return the stack's limits of degrees that a layout exceeds, by field, each with the least
    value that admits the layout, such as {"max_tp": 16}. The limit of tp is one of etp too."""
    needed = {f"max_{axis}": getattr(layout, axis) for axis in _LIMITED_AXES}
    needed["max_tp"] = max(layout.tp, layout.etp)
    return {name: value for name, value in needed.items() if value > getattr(problem.stack, name)}


def _sequence_parallel_offered(problem: Problem, layouts: Layouts) -> Array:
    """`sequence_parallel` goes with `tp` above 1, and is on or off as the stack has it."""
    # Choices that the stack has and no search tries pass here: sequence_parallel_searched refuses
    # them.
    offered = (*problem.stack.sequence_parallel, *problem.stack.unsearched_sequence_parallel)
    with_tp = is_one_of(layouts.sequence_parallel, offered)
    return np.where(layouts.tp > 1, with_tp, ~layouts.sequence_parallel)


def _sp_message(problem: Problem, layout: Layout) -> str:
    """Return the sentence that says when the stack has sequence parallelism, and which field to set
    for a build that has it on and off."""
    offered = " or ".join("on" if value else "off" for value in problem.stack.sequence_parallel)
    rule = f"sequence parallelism goes with tp > 1; stack {problem.stack.id} then has it {offered}"
    can_say_otherwise = layout.tp > 1 and len(problem.stack.sequence_parallel) == 1
    cure = "; a build that has it on and off is stack.sequence_parallel = [true, false]"
    return rule + cure if can_say_otherwise else rule


def _sequence_parallel_searched(problem: Problem, layouts: Layouts) -> Array:
    """`sequence_parallel` is one of `stack.sequence_parallel`, also where the stack has the other
    choice."""
    # Choices that the stack lacks, and sequence parallelism without tensor parallelism, pass here:
    # sequence_parallel_offered refuses them.
    stack = problem.stack
    unsearched = set(stack.unsearched_sequence_parallel) - set(stack.sequence_parallel)
    return (layouts.tp == 1) | ~is_one_of(layouts.sequence_parallel, unsearched)


def _unsearched_sp_message(problem: Problem, layout: Layout) -> str:
    searched = " or ".join(str(value).lower() for value in problem.stack.sequence_parallel)
    return (
        f"layouts are searched with stack.sequence_parallel {searched}; add"
        f" {str(layout.sequence_parallel).lower()} to it"
    )


def _moe_needs_sequence_parallel(problem: Problem, layouts: Layouts) -> Array:
    """Experts with `tp` above 1 have `sequence_parallel`.

    Megatron moe_layer.py: MoE with tensor parallelism trains only with sequence parallelism. Other
    stacks are held to it too: without it, every rank of tp would route the same tokens.
    """
    if not problem.architecture.is_moe:
        return holds_for_all(layouts)
    return (layouts.tp == 1) | layouts.sequence_parallel


def _moe_sp_message(problem: Problem, layout: Layout) -> str:
    never = f", which stack {problem.stack.id} does not have: tp must be 1"
    return (
        f"experts with tp({layout.tp}) > 1 need sequence_parallel"
        f"{'' if True in problem.stack.sequence_parallel else never}"
    )


def _graphs_have_static_experts(problem: Problem, layouts: Layouts) -> Array:
    """A step of a sparse model that is captured whole has experts of a fixed number of tokens:
    `workload.capacity_factor`, or `stack.static_experts`.

    What a captured graph launches has the shapes of the capture, and those of dropless experts
    change with every batch (Megatron-Core moe/token_dispatcher.py, drop and pad; moe/paged_stash.py
    and the rank capacity of HybridEP).
    """
    has_fixed_shapes = problem.workload.capacity_factor is not None or problem.stack.static_experts
    return holds_for_all(layouts) & (has_fixed_shapes or not problem.is_captured)


def _graphs_message(problem: Problem, layout: Layout) -> str:
    """Return the sentence that says how experts get fixed numbers of tokens, as captured graphs
    need."""
    return (
        "stack.moe_graphs(full) captures experts too, whose numbers of tokens must then be fixed:"
        " by drop and pad (workload.capacity_factor; in Megatron-Core --moe-expert-capacity-factor"
        " with --moe-pad-expert-input-to-capacity), or by HybridEP with a rank capacity and paged"
        " stash (stack.static_experts; --moe-token-dispatcher-type flex with"
        " --moe-flex-dispatcher-backend hybridep, --moe-expert-rank-capacity-factor,"
        " --moe-paged-stash). Both drop tokens; without either ask for moe_graphs none or partial"
    )


DEGREE_RULES = (
    Rule("layout", _degrees_offered, _degrees_message),
    Rule("layout", _degrees_searched, _searched_message, kind="search"),
    Rule("stack.moe_graphs", _graphs_have_static_experts, _graphs_message),
    Rule("layout.sequence_parallel", _sequence_parallel_offered, _sp_message),
    Rule(
        "layout.sequence_parallel",
        _sequence_parallel_searched,
        _unsearched_sp_message,
        kind="search",
    ),
    Rule("layout.sequence_parallel", _moe_needs_sequence_parallel, _moe_sp_message),
)
