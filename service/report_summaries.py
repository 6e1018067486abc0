"""Residuals of reports, by what tells runs apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from service.families import family_of
from service.reports import wanted_of
from service.schemas.report import ReportFilterQuery
from service.schemas.summary import ReportSummary, ResidualStatistics
from service.store import Store
from service.store.reports import Told

_BY: dict[str, Callable[[Told], str]] = {
    "chip": lambda told: told.chip,
    "stack": lambda told: told.stack,
    "family": lambda told: family_of(told.architecture),
    "profile_version": lambda told: f"{told.profile_id}/{told.profile_version}",
    "week": lambda told: "{}-W{:02d}".format(*told.measured_at.isocalendar()[:2]),
    "source": lambda told: told.source or "",
    "tenant": lambda told: told.tenant or "",
}


class ReportSummaries:
    def __init__(self, store: Store) -> None:
        self._store = store

    def summary(self, query: ReportFilterQuery) -> dict[str, Any]:
        with self._store.reading() as rows:
            told = rows.reports.told(wanted_of(rows, query))
        by = {name: _grouped(told, key) for name, key in _BY.items()}
        return ReportSummary(overall=_statistics(told), by=by).model_dump(mode="json")


def _grouped(told: Iterable[Told], key: Callable[[Told], str]) -> dict[str, ResidualStatistics]:
    groups: defaultdict[str, list[Told]] = defaultdict(list)
    for one in told:
        groups[key(one)].append(one)
    return {name: _statistics(groups[name]) for name in sorted(groups)}


def _statistics(told: Sequence[Told]) -> ResidualStatistics:
    residuals = np.array([one.residual for one in told if one.residual is not None])
    within = [one.within_interval for one in told if one.within_interval is not None]
    low, median, high = np.quantile(residuals, (0.1, 0.5, 0.9)).tolist() if len(residuals) else (None, None, None)
    return ResidualStatistics(
        reports=len(told),
        measured=len(residuals),
        out_of_memory=sum(one.outcome == "out_of_memory" for one in told),
        crashed=sum(one.outcome == "crashed" for one in told),
        residual_median=median,
        residual_low=low,
        residual_high=high,
        median_abs_error=float(np.median(np.abs(np.expm1(-residuals)))) if len(residuals) else None,
        within_interval=float(np.mean(within)) if within else None,
    )
