"""Layouts in the words of a framework: which settings differ between two of them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from models.cost.step import predict
from models.errors import Invalid
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import Profile
from service.formats.launch.documents import flat
from service.formats.launch.formats import LaunchFormat
from service.formats.launch.job import Job


def written_settings(
    format_: LaunchFormat | None, problem: Problem, profile: Profile, layout: Layout
) -> Mapping[str, Any]:
    """The settings that run a legal layout, by their names in the framework; none where it has no
    words for the layout."""
    if format_ is None:
        return {}
    coefficients = profile.coefficients(problem.scopes)
    predictions = predict(problem, Layouts.of([layout]), coefficients)
    job = Job(problem=problem, layout=layout, layers_per_chunk=predictions.layers_per_chunk[0])
    with suppress(Invalid):
        written = format_.write(job)
        return dict(flat({**written.settings, **written.script_arguments}))
    return {}
