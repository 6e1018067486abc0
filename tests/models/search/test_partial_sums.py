"""A partial sum never exceeds the whole: every bound of the search, of random layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product

import numpy as np
import pytest

from models.columns import Array
from models.cost.least_links import ANY_FILLING, UNPLACED
from models.cost.predictions import sums_of
from models.cost.step import empty_costs, predict_rows
from models.errors import Invalid, TooLarge
from models.layouts.space import (
    MEMORY_POLICY_KNOBS,
    SCHEDULE_KNOBS,
    SHARDING_KNOBS,
    Space,
    mesh_class,
)
from models.search.mesh_policies import bound_meshes
from models.search.tables import NoLegalLayout, SearchTables
from models.spec import catalogue
from models.spec.constraints import Constraints
from models.spec.device_order import filling_code
from models.spec.layout import PLACEMENTS, ZERO_BUBBLE_V, Layouts
from models.spec.problem import Problem
from models.spec.profile import shipped_profile
from tests.benchmarks.problems import problem
from tests.long import one_in
from tests.oracles.random_problems import random_fine_tuning, random_hybrid
from tests.oracles.random_questions import random_coefficients, random_layouts, random_problem

_OF_TRUNK = ("pp", "tp", "cp", "dp", "sequence_parallel", "micro_batch")
_KNOBS_OF_MEMORY_POLICIES = [knob for knob in MEMORY_POLICY_KNOBS if knob != "recompute_layers"]
_CHIPS = sorted({one.id for one in (*catalogue.fabrics().values(), *catalogue.chips().values())})
"""Those of the catalogue, with the links of their data sheets and of presets."""


@dataclass(frozen=True)
class Members:
    """Layouts that are in the space of some tables, with the number of the chain, the schedule and
    the variant that each has there."""

    layouts: Layouts
    chain: Array
    schedule: Array
    variant: Array

    @classmethod
    def of(cls, tables: SearchTables, layouts: Layouts) -> Members:
        """Those of some layouts that are; what a layout says of its chunks is left out."""
        policies = tables.policies
        memory_policy = _position(policies.memory_policies, layouts, _KNOBS_OF_MEMORY_POLICIES)
        sharding = _position(policies.shardings, layouts, SHARDING_KNOBS)
        schedule = _position(policies.schedules, layouts, SCHEDULE_KNOBS)
        trunk = _position(tables.trunks.rows, layouts, _OF_TRUNK)
        variant = sharding * len(policies.memory_policies) + memory_policy
        of_trunk = tables.trunks.chains[trunk]
        there = np.min([memory_policy, sharding, schedule, trunk], axis=0) >= 0
        there &= tables.legal_schedules[of_trunk, schedule]
        there &= tables.legal_variants[mesh_class(layouts), variant]
        unsaid = layouts.with_columns(layers_per_chunk=np.full(len(layouts), "", dtype=str))
        return cls(unsaid, of_trunk, schedule, variant).take(np.flatnonzero(there))

    def take(self, at: Array) -> Members:
        return Members(self.layouts.take(at), self.chain[at], self.schedule[at], self.variant[at])

    def everywhere(self, fillings: Array) -> Members:
        """These in every placement, and in every one of these fillings of a torus."""
        shape = len(self.layouts), len(PLACEMENTS), len(fillings)
        row, placement, filling = np.indices(shape).reshape(3, -1)
        axes, block = fillings[filling].T
        found = self.take(row)
        places = {"placement": placement, "torus_axes": axes, "torus_block": block}
        return replace(found, layouts=found.layouts.with_columns(**places))

    def rows(self, tables: SearchTables) -> Array:
        """Them as the compiled functions read them."""
        rows = tables.set_variant(tables.unplaced_rows(self.layouts), self.variant)
        policies = tables.policy_tables
        for name in ("schedule", "virtual_stages"):
            rows[name] = policies.schedules[name][self.schedule]
        rows["partition"] = policies.partition[self.chain, self.schedule]
        rows["placement"] = self.layouts.placement
        rows["recompute_layers"] = self.layouts.recompute_layers
        rows["filling"] = filling_code(self.layouts.torus_axes, self.layouts.torus_block)
        return rows


def _position(of: Layouts, layouts: Layouts, knobs: Sequence[str]) -> Array:
    """Which of some rows has the knobs of each layout; -1 where none has."""

    def keys(rows: Layouts) -> Iterator[tuple[object, ...]]:
        return zip(*(getattr(rows, knob).tolist() for knob in knobs), strict=True)

    place = {key: i for i, key in enumerate(keys(of))}
    return np.array([place.get(key, -1) for key in keys(layouts)], dtype=np.int64)


def least_seconds(
    tables: SearchTables, members: Members, fits: Array
) -> Iterator[tuple[str, Array]]:
    """Every partial sum of time that layouts grow from, from their trunks to themselves; nothing
    where it is of what fits, and they do not."""
    layouts, whole = members.layouts, members.rows(tables)
    undivided = tables.undivided_rows(_undivided(layouts))
    trunks = undivided.copy()
    trunks["ep"] = trunks["etp"] = 1
    yield "trunk", tables.bound_trunks(trunks, members.chain)
    yield "core", bounds(tables, undivided, members)[0]
    for filling in (ANY_FILLING, whole["filling"]):
        meshes = tables.meshes_of(layouts, members.chain)
        meshes.rows["filling"] = filling
        bound_meshes(tables.compiled, meshes)
        yield "mesh", np.where(fits, meshes.bound, 0.0)
        unplaced = whole.copy()
        unplaced["placement"], unplaced["filling"] = UNPLACED, filling
        yield "mesh with a policy", bounds(tables, unplaced, members)[0]
        yield "layout over the least links", step_seconds(tables, unplaced)
    sharding = members.variant // len(tables.policies.memory_policies)
    placed = tables.set_sharding(tables.unplaced_rows(layouts), sharding)
    placed["placement"], placed["filling"] = whole["placement"], whole["filling"]
    yield "placed mesh with a sharding", bounds(tables, placed, members)[0]
    yield "mean stage", bounds(tables, whole, members)[0]


def least_bytes(tables: SearchTables, members: Members) -> Iterator[tuple[str, Array]]:
    """The same of memory, from cores with their variant on."""
    undivided = tables.undivided_rows(_undivided(members.layouts))
    tables.set_variant(undivided, members.variant)
    yield "memory of a core", bounds(tables, undivided, members)[1]
    yield "memory of the mean stage", bounds(tables, members.rows(tables), members)[1]


def bounds(tables: SearchTables, rows: Array, members: Members) -> tuple[Array, Array]:
    """The least step time and memory of rows."""
    return tables.bound(rows, members.chain, tables.question)


def step_seconds(tables: SearchTables, rows: Array) -> Array:
    """Step times of rows, over the best links that any placement might give them where they are not
    placed."""
    t, costs = tables.compiled, empty_costs(len(rows))
    predict_rows(t.question, t.stages, rows, t.coefficients, t.least, t.buffers, costs)
    return sums_of(costs.time)


def _undivided(layouts: Layouts) -> Layouts:
    return layouts.with_columns(dp_shard=layouts.dp, dp_replicate=np.ones_like(layouts.dp))


_SLACK_OF_A_V = 2e-3
"""As traffic gets cheaper, weight gradients have less of it to hide and so count as longer, and
these fill the waits of a V. By an earlier closed form a step got longer by 0.11% in 120 of two
million layouts of random problems."""


def require_bounds(tables: SearchTables, members: Members) -> None:
    """That no partial sum exceeds the whole."""
    found = tables.predict(members.layouts)
    fits = tables.fits(found)
    seconds = ((*one, found.step_time_s) for one in least_seconds(tables, members, fits))
    size = ((*one, found.needed_bytes) for one in least_bytes(tables, members))
    in_a_v = members.layouts.schedule == ZERO_BUBBLE_V
    for name, least, whole in chain(seconds, size):
        of_times = name == "layout over the least links"
        slack = np.where(in_a_v & of_times, _SLACK_OF_A_V, 1e-9)
        if not (least <= whole * (1 + slack)).all():
            worst = int((least / whole).argmax())
            raise AssertionError(
                f"{name}: {least[worst]!r} of {whole[worst]!r}, at {members.layouts[worst]}"
            )


def some_members(
    rng: np.random.Generator, question: Problem, count: int
) -> tuple[SearchTables, Members] | None:
    """Up to so many layouts of a problem, with random coefficients; None where none is legal."""
    try:
        coefficients = random_coefficients(question, rng)
        layouts = random_layouts(question, rng, count)
        tables = SearchTables(Space(question, Constraints()), shipped_profile())
    except (NoLegalLayout, Invalid, TooLarge):
        return None
    tables.coefficients = coefficients
    members = Members.of(tables, layouts) if len(layouts) else None
    return None if members is None or not len(members.layouts) else (tables, members)


def require_bounds_of_random_problems(
    seed: int,
    count: int,
    each: int,
    *,
    everywhere: bool = False,
    draw: Callable[[np.random.Generator], Problem] = random_problem,
) -> None:
    """Of so many layouts, up to `each` of a problem; or of these in every place."""
    rng = np.random.default_rng(seed)
    while count > 0:
        question = random_hybrid(rng) if rng.random() < 0.3 else draw(rng)
        found = some_members(rng, question, each)
        if found is None:
            continue
        tables, members = found
        if everywhere:
            members = members.everywhere(question.cluster.device_orders.distinct_fillings)
        require_bounds(tables, members)
        count -= len(members.layouts)


@pytest.mark.parametrize("seed", one_in(4, range(4)))
def test_no_partial_sum_exceeds_the_whole(seed: int) -> None:
    """Of any model on any stack and fabric, whose links may be faster outwards or between peers,
    and whose domains need not divide each other."""
    require_bounds_of_random_problems(seed, 750, 50)
    require_bounds_of_random_problems(seed, 2000, 2, everywhere=True)


@pytest.mark.parametrize("seed", one_in(2, range(2)))
def test_no_partial_sum_exceeds_the_whole_of_fine_tuning(seed: int) -> None:
    require_bounds_of_random_problems(seed, 500, 20, draw=random_fine_tuning)
    require_bounds_of_random_problems(seed, 500, 2, everywhere=True, draw=random_fine_tuning)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 110))
def test_no_partial_sum_of_many_layouts_exceeds_the_whole(seed: int) -> None:
    require_bounds_of_random_problems(seed, 50_000, 500)
    require_bounds_of_random_problems(seed, 200_000, 10, everywhere=True)
    require_bounds_of_random_problems(seed, 1000, 20, draw=random_fine_tuning)


@pytest.mark.long
@pytest.mark.parametrize("chip", _CHIPS)
def test_no_place_on_a_known_fabric_is_faster_than_the_least_links(chip: str) -> None:
    looked_at = 0
    for model, chips in product(("llama-3-8b", "qwen3-30b-a3b"), (16, 48, 512)):
        try:
            cluster = catalogue.cluster(chip, chips)
            precision = "bf16" if "bf16" in cluster.chip.peak_tflops else "fp16"
            question = problem(
                model, (chip, chips), "generic", seq_len=4096, global_batch=768, precision=precision
            )
        except Invalid:  # more chips than its fabric joins
            continue
        found = some_members(np.random.default_rng(chips), question, 10)
        if found is not None:
            fillings = question.cluster.device_orders.distinct_fillings
            require_bounds(found[0], found[1].everywhere(fillings))
            looked_at += 1
    assert looked_at
