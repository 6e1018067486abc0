"""A layout with all that is said of it."""

from __future__ import annotations

from dataclasses import dataclass

from models.complexity import complexity_terms
from models.layout import Layouts
from models.prediction import Prediction, describe, log_spreads
from models.problem import Problem
from models.profile import Profile
from models.step import predict


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A layout with its prediction and its place in the order of complexity (models.complexity)."""

    prediction: Prediction
    complexity: int
    complexity_terms: dict[str, int]


def candidates(problem: Problem, profile: Profile, chosen: Layouts) -> list[Candidate]:
    predictions = predict(problem, chosen, profile.coefficients(problem.scopes))
    spreads = log_spreads(problem, chosen, profile)
    terms = complexity_terms(problem, chosen)
    result = []
    for i in range(len(chosen)):
        points = {name: int(value[i]) for name, value in terms.items() if value[i]}
        prediction = describe(predictions, i, spreads, profile)
        result.append(Candidate(prediction=prediction, complexity=sum(points.values()), complexity_terms=points))
    return result
