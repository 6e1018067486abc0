"""Statistics of the residuals of reports, overall and by chip, stack, week and so on. A *residual*
is the log of measured over predicted step time; a *bucket* is an hour, day, week or month."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from service.learning.drift_flags import DriftFlags
from service.learning.model_families import family_of
from service.learning.reports import report_filter
from service.schemas.summary import (
    Bucket,
    ReportGroup,
    ReportSummary,
    ResidualStatistics,
    SummaryQuery,
)
from service.store import Store, UseCase
from service.store.reports import SummarizedReport

_KEYS: dict[str, Callable[[SummarizedReport], str]] = {
    "chip": lambda report: report.chip,
    "stack": lambda report: report.stack,
    "family": lambda report: family_of(report.architecture),
    "profile_version": lambda report: f"{report.profile_id}/{report.profile_version}",
    "week": lambda report: "{}-W{:02d}".format(*report.measured_at.isocalendar()[:2]),
    "source": lambda report: report.source or "",
    "tenant": lambda report: report.tenant or "",
}
"""The key of a report in each grouping. A summary uses one grouping at a time."""
_BUCKETS: dict[Bucket, Callable[[datetime], datetime]] = {
    "hour": lambda at: at.replace(minute=0, second=0, microsecond=0),
    "day": lambda at: _midnight(at),
    "week": lambda at: _midnight(at) - timedelta(days=at.weekday()),
    "month": lambda at: _midnight(at).replace(day=1),
}
"""The beginning of the hour, day, ISO week or month of a time."""


class ReportSummaries(UseCase):
    def __init__(self, store: Store, drift_flags: DriftFlags) -> None:
        super().__init__(store)
        self._drift_flags = drift_flags

    def summary(self, query: SummaryQuery) -> dict[str, Any]:
        """Returns statistics of all reports that the query selects.

        There may be very many, so they are read once and only a few numbers of each are kept, in
        one tally for every combination of keys, such as chip, stack and week.
        """
        tallies = defaultdict[tuple[str, ...], _Tally](_Tally)
        bucket = _bucket_of(query)
        with self._store.reading() as rows:
            # Flags of drift are worked out only for a query that filters by them.
            flags = {} if query.flagged is None else self._drift_flags.flags(rows)
            for report in rows.reports.for_summaries(report_filter(rows, query, flags)):
                keys = tuple(key(report) for key in _KEYS.values())
                tallies[*keys, bucket(report)].add(report)
        by = dict[str, dict[str, ResidualStatistics]]()
        for position, name in enumerate(_KEYS):
            # Grouped by one key, each group has a tuple with this key alone.
            by[name] = {key: group for (key,), group in _grouped(tallies, [position]).items()}
        overall = _statistics([*tallies.values()])
        groups = _groups(tallies, query)
        return ReportSummary(overall=overall, by=by, groups=groups).model_dump(mode="json")


def _midnight(at: datetime) -> datetime:
    return at.replace(hour=0, minute=0, second=0, microsecond=0)


def _bucket_of(query: SummaryQuery) -> Callable[[SummarizedReport], str]:
    """Returns the function that names the bucket of a report by its beginning, as a time in UTC.
    The name is empty where the query has no buckets."""
    if query.bucket is None:
        return lambda _: ""
    beginning = _BUCKETS[query.bucket]
    return lambda report: f"{beginning(report.measured_at.astimezone(UTC)):%Y-%m-%dT%H:%M:%SZ}"


def _groups(tallies: Mapping[tuple[str, ...], _Tally], query: SummaryQuery) -> list[ReportGroup]:
    """Returns statistics of the groups that the query asks for, one for each combination of its
    keys and its bucket of time that occurs."""
    if not query.keys and query.bucket is None:
        return []
    positions = [list(_KEYS).index(name) for name in query.keys]
    names = list(query.keys)
    if query.bucket is not None:
        positions.insert(0, len(_KEYS))  # in the keys of a tally the bucket comes last
        names.insert(0, "bucket")
    return [
        ReportGroup.from_attributes(statistics, key=dict(zip(names, values, strict=True)))
        for values, statistics in _grouped(tallies, positions).items()
    ]


class _Tally:
    """Counts and residuals of the reports of one combination of keys."""

    def __init__(self) -> None:
        self.outcomes = Counter[str]()
        self.within_interval = Counter[bool]()
        self.residuals = array("d")

    def add(self, report: SummarizedReport) -> None:
        self.outcomes[report.outcome] += 1
        if report.within_interval is not None:
            self.within_interval[report.within_interval] += 1
        if report.residual is not None:
            self.residuals.append(report.residual)


def _grouped(
    tallies: Mapping[tuple[str, ...], _Tally], positions: Sequence[int]
) -> dict[tuple[str, ...], ResidualStatistics]:
    """Returns statistics of tallies taken together where their keys are equal at these positions
    of _KEYS, sorted by those parts of the keys."""
    groups: defaultdict[tuple[str, ...], list[_Tally]] = defaultdict(list)
    for keys, tally in tallies.items():
        groups[tuple(keys[position] for position in positions)].append(tally)
    return {keys: _statistics(groups[keys]) for keys in sorted(groups)}


def _statistics(tallies: Sequence[_Tally]) -> ResidualStatistics:
    """Returns the statistics of several tallies together: outcomes, quantiles of the log residuals,
    and the share within the interval. A statistic is None where nothing was measured."""
    # The empty array is there for no tallies, which `concatenate` refuses.
    residuals = np.concatenate([np.zeros(0), *(np.array(tally.residuals) for tally in tallies)])
    outcomes = sum((tally.outcomes for tally in tallies), Counter[str]())
    within = sum((tally.within_interval for tally in tallies), Counter[bool]())
    low = median = high = median_abs_error = None
    if len(residuals):
        low, median, high = np.quantile(residuals, (0.1, 0.5, 0.9)).tolist()
        # A residual is log(measured / predicted), so this is |predicted / measured - 1|.
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
