"""Drift tells whether runs of one kind have become slower or faster for good: a change of level in
their residuals. Differences in what they trained and on whose machines are allowed for.

A *residual* is the log of measured over predicted step time. Its *level* is the median over a
stretch of time, and a *series* has the runs of one kind in the order of time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from models.calibration.drift import MIN_RUNS, Change, level_changes_among_kinds
from models.spec.profile import Profile
from service.learning.model_families import family_of
from service.learning.step_residuals import step_residuals
from service.resolve.profiles import profile_version, reports_of
from service.schemas.prediction import ProfileUsed
from service.schemas.summary import ChangeAnswer, DriftAnswer, DriftQuery, DriftSeries
from service.store import Rows, UseCase
from service.store.reports import MeasuredReport

Kind = tuple[str, str, str, str]
"""Chip, fabric, stack and family of models."""


@dataclass(frozen=True, slots=True)
class _Residual:
    """The log of measured over predicted step time of one run."""

    run: MeasuredReport
    value: float

    @property
    def kind(self) -> Kind:
        run = self.run
        return run.chip, run.fabric, run.stack, family_of(run.architecture)

    @property
    def question_key(self) -> Hashable:
        """Returns a key that runs of one question and layout on one owner's machines share. The
        residuals of such runs may differ from those of other runs by a constant."""
        return self.run.run_hash, self.run.tenant, self.run.source


class Drift(UseCase):
    def answer(self, id_: str, query: DriftQuery) -> dict[str, Any]:
        """Returns the series of residuals by kind of run, the largest change first. Reports beyond
        the limit of the query are not read, and the answer says that there are more."""
        with self._store.reading() as rows:
            profile = profile_version(rows, id_, version=query.version)
            report_filter = replace(reports_of(rows, id_), since=query.since, until=query.until)
            # One more than the limit shows whether there are more.
            reports = rows.reports.newest_measured(report_filter, query.limit + 1)
            series, left_out = drift_series(rows, reports[: query.limit], profile)
        return DriftAnswer(
            profile=ProfileUsed(id=profile.id, version=profile.version),
            series=sorted(series, key=_urgency),
            runs=sum(kind_series.runs for kind_series in series),
            left_out=left_out,
            more=len(reports) > query.limit,
        ).model_dump(mode="json")


def drift_series(
    rows: Rows, reports: Sequence[MeasuredReport], profile: Profile
) -> tuple[list[DriftSeries], int]:
    """Returns the series of each kind of run under this profile, and the number of reports that are
    in none because the cost model can no longer predict them."""
    values = step_residuals(rows, [report.id for report in reports], profile)
    residuals_by_kind: defaultdict[Kind, list[_Residual]] = defaultdict(list)
    left_out = 0
    for report in reports:
        value = values[report.id]
        if value is None:
            left_out += 1
            continue
        residual = _Residual(report, value)
        residuals_by_kind[residual.kind].append(residual)
    series = [_series(kind, residuals) for kind, residuals in sorted(residuals_by_kind.items())]
    return series, left_out


def _urgency(series: DriftSeries) -> float:
    """Returns a sort key: the largest last change comes first."""
    return -abs(series.changes[-1].slower) if series.changes else 0.0


def _series(kind: Kind, residuals: list[_Residual]) -> DriftSeries:
    """Returns the runs of one kind in the order of time, with the changes of level among them.
    `kind` has the chip, fabric, stack and family of models."""
    residuals = sorted(residuals, key=lambda residual: (residual.run.measured_at, residual.run.id))
    runs = [residual.run for residual in residuals]
    values = np.array([residual.value for residual in residuals])
    # Runs of different questions may lie apart by a constant, which is no change of level.
    question_numbers: dict[Hashable, int] = {}
    questions = np.array(
        [
            question_numbers.setdefault(residual.question_key, len(question_numbers))
            for residual in residuals
        ]
    )
    level_changes = level_changes_among_kinds(values, questions)
    # A change lasts until the next one begins, and the last one to the end. Without changes `ends`
    # is longer than `level_changes`.
    ends = [*(change.index for change in level_changes[1:]), len(runs)]
    changes = [
        _change_answer(runs, change, end) for change, end in zip(level_changes, ends, strict=False)
    ]
    chip, fabric, stack, family = kind
    return DriftSeries(
        chip=chip,
        fabric=fabric,
        stack=stack,
        family=family,
        runs=len(runs),
        first=runs[0].measured_at,
        last=runs[-1].measured_at,
        residual_median=float(np.median(values)),
        changes=changes,
        sentence=_last_change_sentence(f"{family} on {chip} with {stack}", changes, len(runs)),
    )


def _change_answer(runs: Sequence[MeasuredReport], change: Change, end: int) -> ChangeAnswer:
    """Returns a change of level with the reports after it, which are those of
    runs[change.index:end]."""
    return ChangeAnswer(
        since=runs[change.index].measured_at,
        last_before=runs[change.index - 1].measured_at,
        slower=float(np.expm1(change.shift)),  # a share of the step, from a shift of logarithms
        p_value=change.p_value,
        report_ids=[run.id for run in runs[change.index : end]],
    )


def _last_change_sentence(runs_of: str, changes: Sequence[ChangeAnswer], runs: int) -> str:
    """Returns a sentence on the last change, such as "llama-3.1 on h100 with megatron: 12% slower
    since ...". `runs_of` names the kind of run, and `runs` counts them."""
    if runs < 2 * MIN_RUNS:  # a change has so many before it, and as many after it
        counted = "1 run" if runs == 1 else f"{runs} runs"
        return f"{runs_of}: {counted}, and it takes {2 * MIN_RUNS} to tell a change"
    if not changes:
        return f"{runs_of}: no change in {runs} runs"
    return f"{runs_of}: {change_in_words(changes[-1])}"


def change_in_words(change: ChangeAnswer) -> str:
    """Returns words such as "12% slower since Monday, 02 March 2026 10:00 UTC"."""
    way = "slower" if change.slower > 0 else "faster"
    return f"{abs(change.slower):.0%} {way} since {change.since:%A, %d %B %Y %H:%M} UTC"
