"""/ask: a form, and the recommendation that answers it. The whole question is in the URL.

A *pin* is a degree of the layout, such as tp, that the user fixes in the form, or tries in place of
the recommended one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool

from models.errors import DomainError
from service.errors import ServiceError
from service.formats.launch.formats import FORMATS
from service.formats.launch.rendering import RENDERINGS
from service.pages.ask_answer import (
    memory_rows,
    mesh_of_answer,
    named_layouts,
    sorted_switches,
    time_rows,
)
from service.pages.question_form import PINS, QuestionForm, choices, whole_number
from service.pages.recommended import recommended
from service.pages.rendering import page
from service.pages.trouble import SHOWN_ERRORS, page_router, trouble_of, trouble_page
from service.pages.words import MEMORY_TERMS, TIME_TERMS, Term, nonzero
from service.routes.dependencies import (
    ComputationDep,
    CreationDep,
    Services,
    ServicesDep,
)
from service.routes.index import FIRST_PAGE
from service.schemas.comparison import ComparisonRequest
from service.schemas.layout_query import RecommendedLayoutQuery
from service.schemas.recommendation import RecommendationRequest

PATH = FIRST_PAGE
_SHELL = "text/x-shellscript"
_MOST_GROUPS = 5  # of reports, sorted by how much they change: the others change little
_TRIED = "with_"
"""Before the name of a degree that is tried in place of the recommended one."""

router = page_router("recommend")


@router.get(PATH)
async def ask(
    request: Request, services: ServicesDep, creation: CreationDep, computation: ComputationDep
) -> Response:
    """The form alone, or with the answer to the question in the URL."""
    sent = dict(request.query_params)
    form = QuestionForm.of(sent)
    context: dict[str, Any] = {
        "form": form.shown,
        "choices": await run_in_threadpool(choices, services.catalog),
        "trouble": None,
        "answer": None,
    }
    if form.is_empty:
        return page(request, "ask.html", context)
    try:
        body = RecommendationRequest.model_validate(
            {**form.question(), "constraints": form.constraints()}
        )
        answer = await recommended(services, creation, body)
    except SHOWN_ERRORS as error:
        return await trouble_page(request, error, "ask.html", context, RecommendationRequest)
    context |= await run_in_threadpool(_shown_answer, services, answer)
    context |= await _comparison_with_pins(request, form, answer, sent, services, computation)
    context["link"] = f"{PATH}?{urlencode(form.query)}"
    return page(request, "ask_answer.html", context)


def _shown_answer(services: Services, answer: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of the Ask template that show a recommendation, whose document is
    `answer`."""
    layouts = named_layouts(answer)
    recommended = layouts[0].prediction  # `named_layouts` has it first
    return {
        "answer": answer,
        "layouts": layouts,
        "recommended": recommended,
        "time_rows": time_rows(recommended),
        "memory_rows": memory_rows(recommended),
        "mesh": mesh_of_answer(answer),
        "switches": sorted_switches(answer),
        "learned": answer.get("learned"),  # answers of an earlier release lack it
        "most_groups": _MOST_GROUPS,
        "launches": _launches(services, answer),
        "pins": PINS,
    }


def _launches(services: Services, answer: Mapping[str, Any]) -> list[dict[str, str]]:
    """Returns a launch script for the recommended layout in each format that its stack reads. An
    entry has `format` and `text`, or `format` and `refusal` where no script can be written."""
    stack = answer["catalogue"]["stack"]["name"]
    scripts = []
    for name, format_ in FORMATS.items():
        if stack in format_.stacks:
            try:
                # The query names neither a rank nor a choice: it means the recommended layout.
                configuration = services.launches.of_recommendation(
                    answer["id"], name, RecommendedLayoutQuery()
                )
                script = {"format": name, "text": RENDERINGS[_SHELL](configuration)}
            except (DomainError, ServiceError) as error:
                script = {"format": name, "refusal": str(error)}
            scripts.append(script)
    return scripts


async def _comparison_with_pins(
    request: Request,
    form: QuestionForm,
    answer: Mapping[str, Any],
    sent: Mapping[str, str],
    services: Services,
    computation: ComputationDep,
) -> dict[str, Any]:
    """Compares the recommended layout with the best one that has the degrees which the user asked
    to try. Returns the fields of the template: the degrees as `tried`, the `comparison` with the
    terms that differ, or the reason for a `refusal`."""
    pinned = {
        name: whole_number(text)
        for name in PINS
        if (text := sent.get(f"{_TRIED}{name}", "").strip())
    }
    nothing: dict[str, Any] = {
        "tried": pinned,
        "comparison": None,
        "refusal": None,
        "differences": [],
    }
    if not pinned:
        return nothing
    recommended = answer["layouts"][answer["recommended"]]["prediction"]["layout"]
    # The first side is searched under the pins, and the second is the recommended layout.
    try:
        body = ComparisonRequest.model_validate(
            {**form.question(), "first": {"constraints": pinned}, "second": {"layout": recommended}}
        )
        compared = await computation.computed(
            lambda turn: services.comparisons.compare(body, turn.bounded_checkpoint())
        )
    except SHOWN_ERRORS as error:
        return {**nothing, "refusal": await trouble_of(request, error, ComparisonRequest)}
    return {
        **nothing,
        "comparison": compared,
        "differences": _values_of_terms(TIME_TERMS, compared["time"]),
        "memory_differences": _values_of_terms(MEMORY_TERMS, compared["memory_gib"]),
    }


def _values_of_terms(
    terms: tuple[Term, ...], values: Mapping[str, float]
) -> list[tuple[Term, float]]:
    """Returns the terms that are not zero, each with its value in seconds or GiB."""
    return [(term, values[term.field]) for term in nonzero(terms, values)]
