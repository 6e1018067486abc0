"""The record of who changed keys, profiles and reports. Entries are only ever added."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import select

from service.identifiers import new_id
from service.store.queries import Queries, newest_first
from service.store.tables import KEY_ID, AuditRow

Action = Literal[
    "key.created",
    "key.rotated",
    "key.revoked",
    "profile.activated",
    "profile.deactivated",
    "profile.promoted",
    "policy.set",
    "report.withdrawn",
    "benchmark.withdrawn",
    "answers.dropped",
]


class Audit(Queries):
    def add(self, action: Action, subject: str, **details: Any) -> None:
        """Adds an entry with the session's API key and tenant. `subject` names what was changed,
        such as a key's id. The entry is stored only if this transaction commits."""
        entry = AuditRow(
            id=new_id(),
            created_at=datetime.now(UTC),
            key_id=self._session.info.get(KEY_ID),
            tenant=self._tenant,
            action=action,
            subject=subject,
            details=details,
        )
        self._session.add(entry)

    def newest(self, limit: int, before: str | None) -> Sequence[AuditRow]:
        """Returns the newest entries, newest first, starting after the id `before`. Ids sort by
        time."""
        query = newest_first(select(AuditRow), AuditRow.id, limit, before)
        return self._session.scalars(query).all()
