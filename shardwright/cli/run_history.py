"""The history of a run that a tracker kept, and the report that it makes: MLflow's, or a table of
comma-separated values, as Weights & Biases exports them."""

from __future__ import annotations

import csv
import os
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from shardwright.secrets import mask_secrets

_STEP_TIME = re.compile(
    r"(?:.*[/._ -])?(?:step|iter|iteration)[_ -]?(?:time|duration)(?P<unit>[_ (-]*m?s)?\b.*"
    r"|(?:.*[/._ -])?time[_ -]per[_ -](?:step|iter|iteration)(?P<per_unit>[_ (-]*m?s)?\b.*",
    re.IGNORECASE,
)
"""Names of step times in the trackers of Megatron, torchtitan, NeMo, Lightning and others."""
_ALLOCATED = re.compile(r".*(?:max_active|max_memory_allocated|peak_allocated).*", re.IGNORECASE)
_RESERVED = re.compile(r".*(?:max_reserved|max_memory_reserved|peak_reserved).*", re.IGNORECASE)
"""Names of peaks that the framework counts. The memory that a device has in use
(system/gpu_0_memory_usage_megabytes) holds more, such as the context of CUDA, and is left out."""
_GIB = 2**30
_WARM_UP = 0.1  # of the steps: compilation, autotuning and the first batches are slower
_FEWEST = 5  # steps behind the warm-up, below which one pause would decide the median
_OUTCOMES = {"FINISHED": "ok", "FAILED": "crashed", "KILLED": "aborted"}
"""Outcomes by the status of a run of MLflow."""
_STEPS = ("_step", "step", "Step")
"""Columns with the step of a row: in a whole history of W&B, in other trackers, and in the points
of one of W&B's charts."""
_GLOBAL_STEP = "global_step"
"""A metric with the step of the training, such as train/global_step of transformers' Trainer.
Beside it `_step` only counts what was logged."""
_TIMES = ("_timestamp", "timestamp")
_CLOCKS = ("step", "timestamp", "runtime")
"""Columns that say when, with or without an underscore before them."""


class NoHistory(ValueError):
    """A history has nothing that a report could say."""


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """A value of a metric at a step, and when it was written, in seconds."""

    step: int
    at_s: float | None
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHistory:
    """The metrics of a run by name, its parameters, and how it ended."""

    metrics: Mapping[str, Sequence[HistoryPoint]]
    parameters: Mapping[str, str] = field(default_factory=dict)
    outcome: str = "ok"

    def report_members(self) -> dict[str, Any]:
        """Returns the fields of a report that say what was measured: outcome, step time and peak
        memory. Raises NoHistory where no step time can be told."""
        members: dict[str, Any] = {
            "outcome": self.outcome,
            "measured": {"step_time_s": self.step_time_s()},
        }
        peaks = {"allocated_gib": self._peak(_ALLOCATED), "reserved_gib": self._peak(_RESERVED)}
        memory = {name: peak for name, peak in peaks.items() if peak is not None}
        return {**members, "memory": memory} if memory else members

    def launch_text(self) -> str:
        """Returns the parameters as YAML, which the service reads as what was launched."""
        return mask_secrets("".join(f"{name}: {text}\n" for name, text in self.parameters.items()))

    def step_time_s(self) -> float:
        """Returns the median step time after the warm-up, from a metric of step times, or else from
        the times at which steps were logged. Raises NoHistory where there are too few."""
        for name, points in self.metrics.items():
            match = _STEP_TIME.fullmatch(name)
            if match:
                unit = (match["unit"] or match["per_unit"] or "").lower()
                scale = 1e-3 if unit.endswith("ms") else 1.0
                return _median([point.value * scale for point in points])
        longest = max(self.metrics.values(), key=len, default=())
        return _median([*_durations(longest)])

    def _peak(self, name: re.Pattern[str]) -> float | None:
        """Returns the peak in GiB of the metrics whose name matches; None where none does."""
        values = {
            metric: max(point.value for point in points)
            for metric, points in self.metrics.items()
            if name.fullmatch(metric) and points
        }
        if not values:
            return None
        metric, peak = max(values.items(), key=lambda item: item[1])
        # Trackers log bytes unless the name of the metric gives a unit.
        return peak if "gib" in metric.lower() else peak / _GIB


