"""The terms of a prediction in words, in the order in which pictures and tables have them. A *term*
is a part of a step's time or of a device's memory, such as recompute or gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from models.package_data import read_json
from models.prediction.term_words import MEMORY_WORDS, TIME_WORDS


@dataclass(frozen=True, slots=True)
class Term:
    field: str
    """The member of `time` or `memory_gib` in an answer."""
    label: str
    family: str
    """The kind of time or memory that it is: pictures give each family one hue."""


def _terms(families: Mapping[str, Sequence[str]]) -> tuple[Term, ...]:
    """Returns the terms of these families, which map the kind of time or memory to fields of an
    answer. Labels are the words of sentences without their article."""
    words = {**TIME_WORDS, **MEMORY_WORDS}
    return tuple(
        Term(field, words[field].removeprefix("the "), family)
        for family, fields in families.items()
        for field in fields
    )


TIME_TERMS = _terms(
    {
        "compute": ("compute_s", "recompute_s"),
        "traffic": ("tensor_s", "context_s", "expert_s", "data_s", "pipeline_s", "offload_s"),
        "waiting": ("bubble_s", "jitter_s"),
        "once a step": ("optimizer_s", "fixed_s"),
    }
)
MEMORY_TERMS = _terms(
    {
        "model": ("parameters_gib", "gradients_gib", "optimizer_gib"),
        "activations": ("activations_gib", "logits_gib"),
        "runtime": ("context_gib", "fragmentation_gib"),
    }
)
_WORDS = read_json(__package__, "words.json")
GROUNDS: dict[str, str] = _WORDS["grounds"]
"""The evidence that a term rests on, in the words of a legend."""

SPEEDS = {"step_time_s": "step time (s)", "tokens_per_s_per_chip": "tokens a second of a chip"}
"""The speeds that logs print."""

VERDICTS: dict[str, tuple[str, str, str]] = _WORDS["verdicts"]
"""The name of each verdict of a check, its meaning, and its tone."""


def nonzero(terms: tuple[Term, ...], values: Mapping[str, float]) -> list[Term]:
    """Returns the terms that have a value other than zero."""
    return [term for term in terms if values.get(term.field)]


def ground(provenance: Mapping[str, Mapping[str, object]], field: str) -> str:
    """Returns the evidence that a term rests on, such as "measured"; empty where the answer does
    not say."""
    return str(provenance.get(field, {}).get("ground", ""))
