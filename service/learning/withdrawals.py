"""Reports and benchmarks are withdrawn in the same way. A tenant's *own* version of the profile
that has learnt from what is withdrawn is deactivated, so that it no longer predicts."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from service.errors import PreconditionFailed
from service.identifiers import digest
from service.own_profile import own_profile_id
from service.store import Rows
from service.store.tables import BenchmarkRow, ReportRow

_DRIFT = "-drift-"
_DRIFT_DIGEST = re.compile(rf'{_DRIFT}[0-9a-f]{{16}}"$')


def current_document(row: ReportRow | BenchmarkRow) -> dict[str, Any]:
    """Returns the document of a row as it was answered, with the time of its withdrawal, if any."""
    at = row.withdrawn_at
    return {**row.document, "withdrawn_at": at and at.isoformat().replace("+00:00", "Z")}


def withdrawal_etag(row: ReportRow | BenchmarkRow) -> str:
    """Returns the ETag of a report or a benchmark. It changes only when the row is withdrawn."""
    kind = "reports" if isinstance(row, ReportRow) else "benchmarks"
    return f'"{kind}/{row.id}{"-withdrawn" if row.withdrawn_at else ""}"'


def report_etag(row: ReportRow, drift_flag: str | None) -> str:
    """Returns the ETag of a report as it is read: `withdrawal_etag`, with a digest of the flag of
    drift, which may come and go. For example `"reports/01AB-drift-0f3c..."`."""
    etag = withdrawal_etag(row)
    # The digest goes before the closing quote.
    return etag if drift_flag is None else f'{etag[:-1]}{_DRIFT}{digest(drift_flag)[:16]}"'


def without_drift_digest(etag: str) -> str:
    """Returns a `report_etag` without the digest of the drift flag, which a withdrawal ignores."""
    return _DRIFT_DIGEST.sub('"', etag)


def may_withdraw(row: ReportRow | BenchmarkRow, etags: Collection[str]) -> bool:
    """Returns whether a row is still to be withdrawn. It is not if it was withdrawn before,
    whatever `etags` are. Raises PreconditionFailed unless its ETag, or "*", is among them."""
    if row.withdrawn_at is not None:
        return False
    if not {"*", withdrawal_etag(row)} & {*etags}:
        raise PreconditionFailed(withdrawal_etag(row))
    return True


def end_own_version(rows: Rows, withdrawn: ReportRow | BenchmarkRow) -> None:
    """Deactivates the tenant's own version if it has learnt what was withdrawn. A later calibration
    makes another from what is left (service.learning.auto_calibration)."""
    if withdrawn.tenant is None:
        return
    id_ = own_profile_id(withdrawn.tenant)
    rows.lock(f"profile:{id_}")  # a calibration that saw it may be about to store a version
    profile = rows.profiles.find(id_)
    if profile is None or profile.active_version is None:
        return
    before = profile.active_version
    learnt = rows.profiles.version(id_, before).learnt  # `recent` has all ids that it learnt
    if learnt is not None and withdrawn.id in learnt["recent"]:
        rows.profiles.activate(id_, None, profile.revision)  # None: no version is active
        rows.audit.add("profile.deactivated", id_, before=before, of_tenant=withdrawn.tenant)
