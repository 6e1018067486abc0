"""Single kernels and collectives of a problem, for calibrations to compare with micro-benchmarks.

A *question* is the problem as records of numbers (models.cost.facts). Its only recompute policy is
NONE, which recomputes nothing, since recompute changes no single kernel.
"""

from __future__ import annotations

import numpy as np

from models.columns import Array
from models.compilation.compiled import compiled
from models.cost.collectives import Cost, all_to_all, gather, reduce, send
from models.cost.facts import CoefficientRecord, ProblemRecords, coefficient_records
from models.cost.kernels import linear
from models.cost.problem_records import question
from models.layouts.groups import TP, Groups, groups_for, set_group
from models.spec.problem import Problem
from models.spec.profile import Coefficients
from models.spec.recompute import NONE

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
"""The collectives that micro-benchmarks measure. Compiled code knows each by its position here."""


def collective_cost(problem: Problem, operation: str, coefficients: Coefficients) -> Cost:
    """Return the cost of a collective over all devices of the problem. `operation` is a name in
    COLLECTIVES."""
    asked = question(problem, np.array([NONE]))
    cost = _collective(
        asked,
        coefficient_records(coefficients)[0],
        groups_for(asked.order),
        problem.cluster.num_devices,
        COLLECTIVES.index(operation),
    )
    return Cost(*cost)


@compiled
def _collective(
    question: ProblemRecords,
    coefficients: CoefficientRecord,
    groups: Groups,
    devices: int,
    operation: int,
) -> Cost:
    """Return the cost of a collective over one group of all devices. `operation` is its position in
    COLLECTIVES. `groups` is overwritten with that group, which stands in the row TP."""
    facts = question.facts[0]
    # Devices follow each other (distance 1) in the default numbering of a torus (filling 0).
    set_group(question.order, 0, 1, devices, groups, TP)
    if operation == 0:  # all_reduce
        return reduce(facts, question.dims, coefficients, groups, TP)
    if operation <= 2:  # all_gather, or reduce_scatter, which costs the same
        return gather(facts, question.dims, coefficients, groups, TP)
    if operation == 3:  # all_to_all
        return all_to_all(facts, question.dims, coefficients, groups, TP)
    return send(question.dims, coefficients, groups, TP)


def gemm_seconds(
    problem: Problem, m: Array, k: Array, n: Array, coefficients: Coefficients
) -> Array:
    """Return the seconds of each product of an m x k by a k x n matrix, in the problem's GEMM
    format. The arrays, and the result, have an entry for each product."""
    asked = question(problem, np.array([NONE]))
    m, k, n = (np.array(sizes, dtype=float) for sizes in (m, k, n))
    seconds = np.empty(len(m))
    _products(asked, coefficient_records(coefficients)[0], m, k, n, seconds)
    return seconds


@compiled
def _products(
    question: ProblemRecords,
    coefficients: CoefficientRecord,
    m: Array,
    k: Array,
    n: Array,
    seconds: Array,
) -> None:
    """Write to `seconds` the forward time of each product of an m x k by a k x n matrix. The arrays
    have an entry for each product."""
    for i in range(len(m)):
        seconds[i] = linear(question.facts[0], coefficients, m[i], k[i], n[i]).forward