def csv_history(path: Path) -> RunHistory:
    """Returns the history in a CSV file. A column such as train/global_step has the step, or else
    `_step`, `step` or `Step`. A column `_timestamp` or `timestamp` has the time in seconds, and any
    other column with numbers is a metric. Raises NoHistory where there are no metrics by step."""
    metrics: dict[str, list[HistoryPoint]] = {}
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        table = csv.DictReader(file)
        names = [name for name in table.fieldnames or () if name]
        counted = [name for name in names if name.rpartition("/")[2] == _GLOBAL_STEP]
        steps = next((name for name in (*counted, *_STEPS) if name in names), "")
        times = next((name for name in _TIMES if name in names), "")
        clocks = [name for name in names if name.strip("_").lower() in _CLOCKS]
        measured = [name for name in names if name not in (*counted, *clocks)]
        for row in table:
            step, at_s = _number(row.get(steps)), _number(row.get(times))
            for name in measured:
                value = _number(row[name])
                if step is not None and value is not None:
                    metrics.setdefault(name, []).append(HistoryPoint(int(step), at_s, value))
    if not metrics:
        raise NoHistory(
            f"{path} has no metrics by step: it needs a column {', '.join(_STEPS[:-1])} or"
            f" {_STEPS[-1]}, and columns of numbers; its columns are {', '.join(names) or 'none'}"
        )
    return RunHistory(metrics=metrics)


def mlflow_history(run_id: str) -> RunHistory:
    """Returns the history of a run in the store that MLFLOW_TRACKING_URI names. Raises NoHistory
    where MLflow is not installed, or the run is not there or has not ended."""
    try:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError:
        raise NoHistory("MLflow is not installed: pip install mlflow-skinny") from None
    client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI"))
    try:
        run = client.get_run(run_id)
        metrics = {
            name: [
                HistoryPoint(metric.step, metric.timestamp / 1e3, metric.value)
                for metric in history
            ]
            for name in run.data.metrics
            if (history := client.get_metric_history(run_id, name))
        }
    except MlflowException as error:
        raise NoHistory(f"MLflow: {error.message}") from None
    outcome = _OUTCOMES.get(run.info.status)
    if outcome is None:
        raise NoHistory(f"the run is {run.info.status.lower()}: report it when it has ended")
    return RunHistory(metrics=metrics, parameters=run.data.params, outcome=outcome)


def _durations(points: Sequence[HistoryPoint]) -> Iterator[float]:
    """Yields the seconds of one step between each two logged steps, on average where steps between
    were not logged."""
    timed = sorted(
        (point for point in points if point.at_s is not None), key=lambda point: point.step
    )
    for first, second in pairwise(timed):
        steps = second.step - first.step
        if steps > 0 and first.at_s is not None and second.at_s is not None:
            yield (second.at_s - first.at_s) / steps


def _median(seconds: Sequence[float]) -> float:
    """Returns the median of the seconds after the warm-up. Raises NoHistory where too few
    remain."""
    used = [step_s for step_s in seconds[int(len(seconds) * _WARM_UP) :] if step_s > 0]
    if len(used) < _FEWEST:
        raise NoHistory(
            f"the history has {len(used)} steps with a time, and needs {_FEWEST}: log a metric"
            " step_time in seconds, or the time of each step"
        )
    return statistics.median(used)


def _number(text: str | None) -> float | None:
    """Returns the number in a text; None where it is not a number."""
    try:
        return float(text or "")
    except ValueError:
        return None
