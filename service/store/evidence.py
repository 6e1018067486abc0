"""Queries of published runs. Only a release changes them, all at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import delete, insert, select

from service.store.queries import Queries
from service.store.tables import EvidenceRow


class EvidenceQueries(Queries):
    def release(self) -> str | None:
        """Returns the release that the runs came with, or None where there are none."""
        return self._session.scalars(select(EvidenceRow.release).limit(1)).first()

    def replace(self, release: str, documents: Iterable[dict[str, Any]]) -> None:
        """Replaces all published runs by those that a release of the service ships."""
        self._session.execute(delete(EvidenceRow))
        rows = [
            {"id": document["id"], "release": release, "document": document}
            for document in documents
        ]
        self._session.execute(insert(EvidenceRow), rows)

    def all(self) -> Sequence[dict[str, Any]]:
        return self._session.scalars(select(EvidenceRow.document).order_by(EvidenceRow.id)).all()

    def get(self, id_: str) -> dict[str, Any]:
        return self._row(EvidenceRow, id_, "published run").document
