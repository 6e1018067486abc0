"""The terms of a prediction in words, in the order in which pictures and tables have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from models.prediction.term_words import MEMORY_WORDS, TIME_WORDS


@dataclass(frozen=True, slots=True)
class Term:
    field: str
    """The member of `time` or `memory_gib` in an answer."""
    label: str
    family: str
    """The kind of time or memory that it is: pictures give each family one hue."""


def _term(field: str, family: str) -> Term:
    """Returns a term under the name that sentences give it."""
    return Term(field, _SENTENCE_WORDS[field].removeprefix("the "), family)


_SENTENCE_WORDS = {**TIME_WORDS, **MEMORY_WORDS}
TIME_TERMS = (
    _term("compute_s", "compute"),
    _term("recompute_s", "compute"),
    _term("tensor_s", "traffic"),
    _term("context_s", "traffic"),
    _term("expert_s", "traffic"),
    _term("data_s", "traffic"),
    _term("pipeline_s", "traffic"),
    _term("offload_s", "traffic"),
    _term("bubble_s", "waiting"),
    _term("jitter_s", "waiting"),
    _term("optimizer_s", "once a step"),
    _term("fixed_s", "once a step"),
)
MEMORY_TERMS = (
    _term("parameters_gib", "model"),
    _term("gradients_gib", "model"),
    _term("optimizer_gib", "model"),
    _term("activations_gib", "activations"),
    _term("logits_gib", "activations"),
    _term("context_gib", "runtime"),
    _term("fragmentation_gib", "runtime"),
)
GROUNDS = {
    "measured": "measured on this chip and stack",
    "inherited": "inherited from like chips or stacks",
    "data_sheet": "data sheet and first principles",
}
"""The evidence that a term rests on, in the words of a legend."""

SPEEDS = {"step_time_s": "step time (s)", "tokens_per_s_per_chip": "tokens a second of a chip"}
"""The speeds that logs print."""

VERDICTS = {
    "go": ("Go", "Nothing speaks against this job.", "good"),
    "go_with_warnings": ("Go, with warnings", "It will run; look at the warnings first.", "fair"),
    "will_not_fit": ("Will not fit", "It will most likely run out of memory.", "bad"),
    "illegal": ("Will not start", "The framework refuses this configuration.", "bad"),
    "cannot_tell": (
        "Cannot tell",
        "Something that could change the answer was not understood.",
        "open",
    ),
}
"""The name of each verdict of a check, its meaning, and its tone."""


def nonzero(terms: tuple[Term, ...], values: Mapping[str, float]) -> list[Term]:
    """Returns the terms that have a value other than zero."""
    return [term for term in terms if values.get(term.field)]


def ground(provenance: Mapping[str, Mapping[str, object]], field: str) -> str:
    """Returns the evidence that a term rests on, such as "measured"; empty where the answer does
    not say."""
    return str(provenance.get(field, {}).get("ground", ""))
