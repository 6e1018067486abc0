"""/v1/checks"""

from __future__ import annotations

from typing import Annotated

from fastapi import Body, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from service.ask.answer_briefs import check_brief
from service.ask.answer_keys import question_key
from service.routes.dependencies import (
    ComputationDep,
    CreationDep,
    ResourceId,
    ServicesDep,
    resource_router,
)
from service.routes.examples import EXAMPLES
from service.routes.list_tables import list_response, page_or_table
from service.schemas.brief import CheckBrief, ViewQuery
from service.schemas.check import CheckAnswer, CheckForm, CheckPage
from service.schemas.list_query import AnswerQuery, BriefPage
from service.web import responses
from service.web.preferences import requested_view
from service.web.text_responses import immutable_text_response

router = resource_router("checks", "recommend")


@router.post(
    "",
    operation_id="check",
    response_model=CheckAnswer | CheckBrief,
    responses=responses.POST_OR_CREATE_WITH_VIEW,
    openapi_extra=responses.PREFER,
)
async def check(
    body: Annotated[CheckForm, Body(openapi_examples=EXAMPLES["checks"])],
    query: Annotated[ViewQuery, Query()],
    request: Request,
    services: ServicesDep,
    computation: ComputationDep,
    creation: CreationDep,
) -> Response:
    """Check whether a job is worth submitting, by its layout or its launch configuration as typed:
    which rules it breaks, whether it fits, how fast it is, what would be faster, and what to change
    first. With `store` the answer is kept, so that a report of the run can name it."""
    view = requested_view(request, query.view, check_brief)
    if not body.store:
        return await computation.respond(
            lambda turn: services.checks.check(body, turn.bounded_checkpoint()), view
        )
    return await creation.respond_once(
        question_key("checks", body),
        lambda: services.stored_checks.look_up(body),
        lambda question, turn: services.stored_checks.check(
            body, question, turn.bounded_checkpoint()
        ),
        view,
    )


@router.get(
    "",
    operation_id="listChecks",
    response_model=CheckPage | BriefPage,
    responses=page_or_table("checks"),
)
def list_checks(
    query: Annotated[AnswerQuery, Query()], request: Request, services: ServicesDep
) -> Response:
    """List the stored checks, newest first. Each has the address of its answer as `location`."""
    return list_response(request, query, services.stored_checks.page, "checks")


@router.get(
    "/{id}",
    operation_id="getCheck",
    response_model=CheckAnswer | CheckBrief,
    responses=responses.CONDITIONAL_GET_WITH_VIEW,
    openapi_extra=responses.IF_NONE_MATCH_OR_PREFER,
)
async def get_check(
    id_: ResourceId, query: Annotated[ViewQuery, Query()], request: Request, services: ServicesDep
) -> Response:
    """Show a stored check as it was answered, or in brief."""
    view = requested_view(request, query.view, check_brief)
    text = await run_in_threadpool(services.stored_checks.get, id_)
    return immutable_text_response(request, text, view)
