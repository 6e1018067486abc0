"""A layout with all that is said of it."""

from __future__ import annotations

from dataclasses import dataclass

from models.cost.step import Predictions
from models.layouts.complexity import complexity_terms
from models.prediction.prediction import Prediction, describe, log_spreads
from models.spec.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A layout with its prediction and its place in the order of complexity
    (models.layouts.complexity)."""

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
        result.append(
            Candidate(
                prediction=prediction, complexity=sum(points.values()), complexity_terms=points
            )
        )
    return result
