"""Residuals of reports, by what tells runs apart."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from service.learning.model_families import family_of
from service.learning.reports import wanted_of
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
        """Of every report a few numbers are kept, as there may be very many, by all that tells runs
        apart at once."""
        kinds = defaultdict[tuple[str, ...], _Tally](_Tally)
        with self._store.reading() as rows:
            for told in rows.reports.told(wanted_of(rows, query)):
                kinds[tuple(key(told) for key in _BY.values())].add(told)
        by = {name: _grouped(kinds, place) for place, name in enumerate(_BY)}
        return ReportSummary(overall=_statistics([*kinds.values()]), by=by).model_dump(mode="json")


class _Tally:
    def __init__(self) -> None:
        self.outcomes, self.within, self.residuals = Counter[str](), Counter[bool](), array("d")

    def add(self, told: Told) -> None:
        self.outcomes[told.outcome] += 1
        if told.within_interval is not None:
            self.within[told.within_interval] += 1
        if told.residual is not None:
            self.residuals.append(told.residual)


def _grouped(kinds: Mapping[tuple[str, ...], _Tally], place: int) -> dict[str, ResidualStatistics]:
    groups: defaultdict[str, list[_Tally]] = defaultdict(list)
    for kind, tally in kinds.items():
        groups[kind[place]].append(tally)
    return {name: _statistics(groups[name]) for name in sorted(groups)}


def _statistics(tallies: Sequence[_Tally]) -> ResidualStatistics:
    residuals = np.concatenate([np.zeros(0), *(np.array(tally.residuals) for tally in tallies)])
    outcomes = sum((tally.outcomes for tally in tallies), Counter[str]())
    within = sum((tally.within for tally in tallies), Counter[bool]())
    low, median, high = (
        np.quantile(residuals, (0.1, 0.5, 0.9)).tolist() if len(residuals) else (None, None, None)
    )
    return ResidualStatistics(
        reports=outcomes.total(),
        measured=len(residuals),
        out_of_memory=outcomes["out_of_memory"],
        crashed=outcomes["crashed"],
        aborted=outcomes["aborted"],
        residual_median=median,
        residual_low=low,
        residual_high=high,
        median_abs_error=float(np.median(np.abs(np.expm1(-residuals)))) if len(residuals) else None,
        within_interval=within[True] / within.total() if within else None,
    )
