"""Lists who changed what, a page at a time."""

from __future__ import annotations

from typing import Any

from service.schemas.audit import AuditEntry, AuditPage
from service.schemas.list_query import ListQuery
from service.store import UseCase
from service.store.cursors import cut_page, read_cursor

_LIST = "audit"


class AuditTrail(UseCase):
    def page(self, query: ListQuery) -> dict[str, Any]:
        """Returns a page of the entries, newest first, and the cursor of the next page."""
        before = read_cursor(_LIST, query.cursor)
        with self._store.reading() as rows:
            # One more than the page has, which tells whether another page follows.
            audit_rows = rows.audit.newest(query.limit + 1, before)
        page, following = cut_page(_LIST, audit_rows, query.limit, lambda row: row.id)
        entries = [AuditEntry.from_attributes(row) for row in page]
        return AuditPage(items=entries, next=following).model_dump(mode="json")
