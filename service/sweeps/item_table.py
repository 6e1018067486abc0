"""The columns of a sweep's items as a table."""

from __future__ import annotations

from service.web.tables import Table

_ITEM = (
    "position", "model", "chip", "num_chips", "seq_len", "global_batch", "stack", "outcome",
)  # fmt: skip
_RECOMMENDED = (
    "step_time_s", "step_time_low_s", "step_time_high_s", "tokens_per_s", "usd_per_million_tokens",
    "chips_used", "needed_gib", "usable_gib", "fit_probability", "pipelining", "exact",
    "layout_summary",
)  # fmt: skip
JOB_FIGURES = (
    "hours", "hours_low", "hours_high", "usd", "meets", "meets_probability", "missing",
)  # fmt: skip
"""Figures of the job that an objective describes."""
ITEMS = Table(
    "sweep",
    {
        **{name: name for name in _ITEM},
        "constraints": "combination.constraints",
        **{name: f"recommended.{name}" for name in _RECOMMENDED},
        "mfu_causal": "recommended.mfu.causal",
        "problem": "problem.type",
        "detail": "problem.detail",
        **{name: f"recommended.{name}" for name in JOB_FIGURES},
    },
)
"""`constraints` is which of their list."""
