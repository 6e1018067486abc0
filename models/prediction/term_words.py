"""Words for the terms of a step time and of memory, as sentences for people name them."""

from __future__ import annotations

from collections.abc import Sequence

_FOUR_DIGITS = 999.5  # rounds to a thousand, which three digits would show with an exponent
TIME_WORDS: dict[str, str] = {
    "compute_s": "compute",
    "recompute_s": "recompute",
    "tensor_s": "tensor-parallel traffic",
    "context_s": "context-parallel traffic",
    "expert_s": "expert traffic",
    "data_s": "data-parallel traffic",
    "pipeline_s": "sends between stages",
    "bubble_s": "idle pipeline stages",
    "offload_s": "traffic to host memory",
    "optimizer_s": "the optimizer",
    "fixed_s": "work of the host",
    "jitter_s": "stragglers",
}
MEMORY_WORDS: dict[str, str] = {
    "parameters_gib": "parameters",
    "gradients_gib": "gradients",
    "optimizer_gib": "optimizer states",
    "activations_gib": "activations",
    "logits_gib": "logits",
    "context_gib": "runtime and buffers",
    "fragmentation_gib": "fragmentation",
}


def in_words(names: Sequence[str]) -> str:
    """Return names as a sentence lists them: "a", "a and b", "a, b and c"; "" for none."""
    *others, last = names or [""]
    return f"{', '.join(others)} and {last}" if others else last


def rounded(number: float) -> str:
    """Return a number in three significant digits, or as a whole number from a thousand on: "2.05",
    "54.2", "2,548"."""
    return f"{number:.3g}" if abs(number) < _FOUR_DIGITS else f"{number:,.0f}"
