"""The ways to divide a number of devices: products of the degrees that each axis may have by
itself. They tell without a search which numbers of devices can have layouts, and which have many.
"""

from __future__ import annotations

import numpy as np

from models.columns import Array
from models.layouts.factors import divisors
from models.layouts.rules import RULES_BY_NAME
from models.layouts.space import default_layouts
from models.spec.constraints import Constraints
from models.spec.problem import Problem


def factorizations_by_devices(problem: Problem, constraints: Constraints) -> dict[int, int]:
    """Return how many products of parallel degrees make each number of devices, up to the
    cluster's, in ascending order. Each degree is one that its axis may have if all others are 1."""
    most = problem.cluster.num_devices
    allowed = constraints.allowed
    # The distinct products of the axes so far, and the number of ways to make each.
    counts = np.ones(1, dtype=np.int64)
    ways = np.ones(1, dtype=np.int64)
    for axis, degrees in _degrees_by_axis(problem).items():
        if axis in allowed:
            degrees = degrees[np.isin(degrees, allowed[axis])]
        products = np.multiply.outer(counts, degrees)
        fits = products <= most
        ways_of_products = np.broadcast_to(ways[:, None], fits.shape)[fits]
        # Equal products of different degrees add up their ways.
        ways_of_each = np.bincount(products[fits], ways_of_products).astype(np.int64)
        counts = np.flatnonzero(ways_of_each)
        ways = ways_of_each[counts]
    return dict(zip(counts.tolist(), ways.tolist(), strict=True))


def _degrees_by_axis(problem: Problem) -> dict[str, Array]:
    """Return the degrees that each axis may have if all others are 1, in ascending order."""
    stack = problem.stack
    layers = problem.architecture.num_layers
    tp = np.arange(1, stack.max_tp + 1)
    for rule in ("tensor_divides_heads", "tensor_divides_widths", "whole_blocks"):
        tp = tp[_obeys_rule(problem, rule, "tp", tp)]
    cp = np.arange(1, stack.max_cp + 1)
    for rule in ("sequence_divides", "context_divides_heads"):
        cp = cp[_obeys_rule(problem, rule, "cp", cp)]
    pp = np.arange(1, layers + 1)
    if stack.partition == "even":
        pp = pp[layers % pp == 0]
    # ep and etp are left out: experts are divided over devices of the other axes. dp divides the
    # batch, with micro-batches of 1.
    return {"tp": tp, "cp": cp, "pp": pp, "dp": np.array(divisors(problem.workload.global_batch))}


def _obeys_rule(problem: Problem, rule: str, axis: str, degrees: Array) -> Array:
    """Return a mask of the degrees of an axis that obey a rule of layouts if all other axes are 1;
    shape (n,)."""
    rows = default_layouts(len(degrees)).with_columns(**{axis: degrees})
    return np.asarray(RULES_BY_NAME[rule].test(problem, rows), dtype=bool)
