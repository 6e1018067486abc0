"""/v1/evidence"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from service.routes.dependencies import ComputationDep, ServicesDep, require_scope
from service.schemas.evidence import EvidenceList, EvidenceQuery
from service.web.json_body import JsonRoute

router = APIRouter(
    prefix="/v1/evidence",
    tags=["evidence"],
    route_class=JsonRoute,
    dependencies=[require_scope("recommend")],
)


@router.get("", operation_id="listEvidence", response_model=EvidenceList)
async def list_evidence(
    query: Annotated[EvidenceQuery, Query()], services: ServicesDep, computation: ComputationDep
) -> Response:
    """The published runs nearest to an answer given before, or to a model, cluster and workload,
    each beside what the active profile predicts of it."""
    return await computation.respond(lambda _: services.evidence.nearest(query, services.store))
