"""Items of a sweep as lines of a CSV table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ITEM = (
    "position", "model", "chip", "num_chips", "seq_len", "global_batch", "stack", "outcome",
)  # fmt: skip
_RECOMMENDED = (
    "step_time_s", "step_time_low_s", "step_time_high_s", "tokens_per_s", "usd_per_million_tokens",
    "chips_used", "needed_gib", "usable_gib", "fit_probability", "pipelining", "exact",
    "layout_summary",
)  # fmt: skip
OF_JOB = (
    "hours", "hours_low", "hours_high", "usd", "meets", "meets_probability", "missing",
)  # fmt: skip
"""Figures of the job that an objective describes."""
COLUMNS = (*_ITEM, "constraints", *_RECOMMENDED, "mfu_causal", "problem", "detail", *OF_JOB)


def item_cells(item: Mapping[str, Any]) -> list[Any]:
    """The values of an item in the order of COLUMNS. `constraints` is which of their list."""
    recommended = item["recommended"] or {}
    problem = item["problem"] or {}
    return [
        *(item[name] for name in _ITEM),
        item["combination"]["constraints"],
        *(recommended.get(name) for name in _RECOMMENDED),
        recommended.get("mfu", {}).get("causal"),
        problem.get("type"),
        problem.get("detail"),
        *(recommended.get(name) for name in OF_JOB),
    ]
