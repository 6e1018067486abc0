"""No placement makes a collective cheaper than the least links have it."""

from __future__ import annotations

import numpy as np
import pytest

from models.columns import Array
from models.cost.collectives import Cost, Links, links_of
from models.cost.least_links import ANY_FILLING, UNPLACED, least_links
from models.errors import Invalid, TooLarge
from models.layouts.space import Space
from models.search.tables import NoLegalLayout, SearchTables
from models.spec.constraints import Constraints
from models.spec.device_order import filling_code
from models.spec.layout import PLACEMENTS, Layouts
from models.spec.problem import Problem
from models.spec.profile import shipped_profile
from tests.oracles.random_questions import random_coefficients, random_layouts, random_problem

_ROUNDING = 1 + 1e-12


def tables_of(problem: Problem, rng: np.random.Generator) -> SearchTables | None:
    try:
        tables = SearchTables(Space(problem, Constraints()), shipped_profile())
    except (NoLegalLayout, Invalid, TooLarge):
        return None
    tables.coefficients = random_coefficients(problem, rng)
    return tables


def random_places(
    problem: Problem, rng: np.random.Generator, tables: SearchTables, count: int
) -> Array:
    """Random meshes of a problem as rows, each in a random place."""
    layouts: Layouts = random_layouts(problem, rng, count)
    rows = tables.unplaced_rows(layouts)
    fillings = problem.cluster.device_orders.distinct_fillings
    rows["placement"] = rng.integers(0, len(PLACEMENTS), len(rows))
    rows["filling"] = filling_code(*fillings[rng.integers(0, len(fillings), len(rows))].T)
    return rows


def require_least(tables: SearchTables, row: np.void) -> None:
    q, c = tables.question, tables.coefficient_records[0]
    exchange, least_exchange = np.zeros((2, len(q.layers), 2))
    whole = links_of(q.facts[0], q.layers, q.dims, q.order, row, c, tables.buffers.groups, exchange)
    for filling in (row["filling"], ANY_FILLING):
        unplaced = row.copy()
        unplaced["placement"], unplaced["filling"] = UNPLACED, filling
        least = least_links(q.facts[0], unplaced, tables.least, least_exchange)
        for name in Links._fields:
            some, all_of_it = getattr(least, name), getattr(whole, name)
            if isinstance(some, Cost):
                assert some.byte_s <= all_of_it.byte_s * _ROUNDING, (name, row)
                assert some.latency_s <= all_of_it.latency_s * _ROUNDING, (name, row)
            elif name.endswith("shards"):
                assert some == all_of_it, (name, row)
            else:
                assert some <= all_of_it, (name, row)
        assert (least_exchange <= exchange * _ROUNDING).all(), row


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(s, marks=pytest.mark.long) for s in (1, *range(100, 110)))]
)
def test_no_place_makes_a_collective_cheaper(seed: int) -> None:
    """On any fabric, whose links may be faster outwards or between peers, and whose domains need
    not divide each other."""
    rng = np.random.default_rng(seed)
    for _ in range(40 if seed < 100 else 400):
        problem = random_problem(rng)
        tables = tables_of(problem, rng)
        if tables is not None:
            for row in random_places(problem, rng, tables, 20):
                require_least(tables, row)
