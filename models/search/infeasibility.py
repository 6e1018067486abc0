"""The reason why no layout is legal: the constraints that are in the way, and the rule that the
nearest layout breaks.

The *nearest* layout is the one that breaks the fewest rules. A *knob* is a field of a layout, which
constraints may limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from models.errors import Infeasible, Invalid
from models.layouts.factors import factorisations
from models.layouts.rules import RULES, RULES_BY_NAME
from models.layouts.space import POLICY_KNOBS, Space, default_layouts
from models.spec.constraints import Constraints
from models.spec.layout import SCHEDULES, Layout, Layouts
from models.spec.problem import Problem
from models.spec.recompute import FULL, policy_code

Allowed = Mapping[str, tuple[Any, ...]]

# Placement comes last, for layouts that are legal otherwise, so its rules are never to blame.
_RULES_BEFORE_PLACEMENT = [rule for rule in RULES if rule.field != "layout.placement"]
# The fields of rules that can be tested on a mesh before it has policies.
_MESH_RULE_FIELDS = (
    "layout",
    "layout.tp",
    "layout.ep",
    "layout.cp",
    "layout.micro_batch",
    "layout.sequence_parallel",
)
_AXES = ("pp", "tp", "cp", "dp_replicate", "dp_shard", "dp")
# The most meshes that each knob is crossed with to find the nearest layout, which limits time and
# memory. If meshes are left out, another layout may be called the nearest; nothing else changes.
_MOST_MESHES = 20_000


def none_legal(space: Space) -> Infeasible:
    """Return the error that no layout in a space is legal. It names the constraints that are in the
    way, or else the rule that the nearest layout breaks."""
    rule, message = rule_to_blame(space.problem)
    return constraints_in_the_way(space) or Infeasible(rule, none_uses_all(space.problem, message))


def none_uses_all(problem: Problem, message: str) -> str:
    """Return the sentence that no legal layout uses all chips, with `message`, the reason, in
    brackets."""
    return f"no legal layout uses all {problem.cluster.num_chips} chips ({message})"


def constraints_in_the_way(space: Space) -> Infeasible | None:
    """Return the error that names the constraints which leave no legal layout. Return None where
    there are no constraints, or where no layout is legal without them either. The space must have
    no legal layout."""
    problem, constraints = space.problem, space.constraints
    if constraints.allowed and Space(problem, Constraints()).has_legal():
        return contradiction(problem, constraints)
    return None


def contradiction(problem: Problem, constraints: Constraints) -> Infeasible:
    """Return the error for constraints that leave no legal layout. It blames each constraint
    without which there is a legal layout, or else all of them together, and says which rules the
    nearest layout breaks."""
    allowed = constraints.allowed

    def has_legal_without(knob: str) -> bool:
        others = {name: values for name, values in allowed.items() if name != knob}
        return Space(problem, replace(constraints, allowed=others)).has_legal()

    single = [knob for knob in allowed if has_legal_without(knob)]
    blamed = single or list(allowed)
    values = ", ".join(f"{knob} in {list(allowed[knob])}" for knob in blamed)
    how = "without any one of these constraints" if single else "without these constraints"
    chips = problem.cluster.num_chips
    why = _nearest_obstacle(problem, allowed).sentence
    rule = f"leaves no legal layout of {chips} chips{' with the others' if len(blamed) > 1 else ''}"
    return Infeasible(
        f"constraints.{blamed[0]}",
        f"no legal layout of {chips} chips has {values}; {how} there are legal layouts; {why}",
        blamed=[
            Invalid(f"constraints.{knob}", list(allowed[knob]), f"{rule}: {why}") for knob in blamed
        ],
    )


def rule_to_blame(problem: Problem) -> tuple[str, str]:
    """Return the name of the rule that keeps all chips from being used, whatever the constraints,
    and a sentence about it: the first rule that the nearest layout breaks. Where that is about the
    batch or the layers, the batch is to blame if it refuses some tp, cp and pp that are otherwise
    legal, because it is a multiple of no dp that they leave."""
    obstacle = _nearest_obstacle(problem, {})
    if obstacle.rule not in ("batch_divides", "layers_divide"):
        return obstacle.rule, obstacle.sentence
    # `rejected` counts by the first rule that refuses, and the batch is tested after the degrees.
    _, rejected = Space(problem, Constraints()).trunks
    if not rejected["batch_divides"]:
        return obstacle.rule, obstacle.sentence
    batch, chips = problem.workload.global_batch, problem.cluster.num_chips
    sentence = f"global_batch({batch}) is a multiple of no dp that {chips} chips leave"
    return "batch_divides", f"{sentence} beside the legal tp, cp and pp"


def why_none(space: Space, *, with_pipeline: bool) -> tuple[bool, str]:
    """Return the reason why no layout with a pipeline (or without one) is in an answer: whether it
    holds without the constraints too, and its words, which complete a sentence. After "No layout
    with a pipeline ..." they may be "fits in memory"."""
    problem, constraints = space.problem, space.constraints
    # At least 2, so that the range below is never empty.
    most_stages = max(problem.architecture.num_layers, 2)
    allowed_pp = tuple(range(2, most_stages + 1)) if with_pipeline else (1,)
    # A search leaves out legal layouts only if they do not fit.
    if space.has_legal(with_pipeline=with_pipeline):
        return not (constraints.allowed or constraints.memory_reserve_gib), "fits in memory"
    if constraints.allowed and Space(problem, Constraints(allowed={"pp": allowed_pp})).has_legal():
        return False, "is left by the constraints"
    obstacle = _nearest_obstacle(problem, {"pp": allowed_pp})
    if obstacle.rule == "degrees_offered" and with_pipeline:
        return True, f"is possible, since stack {problem.stack.id} has no pipeline parallelism"
    why = f"is legal here. For example, {obstacle.message}"
    # A pipeline leaves fewer data-parallel ranks, over which the batch may divide.
    if obstacle.rule == "batch_divides" and not with_pipeline:
        why += ". Only this asks for a pipeline: neither bandwidth nor memory does"
    return True, why


