"""/metrics, for Prometheus."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from service.routes.dependencies import Services, require_scope
from service.web.exposition import exposition
from service.web.responses import problem_responses

_DATABASE_WAIT_S = 0.5
"""Seconds that a scrape waits until the state of the database is known. A database that writes
nothing for so long counts as down: alerts wait for two minutes of that."""

PATH = "/metrics"

router = APIRouter(tags=["operation"], dependencies=[require_scope("admin")])


@router.get(
    PATH,
    operation_id="metrics",
    response_class=PlainTextResponse,
    responses=problem_responses(401, 403),
)
async def metrics(request: Request) -> Response:
    """Say what the service does and how well, in the format of Prometheus."""
    services: Services = request.app.state.services
    database = await services.readiness.state(_DATABASE_WAIT_S)
    families = await services.profile_gauges.families(database)
    accept = request.headers.get("accept", "")
    content, media_type = await asyncio.to_thread(exposition, families, accept)
    return Response(content, media_type=media_type)
