"""How much a tenant may store."""

from __future__ import annotations

from sqlalchemy import func, literal, select
from sqlalchemy.orm import Session

from service.errors import StorageFull
from service.store.tables import (
    MAX_STORED,
    TENANT,
    BenchmarkRow,
    PredictionRow,
    RecommendationRow,
    ReportRow,
)

_COUNTED = (PredictionRow, RecommendationRow, ReportRow, BenchmarkRow)


def require_room(session: Session, added: int) -> None:
    """Raises StorageFull where the session's tenant may not store so many rows more."""
    limit = session.info.get(MAX_STORED)
    if limit is not None and _count(session, limit) + added > limit:
        raise StorageFull(limit)


def _count(session: Session, enough: int) -> int:
    """How many rows the tenant has; of none of the tables more than `enough` are counted."""
    total = 0
    for row in _COUNTED:
        mine = row.tenant.is_not_distinct_from(session.info.get(TENANT))
        some = select(literal(1)).select_from(row).where(mine).limit(enough).subquery()
        total += session.scalars(select(func.count()).select_from(some)).one()
    return total
