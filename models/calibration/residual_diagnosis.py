"""A diagnosis says why a run was slower or faster than predicted: first by the parts of its step
that were measured, then by the term that is the likeliest to make up the rest.

A measured part accounts for as much of the gap as it differs from its prediction. The rest has one
of these causes, whose probabilities follow from how well each explains it:

- The coefficients of the profile are off by as much as they are known to be. They are drawn from
  their distributions (importance sampling). A draw has the more weight, the closer the terms that
  were not measured come to what is left of the step. The cause is the term that differs most.
- Something is broken, and one term takes longer than any coefficient says. A fault is as likely in
  each term. The factor by which it lengthens the term has a wide distribution.
- Something happened that no term describes: the job was another, or the measurement has an error.

Terms here are those of the breakdown, the parts of a step time such as compute or data-parallel
traffic. A *draw* is one set of random coefficients; draw 0 is the prediction itself.

The spreads of coefficients say which term varies most from run to run. They say nothing of faults,
so that a gap which they hardly explain is no evidence for the term that varies most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from models.columns import Array, total
from models.cost.compute import implied_imbalance
from models.cost.predictions import predict
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import Profile

COMMUNICATION = ("tensor_s", "context_s", "expert_s", "data_s", "pipeline_s")
_DRAWS = 400  # of the coefficients, for each run
# The bandwidth, in log time, of the kernel that weights draws around the measured time.
_BANDWIDTH = 0.05
# The share of diagnosed runs that have a fault, or are not what they were said to be.
_FAULT_SHARE = 0.1
# The mean logarithm of the factor by which a fault lengthens a term (exponential), and the mean
# absolute logarithm of that of a step that no term describes (Laplace).
_FAULT_LOG_MEAN = 1.0
_LEAST_DENSITY = 1e-300  # keeps quotients finite
# A time is likely enough for a suspect within these quantiles of the draws, or up to this factor
# beyond them.
_LIKELY_QUANTILES = (0.01, 0.99)
_TAIL_FACTOR = 1.5
# Keeps logarithms finite where measured parts leave nothing of a step.
_LEAST_S = 1e-9
# A rest below this share of the gap needs no explanation.
_SMALL_REST = 0.1


@dataclass(frozen=True, slots=True)
class Suspect:
    """A term of the breakdown that may make up a gap. `excess_s` is the number of seconds of a step
    by which it probably differs from its prediction. `probability` is the probability that this
    term makes the difference, and `undescribed` that no term does."""

    term: str
    excess_s: float
    probability: float
    undescribed: float

    @property
    def is_likely(self) -> bool:
        """Return whether the term is likelier than something that no term describes."""
        return self.probability > self.undescribed


@dataclass(frozen=True, slots=True)
class MeasuredPart:
    """The seconds by which a measured part of a step differs from its prediction. For a part of
    several terms, `term` is the one that probably makes most of the difference."""

    name: str
    excess_s: float
    term: str | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The gap between a measured and a predicted step time in seconds, above 0 where the run was
    slower, with the measured parts of it and the rest.

    `suspect` is the likeliest cause of the rest. It is None where the rest needs no explanation
    (`is_explained`), or where no term is at all likely to make up so much.
    """

    gap_s: float
    parts: tuple[MeasuredPart, ...]
    rest_s: float
    suspect: Suspect | None

    @property
    def is_explained(self) -> bool:
        """Return whether the measured parts make up nearly all of the gap."""
        return bool(self.parts) and abs(self.rest_s) <= _SMALL_REST * abs(self.gap_s)


