"""Why a run took another time than predicted, in words."""

from __future__ import annotations

from collections.abc import Iterator

from models.calibration.residual_diagnosis import Diagnosis, Part, Worlds, lengthened
from models.cost.step import TIME_TERMS
from models.prediction.prediction import Prediction
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import Profile
from service.schemas.report import MeasuredParts

_BEYOND = (
    "no coefficient explains so large a gap; check the measurement, and that this layout is"
    " what ran"
)


class ResidualAttribution:
    """Of runs of one layout."""

    def __init__(self, problem: Problem, layout: Layout, profile: Profile) -> None:
        self._ran = problem, layout, profile
        self._worlds = Worlds.of(problem, layout, profile)

    def described(
        self, prediction: Prediction, step_time_s: float, parts: MeasuredParts | None
    ) -> str:
        """What was expected, what of the gap was measured, and which term would explain the rest
        with the least surprise."""
        mfu = prediction.mfu["causal"] * prediction.step_time_s
        low, high, measured = (
            f"{mfu / step:.1%}"
            for step in (prediction.step_time_high_s, prediction.step_time_low_s, step_time_s)
        )
        why = "; ".join(_reasons(self._diagnosis(step_time_s, parts)))
        return f"measured {measured} MFU (causal), {low} to {high} expected: {why}"

    def _diagnosis(self, step_time_s: float, parts: MeasuredParts | None) -> Diagnosis:
        exposed, imbalance = (
            (parts.exposed_communication_s, parts.expert_imbalance) if parts else (None, None)
        )
        lengthening = None if imbalance is None else lengthened(*self._ran, imbalance)
        return self._worlds.diagnosis(step_time_s, exposed, lengthening)


def _reasons(found: Diagnosis) -> Iterator[str]:
    for part in found.parts:
        yield f"{part.name}, as measured, {_share(part, found.gap_s)}"
    if found.settled:
        return
    if found.suspect is None:
        yield _BEYOND
        return
    what, of = ("the rest", "") if found.parts else ("the gap", f" of the {_seconds(found.gap_s)}")
    yield (
        f"{what} looks like {TIME_TERMS[found.suspect.term]} ({_more(found.suspect.excess_s)}{of})"
    )


def _share(part: Part, gap_s: float) -> str:
    gap = f"of the gap of {_seconds(gap_s)}"
    if part.excess_s * gap_s <= 0:
        return f"accounts for none {gap} ({_more(part.excess_s)} than predicted)"
    mostly = f" (most likely {TIME_TERMS[part.term]})" if part.term else ""
    return f"accounts for {_seconds(part.excess_s)} {gap}{mostly}"


def _more(seconds: float) -> str:
    return f"{_seconds(seconds)} {'more' if seconds > 0 else 'less'}"


def _seconds(seconds: float) -> str:
    return f"{abs(seconds):.2g} s"
