"""/v1/sweeps"""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import Body, Query, Request, Response
from fastapi.responses import JSONResponse
from fastapi.sse import format_sse_event
from starlette.concurrency import run_in_threadpool

from service.routes.dependencies import CreationDep, ResourceId, ServicesDep, resource_router
from service.routes.examples import EXAMPLES
from service.routes.list_tables import list_response, page_or_table
from service.routes.streams import EVENTS, LastEventId, StreamResponse
from service.schemas.list_query import BriefPage, ListQuery
from service.schemas.stream import StreamQuery
from service.schemas.sweep import (
    SweepDetails,
    SweepItemPage,
    SweepItemQuery,
    SweepPage,
    SweepRequest,
)
from service.sweeps.events import Event, Place, has_received_all
from service.sweeps.sweeps import ACCEPTED
from service.web import responses

_WITHOUT_BODY = responses.problem_responses(400, 409)
_EVENTS: responses.Responses = EVENTS | {
    204: {"description": "The sweep has ended, and all of its events were told"}
}

router = resource_router("sweeps", "recommend")


@router.post(
    "",
    operation_id="createSweep",
    status_code=ACCEPTED,
    response_model=SweepDetails,
    responses=responses.ACCEPT,
)
async def create_sweep(
    body: Annotated[SweepRequest, Body(openapi_examples=EXAMPLES["sweeps"])],
    services: ServicesDep,
    creation: CreationDep,
) -> Response:
    """Recommend a layout for every combination of the models, clusters, workloads, stacks and
    constraints that you list, as one job. The answer comes at once; results come at `items` and
    `events`."""
    return await run_in_threadpool(creation.respond, lambda: services.sweeps.prepare(body))


@router.get(
    "",
    operation_id="listSweeps",
    response_model=SweepPage | BriefPage,
    responses=page_or_table("sweeps"),
)
def list_sweeps(
    query: Annotated[ListQuery, Query()], request: Request, services: ServicesDep
) -> Response:
    """List sweeps, newest first."""
    return list_response(request, query, services.sweeps.page, "sweeps")


@router.get("/{id}", operation_id="getSweep", response_model=SweepDetails)
def get_sweep(id_: ResourceId, services: ServicesDep) -> JSONResponse:
    """Show the progress of a sweep, and the request that it answers."""
    return JSONResponse(services.sweeps.get(id_))


@router.get(
    "/{id}/items",
    operation_id="listSweepItems",
    response_model=SweepItemPage | BriefPage,
    responses=page_or_table("sweep"),
)
def list_sweep_items(
    id_: ResourceId,
    query: Annotated[SweepItemQuery, Query()],
    request: Request,
    services: ServicesDep,
) -> Response:
    """List the items of a sweep in order, those that are finished with their results, in pages or
    all as CSV."""
    return list_response(
        request, query, lambda query: services.sweeps.item_page(id_, query), "sweep"
    )


@router.get(
    "/{id}/events",
    operation_id="watchSweep",
    response_class=Response,  # FastAPI would take EventSourceResponse for a generator of events
    responses=_EVENTS,
)
async def watch_sweep(
    id_: ResourceId,
    query: Annotated[StreamQuery, Query()],
    services: ServicesDep,
    last_event_id: LastEventId = None,
) -> Response:
    """Send an event `item` with each result as it comes, `progress`, and `end`. A client that was
    cut off sends the id of its last event as Last-Event-ID, as browsers do."""
    place = Place.read(last_event_id or query.last_event_id)
    if await run_in_threadpool(has_received_all, services.store, id_, place):
        return Response(status_code=204)  # which tells browsers not to connect again
    # Without `at_end`: a sweep that was retried since the client received its end ends once more.
    start = Place(place.event)
    return StreamResponse(
        services.event_streams.open(services.store.tenant, services.sweep_feed, id_, start)
    )


def encode_event(event: Event) -> bytes:
    """Returns an event of a sweep as the bytes of a server-sent event."""
    return format_sse_event(
        event=event.kind, id=str(event.place), data_str=json.dumps(event.document)
    )


@router.post(
    "/{id}/cancel", operation_id="cancelSweep", response_model=SweepDetails, responses=_WITHOUT_BODY
)
def cancel_sweep(id_: ResourceId, services: ServicesDep) -> JSONResponse:
    """Cancel the items that are not finished. Results stay, and `retry` goes on."""
    return JSONResponse(services.sweeps.cancel(id_))


@router.post(
    "/{id}/retry", operation_id="retrySweep", response_model=SweepDetails, responses=_WITHOUT_BODY
)
def retry_sweep(id_: ResourceId, services: ServicesDep) -> JSONResponse:
    """Compute the items again that failed or were cancelled."""
    return JSONResponse(services.sweeps.retry(id_))


@router.delete("/{id}", operation_id="removeSweep", status_code=204)
def remove_sweep(id_: ResourceId, services: ServicesDep) -> Response:
    """Cancel a sweep and remove it with its results."""
    services.sweeps.remove(id_)
    return Response(status_code=204)
