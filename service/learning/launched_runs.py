"""A request about a run may give the launch (script or command) that started it in place of a
description. Here the launch becomes the fields of a report that describes the run. *Members* are
the fields of a request. A *reservation* is a setting of the launch that was not understood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.resolve.launched_question import launched_question
from service.resolve.resolution import Resolver
from service.schemas.question import Question
from service.schemas.report import LaunchedRun
from service.schemas.reservation import ReservationAnswer
from service.store import Rows


@dataclass(frozen=True, slots=True)
class DescribedRun:
    """A run as the launch that started it describes it."""

    members: Mapping[str, Any]
    """The members of a report that describe it, beside those of the request."""
    field: str
    """The field of the request that has the layout."""
    reservations: Sequence[Mapping[str, str]]
    """Settings that were not understood, so that nothing is learnt from the run."""


_LAUNCH_FIELDS = {"launch", "profile", *Question.model_fields}
"""The fields of a request that are not copied to the report: `launch` and the parts of a question,
which the question that the launch describes replaces, and `profile`, which is always None."""


def described_run(rows: Rows, run: LaunchedRun) -> DescribedRun:
    """Returns the run of a request, described by its launch in place of fields. Other fields stay
    as they are. Raises Invalid or Refused where the launch cannot be read."""
    # `run` also has the parts of the question that its launch leaves open.
    launched = launched_question(Resolver(rows), run.launch, run)
    other_members = {name: getattr(run, name) for name in run.model_fields_set - _LAUNCH_FIELDS}
    question = {name: getattr(launched.question, name) for name in Question.model_fields}
    return DescribedRun(
        members={**other_members, **question, "layout": launched.layout},
        field=launched.layout_field,
        reservations=[
            reservation.model_dump()
            for reservation in ReservationAnswer.first_of(launched.reservations)
        ],
    )