@dataclass(frozen=True, slots=True)
class TermDraws:
    """Seconds of each term of one layout's step under draws of the coefficients, each of shape
    (draws,). The first draw is the prediction itself."""

    terms: dict[str, Array]

    @classmethod
    def of(cls, problem: Problem, layout: Layout, profile: Profile) -> TermDraws:
        """Return the seconds of each term under _DRAWS draws of the coefficients that this problem
        depends on. The seed is fixed, so that equal runs get equal diagnoses."""
        generator = np.random.default_rng(0)
        # Scopes of which no run tells anything differ too, by offsets of mean zero.
        known = profile.with_offsets(problem.scopes)
        draws = {
            term.key: term.spread * generator.standard_normal(_DRAWS)
            for term in known.terms_in(problem.scopes)
        }
        for draw in draws.values():
            draw[0] = 0.0  # the prediction itself
        # The same layout, once for each draw.
        repeated = Layouts.of([layout]).take(np.zeros(_DRAWS, dtype=np.int64))
        coefficients = known.coefficients(problem.scopes, draws)
        return cls(predict(problem, repeated, coefficients).time)

    def diagnosis(
        self,
        step_time_s: float,
        exposed: float | None = None,
        imbalance: Mapping[str, float] | None = None,
    ) -> Diagnosis:
        """Return the diagnosis of a run with this step time. `exposed` is its communication that no
        compute hid, in seconds. `imbalance` has, by term, the seconds by which the measured
        imbalance of experts exceeds the predicted one (`imbalance_excess_s`). Either is None where
        it was not measured."""
        parts = list[MeasuredPart]()
        unmeasured = self.terms
        if exposed is not None:
            communication = {name: self.terms[name] for name in COMMUNICATION}
            unmeasured = {
                name: seconds for name, seconds in self.terms.items() if name not in COMMUNICATION
            }
            # Draw 0 of every term is its prediction.
            excess = exposed - float(exposed_s(communication)[0])
            term = _likeliest(communication, excess).term
            parts.append(MeasuredPart("exposed communication", excess, term))
        if imbalance is not None:
            # The exposed communication, where measured, includes its own share of the imbalance.
            excess = sum(imbalance[term] for term in unmeasured)
            parts.append(MeasuredPart("expert imbalance", excess))
        # Index 0: the first draw, which is the prediction.
        gap = step_time_s - float(total(self.terms.values())[0])
        rest = gap - sum(part.excess_s for part in parts)
        diagnosis = Diagnosis(gap, tuple(parts), rest, None)
        if diagnosis.is_explained or not _is_reachable(unmeasured, rest):
            return diagnosis
        return replace(diagnosis, suspect=_likeliest(unmeasured, rest))


def _is_reachable(terms: Mapping[str, Array], excess_s: float) -> bool:
    """Return whether these terms can together take `excess_s` longer than predicted: whether that
    time lies among the likely draws of the coefficients, or within _TAIL_FACTOR of them. Negative
    seconds mean shorter."""
    together = total(terms.values())
    low, high = np.quantile(together, _LIKELY_QUANTILES)
    took_s = together[0] + excess_s  # draw 0 is the prediction
    return bool(low / _TAIL_FACTOR <= took_s <= high * _TAIL_FACTOR)


def _likeliest(terms: Mapping[str, Array], excess_s: float) -> Suspect:
    """Return the term that most likely makes these terms together take `excess_s` longer than
    predicted."""
    # Bayes' rule over three kinds of causes; densities are likelihoods of the measured time.
    by_spread = _by_spread(terms, excess_s)
    fault_densities = _by_fault(terms, excess_s)
    undescribed = _undescribed(terms, excess_s)
    # A priori, each term is as likely to have a fault as the cause is to be undescribed.
    prior = _FAULT_SHARE / (len(fault_densities) + 1)
    rare_densities = sum(fault_densities.values()) + undescribed
    evidence = (1 - _FAULT_SHARE) * by_spread.density + prior * rare_densities

    def shares(term: str) -> tuple[float, float]:
        """Return two posterior probabilities: that the term is off because coefficients are, and
        that it has a fault."""
        # Bayes' rule: prior times likelihood, over the evidence.
        spread = (1 - _FAULT_SHARE) * by_spread.density * by_spread.differs_most[term]
        return spread / evidence, prior * fault_densities.get(term, 0.0) / evidence

    term = max(terms, key=lambda term: sum(shares(term)))
    spread, fault = shares(term)
    return Suspect(
        term=term,
        # A fault makes up the whole excess; coefficients make up what they do on average.
        excess_s=(spread * by_spread.excess_s[term] + fault * excess_s) / (spread + fault),
        probability=spread + fault,
        undescribed=prior * undescribed / evidence,
    )


@dataclass(frozen=True, slots=True)
class _BySpread:
    """The explanation of a time by the known spreads of the coefficients. `density` is the
    probability density of the logarithm of the time. By term, `differs_most` is the probability
    that it differs most, and `excess_s` its mean excess in seconds."""

    density: float
    differs_most: Mapping[str, float]
    excess_s: Mapping[str, float]


