"""/v1/evidence"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request, Response

from service.routes.dependencies import ComputationDep, ServicesDep, resource_router
from service.routes.list_tables import list_response, page_or_table
from service.runtime.admission import Turn
from service.schemas.evidence import EvidenceList, EvidenceQuery
from service.schemas.list_query import BriefPage

router = resource_router("evidence", "recommend")


@router.get(
    "",
    operation_id="listEvidence",
    response_model=EvidenceList | BriefPage,
    responses=page_or_table("evidence"),
)
async def list_evidence(
    query: Annotated[EvidenceQuery, Query()],
    request: Request,
    services: ServicesDep,
    computation: ComputationDep,
) -> Response:
    """List the published runs nearest to an answer given before, or to a model, cluster and
    workload, each beside what the active profile predicts of it; in pages, in full or in brief, or
    all as CSV."""

    def answer(turn: Turn) -> Response:
        # A table of all runs takes some 10 s. The checkpoint raises once the client is gone.
        checkpoint = turn.bounded_checkpoint()

        def page(query: EvidenceQuery) -> dict[str, Any]:
            checkpoint()
            return services.evidence.nearest(query, services.store)

        return list_response(request, query, page, "evidence")

    return await computation.computed(answer)