def forbidden_schedules(problem: Problem) -> tuple[tuple[str, ...], str]:
    """Return the schedules of a stack that load balancing over the global batch rules out with more
    than one micro-batch, and words that say why. Both are empty where it rules out none."""
    rule, stack = RULES_BY_NAME["balancing_needs_all_forwards_first"], problem.stack
    # Two stages stand for any pipeline: the rule looks at the schedule alone.
    layouts = [Layout(pp=2, schedule=name) for name in stack.schedules]
    allowed = np.broadcast_to(rule.test(problem, Layouts.of(layouts)), len(layouts))
    ruled_out = [layout for layout, legal in zip(layouts, allowed, strict=True) if not legal]
    if not ruled_out:
        return (), ""
    names = tuple(layout.schedule for layout in ruled_out)
    left = " or ".join(name for name in stack.schedules if name not in names) or "no schedule"
    leaves = f"which leaves stack {stack.id} {left} with more than one micro-batch"
    return (
        names,
        f"{rule.message(problem, ruled_out[0])}; this rules out {', '.join(names)}, {leaves}",
    )


@dataclass(frozen=True, slots=True)
class _Obstacle:
    """Says why the layout nearest to being legal is not legal."""

    rule: str
    """The name of the first rule that the layout breaks; empty where it breaks none."""
    message: str
    """The messages of all rules that the layout breaks."""
    sentence: str
    """A sentence with the layout, and with the name and message of each rule that it breaks."""


def _nearest_obstacle(problem: Problem, allowed: Allowed) -> _Obstacle:
    """Return what refuses the layout that comes nearest to being legal.

    The nearest layout breaks the fewest rules. Ties go to layouts with equally many layers on every
    stage, then to those that divide tensors and sequences the least, then to those that get
    furthest before the first rule that they break.
    """
    layouts = _nearest_candidates(problem, allowed)
    if not len(layouts):
        unfilled = _why_not_filled(problem.cluster.num_devices, allowed)
        return _Obstacle("mesh_fills_cluster", unfilled, unfilled)
    broken = np.array(
        [~np.asarray(rule.test(problem, layouts), dtype=bool) for rule in _RULES_BEFORE_PLACEMENT]
    )
    # np.lexsort takes its most significant key last. argmax gives the first rule that is broken.
    keys = -broken.argmax(axis=0), layouts.tp * layouts.cp, layouts.balanced, broken.sum(axis=0)
    nearest = int(np.lexsort(keys)[0])
    layout = layouts[nearest]
    rules = [_RULES_BEFORE_PLACEMENT[i] for i in np.flatnonzero(broken[:, nearest])]
    # The constraints ask for a knob that has no effect, such as reshard off without ZeRO 3. No rule
    # refuses that, but the space has no such layout.
    if not rules:
        no_effect = (
            f"{layout.summary()} breaks no rule, but what they ask for makes no difference to it,"
            " so that only its usual value is searched"
        )
        return _Obstacle("", no_effect, no_effect)
    messages = {rule.name: rule.message(problem, layout) for rule in rules}
    broken_rules = "; ".join(f"{name}: {message}" for name, message in messages.items())
    return _Obstacle(
        rule=rules[0].name,
        message="; ".join(messages.values()),
        sentence=f"the nearest, {layout.summary()}, breaks {broken_rules}",
    )


def _why_not_filled(devices: int, allowed: Allowed) -> str:
    """Return in words why the degrees that constraints allow cannot multiply to this number of
    devices: the least product is larger, or no product is equal."""
    least = [min(allowed[axis]) for axis in _AXES if axis in allowed]
    if (product := math.prod(least)) > devices:
        times = " · ".join(map(str, least)) + f" = {product}" if len(least) > 1 else str(product)
        return f"the least degrees they allow, {times}, exceed the {devices} devices"
    return f"no degrees they allow multiply to the {devices} devices"


