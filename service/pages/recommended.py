"""The answer to a question for a recommendation, which is stored, and found again when it is asked
once more."""

from __future__ import annotations

from typing import Any

from service.ask.answer_keys import question_key
from service.routes.dependencies import Services
from service.routes.responders import CreationResponder
from service.schemas.recommendation import RecommendationRequest


async def recommended(
    services: Services, responder: CreationResponder, body: RecommendationRequest
) -> dict[str, Any]:
    """Returns the document of a recommendation. An equal question that was answered before gets the
    stored answer; otherwise the search runs and its answer is stored."""
    created = await responder.creation.answer_once(
        question_key("recommendations", body),
        lambda: services.recommendations.look_up(body),
        lambda question, turn: services.recommendations.recommend(
            body, question, turn.bounded_checkpoint()
        ),
    )
    return created.content
