"""The limits of what a report can say of a run: the stages, the memory and the dates that no run of
its layout can have."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from models.errors import Invalid
from models.spec.layout import Layout
from models.spec.problem import Problem
from service.schemas.report import ReportSubmission

_MAX_CLOCK_SKEW = timedelta(days=1)
_MOST_DEVICE_MEMORIES = 2
"""Most memory that a failed run had, in memories of a device: it may have had some of the
host's."""


def require_believable(submission: ReportSubmission, problem: Problem, layout: Layout) -> None:
    """Raises Invalid for a stage, an amount of memory or a date that no run of this layout can have
    reported."""
    _require_existing_stage(submission, layout.pp)
    _require_possible_memory(submission, problem)
    _require_past(submission)


def _require_existing_stage(submission: ReportSubmission, pp: int) -> None:
    """Raises Invalid for a pipeline stage that the layout does not have."""
    for field, part in (("failure", submission.failure), ("memory", submission.memory)):
        if part is not None and part.stage is not None and part.stage >= pp:
            rule = f"must be below pp = {pp}: stages are numbered from 0"
            raise Invalid(f"{field}.stage", part.stage, rule)


def _require_possible_memory(submission: ReportSubmission, problem: Problem) -> None:
    """Raises Invalid if a run that fitted took more memory than a device has, or a run that failed
    had more than _MOST_DEVICE_MEMORIES devices have."""
    chip = problem.cluster.chip
    device_gb = chip.memory_gb / chip.devices_per_chip
    if submission.memory is not None and submission.outcome in ("ok", "aborted"):
        for name in ("allocated_gib", "reserved_gib"):
            used = getattr(submission.memory, name)
            # A data sheet may mean GiB by GB: this is then the exact limit, and else a higher one.
            if used is not None and used > device_gb:
                rule = f"must not exceed the {device_gb:g} GB of a device of {chip.id}"
                raise Invalid(f"memory.{name}", used, rule)
    peak = submission.failure.peak_gib if submission.failure else None
    if peak is not None and peak > _MOST_DEVICE_MEMORIES * device_gb:
        rule = (
            f"must not exceed {_MOST_DEVICE_MEMORIES} times the {device_gb:g} GB of a device of"
            f" {chip.id}; check the unit"
        )
        raise Invalid("failure.peak_gib", peak, rule)


def _require_past(submission: ReportSubmission) -> None:
    """Raises Invalid for a date in the future, but for the difference that clocks and zones
    make."""
    measured_at = submission.measured_at
    if measured_at is not None and measured_at > datetime.now(UTC) + _MAX_CLOCK_SKEW:
        raise Invalid("measured_at", measured_at.isoformat(), "lies in the future")