def _by_spread(terms: Mapping[str, Array], excess_s: float) -> _BySpread:
    """Return how well the known spreads of coefficients explain that these terms together take
    `excess_s` longer than predicted. Draws are weighted by how close they come to that time."""
    together = np.maximum(total(terms.values()), _LEAST_S)
    distance = np.log(together / _took_s(terms, excess_s)) / _BANDWIDTH
    # A Gaussian kernel. The nearest distance is taken off and put back into the height, as all
    # draws may be so far off that each weight would be 0.
    nearest = float((distance**2).min())
    weight = np.exp(-0.5 * (distance**2 - nearest))
    height = math.exp(-0.5 * nearest) / (_BANDWIDTH * math.sqrt(2 * math.pi))
    density = height * float(weight.mean())
    weight /= weight.sum()
    # In each draw, the term that differs most is the one with the largest excess in the direction
    # of the gap.
    sign = 1 if excess_s > 0 else -1
    # seconds[0], draw 0, is the prediction.
    by_draw = np.array([sign * (seconds - seconds[0]) for seconds in terms.values()])
    row_of_most = by_draw.argmax(axis=0)
    return _BySpread(
        density=max(density, _LEAST_DENSITY),
        differs_most={name: float(weight @ (row_of_most == row)) for row, name in enumerate(terms)},
        excess_s={name: float(weight @ seconds - seconds[0]) for name, seconds in terms.items()},
    )


def _by_fault(terms: Mapping[str, Array], excess_s: float) -> dict[str, float]:
    """Return, by term, how well a fault in that term explains the time: the density of the log of
    all terms' time. It is 0 for times that are not longer, because no fault makes a term faster.
    Terms that are predicted to take no time are left out."""
    # Draw 0 is the prediction.
    predicted = {name: float(seconds[0]) for name, seconds in terms.items() if seconds[0] > 0}
    if excess_s <= 0:
        return dict.fromkeys(predicted, 0.0)
    took_s = _took_s(terms, excess_s)
    densities = {}
    for name, seconds in predicted.items():
        # A fault's log factor has an exponential distribution.
        log_longer = math.log1p(excess_s / seconds)
        # d log(time of the term) / d log(time of all) turns the density of one into the other's.
        slope = took_s / (seconds + excess_s)
        densities[name] = slope * math.exp(-log_longer / _FAULT_LOG_MEAN) / _FAULT_LOG_MEAN
    return densities


def _undescribed(terms: Mapping[str, Array], excess_s: float) -> float:
    """Return how well a cause that no term describes explains the time: the density of the log of
    all terms' time, a Laplace distribution that makes faster as likely as slower."""
    # Draw 0 of each term is its prediction.
    together = max(float(total(terms.values())[0]), _LEAST_S)
    distance = abs(math.log(_took_s(terms, excess_s) / together))
    return math.exp(-distance / _FAULT_LOG_MEAN) / (2 * _FAULT_LOG_MEAN)


def _took_s(terms: Mapping[str, Array], excess_s: float) -> float:
    """Return the seconds that terms took together, if they took `excess_s` longer than predicted.
    It is above 0 even where other measured parts exceed the step, because logs are taken of it."""
    return max(float(total(terms.values())[0]) + excess_s, _LEAST_S)


def imbalance_excess_s(
    problem: Problem, layout: Layout, profile: Profile, imbalance: float
) -> dict[str, float] | None:
    """Return the seconds by which a measured imbalance of experts lengthens each term; None where
    none is predicted for this layout. `imbalance` is the tokens of the busiest of the
    expert-parallel devices over their mean, less 1."""
    measured = implied_imbalance(problem, layout.ep, imbalance)
    if measured is None:
        return None
    known = profile.coefficients(problem.scopes)
    layouts = Layouts.of([layout])
    predicted = predict(problem, layouts, known).time
    unbalanced = predict(problem, layouts, replace(known, imbalance=measured)).time
    # [0]: each term has one value for each layout, of which there is one.
    return {term: float(unbalanced[term][0] - predicted[term][0]) for term in predicted}


def exposed_s(time: Mapping[str, Array]) -> Array:
    """Return the seconds of communication that no compute hides, from the terms of a step."""
    return np.asarray(total(time[name] for name in COMMUNICATION))
