"""Residuals of measured step times under a version of a profile. They are kept in memory, because
drift looks at the same reports again and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock

from cachetools import LRUCache

from models.spec.profile import Profile
from service.resolve.calibration_targets import log_residuals
from service.resolve.stored_runs import StoredRuns
from service.store import Rows

_KEPT = 50_000  # some 12 MiB, and more than twice what drift looks at in one question
_AT_ONCE = 1000  # reports, each with a document of some 5 KiB

_Key = tuple[str, int, str]
_residuals = LRUCache[_Key, float | None](_KEPT)
"""The log of measured over predicted step time by profile, version and report, none of which
change. It is None for a report that the models can no longer predict."""
_residuals_lock = Lock()


def step_residuals(
    rows: Rows, report_ids: Sequence[str], profile: Profile
) -> Mapping[str, float | None]:
    """Returns the log of measured over predicted step time of each report by its id. It is None for
    a report that the cost model can no longer predict."""
    keys: dict[str, _Key] = {id_: (profile.id, profile.version, id_) for id_ in report_ids}
    with _residuals_lock:
        known = {id_: _residuals[key] for id_, key in keys.items() if key in _residuals}
    missing = [id_ for id_ in report_ids if id_ not in known]
    # In pieces, because each report is read with its document.
    for start in range(0, len(missing), _AT_ONCE):
        known |= _compute_residuals(rows, missing[start : start + _AT_ONCE], profile)
    with _residuals_lock:
        _residuals.update({keys[id_]: known[id_] for id_ in missing})
    return known


def _compute_residuals(rows: Rows, ids: Sequence[str], profile: Profile) -> dict[str, float | None]:
    """Reads the reports and returns their log residuals; None for those that cannot be
    predicted."""
    runs, _ = StoredRuns(rows).read(rows.reports.by_ids(ids))
    values = log_residuals(runs, profile).tolist()
    residuals: dict[str, float | None] = dict.fromkeys(ids)
    return residuals | {run.report_id: value for run, value in zip(runs, values, strict=True)}
