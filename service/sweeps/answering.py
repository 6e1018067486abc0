"""Answers one item of a sweep, in whatever process it is computed. A *sweep* is many questions that
are asked as one job, and an *item* is one of them: a request for a recommendation."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from models.advice.choice import Choice
from models.advice.recommendation import Recommendation
from models.errors import DomainError, Infeasible
from service.ask.evidence import Evidence
from service.ask.recommendations import Recommendations
from service.errors import ServiceError
from service.field_violations import violations_of
from service.schemas.recommendation import CandidateAnswer, RecommendationRequest
from service.schemas.stored import read_stored
from service.schemas.sweep import ItemOutcome, ItemProblem, SweptLayout
from service.store import Store
from service.web.problem_types import problem_path

log = logging.getLogger(__name__)

_MAX_DETAIL = 500  # each is stored with its item, and listed
_JOB_FIGURES = (
    "hours", "hours_low", "hours_high", "usd", "meets", "meets_probability", "missing",
)  # fmt: skip
"""Figures of the whole training run that an objective asks for, by their names in a Choice."""


@dataclass(frozen=True, slots=True)
class ItemAnswer:
    """The answer to an item. It is pickled on its way between processes."""

    outcome: ItemOutcome
    result: dict[str, Any]
    """A SweptLayout or an ItemProblem."""


def answer_item(store: Store, question: dict[str, Any]) -> ItemAnswer:
    """Returns the answer to a question, which is a request for a recommendation.

    Nothing is raised: an error becomes the outcome and a problem. The outcome is "waiting" where
    the question has to be asked again, as when the database does not answer.
    """
    try:
        request = read_stored(RecommendationRequest, question)
        recommendation, choice = Recommendations(store, Evidence(store)).find(request)
    except Infeasible as error:
        return _error_answer("infeasible", error)
    except (DomainError, ValidationError) as error:
        return _error_answer("refused", error)
    except ServiceError as error:
        return _error_answer("waiting", error)
    except Exception as error:  # a defect in one item must not end the sweep
        log.exception("an item of a sweep failed")
        return _error_answer("failed", error)
    return ItemAnswer("ok", _swept_layout(recommendation, choice).model_dump(mode="json"))


def _swept_layout(recommendation: Recommendation, choice: Choice | None) -> SweptLayout:
    """Returns the recommended layout with the fields that a sweep shows. `choice` is its cluster
    with the hours and dollars of the job, if the question has an objective."""
    candidate = CandidateAnswer.of(recommendation.recommended, recommendation.problem.cluster)
    prediction = candidate.prediction
    # Fields that a swept layout and a prediction have in common.
    figures = {
        name: getattr(prediction, name)
        for name in SweptLayout.model_fields
        if hasattr(prediction, name)
    }
    job_figures = {} if choice is None else {name: getattr(choice, name) for name in _JOB_FIGURES}
    return SweptLayout.model_validate(
        {
            **figures,
            **job_figures,
            "layout": prediction.layout.model_dump(mode="json"),
            "layout_summary": recommendation.recommended.prediction.layout.summary(),
            "chips_used": recommendation.chips_used,
            "usd_per_million_tokens": candidate.usd_per_million_tokens,
            "pipelining": recommendation.pipelining.needed,
            "exact": recommendation.certificate.exact,
        }
    )


def _error_answer(outcome: ItemOutcome, error: Exception) -> ItemAnswer:
    """Returns an answer that tells an error. An unexpected error tells no internals."""
    if isinstance(error, Infeasible):
        detail = error.detail
    elif outcome == "failed":
        detail = "the service failed; the log holds the reason"
    else:
        # [] is the root of the request, from which the errors name fields.
        detail = "; ".join(violation.sentence() for violation in violations_of(error, [], limit=3))
    problem = ItemProblem(type=problem_path(error), detail=detail[:_MAX_DETAIL])
    return ItemAnswer(outcome, problem.model_dump(mode="json"))
