"""/livez, /readyz, and /problems/{name}, which says what a problem type means."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from service.errors import NotFound
from service.routes.dependencies import Services
from service.web.problem_types import TYPES
from service.web.problems import RETRY_AFTER_S
from service.web.responses import problem_responses, with_headers

router = APIRouter(tags=["operation"])


@router.get("/livez", operation_id="live")
async def live() -> dict[str, str]:
    """Answer while the process runs."""
    return {"status": "ok"}


@router.get(
    "/readyz",
    operation_id="ready",
    responses={503: {"description": "It does not, or not yet"} | with_headers("Retry-After")},
)
async def ready(request: Request) -> Response:
    """Answer whether requests can be served: the database answers, is migrated and takes writes,
    and the cost model is compiled."""
    services: Services = request.app.state.services
    database = await services.readiness.state()
    states = {"database": database, "cost_model": services.cost_model.state}
    if {*states.values()} == {"ok"}:
        return JSONResponse(states)
    return JSONResponse(states, 503, {"Retry-After": str(RETRY_AFTER_S)})


@router.get("/problems/{name}", operation_id="describeProblem", responses=problem_responses(404))
def describe_problem(name: str) -> dict[str, Any]:
    """Say what a problem type means."""
    if name not in TYPES:
        raise NotFound("problem type", name[:100])
    kind = TYPES[name]
    return {
        "type": f"/problems/{name}",
        "title": kind.title,
        "status": kind.status,
        "meaning": kind.meaning,
    }
