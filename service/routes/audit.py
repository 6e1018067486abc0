"""/v1/audit"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from service.routes.dependencies import ServicesDep, require_scope
from service.routes.list_tables import list_response, page_or_table
from service.schemas.audit import AuditPage
from service.schemas.list_query import BriefPage, ListQuery

router = APIRouter(prefix="/v1/audit", tags=["audit"], dependencies=[require_scope("admin")])


@router.get(
    "",
    operation_id="listAudit",
    response_model=AuditPage | BriefPage,
    responses=page_or_table("audit"),
)
def list_audit(
    query: Annotated[ListQuery, Query()], request: Request, services: ServicesDep
) -> Response:
    """List who made, rotated and revoked keys, activated versions, set policies and withdrew
    reports, newest first."""
    return list_response(request, query, services.audit.page, "audit")
