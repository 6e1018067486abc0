"""The rules of where a mesh lies on the fabric.

A function whose docstring states a rule returns for each of n layouts whether it obeys, (n,); the
function after it words the error (models.layouts.rule.Rule).
"""

from __future__ import annotations

import numpy as np

from models.columns import Array
from models.layouts.placement import LayoutGroups, groups
from models.layouts.rule import Rule, holds_for_all
from models.spec.layout import Layout, Layouts, active_axes, offered_placements, pipeline_outermost
from models.spec.problem import Problem


def _placement_offered(problem: Problem, layouts: Layouts) -> Array:
    """The stack offers the placement: it orders the axes over the devices in this way."""
    # The table has a row for each set of axes with a degree above 1, since the order of the others
    # does not matter, and a column for each placement.
    return np.asarray(
        offered_placements(problem.stack.placements)[active_axes(layouts), layouts.placement]
    )


def _placement_message(problem: Problem, layout: Layout) -> str:
    offered = " or ".join(" < ".join(order) for order in problem.stack.placements)
    return f"stack {problem.stack.id} orders ranks {offered}, not {' < '.join(layout.placement)}"


def equal_data_parallel(problem: Problem, layouts: Layouts) -> Array:
    """A pipeline that is not the outermost axis has as many data-parallel ranks for experts as for
    the rest of the model, where the stack asks for it.

    Megatron-Core parallel_state.py.
    """
    if not problem.stack.equal_data_parallel:
        return holds_for_all(layouts)
    # Data-parallel ranks are the devices of a stage over tp · cp; those of experts, over ep · etp.
    # Without experts the framework counts tp in place of ep · etp, which asks for cp = 1.
    devices_of_expert = layouts.ep * layouts.etp if problem.architecture.is_moe else layouts.tp
    is_outermost = pipeline_outermost()[active_axes(layouts), layouts.placement]
    return (layouts.pp == 1) | is_outermost | (devices_of_expert == layouts.tp * layouts.cp)


def _equal_dp_message(problem: Problem, layout: Layout) -> str:
    return (
        f"stack {problem.stack.id} puts pp inside data parallelism only where ep·etp is tp·cp ="
        f" {layout.tp * layout.cp} (without experts: cp = 1)"
    )


def _torus_axes_exist(problem: Problem, layouts: Layouts) -> Array:
    """`torus_axes` are given for a torus only."""
    # 0 is the default order of the dims.
    return np.asarray((layouts.torus_axes == 0) | (problem.cluster.fabric.torus is not None))


def _torus_axes_message(problem: Problem, layout: Layout) -> str:
    return f"orders the dims of a torus, which {problem.cluster.fabric.id} is not: leave it out"


def _block_divides_torus(problem: Problem, layouts: Layouts) -> Array:
    """`torus_block` divides every longer dim of the torus, and is 1 where there is none."""
    if problem.cluster.fabric.torus is None:
        return np.asarray(layouts.torus_block == 1)
    shape = problem.cluster.slice_shape
    fits = [
        (length <= layouts.torus_block) | (length % layouts.torus_block == 0) for length in shape
    ]
    return np.asarray(np.all(fits, axis=0))


def _block_message(problem: Problem, layout: Layout) -> str:
    if not problem.cluster.slice_shape:
        return f"is a block of a torus, which {problem.cluster.fabric.id} is not: leave it out"
    return (
        f"torus_block({layout.torus_block}) must divide every longer dim of the torus of"
        f" {'x'.join(map(str, problem.cluster.slice_shape))}"
    )


def _placement_fits_torus(problem: Problem, layouts: Layouts) -> Array:
    """On a torus every axis divides a dim or covers whole dims, so that its rings close."""
    if problem.cluster.fabric.torus is None:
        return holds_for_all(layouts)
    return fits_torus(problem, groups(problem.cluster, layouts))


def fits_torus(problem: Problem, placed: LayoutGroups) -> Array:
    """Return for each layout whether every axis covers whole lines of a torus or divides one, so
    that its rings close on real links, (n,). `placed` has the layouts' groups. On other fabrics
    every layout passes."""
    if problem.cluster.fabric.torus is None:
        return np.ones(len(placed.tp.code), dtype=bool)
    # `whole` is true for an axis whose groups straddle no line of the torus. Layouts share a table
    # of groups, and `per_row` reads it for each layout.
    axes = (placed.tp, placed.cp, placed.dp_shard, placed.dp_replicate, placed.pp, placed.ep)
    return np.asarray(np.all([axis.per_row(axis.table.whole) for axis in axes], axis=0))


def _torus_message(problem: Problem, layout: Layout) -> str:
    blocks = f" in blocks of {layout.torus_block}" if layout.torus_block > 1 else ""
    return (
        f"placed {' < '.join(layout.placement)} on a torus of"
        f" {'x'.join(map(str, problem.cluster.slice_shape))}, filled along"
        f" {', '.join(layout.torus_axes)}{blocks}, every axis must divide a torus dim or cover"
        " whole dims"
    )


PLACEMENT_RULES = (
    Rule("layout.placement", _placement_offered, _placement_message),
    Rule("layout.placement", equal_data_parallel, _equal_dp_message),
    Rule("layout.torus_axes", _torus_axes_exist, _torus_axes_message),
    Rule("layout.torus_block", _block_divides_torus, _block_message),
    Rule("layout.placement", _placement_fits_torus, _torus_message),
)
