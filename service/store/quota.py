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
    ProfileVersionRow,
    RecommendationRow,
    ReportRow,
    SweepRow,
)

_COUNTED = (PredictionRow, RecommendationRow, ReportRow, BenchmarkRow)


def require_room(session: Session, added: int) -> None:
    """Raises StorageFull where the session's tenant may not store so many rows more. Of a sweep
    every item counts, from the beginning, since each will have a result."""
    require_room_for(session, session.info.get(TENANT), added)


def require_room_for(session: Session, tenant: str | None, added: int) -> None:
    """The same of a tenant for which somebody else may store them."""
    limit = session.info.get(MAX_STORED)
    if limit is not None and _count(session, tenant, limit) + added > limit:
        raise StorageFull(limit)


def _count(session: Session, tenant: str | None, enough: int) -> int:
    """How many rows the tenant has; of none of the tables more than `enough` are counted. Versions
    of the profile that all share count for nobody."""
    items = select(func.coalesce(func.sum(SweepRow.total), 0))
    total = session.scalars(items.where(SweepRow.tenant.is_not_distinct_from(tenant))).one()
    counted = _COUNTED if tenant is None else (*_COUNTED, ProfileVersionRow)
    for row in counted:
        mine = row.tenant.is_not_distinct_from(tenant)
        some = select(literal(1)).select_from(row).where(mine).limit(enough).subquery()
        total += session.scalars(select(func.count()).select_from(some)).one()
    return total
