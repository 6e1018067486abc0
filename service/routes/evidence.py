"""/v1/evidence"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from service.json_body import JsonRoute
from service.routes.dependencies import Use, needs
from service.schemas.evidence import EvidenceList, EvidenceQuery

router = APIRouter(prefix="/v1/evidence", tags=["evidence"], route_class=JsonRoute, dependencies=[needs("recommend")])


@router.get("", operation_id="listEvidence", response_model=EvidenceList)
def list_evidence(query: Annotated[EvidenceQuery, Query()], use: Use) -> JSONResponse:
    """The published runs nearest to an answer given before, or to a model, cluster and workload, each beside what the
    active profile predicts of it."""
    return JSONResponse(use.evidence.nearest(query, use.store))
