"""Reasons and assumptions that only recommendations have, in words.

A *choice* is a cluster with the time and the cost of the job on it. *Held* chips are those of the
nodes that a request lists, and an *allocation* cuts these nodes into equal data-parallel groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from models.advice.allocation import Allocation
from models.advice.choice import Choice
from models.advice.choice_words import choice_reason
from models.advice.objective import Objective
from models.advice.reason import Reason, reasons_of
from models.spec.hardware import Chip
from service.schemas.learned import Learned
from service.schemas.objective import ObjectiveFields


def cluster_reasons(
    choices: Sequence[Choice], fewest_chips_reasons: Sequence[str], objective: Objective
) -> Iterator[Reason]:
    """Yields why the first cluster is the best, and how the fewest chips were found; nothing where
    no clusters were compared."""
    if choices:
        yield Reason("cluster", choice_reason(choices, objective))
        yield from reasons_of("fewest_chips", fewest_chips_reasons)


def fewest_chips_without_price(chip: Chip) -> str:
    """Returns a sentence that the fewest chips for a budget were not searched, because the chip has
    no price."""
    return (
        f"fewest chips: not looked for, since objective.budget_usd needs a price of {chip.id}, and"
        " none is published: objective.prices takes one"
    )


def groups_reasons(allocation: Allocation, step_time_s: float) -> Iterator[Reason]:
    """Yields why the nodes were cut into groups that are not the fastest ones; nothing where they
    are."""
    faster = allocation.faster
    if faster is None:
        return
    gap = step_time_s / faster.step_time_s - 1
    sentence = (
        f"The nodes are cut into groups of {allocation.chips_per_group} chips for the sake of a"
        f" simpler layout: {faster.num_chips} chips in groups of {faster.chips_per_group}, with"
        f" {faster.layout.summary()}, would be {gap:.1%} faster."
    )
    figures = {
        "chips_per_group": faster.chips_per_group,
        "num_chips": faster.num_chips,
        "step_time_s": faster.step_time_s,
    }
    yield Reason("groups", sentence, figures)


def spare_chips_reasons(allocation: Allocation, max_chips: int | None) -> Iterator[Reason]:
    """Yields why some of the held chips are not used; nothing where all are. `max_chips` is the
    request's limit; None without one."""
    used = allocation.cluster.num_chips
    spare = sum(allocation.spares.values())
    if not spare:
        return
    why = "the fastest way found uses the rest"
    if max_chips is not None and max_chips < used + spare:
        why = f"cluster.num_chips lets at most {max_chips} be used"
        if used < max_chips:
            why += f", and the fastest way found uses {used}"
    sentence = f"{spare} of the {used + spare} chips that are held are spare: {why}."
    yield Reason("spare_chips", sentence, {"spare": spare, "used": used})


def learned_reasons(learned: Learned | None) -> Iterator[Reason]:
    """Yields how much calibrations from reported runs changed the predicted step time of the
    recommended layout; nothing where they did not."""
    if learned is not None and learned.reports:
        figures = {
            "against_version": learned.against_version,
            "step_time_change": learned.step_time_change,
        }
        yield Reason("learned", learned.sentence, figures)


def failure_assumptions(objective: ObjectiveFields) -> list[str]:
    """Returns sentences on costs of failures that the objective leaves at zero."""
    if not objective.failures_per_chip_hour:
        if objective.tokens is None and objective.deadline_hours is None:
            return []  # neither hours nor costs are asked for
        return ["objective.failures_per_chip_hour is 0: hours and costs count no failures"]
    costs = {"checkpoint_s": "checkpoints stop no training", "restart_s": "a restart takes no time"}
    return [
        f"objective.{name} is 0: {meaning}, so goodput is too high"
        for name, meaning in costs.items()
        if name not in objective.model_fields_set
    ]
