"""Objectives of training: the sequences of a sample, and the forwards without gradients beside the
trained one (trl 1.16.0, trainer/*_trainer.py; llamafactory 0.9.5, train/*/trainer.py; ms-swift
4.6.0, arguments/rlhf_args.py).

A *sample* is one row of the data, such as a prompt with a chosen and a rejected answer. A
*reference* is a frozen model whose outputs the loss needs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.formats.launch.trainer.trainer_settings import OBJECTIVE, REFERENCE_MODEL
from service.formats.settings.settings import Settings
from service.formats.shell.programs import base_name

_PRECOMPUTED = "precompute_ref_log_probs"
_GENERATES = "answers are generated in every step, and the time of that is not described"
_SUPERVISED = "ask about supervised training, which this job takes at least"
_SIGNS = ("num_generations", "use_vllm", "reward_funcs", "generation_batch_size",
    "teacher_model_name_or_path", "use_teacher_server")  # fmt: skip
"""Settings that only training with generated answers, or with a teacher, has."""
_OFF = (None, False, "false", "False")
_IN_NAMES = re.compile(
    r"(?:^|[_\-./])(dpo|ipo|kto|orpo|simpo|cpo|reward|grpo|ppo|rloo|gkd)(?=[_\-./]|$)", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Objective:
    """One kind of training."""

    sequences: int = 1
    """The number of sequences in a sample: a chosen and a rejected answer are two."""
    reference: int = 0
    """Forwards of a frozen reference."""
    without_gradients: int = 0
    """Forwards of the trained model without gradients."""
    head: str = "vocabulary"
    """The head of the model: "vocabulary", or "score" for one number a sequence."""


SUPERVISED = Objective()
_OBJECTIVES: Mapping[str, Objective] = {
    "sft": SUPERVISED,
    "pt": SUPERVISED,
    **dict.fromkeys(("dpo", "ipo"), Objective(sequences=2, reference=1)),
    **dict.fromkeys(("orpo", "simpo", "cpo"), Objective(sequences=2)),
    # Completions of other prompts too run through both models.
    "kto": Objective(reference=2, without_gradients=1),
    "apo_zero_unpaired": Objective(reference=1),
    "reward": Objective(sequences=2, head="score"),
    "reward_beside_logits": Objective(sequences=2),
    **dict.fromkeys(("process_reward", "classification"), Objective(head="score")),
    "asft": Objective(reference=1),
}


def objective_in_name(program: str) -> str | None:
    """Returns the objective in the name of a program: "dpo" for run_dpo.py. None where it has
    none."""
    match = _IN_NAMES.search(base_name(program).lower())
    return None if match is None else match.group(1)


def read_objective(settings: Settings) -> Objective:
    """Returns the objective of a training. An unknown one counts as supervised training, with a
    reservation."""
    name = settings.text(OBJECTIVE)
    if name is None:
        # Only training with generated answers, or with a teacher, has such a setting.
        sign = next((sign for sign in _SIGNS if settings.given.get(sign) not in _OFF), None)
        if sign is not None:
            settings.add_reservation(sign, _GENERATES, _SUPERVISED)
        return SUPERVISED
    if name not in _OBJECTIVES:
        settings.add_reservation(OBJECTIVE, _GENERATES, _SUPERVISED)
        return SUPERVISED
    return _OBJECTIVES[name]


def workload_of(
    objective: Objective, settings: Settings, assumed: list[str], *, has_adapters: bool
) -> dict[str, Any]:
    """Returns the fields of a workload that an objective decides, {"reference": {"forwards":
    1.0, "own_weights": True}} for DPO. The reference model shares its weights with the trained
    one where only adapters are trained (`has_adapters`). Adds sentences to `assumed` about what
    is counted otherwise."""
    workload: dict[str, Any] = {}
    if objective.sequences > 1:
        assumed.append(f"{_pairs_note(objective)}, and batches are counted in sequences")
    if objective.head != "vocabulary":
        workload["head"] = objective.head
    reference_forwards = objective.reference
    if reference_forwards and settings.boolean(_PRECOMPUTED):
        assumed.append("the reference runs before the first step, which is not counted")
        reference_forwards = 0
    if reference_forwards + objective.without_gradients:
        is_shared = has_adapters and not settings.given.get(REFERENCE_MODEL)
        workload["reference"] = {
            "forwards": float(reference_forwards + objective.without_gradients),
            # Forwards of the trained model itself (without_gradients) need no second weights.
            "own_weights": bool(reference_forwards) and not is_shared,
        }
    return workload


def count_in_sequences(
    objective: Objective, layout: dict[str, Any], workload: dict[str, Any]
) -> dict[str, str]:
    """Multiplies the batches of a layout and a workload, in place, by the sequences of a sample,
    such as 2 for pairs: launches count batches in samples, requests in sequences. Returns a
    sentence about it, by the field of the request; nothing where a sample is one sequence."""
    if "micro_batch" in layout:
        layout["micro_batch"] *= objective.sequences
    if "global_batch" in workload:
        workload["global_batch"] *= objective.sequences
    return {"workload.global_batch": _pairs_note(objective)} if objective.sequences > 1 else {}


def _pairs_note(objective: Objective) -> str:
    """Returns the sentence that says how many sequences a sample has."""
    return f"a chosen and a rejected answer are {objective.sequences} sequences"
