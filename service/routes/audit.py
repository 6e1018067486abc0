"""/v1/audit"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse

from service.routes.dependencies import ServicesDep, require_scope
from service.routes.pages import page_response
from service.schemas.audit import AuditPage
from service.schemas.catalog import CatalogQuery
from service.web import responses

router = APIRouter(prefix="/v1/audit", tags=["audit"], dependencies=[require_scope("admin")])


@router.get("", operation_id="listAudit", response_model=AuditPage, responses=responses.PAGE)
def list_audit(
    query: Annotated[CatalogQuery, Query()], request: Request, services: ServicesDep
) -> JSONResponse:
    """Who made, rotated and revoked keys, activated versions, set policies and withdrew reports,
    newest first."""
    return page_response(request, services.audit.page(query), query.fields)
