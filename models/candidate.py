"""A layout with all that is said of it."""

from __future__ import annotations

from dataclasses import dataclass

from models.complexity import complexity_terms
from models.prediction import Prediction, describe, log_spreads
from models.profile import Profile
from models.step import Predictions


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A layout with its prediction and its place in the order of complexity (models.complexity)."""

    prediction: Prediction
    complexity: int
    complexity_terms: dict[str, int]


def candidates(predictions: Predictions, profile: Profile) -> list[Candidate]:
    layouts, spreads = predictions.layouts, log_spreads(predictions, profile)
    terms = complexity_terms(predictions.problem, layouts)
    result = []
    for i in range(len(layouts)):
        points = {name: int(value[i]) for name, value in terms.items() if value[i]}
        prediction = describe(predictions, i, spreads, profile)
        result.append(Candidate(prediction=prediction, complexity=sum(points.values()), complexity_terms=points))
    return result
