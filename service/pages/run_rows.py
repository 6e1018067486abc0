"""Reported runs as rows of tables and marks of pictures, out of the API's documents."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_GROUPINGS = {"chip": "chip", "stack": "framework", "family": "family of models"}
"""The groupings of a summary that are drawn, in words."""


@dataclass(frozen=True, slots=True)
class RunRow:
    id: str
    measured_at: str
    name: str
    """Model, chips and framework."""
    outcome: str
    measured_s: float | None
    predicted_s: float
    low_s: float
    high_s: float
    is_within: bool | None
    """True where the measured step time lies in the predicted interval."""
    flag: str | None
    source: str | None
    is_withdrawn: bool

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> RunRow:
        """Returns the row of a report. `report` is its document in the API. Step times are in
        seconds."""
        measured, predicted = report["measured"], report["prediction"]
        return cls(
            id=report["id"],
            measured_at=report["measured_at"],
            name=run_name(report),
            outcome=report["outcome"].replace("_", " "),
            measured_s=measured and measured["step_time_s"],
            predicted_s=predicted["step_time_s"],
            low_s=predicted["step_time_low_s"],
            high_s=predicted["step_time_high_s"],
            is_within=report["within_interval"],
            flag=report["flag"],
            source=report["source"],
            is_withdrawn=report["withdrawn_at"] is not None,
        )

    @property
    def ratio(self) -> float | None:
        """Returns measured over predicted step time; None where no step time was measured."""
        return self.measured_s and self.measured_s / self.predicted_s


def run_name(report: Mapping[str, Any]) -> str:
    """Returns what ran where, such as "llama-3.1-8b on 256 × h100, torchtitan"."""
    names = {kind: entry["name"] for kind, entry in report["catalogue"].items() if entry}
    chips = report["request"]["cluster"].get("num_chips")
    hardware = f"{chips:,} × {names['chip']}" if chips else names["chip"]
    return f"{names['architecture']} on {hardware}, {names['stack']}"


@dataclass(frozen=True, slots=True)
class GroupRow:
    """The runs of one kind beside their predictions."""

    grouping: str
    name: str
    runs: int
    median: float
    """The median of measured over predicted step time."""
    low: float
    """The lower end of the central 80%."""
    high: float
    within: float | None
    """The share of runs inside their intervals."""


def group_rows(summary: Mapping[str, Any]) -> list[GroupRow]:
    """Returns measured over predicted step time by each grouping, such as chip or stack. Groups
    with most runs come first, and groups without a measured step time are left out."""
    rows = []
    for grouping, words in _GROUPINGS.items():
        groups = [group for group in summary["by"][grouping].items() if group[1]["measured"]]
        groups.sort(key=lambda group: (-group[1]["measured"], group[0]))
        rows += [_group_row(words, name, figures) for name, figures in groups]
    return rows


def _group_row(grouping: str, name: str, figures: Mapping[str, Any]) -> GroupRow:
    """Returns the row of a group of runs. `figures` is the group in the API's summary, with
    residuals as logarithms of measured over predicted step time."""
    return GroupRow(
        grouping=grouping,
        name=name,
        runs=figures["measured"],
        median=math.exp(figures["residual_median"]),
        low=math.exp(figures["residual_low"]),
        high=math.exp(figures["residual_high"]),
        within=figures["within_interval"],
    )
