"""Why a run was slower or faster than predicted: the parts that were measured first, then the term
that differs most in the likely worlds.

A measured part accounts for so much of the gap as it differs from its prediction. For the rest,
worlds are draws of the profile's coefficients. Each is weighted by how close the terms that were
not measured come to what is left of the step; the answer is the one of these terms whose weighted
mean lies farthest from the prediction, on the side of the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from models.columns import Array, total
from models.cost.compute import deviation
from models.cost.step import predict
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import Profile

COMMUNICATION = ("tensor_s", "context_s", "expert_s", "data_s", "pipeline_s")
_DRAWS = 400
_CLOSE = 0.05  # of log time: worlds this near count as the measured one
_LIKELY = (0.01, 0.99)
_BEYOND = 1.5
_LEAST_S = 1e-9
_REST = 0.1  # of the gap: less needs no explanation


@dataclass(frozen=True, slots=True)
class Suspect:
    """A term of the breakdown, and the seconds of a step by which it probably differs from its
    prediction."""

    term: str
    excess_s: float


@dataclass(frozen=True, slots=True)
class Part:
    """By how many seconds a measured part differs from its prediction, and the term that makes most
    of it, if several may."""

    name: str
    excess_s: float
    term: str | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Seconds of a step, above 0 where the run was slower: the `gap`, the measured `parts` of it,
    and the `rest`.

    `suspect` is of the rest: None where there is none worth a name (`settled`) or none that is at
    all likely.
    """

    gap_s: float
    parts: tuple[Part, ...]
    rest_s: float
    suspect: Suspect | None

    @property
    def settled(self) -> bool:
        return bool(self.parts) and abs(self.rest_s) <= _REST * abs(self.gap_s)


@dataclass(frozen=True, slots=True)
class Worlds:
    """Times of one layout under draws of the coefficients; the first is the prediction itself."""

    terms: dict[str, Array]

    @classmethod
    def of(cls, problem: Problem, layout: Layout, profile: Profile) -> Worlds:
        generator = np.random.default_rng(0)
        known = profile.with_unmet_scopes(problem.scopes)
        draws = {
            term.key: term.spread * generator.standard_normal(_DRAWS)
            for term in known.terms_in(problem.scopes)
        }
        for draw in draws.values():
            draw[0] = 0.0
        many = Layouts.of([layout]).take(np.zeros(_DRAWS, dtype=np.int64))
        return cls(predict(problem, many, known.coefficients(problem.scopes, draws)).time)

    def diagnosis(
        self,
        step_time_s: float,
        exposed: float | None = None,
        imbalance: Mapping[str, float] | None = None,
    ) -> Diagnosis:
        """Of a run that took so long. `exposed`: its communication that no compute hid, in seconds;
        `imbalance`: by how much its experts out of balance lengthen each term."""
        parts = list[Part]()
        open_ = self.terms
        if exposed is not None:
            open_, traffic = _divided(self.terms)
            excess = exposed - float(exposed_s(traffic)[0])
            parts.append(Part("exposed communication", excess, _likeliest(traffic, excess).term))
        if imbalance is not None:
            parts.append(Part("expert imbalance", sum(imbalance[term] for term in open_)))
        gap = step_time_s - float(total(self.terms.values())[0])
        rest = gap - sum(part.excess_s for part in parts)
        found = Diagnosis(gap, tuple(parts), rest, None)
        likely = not found.settled and _is_likely(open_, rest)
        return replace(found, suspect=_likeliest(open_, rest)) if likely else found


def _divided(terms: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
    """Terms other than of communication, and those."""
    others = {name: part for name, part in terms.items() if name not in COMMUNICATION}
    return others, {name: terms[name] for name in COMMUNICATION}


def _is_likely(terms: Mapping[str, Array], excess_s: float) -> bool:
    """Whether these terms take so much more than predicted in any world that is at all likely."""
    together = total(terms.values())
    low, high = np.quantile(together, _LIKELY)
    return bool(low / _BEYOND <= together[0] + excess_s <= high * _BEYOND)


def _likeliest(terms: Mapping[str, Array], excess_s: float) -> Suspect:
    """Which of these terms, that together take so much more than predicted, differs most, on the
    side of that."""
    together = np.asarray(total(terms.values()))
    took = max(float(together[0]) + excess_s, _LEAST_S)
    away = np.abs(np.log(np.maximum(together, _LEAST_S) / took)) / _CLOSE
    weight = np.exp(-0.5 * (away**2 - (away**2).min()))
    weight /= weight.sum()
    excess = {name: float(weight @ part - part[0]) for name, part in terms.items()}
    term = max(excess, key=lambda name: excess[name] if excess_s > 0 else -excess[name])
    return Suspect(term, excess[term])


def lengthened(
    problem: Problem, layout: Layout, profile: Profile, imbalance: float
) -> dict[str, float] | None:
    """Seconds that each term takes more than predicted with experts so far out of balance: tokens
    of the busiest of the expert-parallel devices over their mean, less 1. None where no imbalance
    is predicted."""
    measured = deviation(problem, layout.ep, imbalance)
    if measured is None:
        return None
    known = profile.coefficients(problem.scopes)
    found = replace(known, imbalance=measured)
    before, after = (predict(problem, Layouts.of([layout]), each).time for each in (known, found))
    return {term: float(after[term][0] - before[term][0]) for term in before}


def exposed_s(time: Mapping[str, Array]) -> Array:
    """Communication that no compute hides, of the terms of a step."""
    return np.asarray(total(time[name] for name in COMMUNICATION))
