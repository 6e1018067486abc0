"""Whether runs of one kind have become slower or faster, beyond what differs in what they trained
and on whose machines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from models.calibration.drift import FEWEST, Change, changes_among
from service.learning.model_families import family_of
from service.resolve.observations import Observations, log_residuals
from service.resolve.profiles import profile_version
from service.schemas.prediction import ProfileUsed
from service.schemas.summary import ChangeAnswer, DriftAnswer, DriftQuery, DriftSeries
from service.store import Store
from service.store.reports import ReportFilter
from service.store.tables import ReportRow

Kind = tuple[str, str, str, str]
Run = tuple[ReportRow, float, int]
"""A report, its residual, and which question it is about, of whose machines."""


class Drift:
    def __init__(self, store: Store) -> None:
        self._store = store

    def of(self, id_: str, query: DriftQuery) -> dict[str, Any]:
        with self._store.reading() as rows:
            profile = profile_version(rows, id_, query.version)
            wanted = ReportFilter(
                profile_id=id_, measured=True, since=query.since, until=query.until
            )
            found = rows.reports.newest(wanted, query.limit + 1)
            usable, unusable = Observations(rows).of(found[: query.limit])
        residuals = log_residuals([observation for _, observation in usable], profile)
        together: defaultdict[Kind, list[Run]] = defaultdict(list)
        questions: dict[Any, int] = {}
        for (report, ran), residual in zip(usable, residuals, strict=True):
            kind = report.chip, report.fabric, report.stack, family_of(report.architecture)
            asked = ran.problem, ran.layout, report.tenant, report.source
            question = questions.setdefault(asked, len(questions))
            together[kind].append((report, float(residual), question))
        series = [_series(kind, runs) for kind, runs in sorted(together.items())]
        return DriftAnswer(
            profile=ProfileUsed(id=profile.id, version=profile.version),
            series=sorted(series, key=_urgency),
            runs=len(usable),
            left_out=len(unusable),
            more=len(found) > query.limit,
        ).model_dump(mode="json")


def _urgency(series: DriftSeries) -> float:
    return -abs(series.changes[-1].slower) if series.changes else 0.0


def _series(kind: Kind, runs: list[Run]) -> DriftSeries:
    runs.sort(key=lambda run: (run[0].measured_at, run[0].id))
    reports, residuals, questions = zip(*runs, strict=True)
    found = [
        _change(reports, change)
        for change in changes_among(np.array(residuals), np.array(questions))
    ]
    chip, fabric, stack, family = kind
    return DriftSeries(
        chip=chip,
        fabric=fabric,
        stack=stack,
        family=family,
        runs=len(runs),
        first=reports[0].measured_at,
        last=reports[-1].measured_at,
        residual_median=float(np.median(residuals)),
        changes=found,
        sentence=_sentence(f"{family} on {chip} with {stack}", found, len(runs)),
    )


def _change(reports: Sequence[ReportRow], change: Change) -> ChangeAnswer:
    return ChangeAnswer(
        since=reports[change.index].measured_at,
        last_before=reports[change.index - 1].measured_at,
        slower=float(np.expm1(change.shift)),
        p_value=change.p_value,
    )


def _sentence(what: str, found: Sequence[ChangeAnswer], runs: int) -> str:
    if runs < 2 * FEWEST:
        return f"{what}: {runs} run{'s' * (runs != 1)}, and it takes {2 * FEWEST} to tell a change"
    if not found:
        return f"{what}: no change in {runs} runs"
    last = found[-1]
    way = "slower" if last.slower > 0 else "faster"
    return f"{what}: {abs(last.slower):.0%} {way} since {last.since:%A, %d %B %Y %H:%M} UTC"
