"""The speed of a run: where its time goes, and what makes the gap to its prediction.

A *term* is a part of the predicted step time, such as compute. A *switch* is a setting of the
framework that decides a field of the stack.
"""

from __future__ import annotations

import math

from models.advice.single_changes import SingleChange
from models.cost.predictions import TIME_TERMS
from models.package_data import read_json
from models.prediction.prediction import Prediction
from models.prediction.term_words import rounded
from models.spec.switches import switches_of
from service.formats.megatron import arguments as megatron_arguments
from service.learning.examination import Examination
from service.learning.explained_runs import ExplainedRun
from service.learning.residual_attribution import ResidualAttribution
from service.resolve import measurements
from service.schemas.explanation import GapExplained, SpeedExplained, SwitchSuspect, TimeShare
from service.schemas.prediction import ByConvention

_MOST_SUSPECTS = 3
_LEAST_EXPLAINED = 0.2
"""Least share of the gap that a suspected switch explains."""
_LEAST_SHARE = 1e-3  # of the step: terms that take less are not shown
_LOOK_AT: dict[str, str] = read_json(__package__, "slow_terms.json")
"""The place to look first where a term takes longer than predicted."""


def speed_explained(examination: Examination) -> SpeedExplained | None:
    """Returns the measured speed beside the predicted one. It is None where the layout is not
    legal, because there is then no prediction."""
    prediction = examination.prediction
    if prediction is None:
        return None
    step_time_s = examination.step_time_s
    return SpeedExplained(
        measured_step_time_s=step_time_s,
        measured_mfu=None
        if examination.speed is None
        else ByConvention.model_validate(examination.speed.mfu),
        predicted_step_time_s=prediction.step_time_s,
        predicted_low_s=prediction.step_time_low_s,
        predicted_high_s=prediction.step_time_high_s,
        predicted_mfu=ByConvention.model_validate(prediction.mfu),
        slower_by=None if step_time_s is None else step_time_s / prediction.step_time_s - 1,
        within_interval=measurements.is_within_interval(step_time_s, prediction),
        summary=_speed_sentence(prediction, step_time_s),
    )


def _speed_sentence(prediction: Prediction, step_time_s: float | None) -> str:
    """Returns a sentence that says how far a step is from its prediction, and whether that is
    within its interval."""
    predicted = (
        f"{rounded(prediction.step_time_s)} s predicted ({rounded(prediction.step_time_low_s)} to"
        f" {rounded(prediction.step_time_high_s)} with 80%)"
    )
    if step_time_s is None:
        return f"no step was measured; {predicted}"
    ratio = step_time_s / prediction.step_time_s - 1
    direction = "longer" if ratio > 0 else "shorter"
    difference = f"{abs(ratio):.1%} {direction} than the {predicted}"
    if step_time_s > prediction.step_time_high_s:
        verdict = "slower than these chips should be with this layout"
    elif step_time_s < prediction.step_time_low_s:
        verdict = "faster than expected"
    else:
        verdict = "as fast as expected"
    return f"a step took {rounded(step_time_s)} s, {difference}: {verdict}"


def time_shares(prediction: Prediction | None) -> list[TimeShare]:
    """Returns the terms of the predicted step time with their shares, the largest first. Terms
    below 0.1% of the step are left out; without a prediction there are none."""
    if prediction is None:
        return []
    shares = [
        TimeShare(
            term=term,
            seconds=seconds,
            share=seconds / prediction.step_time_s,
            meaning=TIME_TERMS[term],
        )
        for term, seconds in prediction.time.items()
        if seconds > _LEAST_SHARE * prediction.step_time_s
    ]
    return sorted(shares, key=lambda share: -share.seconds)


def gap_explained(examination: Examination) -> GapExplained | None:
    """Returns the likely causes of the gap between a measured step and its prediction. It is None
    where the measurement lies within the interval, or where either is missing."""
    run = examination.run
    step_time_s = examination.step_time_s
    prediction = examination.prediction
    if prediction is None or step_time_s is None:
        return None
    if measurements.is_within_interval(step_time_s, prediction):
        return None
    attribution = ResidualAttribution(run.problem, run.layout, run.profile)
    diagnosis = attribution.diagnosis(step_time_s, run.report.parts)
    suspect = diagnosis.suspect
    is_slower = diagnosis.gap_s > 0
    return GapExplained(
        gap_s=diagnosis.gap_s,
        term=suspect.term if suspect else None,
        excess_s=suspect.excess_s if suspect else None,
        probability=suspect.probability if suspect else None,
        undescribed_probability=suspect.undescribed if suspect else None,
        summary=attribution.sentence(prediction, step_time_s, run.report.parts),
        look_at=_LOOK_AT[suspect.term] if suspect and is_slower else None,
        switches=_suspected_switches(examination, prediction, step_time_s) if is_slower else [],
    )


def _suspected_switches(
    examination: Examination, prediction: Prediction, step_time_s: float
) -> list[SwitchSuspect]:
    """Returns the switches of the stack that may explain why a run is slow, the likeliest first. A
    suspected switch is stated nowhere, and with the framework's default for it the predicted step
    comes nearer to the measured one."""
    gap = math.log(step_time_s / prediction.step_time_s)
    stated_fields = _stated_switches(examination.run)

    def distance(change: SingleChange) -> float:
        """Returns how far the predicted step with this change lies from the measured one, as a
        logarithm."""
        return abs(math.log(step_time_s / change.outcome.step_time_s))

    suspects = dict[str, SwitchSuspect]()
    for change in sorted(examination.check.single_changes, key=distance):
        if change.switch is None or change.knob in stated_fields:
            continue
        # Whoever does not state a switch runs with the framework's default of it, and the
        # prediction may have assumed another value.
        if change.after != change.switch.default_at().value:
            continue
        # The default closes at least _LEAST_EXPLAINED of the gap.
        if distance(change) < (1 - _LEAST_EXPLAINED) * gap:
            suspect = SwitchSuspect(
                switch=change.switch.name,
                field=change.knob,
                assumed=change.before,
                otherwise=change.after,
                step_time_s=change.outcome.step_time_s,
            )
            suspects.setdefault(change.knob, suspect)  # the first comes nearest
    return [*suspects.values()][:_MOST_SUSPECTS]


def _stated_switches(run: ExplainedRun) -> set[str]:
    """Returns the fields of the stack that the request, its launch or its log states. Other fields
    are only assumed, and so may be why a run is slow."""
    stated_fields = {*run.resolved.used.stack.changes}
    if run.logged is not None and run.logged.arguments:
        stated_fields |= megatron_arguments.stack_fields(run.logged.arguments).keys()
    if run.launch is not None:
        # A launch states every switch of its stack: one that it does not name has the default.
        stated_fields |= {switch.field for switch in switches_of(run.problem.stack)}
    return stated_fields
