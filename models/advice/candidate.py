"""A candidate is a layout with all that an answer says of it."""

from __future__ import annotations

from dataclasses import dataclass

from models.cost.predictions import Predictions
from models.layouts.complexity import complexity_terms
from models.prediction.prediction import Prediction, describe, log_spreads
from models.spec.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """The prediction of a layout, and its complexity in points: the sum, and the points of each
    term (models.layouts.complexity)."""

    prediction: Prediction
    complexity: int
    complexity_terms: dict[str, int]


def candidates(predictions: Predictions, profile: Profile) -> list[Candidate]:
    """Return a candidate for every layout of the predictions, which were made with this profile.
    Reasons that add no points of complexity are left out."""
    layouts = predictions.layouts
    spreads = log_spreads(predictions, profile)
    points = complexity_terms(predictions.problem, layouts)
    result = []
    for row in range(len(layouts)):
        terms = {name: int(value[row]) for name, value in points.items() if value[row]}
        result.append(
            Candidate(
                prediction=describe(predictions, row, spreads, profile),
                complexity=sum(terms.values()),
                complexity_terms=terms,
            )
        )
    return result
