"""The audit trail: who changed keys, profiles and what counts as reported."""

from __future__ import annotations

from typing import Any

from pydantic import AwareDatetime

from service.schemas.wire import Document, Page


class AuditEntry(Document):
    id: str
    created_at: AwareDatetime
    action: str
    """"key.created", "key.rotated", "key.revoked", "profile.activated" (by a person),
    "profile.promoted" (by a calibration), "profile.deactivated" (a tenant's own), "policy.set",
    "report.withdrawn", "benchmark.withdrawn" or "answers.dropped"."""
    subject: str
    """The thing that was changed: the id of a key or of a report, a profile, or a version as
    PROFILE/VERSION."""
    tenant: str | None
    """Tenant of the key that the request carried. Null for commands of the operator, for what the
    service does by itself, and where it asks for no keys."""
    key_id: str | None
    """Id of the key that the request carried."""
    details: dict[str, Any]
    """The state before, or what was made. No secret is in it."""


class AuditPage(Page):
    items: list[AuditEntry]
