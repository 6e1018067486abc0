"""Layouts in the words of a framework: the settings with which it runs one, by which two layouts
are compared. A *format* is one framework's way of being told what to run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from models.errors import Invalid
from models.spec.layout import Layout
from models.spec.problem import Problem
from service.formats.launch.documents import flat
from service.formats.launch.formats import LaunchFormat
from service.formats.launch.job import Job


def written_settings(
    format_: LaunchFormat | None, problem: Problem, layout: Layout
) -> Mapping[str, Any]:
    """Returns the settings that run a legal layout, by their names in the framework. Empty without
    a format, or if the format cannot express the layout."""
    if format_ is None:
        return {}
    job = Job.of(problem, layout)
    with suppress(Invalid):
        written = format_.write(job)
        return flat({**written.settings, **written.script_arguments})
    return {}
