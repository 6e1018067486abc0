"""Learn a new version of a profile from the reports made under it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from pydantic import ValidationError

from models.calibration import Calibration, Observation, calibrate
from models.errors import DomainError, Invalid
from models.hardware import GIB
from models.profile import Profile
from models.rules import require_legal
from service.creation import Created, Save
from service.errors import Conflict, NothingToLearn
from service.profiles import add_version, version_document
from service.resolution import Resolver
from service.schemas.layout import LayoutFields
from service.schemas.profile import CalibrationAnswer, CalibrationRequest, Unusable
from service.schemas.question import Question
from service.store import Rows, Store
from service.store.reports import ReportFilter
from service.tables import ReportRow


class Calibrations:
    def __init__(self, store: Store) -> None:
        self._store = store

    def calibrate(self, id_: str, request: CalibrationRequest) -> Save:
        """Learn from all reports under the profile. The prior is what shipped, so that no report counts twice."""
        with self._store.reading() as rows:
            revision = rows.profiles.get(id_).revision
            base = rows.profiles.latest(id_, "shipped")
            wanted = ReportFilter(profile_id=id_, since=request.since, until=request.until)
            observations, unusable = _observations(rows, rows.reports.telling(wanted))
        if not observations:
            raise NothingToLearn(len(unusable))
        made_by = f"calibration on {len(observations)} reports"
        found = calibrate(Profile.from_json(base.content), observations, made_by)
        calibration = _calibration_answer(found, base.version, unusable)

        def save(rows: Rows) -> Created:
            row = add_version(rows, found.profile, "calibrated", calibration.model_dump(mode="json"))
            if request.activate and not rows.profiles.activate(id_, row.version, revision + 1):
                raise Conflict("The profile changed while the calibration ran; look at it and try again.")
            return Created(f"/v1/profiles/{id_}/versions/{row.version}", version_document(row))

        return save


def _observations(rows: Rows, reports: Sequence[ReportRow]) -> tuple[list[Observation], list[Unusable]]:
    """The reports as runs of the models of today, and those that are none."""
    resolver, observations, unusable = Resolver(rows), list[Observation](), list[Unusable]()
    for report in reports:
        try:
            observations.append(_observation(resolver, report))
        except (DomainError, ValidationError) as error:
            reason = f"{error.field}: {error.rule}" if isinstance(error, Invalid) else str(error)
            unusable.append(Unusable(report=report.id, reason=reason[:500]))
    return observations, unusable


def _observation(resolver: Resolver, report: ReportRow) -> Observation:
    request = dict(report.document["request"])
    layout = LayoutFields.model_validate(request.pop("layout")).build()
    problem = resolver.problem(Question.model_validate(request)).problem
    require_legal(problem, layout)
    reserved = (report.document.get("memory") or {}).get("reserved_gib")
    return Observation(
        key=report.id,
        problem=problem,
        layout=layout,
        step_time_s=report.step_time_s,
        memory_bytes=reserved * GIB if reserved else None,
        out_of_memory=report.outcome == "out_of_memory",
    )


def _calibration_answer(found: Calibration, base: int, unusable: list[Unusable]) -> CalibrationAnswer:
    return CalibrationAnswer.model_validate(
        {
            "based_on": base,
            "observations": found.observations,
            "moved": [asdict(moved) for moved in found.moved],
            "unidentified": [{"coefficient": name, "scope": scope} for name, scope in found.unidentified],
            "outliers": list(found.outliers),
            "unusable": unusable,
            "error_before": found.error_before,
            "error_after": found.error_after,
            "memory_error_before": found.memory_error_before,
            "memory_error_after": found.memory_error_after,
        }
    )
