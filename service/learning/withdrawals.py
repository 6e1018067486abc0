"""What happens where something that was learnt from is withdrawn."""

from __future__ import annotations

from service.own_profile import own_profile_id
from service.store import Rows
from service.store.tables import BenchmarkRow, ReportRow


def end_own_version(rows: Rows, withdrawn: ReportRow | BenchmarkRow) -> None:
    """Ends the version of the tenant's own that is in use if it rests on what was withdrawn.
    Another is made of what is left (service.learning.auto_calibration)."""
    if withdrawn.tenant is None:
        return
    id_ = own_profile_id(withdrawn.tenant)
    rows.lock(f"profile:{id_}")  # a calibration that saw it may be about to store a version
    profile = rows.profiles.find(id_)
    if profile is None or profile.active_version is None:
        return
    before = profile.active_version
    learnt = rows.profiles.version(id_, before).learnt
    if learnt is not None and withdrawn.id in learnt["recent"]:
        rows.profiles.activate(id_, None, profile.revision)
        rows.audit.add("profile.deactivated", id_, before=before, of_tenant=withdrawn.tenant)
