"""Random questions: what two implementations that must agree are asked.

A question is the same whenever it is drawn with a generator of the same seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from models.errors import Invalid
from models.spec.constraints import Constraints
from models.spec.hardware import GIB
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import Coefficients, shipped_profile
from tests.oracles import brute_force
from tests.oracles.random_layouts import random_layouts
from tests.oracles.random_problems import (
    FEW_CHIPS,
    chance,
    pick,
    random_problem,
    small_problem,
)

__all__ = [
    "PINNED",
    "UNSURE",
    "offers",
    "random_coefficients",
    "random_layouts",
    "random_problem",
    "small_search_problem",
]

PROFILE = shipped_profile()
FABRICS = sorted({term.scope for term in PROFILE.terms if term.scope.startswith("fabric:")})
UNSURE = PROFILE.with_terms(
    {
        (name, "all"): replace(PROFILE.by_key[name, "all"], runs=0, spread=spread)
        for name, spread in {
            "activation_memory": 0.3,
            "logit_memory": 0.5,
            "fragmentation": 0.8,
        }.items()
    }
)
"""Memory of which no run says anything: layouts are as unsure to fit as the parts are large that it
scales."""


def random_coefficients(problem: Problem, rng: np.random.Generator) -> Coefficients:
    """Those of the shipped profile, or each drawn from the spreads of its terms, sometimes on
    another fabric, since some coefficients matter on few; scalars."""
    if chance(rng, 0.5):
        return PROFILE.coefficients(problem.scopes)
    scopes = (*problem.scopes, pick(rng, FABRICS)) if chance(rng, 0.3) else problem.scopes
    drawn = {term.key: rng.normal(0.0, term.spread) for term in PROFILE.terms_in(scopes)}
    return PROFILE.coefficients(scopes, drawn)  # type: ignore[arg-type]


# -- what a search is asked

Allowed = Mapping[str, tuple[Any, ...]]

MOST_LEGAL = 150_000
"""Legal layouts of a small problem, at most."""
_MOST_MESHES = 200_000
_MOST_POLICIES = 10_000
"""Meshes and policies that brute force writes down for it, before any rule."""
_SAMPLE = 200
"""Legal layouts whose values pins are taken from."""
_PINNABLE = (
    "pp",
    "dp_replicate",
    "dp_shard",
    "dp",
    "cp",
    "tp",
    "ep",
    "etp",
    "micro_batch",
    "virtual_stages",
    "sequence_parallel",
    "balanced",
    "offload_activations",
    "offload_optimizer",
    "schedule",
    "recompute",
    "recompute_layers",
    "zero_stage",
    "reshard",
    "torus_block",
)
_PROBABILITIES = (0.5, 0.6, 0.9, 0.9, 0.9, 0.99)

# Brute force over every knob at once takes long: each case pins what another leaves free.
PINNED: list[dict[str, tuple[object, ...]]] = [
    {"micro_batch": (1, 2), "offload_optimizer": (False,), "offload_activations": (False,)},
    {
        "micro_batch": (1,),
        "offload_optimizer": (False,),
        "zero_stage": (1, 3),
        "balanced": (True, False),
        "cp": (1,),
    },
    {"micro_batch": (2,), "schedule": ("1f1b", "interleaved"), "zero_stage": (0, 1), "tp": (1, 2)},
    {
        "micro_batch": (1, 4),
        "recompute": ("none", "full"),
        "dp_replicate": (1, 2),
        "offload_optimizer": (True, False),
    },
    {
        "recompute": ("full",),
        "recompute_layers": (1, 3),
        "micro_batch": (1, 2),
        "offload_optimizer": (False,),
    },
    {
        "recompute_modules": ("mlp", "layernorm"),
        "recompute_layers": (0,),
        "micro_batch": (4,),
        "tp": (1, 2),
    },
]


def offers(problem: Problem, pinned: Allowed) -> bool:
    """Whether the stack can recompute the modules that are asked for, and layers have them."""
    modules = set(pinned.get("recompute_modules", ()))
    return not modules or (
        modules <= set(problem.stack.recomputable_modules)
        and all(map(problem.has_module, modules))
        and "selective" in problem.stack.recompute
    )


def small_search_problem(rng: np.random.Generator) -> tuple[Problem, Constraints]:
    """A problem whose legal layouts can all be written down, with constraints.

    Memory is short in a third of them, in some of which nothing fits; in a few no layout is legal.
    """
    while True:
        try:
            problem = _few_chips(rng)
            allowed = _allowed(rng, problem)
            if allowed is None:
                continue
            problem, reserve = _memory(rng, problem)
            constraints = Constraints(
                allowed=allowed,
                memory_reserve_gib=reserve,
                min_fit_probability=pick(rng, _PROBABILITIES),
            )
        except Invalid:  # pins that contradict each other
            continue
        return problem, constraints


def _few_chips(rng: np.random.Generator) -> Problem:
    """Of a small model, or of any model on a few chips, with few virtual stages."""
    if chance(rng, 0.5):
        return small_problem(partial(pick, rng))
    problem = random_problem(rng, FEW_CHIPS)
    most = min(problem.stack.max_virtual_stages, pick(rng, (1, 2, 3, 4)))
    return replace(problem, stack=replace(problem.stack, max_virtual_stages=most))


def _allowed(rng: np.random.Generator, problem: Problem) -> Allowed | None:
    """What knobs may be: anything, one of the pinned cases, or a few values that legal layouts
    have, with as many more pinned as leave few legal layouts; None where too many are left."""
    allowed: Allowed = {}
    kind = pick(rng, ("free", "case", "pinned", "pinned"))
    if kind == "case":
        allowed = pick(rng, [case for case in PINNED if offers(problem, case)])
    legal = random_layouts(problem, rng, _SAMPLE)
    layouts = [legal[row] for row in range(len(legal))]
    knobs = [str(knob) for knob in rng.permutation(_PINNABLE) if knob not in allowed]
    if chance(rng, 0.03):
        allowed = {**allowed, knobs.pop(): (pick(rng, (3, 5, 7)),)}
    more = int(rng.integers(1, 4)) if kind == "pinned" else 0
    while more > 0 or not _is_small(problem, Constraints(allowed=allowed)):
        layouts = [one for one in layouts if _may_be(one, allowed)]
        if not (knobs and layouts):
            return None
        knob = knobs.pop()
        allowed = {**allowed, knob: _values(rng, layouts, knob)}
        more -= 1
    return allowed


def _values(rng: np.random.Generator, layouts: Sequence[Layout], knob: str) -> tuple[Any, ...]:
    """One to four values that some of these layouts have of a knob."""
    values = [getattr(pick(rng, layouts), knob) for _ in range(int(rng.integers(1, 5)))]
    if knob == "recompute_layers":
        values.append(0)
    return tuple(dict.fromkeys(values))


def _may_be(layout: Layout, allowed: Allowed) -> bool:
    """Whether a layout has values that are allowed; of its modules nothing is asked."""
    asked = (item for item in allowed.items() if item[0] != "recompute_modules")
    return all(getattr(layout, knob) in values for knob, values in asked)


def _is_small(problem: Problem, constraints: Constraints) -> bool:
    meshes, policies = brute_force.written_down(problem, constraints)
    if meshes > _MOST_MESHES or policies > _MOST_POLICIES:
        return False
    count = 0
    for block in brute_force.legal(problem, constraints):
        count += len(block)
        if count > MOST_LEGAL:
            return False
    return True


def _memory(rng: np.random.Generator, problem: Problem) -> tuple[Problem, float]:
    """The problem with enough memory, or in a third of all cases with little more than parameters
    and optimizer take; and how much of it is to be left free."""
    chip = problem.cluster.chip
    usable = problem.cluster.usable_bytes / GIB
    states = 16 * problem.architecture.parameters.total / problem.cluster.num_devices / GIB
    if chance(rng, 1 / 3):
        tight = pick(rng, (1.0, 3.0, 6.0)) + states * 10 ** rng.uniform(-0.7, 0.7)
        if tight < usable and chance(rng, 0.5):
            return problem, usable - tight
        usable, reserve = tight, 0.0
    else:
        usable = max(usable, 2 * states + 16)
        reserve = pick(rng, (0.0, 0.0, 0.0, 0.1, 0.4)) * usable
    chip = replace(chip, usable_memory_gib=usable * chip.devices_per_chip)
    return replace(problem, cluster=replace(problem.cluster, chip=chip)), reserve
