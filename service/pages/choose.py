"""/choose: places to run side by side, by hours and dollars. The whole question is in the URL. A
*place* is a cluster, with a number of chips and a stack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool

from service.pages.choice_rows import ChoiceRow, limit_words, title
from service.pages.choose_form import MINIMIZED, ChooseForm
from service.pages.examples import EXAMPLES
from service.pages.question_form import choices
from service.pages.recommended import recommended
from service.pages.rendering import page
from service.pages.trouble import SHOWN_ERRORS, page_router, trouble_page
from service.routes.dependencies import CreationDep, ServicesDep
from service.schemas.recommendation import RecommendationRequest

PATH = "/choose"
_PLACE_REASONS = ("cluster", "fewest_chips")
"""The kinds of reasons that are about places."""

router = page_router("recommend")


@router.get(PATH)
async def choose(request: Request, services: ServicesDep, creation: CreationDep) -> Response:
    """The form alone, or with the places that the question in the URL compares."""
    form = ChooseForm.of(request.query_params)
    context: dict[str, Any] = {
        "form": form.shown,
        "form_rows": form.rows,
        "minimized": MINIMIZED,
        "choices": await run_in_threadpool(choices, services.catalog),
        "examples": EXAMPLES["choose"],
        "trouble": None,
        "rows": [],
    }
    if form.question.is_empty:
        return page(request, "choose.html", context)
    try:
        body = RecommendationRequest.model_validate(form.body())
        answer = await recommended(services, creation, body)
    except SHOWN_ERRORS as error:
        return await trouble_page(request, error, "choose.html", context, RecommendationRequest)
    return page(request, "choose.html", {**context, **_compared(answer, body, form)})


def _compared(
    answer: Mapping[str, Any], body: RecommendationRequest, form: ChooseForm
) -> dict[str, Any]:
    """Returns the fields of the Choose template that show the places compared in `answer`."""
    objective = body.objective.model_dump(mode="json")
    rows = [ChoiceRow.of(choice, form.question.query) for choice in answer["choices"]]
    reasons = zip(answer["reasons"], answer["reason_facts"], strict=True)
    return {
        "rows": rows,
        "title": title(rows, objective),
        "place_names": {row.choice["name"]: row.name for row in rows},
        "limits": limit_words(objective),
        "objective": objective,
        "reasons": [sentence for sentence, facts in reasons if facts["kind"] in _PLACE_REASONS],
        "csv_link": f"/v1/recommendations/{answer['id']}/choices?format=csv",
        "data": {
            "choices": answer["choices"],
            "names": [row.name for row in rows],
            "objective": objective,
        },
    }
