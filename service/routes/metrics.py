"""/metrics, for Prometheus."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import Metric

from service.routes.dependencies import Services, require_scope
from service.web.exposition import exposition
from service.web.responses import problem_responses

_DATABASE_WAIT_S = 5.0  # a scrape that takes longer than Prometheus waits would lose all metrics

PATH = "/metrics"

router = APIRouter(tags=["operation"], dependencies=[require_scope("admin")])


@router.get(
    PATH,
    operation_id="metrics",
    response_class=PlainTextResponse,
    responses=problem_responses(401, 403),
)
async def metrics(request: Request) -> Response:
    """What the service does and how well, in the format of Prometheus."""
    services: Services = request.app.state.services
    families = await _stored_families(services)
    accept = request.headers.get("accept", "")
    content, media_type = await asyncio.to_thread(exposition, families, accept)
    return Response(content, media_type=media_type)


async def _stored_families(services: Services) -> list[Metric]:
    # Not in a thread of the pool for requests, since those may all be busy.
    reading = asyncio.to_thread(services.profile_gauges.read)
    try:
        return await asyncio.wait_for(reading, _DATABASE_WAIT_S)
    except TimeoutError:
        return services.profile_gauges.without_database()
