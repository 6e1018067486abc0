"""/v1/evidence"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from service.routes.dependencies import ComputationDep, ServicesDep, require_scope
from service.routes.pages import page_response
from service.schemas.evidence import EvidenceList, EvidenceQuery
from service.web import responses
from service.web.json_body import JsonRoute

router = APIRouter(
    prefix="/v1/evidence",
    tags=["evidence"],
    route_class=JsonRoute,
    dependencies=[require_scope("recommend")],
)


@router.get("", operation_id="listEvidence", response_model=EvidenceList, responses=responses.PAGE)
async def list_evidence(
    query: Annotated[EvidenceQuery, Query()],
    request: Request,
    services: ServicesDep,
    computation: ComputationDep,
) -> Response:
    """List the published runs nearest to an answer given before, or to a model, cluster and
    workload, each beside what the active profile predicts of it."""
    document = await computation.computed(
        lambda _: services.evidence.nearest(query, services.store)
    )
    return page_response(request, document)
