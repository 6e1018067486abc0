"""The values that a stack gives to the knobs (fields) of a layout which a caller left open."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from models.layouts.pipeline_rules import balances_global_batch
from models.layouts.placement import groups
from models.layouts.rules import RULES_BY_NAME
from models.spec.layout import TORUS_AXES, Layout, Layouts
from models.spec.problem import Problem

DEFAULTED_KNOBS = (
    "placement",
    "torus_axes",
    "etp",
    "sequence_parallel",
    "zero_stage",
    "reshard",
    "recompute",
    "recompute_modules",
    "schedule",
    "virtual_stages",
    "balanced",
)
"""The knobs that `with_stack_defaults` may change."""


def with_stack_defaults(problem: Problem, layout: Layout, given: Collection[str]) -> Layout:
    """Return the layout with the stack's own choice for the knobs that the caller did not set.

    `given` names the knobs that the caller set, which stay. Of the others, recompute gets the
    stack's default, sequence parallelism is on wherever the stack has it, and a torus is filled
    along dims that suit the mesh. All else changes only to keep the rules of the stack.
    """
    stack = problem.stack
    defaults = dict[str, Any]()
    if layout.tp > 1 and stack.sequence_parallel != (False,):
        defaults["sequence_parallel"] = True
    if stack.placements and layout.placement not in stack.placements:
        defaults["placement"] = stack.placements[0]
    # Such a stack cuts experts by tp, like the rest of the model.
    if problem.experts_keep_tensor:
        defaults["etp"] = layout.tp
    # PyTorch's FSDP (`shards` "flat" or "each") shards over context parallelism too (torchtitan
    # distributed/parallel_dims.py, fsdp_enabled; accelerate parallelism_config.py).
    is_sharded = layout.dp_shard > 1 or (layout.cp > 1 and stack.shards != "in_place")
    # Optimizer states are offloaded as shards only (rule offload_needs_sharding).
    needs_shards = is_sharded or layout.offload_optimizer or 0 not in stack.zero_stages
    if layout.zero_stage == 0 and needs_shards:
        # The lowest stage that shards, if the stack has one.
        defaults["zero_stage"] = min((stage for stage in stack.zero_stages if stage), default=0)
    # The rule sharding_axes_need_zero_3 asks for it.
    if stack.shards_over_context_and_experts and (layout.cp > 1 or layout.ep > 1):
        defaults["zero_stage"] = 3
    # FSDP2 keeps gathered parameters through a pipeline, since each micro-batch would gather them
    # anew (torchtitan config/configs.py, fsdp_reshard_after_forward "default").
    shards_parameters = defaults.get("zero_stage", layout.zero_stage) == 3
    keeps_in_pipeline = stack.shards == "each" and shards_parameters and layout.pp > 1
    if stack.reshard == (False,) or (keeps_in_pipeline and False in stack.reshard):
        defaults["reshard"] = False
    if "recompute" not in given and not layout.recompute_layers:
        offered = stack.default_recompute in stack.recompute
        defaults["recompute"] = stack.default_recompute if offered else stack.recompute[0]
    if defaults.get("recompute", layout.recompute) == "selective" and not layout.recompute_modules:
        defaults["recompute_modules"] = problem.effective_modules(stack.selective[0])
        # A caller's empty list of modules leaves the choice open: it does not count as set.
        given = set(given) - {"recompute_modules"}
    if layout.pp > 1:
        defaults |= _pipeline_defaults(problem, layout, given)
    elif "schedule" not in given:
        # Without a pipeline afab is plain gradient accumulation, which every stack has.
        defaults["schedule"] = _first_allowed_schedule(problem, layout, (layout.schedule, "afab"))
    if "torus_axes" not in given:
        defaults["torus_axes"] = torus_axes_covering_dims(problem, layout)
    settled = {knob: value for knob, value in defaults.items() if knob not in given}
    return _without_idle_settings(problem, replace(layout, **settled))


def _without_idle_settings(problem: Problem, layout: Layout) -> Layout:
    """Return the layout without settings that change nothing. Sequence parallelism is off where tp
    is 1, and `recompute_layers` is 0, which stands for all, where a chunk has no more layers."""
    layers = problem.architecture.num_layers
    # The longest chunk of an uneven split is not known here, and has at most all layers.
    chunk = layers if layout.balanced else layers // (layout.pp * layout.virtual_stages)
    return replace(
        layout,
        sequence_parallel=layout.sequence_parallel and layout.tp > 1,
        recompute_layers=0 if layout.recompute_layers >= chunk else layout.recompute_layers,
    )


def _pipeline_defaults(problem: Problem, layout: Layout, given: Collection[str]) -> dict[str, Any]:
    """Return the stack's values of `schedule`, `virtual_stages` and `balanced` for a layout with a
    pipeline. Values that the caller set, named in `given`, are kept and decide the others."""
    schedules = problem.stack.schedules
    schedule = layout.schedule
    virtual_stages = layout.virtual_stages
    if "schedule" not in given:
        if virtual_stages > 1 and "interleaved" in schedules:
            schedule = "interleaved"
        elif schedule not in schedules:
            schedule = schedules[0]
        schedule = _first_allowed_schedule(problem, layout, (schedule, *schedules))
    # Interleaving needs more than one virtual stage, and a V exactly two.
    if "virtual_stages" not in given and schedule in ("interleaved", "zero_bubble_v"):
        virtual_stages = 2
    return {
        "schedule": schedule,
        "virtual_stages": virtual_stages,
        "balanced": _splits_unevenly(problem, layout.pp * virtual_stages),
    }


def _first_allowed_schedule(problem: Problem, layout: Layout, schedules: Iterable[str]) -> str:
    """Return the first of these schedules that works with the workload's load-balancing loss, or
    the first of all where none does. (A loss over the global batch needs all forwards before the
    first backward.)"""
    names = list(schedules)
    if not balances_global_batch(problem):
        return names[0]
    layouts = Layouts.of([replace(layout, schedule=name) for name in names])
    allowed = RULES_BY_NAME["balancing_needs_all_forwards_first"].test(problem, layouts)
    return names[int(allowed.argmax())]  # 0 where none is allowed


def torus_axes_covering_dims(problem: Problem, layout: Layout) -> tuple[str, ...]:
    """Return the order of a torus' dims, along which devices are numbered, that lets mesh axes
    cover whole dims; the default order on other fabrics.

    An order is best in which expert parallelism covers whole dims, then the innermost mesh axis,
    and so on outwards, as in jax (experimental/mesh_utils.py, create_device_mesh). Of equal orders
    the first is taken.
    """
    device_orders = problem.cluster.device_orders
    if not device_orders.has_choice:
        return TORUS_AXES[0]
    # Devices numbered in blocks are left out: torus_block is a knob of its own.
    orders = [
        TORUS_AXES[code] for code, block in device_orders.distinct_fillings.tolist() if block == 1
    ]
    placed = groups(
        problem.cluster, Layouts.of([replace(layout, torus_axes=order) for order in orders])
    )
    axes = [getattr(placed, name) for name in (*reversed(layout.placement), "ep")]
    # The layouts share a table of groups, and per_row reads it for each layout.
    covered = [axis.per_row(axis.table.covers(device_orders)) for axis in axes]
    # np.lexsort sorts by its last key first, ascending. The best order is then the last. By the
    # negative numbers the first of equal orders is.
    return orders[int(np.lexsort([-np.arange(len(orders)), *covered])[-1])]


def _splits_unevenly(problem: Problem, chunks: int) -> bool:
    """Say whether the stack splits the layers over `chunks` chunks of a pipeline unevenly."""
    # "threshold" fills each stage up to its share of the cost, even where the layers divide.
    divides = problem.architecture.num_layers % chunks == 0
    return {"even": False, "balanced": not divides, "threshold": True}[problem.stack.partition]
