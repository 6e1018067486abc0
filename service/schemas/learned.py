"""The part of an answer that says which reports moved it."""

from __future__ import annotations

from service.schemas.wire import Document


class LearnedFrom(Document):
    """The reports of one model on one chip and stack, and what they change. Names are null where
    they are not told, and for several small groups together."""

    chip: str | None
    stack: str | None
    model: str | None
    """The name by which reports of the model are listed; null for benchmarks, which are of none."""
    parameters: int | None
    """The number of parameters of the model."""
    runs: int
    benchmarks: int
    latest: list[str]
    """Ids of the latest of these reports and benchmarks, newest first. Empty under a version that
    all share."""
    step_time_change: float
    """The step time over what it would be without them, less 1."""


class Learned(Document):
    """The difference that reports make to the predicted step time of one layout: the recommended
    one, or the first that is predicted or compared."""

    sentence: str
    """The change and the largest of `reports`, for people."""
    against_version: int
    """The version that the one in use is based on. Of a tenant's own version, the one that all
    share."""
    step_time_change: float
    """The step time over that under `against_version`, less 1: 0.06 is 6% longer."""
    reports: list[LearnedFrom]
    """Groups of reports that change it by a twentieth of a percent or more, the largest change
    first. Their changes add up to `step_time_change` where they are small."""
