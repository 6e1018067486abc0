"""Why a run took another time than predicted, as a sentence.

A *term* is a part of the predicted step time, such as compute; a *part* is one that was measured.
The *gap* is measured less predicted time. The *suspect* is the term that most likely makes it.
"""

from __future__ import annotations

from collections.abc import Iterator

from models.calibration.residual_diagnosis import (
    Diagnosis,
    MeasuredPart,
    TermDraws,
    imbalance_excess_s,
)
from models.cost.predictions import TIME_TERMS
from models.prediction.prediction import Prediction
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import Profile
from service.resolve import measurements
from service.schemas.measured_run import MeasuredParts

NOT_DESCRIBED = (
    "check the measurement, and that this model, layout and software are what ran on these chips"
)
_MANY_CHIPS = 4  # with fewer, a run may be slower by their number for other reasons
_NO_EXPLANATION = f"no coefficient explains so large a gap; {NOT_DESCRIBED}"


class ResidualAttribution:
    """Explains residuals of runs of one layout. The draws of its coefficients, which all of them
    share, are made once."""

    def __init__(self, problem: Problem, layout: Layout, profile: Profile) -> None:
        self._problem = problem
        self._layout = layout
        self._profile = profile
        self._term_draws = TermDraws.of(problem, layout, profile)

    def sentence(
        self, prediction: Prediction, step_time_s: float, parts: MeasuredParts | None
    ) -> str:
        """Returns a sentence on what was measured and expected, how much of the gap the measured
        parts account for, and the term that most likely makes the rest."""
        # MFU times the step time is the same for every step time: the model FLOPs over the peak.
        mfu_seconds = prediction.mfu["causal"] * prediction.step_time_s
        measured = f"{mfu_seconds / step_time_s:.1%}"
        low = f"{mfu_seconds / prediction.step_time_high_s:.1%}"
        high = f"{mfu_seconds / prediction.step_time_low_s:.1%}"
        chips = self._problem.cluster.num_chips
        reasons = _rate_of_one_chip(chips, step_time_s, prediction) or "; ".join(
            _reasons(self.diagnosis(step_time_s, parts))
        )
        return f"measured {measured} MFU (causal), {low} to {high} expected: {reasons}"

    def diagnosis(self, step_time_s: float, parts: MeasuredParts | None) -> Diagnosis:
        """Returns how much of the gap between a measured step and its prediction the measured parts
        account for, and the term that most likely makes the rest."""
        if parts is None:
            return self._term_draws.diagnosis(step_time_s)
        excess_s = None  # by which uneven experts make the step longer than predicted
        if parts.expert_imbalance is not None:
            excess_s = imbalance_excess_s(
                self._problem, self._layout, self._profile, parts.expert_imbalance
            )
        return self._term_draws.diagnosis(step_time_s, parts.exposed_communication_s, excess_s)


def _rate_of_one_chip(chips: int, step_time_s: float, prediction: Prediction) -> str:
    """Returns what to check where a step is as many times too long as there are chips; otherwise an
    empty text."""
    is_of_one = measurements.is_within_interval(step_time_s / chips, prediction)
    if chips < _MANY_CHIPS or not is_of_one:
        return ""
    return (
        f"a step is about {chips} times as long as predicted, and there are {chips} chips: check"
        " that the rate is that of all chips, not of one, and that global_batch is that of the"
        " whole step"
    )


def _reasons(diagnosis: Diagnosis) -> Iterator[str]:
    """Yields the parts of a sentence on a gap: the share of each measured part, then the term that
    most likely makes the rest."""
    gap_s = diagnosis.gap_s
    for part in diagnosis.parts:
        yield f"{part.name}, as measured, {_accounted_words(part, gap_s)}"
    if diagnosis.is_explained:
        return
    suspect = diagnosis.suspect
    if suspect is None:
        yield _NO_EXPLANATION
        return
    term = TIME_TERMS[suspect.term]
    subject = "the rest" if diagnosis.parts else "the gap"
    if not suspect.is_likely:
        yield f"{subject} looks like nothing that a prediction describes; {NOT_DESCRIBED}"
        return
    excess = _more_or_less(suspect.excess_s)
    share = "" if diagnosis.parts else f" of the {_seconds(gap_s)}"
    yield f"{subject} looks like {term} ({excess}{share})"


def _accounted_words(part: MeasuredPart, gap_s: float) -> str:
    """Returns words on the share of the gap that a measured part accounts for. A part that deviates
    in the direction opposite to the gap accounts for none of it."""
    gap = f"of the gap of {_seconds(gap_s)}"
    if part.excess_s * gap_s <= 0:
        return f"accounts for none {gap} ({_more_or_less(part.excess_s)} than predicted)"
    mostly = f" (most likely {TIME_TERMS[part.term]})" if part.term else ""
    return f"accounts for {_seconds(part.excess_s)} {gap}{mostly}"


def _more_or_less(seconds: float) -> str:
    return f"{_seconds(seconds)} {'more' if seconds > 0 else 'less'}"


def _seconds(seconds: float) -> str:
    return f"{abs(seconds):.2g} s"
