"""The reason why no layout is legal: the constraints that are in the way, and the rule that the
nearest layout breaks."""

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

# Placement is left out: the search decides it last of all, for layouts that are legal otherwise.
_BUT_PLACEMENT = [rule for rule in RULES if rule.field != "layout.placement"]
_OF_A_MESH = (
    "layout",
    "layout.tp",
    "layout.ep",
    "layout.cp",
    "layout.micro_batch",
    "layout.sequence_parallel",
)
_AXES = ("pp", "tp", "cp", "dp_replicate", "dp_shard", "dp")
# Meshes that are looked at for the nearest. It bounds time and memory: they are to name a rule, and
# prove nothing.
_MESHES_LOOKED_AT = 20_000


def none_legal(space: Space) -> Infeasible:
    """Return the error that no layout in a space is legal, with the constraints that are in the
    way, or else the rule."""
    rule, message = rule_to_blame(space.problem)
    return constraints_in_the_way(space) or Infeasible(rule, none_uses_all(space.problem, message))


def none_uses_all(problem: Problem, message: str) -> str:
    """Return the sentence that no legal layout uses all chips, with the reason in brackets."""
    return f"no legal layout uses all {problem.cluster.num_chips} chips ({message})"


def constraints_in_the_way(space: Space) -> Infeasible | None:
    """Return the error that names the constraints which leave no layout. Return None where there
    are no constraints, or no legal layout without them either."""
    problem, constraints = space.problem, space.constraints
    if constraints.allowed and Space(problem, Constraints()).has_legal():
        return contradiction(problem, constraints)
    return None


def contradiction(problem: Problem, constraints: Constraints) -> Infeasible:
    """Return the error for constraints that leave no legal layout. It blames each constraint whose
    removal alone would leave one, or else all of them together, and says what the nearest layout
    breaks."""
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
    rule = f"leaves no legal layout of {chips} chips" + " with the others" * (len(blamed) > 1)
    return Infeasible(
        f"constraints.{blamed[0]}",
        f"no legal layout of {chips} chips has {values}; {how} there are legal layouts; {why}",
        blamed=[
            Invalid(f"constraints.{knob}", list(allowed[knob]), f"{rule}: {why}") for knob in blamed
        ],
    )


def rule_to_blame(problem: Problem) -> tuple[str, str]:
    """Return the name of the rule that keeps all chips from being used, whatever the constraints,
    and a sentence about it. The batch is blamed, and not the number of layers, where no legal
    degrees leave a dp that divides it."""
    obstacle = _nearest_obstacle(problem, {})
    if obstacle.rule not in ("batch_divides", "layers_divide"):
        return obstacle.rule, obstacle.sentence
    # The batch is not to blame where every legal tp, cp and pp leaves a dp that divides it.
    _, rejected = Space(problem, Constraints()).trunks
    if not rejected["batch_divides"]:
        return obstacle.rule, obstacle.sentence
    batch, chips = problem.workload.global_batch, problem.cluster.num_chips
    sentence = f"global_batch({batch}) is a multiple of no dp that {chips} chips leave"
    return "batch_divides", f"{sentence} beside the legal tp, cp and pp"


def why_none(space: Space, *, with_pipeline: bool) -> tuple[bool, str]:
    """Return why no layout with, or without, a pipeline is in an answer: whether the reason holds
    without the constraints too, and its words. These complete a sentence, such as "No layout with
    a pipeline" + "fits in memory"."""
    problem, constraints = space.problem, space.constraints
    most_stages = max(problem.architecture.num_layers, 2)
    allowed_pp = tuple(range(2, most_stages + 1)) if with_pipeline else (1,)
    if space.has_legal(with_pipeline=with_pipeline):
        return not (constraints.allowed or constraints.memory_reserve_gib), "fits in memory"
    if constraints.allowed and Space(problem, Constraints(allowed={"pp": allowed_pp})).has_legal():
        return False, "is left by the constraints"
    obstacle = _nearest_obstacle(problem, {"pp": allowed_pp})
    if obstacle.rule == "degrees_offered" and with_pipeline:
        return True, f"is possible, since stack {problem.stack.id} has no pipeline parallelism"
    why = f"is legal here. For example, {obstacle.message}"
    if obstacle.rule == "batch_divides" and not with_pipeline:
        why += ". Only this asks for a pipeline: neither bandwidth nor memory does"
    return True, why


def forbidden_schedules(problem: Problem) -> tuple[tuple[str, ...], str]:
    """Return the schedules of a stack that load balancing over the global batch rules out with more
    than one micro-batch, and a sentence that says why. Both are empty where it rules out none."""
    rule, stack = RULES_BY_NAME["balancing_needs_all_forwards_first"], problem.stack
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
    """The first rule that the layout nearest to being legal breaks, what refuses the layout, and a
    sentence that names the layout and every rule it breaks."""

    rule: str
    message: str
    sentence: str


