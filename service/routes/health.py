"""/livez, /readyz, and /problems/{name}, which says what a problem type means."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from service.errors import NotFound
from service.routes.dependencies import Services
from service.web.problems import TYPES
from service.web.responses import problem_responses

router = APIRouter(tags=["operation"])


@router.get("/livez", operation_id="live")
async def live() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get(
    "/readyz", operation_id="ready", responses={503: {"description": "It does not, or not yet"}}
)
async def ready(request: Request) -> Response:
    """The database answers and is migrated."""
    services: Services = request.app.state.services
    # Not in a thread of the pool for requests, since those may all be busy.
    state = await asyncio.to_thread(services.store.state)
    return JSONResponse({"database": state}, 200 if state == "ok" else 503)


@router.get("/problems/{name}", operation_id="describeProblem", responses=problem_responses(404))
def describe_problem(name: str) -> dict[str, Any]:
    """What a problem type means."""
    if name not in TYPES:
        raise NotFound("problem type", name[:100])
    kind = TYPES[name]
    return {
        "type": f"/problems/{name}",
        "title": kind.title,
        "status": kind.status,
        "meaning": kind.meaning,
    }