def _nearest_candidates(problem: Problem, allowed: Allowed) -> Layouts:
    """Return candidates for the nearest layout within the constraints: one mesh for each pp, with
    and without shards (dp_shard > 1) and replicas (dp_replicate > 1), under every policy. The mesh
    is one that breaks the fewest rules of meshes."""
    degrees = _candidate_meshes(problem, allowed)
    if not len(degrees):
        return degrees
    obeys = [rule.test(problem, degrees) for rule in RULES if rule.field in _MESH_RULE_FIELDS]
    rules_obeyed = np.sum(obeys, axis=0)
    best = degrees.take(rules_obeyed == rules_obeyed.max())
    # The first of each kind is taken. In a pipeline it has most micro-batches (least dp and
    # micro_batch), with which every schedule runs; without a pipeline it divides the model least.
    rank = np.where(best.pp > 1, best.dp * best.micro_batch, best.tp * best.cp)
    best = best.take(np.argsort(rank, kind="stable"))
    kinds = np.stack([best.pp, best.dp_shard > 1, best.dp_replicate > 1], axis=1)
    _, first_of_kind = np.unique(kinds, axis=0, return_index=True)
    policies = _candidate_policies(problem, allowed)
    # Each mesh (a position in first_of_kind) with each policy.
    mesh, policy = np.indices((len(first_of_kind), len(policies))).reshape(2, -1)
    knobs = (*POLICY_KNOBS, "torus_block")
    columns = {knob: getattr(policies, knob)[policy] for knob in knobs}
    return best.take(first_of_kind[mesh]).with_columns(**columns)


def _candidate_policies(problem: Problem, allowed: Allowed) -> Layouts:
    """Return every combination of schedule, sharding, memory policy and placement (torus_block)
    that the constraints allow, as layouts. To keep candidates few, knobs of memory policies and of
    placement that the constraints leave open have one value: no offload, a torus_block of 1, and
    the stack's first kind of recompute. Recompute is "selective" where the constraints name its
    modules, and otherwise "full" where they name a number of layers."""
    stack, modules = problem.stack, allowed.get("recompute_modules", ())
    recompute = ("full",) if any(allowed.get("recompute_layers", ())) else stack.recompute[:1]
    defaults: dict[str, Sequence[Any]] = {
        # Without a pipeline every stack runs 1f1b.
        "schedule": tuple(dict.fromkeys(("1f1b", *stack.schedules))),
        "virtual_stages": range(1, stack.max_virtual_stages + 1),
        "balanced": (False, True),
        "zero_stage": stack.zero_stages,
        "reshard": stack.reshard,
        "recompute": ("selective",) if "recompute_modules" in allowed else recompute,
        "recompute_layers": (0,),
        "offload_activations": (False,),
        "offload_optimizer": (False,),
        "torus_block": (1,),
    }
    codes: dict[str, Callable[[str], int]] = {
        "schedule": SCHEDULES.index,
        "recompute": lambda name: policy_code(name, modules if name == "selective" else ()),
    }
    rows = default_layouts(1)
    for knob, default in defaults.items():
        values: Sequence[Any] = allowed.get(knob, default)
        if knob in codes:
            values = [codes[knob](value) for value in values]
        rows = _cross_with(rows, knob, values)
    rows = rows.take((rows.recompute == FULL) | (rows.recompute_layers == 0))
    # reshard off has an effect with ZeRO 3 only. Other combinations stay if they are all there is.
    has_effect = (rows.zero_stage == 3) | rows.reshard
    return rows.take(has_effect) if has_effect.any() else rows


def _candidate_meshes(problem: Problem, allowed: Allowed) -> Layouts:
    """Return meshes on all devices that the constraints allow, as layouts: every division of the
    devices over pp, tp, cp, dp_replicate and dp_shard. Where constraints leave them open, ep, etp
    and micro_batch are 1, and sequence parallelism is on and off."""
    # dp is the product of dp_replicate and dp_shard, which are axes of their own.
    axes = tuple(axis for axis in _AXES if axis != "dp")
    table = factorisations(problem.cluster.num_devices, len(axes))
    rows = default_layouts(len(table)).with_columns(**dict(zip(axes, table.T, strict=True)))
    for knob in set(_AXES) & allowed.keys():
        rows = rows.take(np.isin(getattr(rows, knob), allowed[knob]))
    defaults = {"sequence_parallel": (False, True), "ep": (1,), "etp": (1,), "micro_batch": (1,)}
    for knob, values in defaults.items():
        # Meshes beyond the first _MOST_MESHES are left out. The layout that is called the nearest
        # to being legal may then not be the nearest of all.
        first = rows.take(np.arange(min(len(rows), _MOST_MESHES)))
        rows = _cross_with(first, knob, allowed.get(knob, values))
    return rows


def _cross_with(rows: Layouts, knob: str, values: Sequence[Any]) -> Layouts:
    """Return every row with every value of a knob."""
    row, value = np.indices((len(rows), len(values))).reshape(2, -1)
    return rows.take(row).with_columns(**{knob: np.array(values)[value]})
