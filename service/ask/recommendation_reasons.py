"""Reasons and assumptions that only recommendations have, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from models.advice.allocation import Allocation
from models.advice.cluster_choice import Choice, Objective, choice_reason
from service.resolve.assumptions import empty_chunk_assumptions
from service.schemas.objective import ObjectiveFields
from service.schemas.prediction import PredictedLayout


def cluster_reasons(
    choices: Sequence[Choice], fewest_chips_reasons: Sequence[str], objective: Objective
) -> list[str]:
    """Why the first cluster is the best, how the fewest chips were found, and which chips of the
    first are left out; nothing where no clusters were compared."""
    if not choices:
        return []
    best = choices[0]
    reasons = [choice_reason(choices, objective), *fewest_chips_reasons]
    if best.all_chips_s is not None:
        unused = best.num_chips - (best.chips_used or 0)
        reasons.append(
            f"{unused} of the {best.num_chips} chips are left out: with all of them a step takes"
            f" {best.all_chips_s:.4g} s"
        )
    return reasons


def spare_chips_reasons(allocation: Allocation, max_chips: int | None) -> list[str]:
    """Why chips that are held are left over, of which the request lets `max_chips` be used."""
    used = allocation.cluster.num_chips
    spare = sum(allocation.spares.values())
    if not spare:
        return []
    why = "the fastest way found uses the rest"
    if max_chips is not None and max_chips < used + spare:
        why = f"cluster.num_chips lets at most {max_chips} be used"
        if used < max_chips:
            why += f", and the fastest way found uses {used}"
    return [f"{spare} of the {used + spare} chips that are held are spare: {why}"]


def failure_assumptions(objective: ObjectiveFields) -> list[str]:
    """Losses to failures that the objective leaves at nothing."""
    if not objective.failures_per_chip_hour:
        if objective.tokens is None and objective.deadline_hours is None:
            return []
        return ["objective.failures_per_chip_hour is 0: hours and costs count no failures"]
    costs = {"checkpoint_s": "checkpoints stop no training", "restart_s": "a restart takes no time"}
    return [
        f"objective.{name} is 0: {meaning}, so goodput is too high"
        for name, meaning in costs.items()
        if name not in objective.model_fields_set
    ]


def points_to_check(advised: Mapping[str, PredictedLayout]) -> list[str]:
    """What a launch needs beyond its degrees, and what looks like a slip of the request."""
    points = list[str]()
    for name, prediction in advised.items():
        points += empty_chunk_assumptions(name, prediction)
    tokens_outside = [
        line
        for line in advised["the fastest"].provenance.outside
        if line.startswith("tokens_per_step")
    ]
    if any(" is beyond " in line and line.endswith(" any run") for line in tokens_outside):
        points.append(
            f"{tokens_outside[0]}: check that workload.global_batch counts sequences, not tokens"
        )
    return points
