"""What a stack does with the knobs of a layout that nobody set."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from models.layouts.placement import groups
from models.layouts.rules import BY_NAME
from models.spec.layout import TORUS_AXES, Layout, Layouts
from models.spec.problem import Problem

DEFAULTED_KNOBS = ("placement", "torus_axes", "etp", "sequence_parallel", "zero_stage", "reshard",
           "recompute",
           "recompute_modules", "schedule", "virtual_stages", "balanced")  # fmt: skip
"""The knobs that may be settled."""


def with_stack_defaults(problem: Problem, layout: Layout, given: Collection[str]) -> Layout:
    """The layout with every knob that is not `given`, and that would break a rule as it is, as the
    stack has it."""
    stack, changed = problem.stack, dict[str, Any]()
    if layout.tp > 1 and stack.sequence_parallel != (False,):
        changed["sequence_parallel"] = True
    if stack.placements and layout.placement not in stack.placements:
        changed["placement"] = stack.placements[0]
    if problem.experts_keep_tensor:
        changed["etp"] = layout.tp
    if layout.zero_stage == 0 and (
        layout.dp_shard > 1 or layout.offload_optimizer or 0 not in stack.zero_stages
    ):
        changed["zero_stage"] = min((stage for stage in stack.zero_stages if stage), default=0)
    if stack.reshard == (False,):
        changed["reshard"] = False
    if "recompute" not in given and not layout.recompute_layers:
        usual_one = stack.default_recompute in stack.recompute
        changed["recompute"] = stack.default_recompute if usual_one else stack.recompute[0]
    if changed.get("recompute", layout.recompute) == "selective" and not layout.recompute_modules:
        changed["recompute_modules"] = problem.effective_modules(stack.selective[0])
        given = set(given) - {"recompute_modules"}  # none named is none given
    if layout.pp > 1:
        changed |= _pipeline(problem, layout, given)
    elif "schedule" not in given:
        changed["schedule"] = _allowed(problem, layout, (layout.schedule, "afab"))
    if "torus_axes" not in given:
        changed["torus_axes"] = torus_axes_covering_dims(problem, layout)
    return replace(layout, **{knob: value for knob, value in changed.items() if knob not in given})


def _pipeline(problem: Problem, layout: Layout, given: Collection[str]) -> dict[str, Any]:
    stack, schedule, virtual = problem.stack, layout.schedule, layout.virtual_stages
    if "schedule" not in given:
        if virtual > 1 and "interleaved" in stack.schedules:
            schedule = "interleaved"
        elif schedule not in stack.schedules:
            schedule = stack.schedules[0]
        schedule = _allowed(problem, layout, (schedule, *stack.schedules))
    if "virtual_stages" not in given and schedule in ("interleaved", "zero_bubble_v"):
        virtual = 2
    return {
        "schedule": schedule,
        "virtual_stages": virtual,
        "balanced": splits_unevenly(problem, layout.pp * virtual),
    }


def _allowed(problem: Problem, layout: Layout, schedules: Iterable[str]) -> str:
    """The first of some schedules that the recipe allows, or the first of all."""
    rule, (first, *others) = BY_NAME["balancing_needs_all_forwards_first"], schedules
    fine = (
        name
        for name in (first, *others)
        if rule.test(problem, Layouts.of([replace(layout, schedule=name)]))[0]
    )
    return next(fine, first)


def torus_axes_covering_dims(problem: Problem, layout: Layout) -> tuple[str, ...]:
    """The order of a torus' dims that lets axes cover whole ones, experts and the innermost above
    all (jax experimental/mesh_utils.py, create_device_mesh)."""
    if not problem.cluster.device_orders.has_choice:
        return TORUS_AXES[0]
    orders = [
        TORUS_AXES[code]
        for code, block in problem.cluster.device_orders.distinct_fillings.tolist()
        if block == 1
    ]
    placed = groups(
        problem.cluster, Layouts.of([replace(layout, torus_axes=order) for order in orders])
    )
    axes = [getattr(placed, name) for name in (*reversed(layout.placement), "ep")]
    covered = [axis.per_row(axis.table.covers(problem.cluster.device_orders)) for axis in axes]
    return orders[int(np.lexsort([-np.arange(len(orders)), *covered])[-1])]


def splits_unevenly(problem: Problem, chunks: int) -> bool:
    """What a stack does with layers on so many chunks of a pipeline."""
    divides = problem.architecture.num_layers % chunks == 0
    return {"even": False, "balanced": not divides, "threshold": True}[problem.stack.partition]
