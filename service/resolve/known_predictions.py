"""Predictions of single layouts, which are kept: the same runs are reported, and shown beside
answers, again and again.

Problems and profiles are compared by identity, which is cheap. Another version of a profile or of a
catalogue entry is another object, for which nothing is kept yet. A *fleet* is the machines of one
deployment.
"""

from __future__ import annotations

from models.calibration import fleet_effects
from models.layouts.rules import broken_rules
from models.prediction.prediction import Prediction, predict_layouts
from models.spec.identity import cached_by_identity
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import Profile
from service.schemas.prediction import PredictedLayout

_KEPT = 2048  # a list of runs asks for the same few hundred again and again
_PROFILES = 16


@cached_by_identity(_KEPT, objects=2)
def prediction_of(problem: Problem, profile: Profile, layout: Layout) -> Prediction:
    return predict_layouts(problem, [layout], profile)[0]


@cached_by_identity(_KEPT, objects=2)  # problem and prediction are compared by identity
def shown_prediction(problem: Problem, prediction: Prediction) -> PredictedLayout:
    """Returns a prediction as answers show it."""
    return PredictedLayout.of(prediction, problem.cluster)


@cached_by_identity(_KEPT)
def is_legal(problem: Problem, layout: Layout) -> bool:
    return not broken_rules(problem, layout)


@cached_by_identity(_PROFILES)
def without_fleet(profile: Profile) -> Profile:
    """Returns the profile without what it has learnt about one fleet
    (models.calibration.fleet_effects): it then describes published machines."""
    return fleet_effects.without_fleet(profile)
