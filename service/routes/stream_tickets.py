"""/v1/stream-tickets"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Request
from starlette.concurrency import run_in_threadpool

from service.api_keys import Caller
from service.routes.dependencies import ServicesDep
from service.routes.examples import EXAMPLES
from service.schemas.stream import TicketAnswer, TicketRequest
from service.stream_tickets import new_ticket
from service.web import responses
from service.web.json_body import JsonRoute

router = APIRouter(prefix="/v1/stream-tickets", tags=["streams"], route_class=JsonRoute)


@router.post(
    "", operation_id="createStreamTicket", response_model=TicketAnswer, responses=responses.POST
)
async def create_stream_ticket(
    body: Annotated[TicketRequest, Body(openapi_examples=EXAMPLES["tickets"])],
    request: Request,
    services: ServicesDep,
) -> TicketAnswer:
    """Make a URL that opens an event stream within a minute, for browsers, which cannot send a key
    with an EventSource. The ticket in it opens this stream alone, with the rights of the key that
    asks for it."""
    caller: Caller = request.state.caller
    ticket_and_end = await run_in_threadpool(new_ticket, services.store, caller, body.stream)
    if ticket_and_end is None:  # without keys nobody needs a ticket
        return TicketAnswer(url=body.stream, ticket=None, expires_at=None)
    ticket, ends = ticket_and_end
    return TicketAnswer(url=f"{body.stream}?ticket={ticket}", ticket=ticket, expires_at=ends)
