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
    SweepRow,
)

_COUNTED = (PredictionRow, RecommendationRow, ReportRow, BenchmarkRow)


def require_room(session: Session, added: int) -> None:
    """Raises StorageFull where the session's tenant may not store so many rows more. Of a sweep
    every item counts, from the beginning, since each will have a result."""
    limit = session.info.get(MAX_STORED)
    if limit is not None and _count(session, limit) + added > limit:
        raise StorageFull(limit)


def _count(session: Session, enough: int) -> int:
    """How many rows the tenant has; of none of the tables more than `enough` are counted."""
    tenant = session.info.get(TENANT)
    items = select(func.coalesce(func.sum(SweepRow.total), 0))
    total = session.scalars(items.where(SweepRow.tenant.is_not_distinct_from(tenant))).one()
    for row in _COUNTED:
        mine = row.tenant.is_not_distinct_from(tenant)
        some = select(literal(1)).select_from(row).where(mine).limit(enough).subquery()
        total += session.scalars(select(func.count()).select_from(some)).one()
    return total
