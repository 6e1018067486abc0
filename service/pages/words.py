"""The terms of a prediction in words, in the order in which pictures and tables have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Term:
    field: str
    """The member of `time` or `memory_gib` in an answer."""
    label: str
    family: str
    """The kind of time or memory that it is: pictures give each family one hue."""


TIME_TERMS = (
    Term("compute_s", "compute", "compute"),
    Term("recompute_s", "recompute", "compute"),
    Term("tensor_s", "tensor-parallel traffic", "traffic"),
    Term("context_s", "context-parallel traffic", "traffic"),
    Term("expert_s", "expert traffic", "traffic"),
    Term("data_s", "data-parallel traffic", "traffic"),
    Term("pipeline_s", "pipeline sends", "traffic"),
    Term("offload_s", "offload", "traffic"),
    Term("bubble_s", "idle pipeline stages", "waiting"),
    Term("jitter_s", "stragglers", "waiting"),
    Term("optimizer_s", "optimizer", "once a step"),
    Term("fixed_s", "fixed costs", "once a step"),
)
MEMORY_TERMS = (
    Term("parameters_gib", "parameters", "model"),
    Term("gradients_gib", "gradients", "model"),
    Term("optimizer_gib", "optimizer states", "model"),
    Term("activations_gib", "activations", "activations"),
    Term("logits_gib", "logits", "activations"),
    Term("context_gib", "runtime and buffers", "runtime"),
    Term("fragmentation_gib", "fragmentation", "runtime"),
)
GROUNDS = {
    "measured": "measured on this chip and stack",
    "inherited": "inherited from like chips or stacks",
    "data_sheet": "data sheet and first principles",
}
"""The evidence that a term rests on, in the words of a legend."""

SPEEDS = {
    "step_time_s": "step time (s)",
    "tokens_per_s_per_chip": "tokens a second of a chip",
}
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
    return [term for term in terms if values.get(term.field)]


def ground(provenance: Mapping[str, Mapping[str, object]], field: str) -> str:
    """Returns the evidence that a term rests on; empty where an answer does not say."""
    return str(provenance.get(field, {}).get("ground", ""))
