"""Queries of published runs. Only a release changes them, all at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session

from service.errors import NotFound
from service.store.tables import EvidenceRow


class EvidenceQueries:
    def __init__(self, session: Session) -> None:
        self._session = session

    def release(self) -> str | None:
        """Returns the release that the runs came with, or None where there are none."""
        return self._session.scalars(select(EvidenceRow.release).limit(1)).first()

    def replace(self, release: str, documents: Iterable[dict[str, Any]]) -> None:
        """Replaces all runs by those of a release."""
        self._session.execute(delete(EvidenceRow))
        rows = [
            {"id": document["id"], "release": release, "document": document}
            for document in documents
        ]
        self._session.execute(insert(EvidenceRow), rows)

    def all(self) -> Sequence[dict[str, Any]]:
        return self._session.scalars(select(EvidenceRow.document).order_by(EvidenceRow.id)).all()

    def get(self, id_: str) -> dict[str, Any]:
        row = self._session.get(EvidenceRow, id_)
        if row is None:
            raise NotFound("published run", id_)
        return row.document
