"""Flags of runs after a change of level: from then on, runs of one kind take longer or shorter than
predicted for good. They are worked out when reports are read, and not stored: a later report or a
withdrawal may move a change, or undo it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from models.spec.profile import Profile
from service.identifiers import digest
from service.learning.drift import change_in_words, drift_series
from service.resolve.profiles import active_profile, reports_of
from service.runtime.cost_model import CostModel
from service.schemas.summary import ChangeAnswer, DriftQuery, DriftSeries
from service.store import Rows

_REPORTS = DriftQuery().limit
"""Flags are those of the changes that `GET /v1/profiles/{id}/drift` tells unless it is asked for
others."""

Flags = Mapping[str, str]
"""Sentences by the ids of the reports that they flag."""


class DriftFlags:
    """Keeps the flags until another report counts, a report no longer counts, or another version of
    the profile is active. There are no flags before the cost model is compiled, because drift
    needs predictions, and lists of reports are not to wait for that."""

    def __init__(self, cost_model: CostModel) -> None:
        self._cost_model = cost_model

    def flags(self, rows: Rows) -> Flags:
        """Returns the flags of the reports that these rows see, under the active version of their
        tenant's profile. Empty while the cost model is not compiled."""
        if self._cost_model.state != "ok":
            return {}
        profile = active_profile(rows)
        report_filter = replace(reports_of(rows, profile.id), measured=True)
        ids = rows.reports.newest_ids(report_filter, _REPORTS)
        key = "drift flags", profile.id, profile.version, digest(*ids)
        return rows.recall(key, lambda: _read_flags(rows, profile))


def _read_flags(rows: Rows, profile: Profile) -> Flags:
    """Returns the sentence with which each report after a change of level is flagged, by the
    report's id."""
    return {
        id_: f"{change_of_level}, this one among them: look for what changed then"
        for id_, change_of_level in changes_of_level(rows, profile).items()
    }


def changes_of_level(rows: Rows, profile: Profile, *, only_slower: bool = False) -> Flags:
    """Returns a sentence on the change of level that each report comes after, by the report's id.
    Reports before any change have none. `only_slower` leaves out changes to faster runs."""
    reports = rows.reports.newest_measured(reports_of(rows, profile.id), _REPORTS)
    drifting, _ = drift_series(rows, reports, profile)
    return {
        id_: _change_sentence(series, change)
        for series in drifting
        for change in series.changes
        if change.slower > 0 or not only_slower
        for id_ in change.report_ids
    }


def _change_sentence(series: DriftSeries, change: ChangeAnswer) -> str:
    """Returns words such as "runs of llama-3.1 on h100 with megatron are 12% slower since ..."."""
    return (
        f"runs of {series.family} on {series.chip} with {series.stack} are"
        f" {change_in_words(change)}"
    )


def with_drift(flag: str | None, drift: str | None) -> str | None:
    """Returns the flag of a report: the one that its prediction interval gave it, the one of drift,
    or both; None where there is neither."""
    return "; ".join(filter(None, (flag, drift))) or None
