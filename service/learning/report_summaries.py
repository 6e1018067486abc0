"""Statistics of the residuals of reports, overall and by chip, stack, week and so on."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from service.learning.model_families import family_of
from service.learning.reports import report_filter
from service.schemas.report import ReportFilterQuery
from service.schemas.summary import ReportSummary, ResidualStatistics
from service.store import Store
from service.store.reports import ReportBrief

_KEYS: dict[str, Callable[[ReportBrief], str]] = {
    "chip": lambda report: report.chip,
    "stack": lambda report: report.stack,
    "family": lambda report: family_of(report.architecture),
    "profile_version": lambda report: f"{report.profile_id}/{report.profile_version}",
    "week": lambda report: "{}-W{:02d}".format(*report.measured_at.isocalendar()[:2]),
    "source": lambda report: report.source or "",
    "tenant": lambda report: report.tenant or "",
}
"""What reports are grouped by, one grouping at a time."""


class ReportSummaries:
    def __init__(self, store: Store) -> None:
        self._store = store

    def summary(self, query: ReportFilterQuery) -> dict[str, Any]:
        """Statistics of all reports that the query selects.

        There may be very many, so they are read once and only a few numbers of each are kept, in
        one tally for every combination of keys.
        """
        tallies = defaultdict[tuple[str, ...], _Tally](_Tally)
        with self._store.reading() as rows:
            for report in rows.reports.briefs(report_filter(rows, query)):
                tallies[tuple(key(report) for key in _KEYS.values())].add(report)
        by = {name: _grouped(tallies, position) for position, name in enumerate(_KEYS)}
        overall = _statistics([*tallies.values()])
        return ReportSummary(overall=overall, by=by).model_dump(mode="json")


class _Tally:
    def __init__(self) -> None:
        self.outcomes = Counter[str]()
        self.within_interval = Counter[bool]()
        self.residuals = array("d")

    def add(self, report: ReportBrief) -> None:
        self.outcomes[report.outcome] += 1
        if report.within_interval is not None:
            self.within_interval[report.within_interval] += 1
        if report.residual is not None:
            self.residuals.append(report.residual)


def _grouped(
    tallies: Mapping[tuple[str, ...], _Tally], position: int
) -> dict[str, ResidualStatistics]:
    """Statistics by the key at this position of the combinations."""
    groups: defaultdict[str, list[_Tally]] = defaultdict(list)
    for keys, tally in tallies.items():
        groups[keys[position]].append(tally)
    return {name: _statistics(groups[name]) for name in sorted(groups)}


def _statistics(tallies: Sequence[_Tally]) -> ResidualStatistics:
    residuals = np.concatenate([np.zeros(0), *(np.array(tally.residuals) for tally in tallies)])
    outcomes = sum((tally.outcomes for tally in tallies), Counter[str]())
    within = sum((tally.within_interval for tally in tallies), Counter[bool]())
    low = median = high = median_abs_error = None
    if len(residuals):
        low, median, high = np.quantile(residuals, (0.1, 0.5, 0.9)).tolist()
        median_abs_error = float(np.median(np.abs(np.expm1(-residuals))))
    return ResidualStatistics(
        reports=outcomes.total(),
        measured=len(residuals),
        out_of_memory=outcomes["out_of_memory"],
        crashed=outcomes["crashed"],
        aborted=outcomes["aborted"],
        residual_median=median,
        residual_low=low,
        residual_high=high,
        median_abs_error=median_abs_error,
        within_interval=within[True] / within.total() if within else None,
    )
