"""Why a run may have been slower or faster than predicted: the term that differs most in the likely worlds.

Worlds are draws of the profile's coefficients. Each is weighted by how close its step time comes to the measured one
(and its exposed communication, where that was measured); the answer is the term whose weighted mean lies farthest
from the prediction, on the side of the gap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from models.array import Array, total
from models.layout import Layout, Layouts
from models.problem import Problem
from models.profile import Profile
from models.step import predict

COMMUNICATION = ("tensor_s", "context_s", "expert_s", "data_s", "pipeline_s")
_DRAWS = 400
_CLOSE = 0.05  # of log step time: worlds this near count as the measured one
_CLOSE_PART = 0.2
_LIKELY = (0.01, 0.99)
_BEYOND = 1.5


@dataclass(frozen=True, slots=True)
class Suspect:
    """A term of the breakdown, and the seconds of a step by which it probably differs from its prediction."""

    term: str
    excess_s: float


@dataclass(frozen=True, slots=True)
class Worlds:
    """Step times of one layout under draws of the coefficients; the first is the prediction itself."""

    step: Array
    terms: dict[str, Array]

    @classmethod
    def of(cls, problem: Problem, layout: Layout, profile: Profile) -> Worlds:
        generator = np.random.default_rng(0)
        known = profile.covering(problem.scopes)
        draws = {term.key: term.spread * generator.standard_normal(_DRAWS) for term in known.applying(problem.scopes)}
        for draw in draws.values():
            draw[0] = 0.0
        many = Layouts.of([layout]).take(np.zeros(_DRAWS, dtype=np.int64))
        found = predict(problem, many, known.coefficients(problem.scopes, draws))
        return cls(found.step_time_s, found.time)

    def suspect(self, step_time_s: float, exposed: float | None = None) -> Suspect | None:
        """Of a run that took so long; None where that lies beyond every world that is at all likely."""
        low, high = np.quantile(self.step, _LIKELY)
        if not low / _BEYOND <= step_time_s <= high * _BEYOND:
            return None
        away = _distance(self.step, step_time_s) / _CLOSE
        if exposed is not None:
            away = away + _distance(exposed_s(self.terms), exposed) / _CLOSE_PART
        weight = np.exp(-0.5 * (away**2 - (away**2).min()))
        weight /= weight.sum()
        excess = {name: float(weight @ part - part[0]) for name, part in self.terms.items()}
        slower = step_time_s > self.step[0]
        term = max(excess, key=lambda name: excess[name] if slower else -excess[name])
        return Suspect(term, excess[term])


def exposed_s(time: Mapping[str, Array]) -> Array:
    """Communication that no compute hides, of the terms of a step."""
    return np.asarray(total(time[name] for name in COMMUNICATION))


def _distance(drawn: Array, measured: float) -> Array:
    return np.abs(np.log(np.maximum(drawn, 1e-9) / measured))