def _nearest_obstacle(problem: Problem, allowed: Allowed) -> _Obstacle:
    """Return what refuses the layout that comes nearest to being legal.

    The nearest layout breaks the fewest rules. Of those, it has as many layers on every stage,
    divides tensors and sequences the least, and gets furthest before the first rule that it breaks.
    """
    layouts = _nearly_legal(problem, allowed)
    if not len(layouts):
        unfilled = _why_not_filled(problem.cluster.num_devices, allowed)
        return _Obstacle("mesh_fills_cluster", unfilled, unfilled)
    broken = np.array(
        [~np.asarray(rule.test(problem, layouts), dtype=bool) for rule in _BUT_PLACEMENT]
    )
    # np.lexsort takes its most significant key last.
    keys = -broken.argmax(axis=0), layouts.tp * layouts.cp, layouts.balanced, broken.sum(axis=0)
    nearest = int(np.lexsort(keys)[0])
    layout = layouts[nearest]
    rules = [_BUT_PLACEMENT[i] for i in np.flatnonzero(broken[:, nearest])]
    if not rules:  # A knob is asked for that has no effect, such as reshard without ZeRO 3.
        no_effect = (
            f"{layout.summary()} breaks no rule, but what they ask for makes no difference to it,"
            " so that only its usual value is searched"
        )
        return _Obstacle("", no_effect, no_effect)
    messages = {rule.name: rule.message(problem, layout) for rule in rules}
    broken_rules = "; ".join(f"{name}: {message}" for name, message in messages.items())
    return _Obstacle(
        rules[0].name,
        "; ".join(messages.values()),
        f"the nearest, {layout.summary()}, breaks {broken_rules}",
    )


def _why_not_filled(devices: int, allowed: Allowed) -> str:
    """Return in words why the degrees that constraints allow cannot multiply to this number of
    devices: their least product exceeds it, or no product is equal to it."""
    least = [min(allowed[axis]) for axis in _AXES if axis in allowed]
    if (product := math.prod(least)) > devices:
        times = " · ".join(map(str, least)) + f" = {product}" if len(least) > 1 else str(product)
        return f"the least degrees they allow, {times}, exceed the {devices} devices"
    return f"no degrees they allow multiply to the {devices} devices"


def _nearly_legal(problem: Problem, allowed: Allowed) -> Layouts:
    """Return candidates for the nearest layout within the constraints: one mesh for each pp and
    each combination of shards and replicas, under every policy. The mesh is one that breaks the
    fewest rules of meshes."""
    degrees = _meshes(problem, allowed)
    if not len(degrees):
        return degrees
    tests = [rule.test(problem, degrees) for rule in RULES if rule.field in _OF_A_MESH]
    obeyed = np.sum(tests, axis=0)
    best = degrees.take(obeyed == obeyed.max())
    # In a pipeline the meshes with most micro-batches come first, since every schedule runs with
    # these; without one, those that divide the model least.
    rank = np.where(best.pp > 1, best.dp * best.micro_batch, best.tp * best.cp)
    best = best.take(np.argsort(rank, kind="stable"))
    kinds = np.stack([best.pp, best.dp_shard > 1, best.dp_replicate > 1], axis=1)
    _, first_of_kind = np.unique(kinds, axis=0, return_index=True)
    policies = _policies(problem, allowed)
    mesh, policy = np.indices((len(first_of_kind), len(policies))).reshape(2, -1)
    knobs = (*POLICY_KNOBS, "torus_block")
    columns = {knob: getattr(policies, knob)[policy] for knob in knobs}
    return best.take(first_of_kind[mesh]).with_columns(**columns)


def _policies(problem: Problem, allowed: Allowed) -> Layouts:
    """Return every combination of schedule, sharding and memory policy that the constraints allow,
    as layouts. Where they leave recompute open, it is "selective" or "full" if they name its
    modules or layers, and else the stack's first kind."""
    stack, modules = problem.stack, allowed.get("recompute_modules", ())
    recompute = ("full",) if any(allowed.get("recompute_layers", ())) else stack.recompute[:1]
    defaults: dict[str, Sequence[Any]] = {
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
    # `reshard` off means something with ZeRO 3 only; other combinations go, unless none is left.
    is_meant = (rows.zero_stage == 3) | rows.reshard
    return rows.take(is_meant) if is_meant.any() else rows


def _meshes(problem: Problem, allowed: Allowed) -> Layouts:
    """Return the meshes on all devices that the constraints allow, as layouts. Knobs that they
    leave open are ep = etp = 1, one sequence a micro-batch, and sequence parallelism on and off.
    At most _MESHES_LOOKED_AT rows are crossed with each knob."""
    axes = tuple(axis for axis in _AXES if axis != "dp")
    table = factorisations(problem.cluster.num_devices, len(axes))
    rows = default_layouts(len(table)).with_columns(**dict(zip(axes, table.T, strict=True)))
    for knob in set(_AXES) & allowed.keys():
        rows = rows.take(np.isin(getattr(rows, knob), allowed[knob]))
    defaults = {"sequence_parallel": (False, True), "ep": (1,), "etp": (1,), "micro_batch": (1,)}
    for knob, values in defaults.items():
        first = rows.take(np.arange(min(len(rows), _MESHES_LOOKED_AT)))
        rows = _cross_with(first, knob, allowed.get(knob, values))
    return rows


def _cross_with(rows: Layouts, knob: str, values: Sequence[Any]) -> Layouts:
    """Return every row with every value of a knob."""
    row, value = np.indices((len(rows), len(values))).reshape(2, -1)
    return rows.take(row).with_columns(**{knob: np.array(values)[value]})
