"""The sentences of an explanation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from models.advice.layout_check import LEAST_GAIN, LayoutCheck
from models.advice.remedies import Remedy
from models.advice.single_changes import value_in_words
from models.cost.memory_uncertainty import percent
from models.cost.predictions import MEMORY_TERMS, TIME_TERMS, in_gib
from models.prediction.prediction import Prediction
from models.prediction.term_words import rounded
from service.formats.settings.reservation import Reservation
from service.learning.residual_attribution import NOT_DESCRIBED
from service.schemas.explanation import (
    FailureExplained,
    FailureKind,
    GapExplained,
    LogExplained,
    Observation,
    ObservationCode,
    SpeedExplained,
)

MEMORY_MEANING = {in_gib(name): text for name, text in MEMORY_TERMS.items()}
_TERMS_NAMED = 3
_MUCH_OF_THE_GAIN = 0.5
_WORTH_NAMING = 0.05  # of a step
_MOST_FAULTS = 2

LOOK_AT: dict[str, str] = {
    "compute_s": (
        "the clocks of the devices (power caps, heat), that fused attention and the fused loss are"
        " really on, and that no profiler or debugging is"
    ),
    "recompute_s": "what the framework really recomputes: its log or its arguments say so",
    "tensor_s": (
        "whether the ranks of a tensor-parallel group are on one node, and the links between its"
        " devices (nvidia-smi topo -m, nccl-tests within a node)"
    ),
    "context_s": (
        "how attention exchanges chunks (the type of context-parallel communication), and where"
        " its ranks lie"
    ),
    "expert_s": (
        "how evenly tokens are routed, which dispatcher runs, and nccl-tests of all-to-all between"
        " nodes"
    ),
    "data_s": (
        "the network between nodes (nccl-tests of all-reduce; NCCL_DEBUG=INFO says which transport"
        " is used), and that gradient reduction and parameter gathers overlap compute"
    ),
    "pipeline_s": "the links between stages, and that sends between them overlap compute",
    "bubble_s": (
        "whether stages take equally long (the ends hold the embedding and the head), and how many"
        " micro-batches a step has"
    ),
    "offload_s": "the link between device and host (PCIe), and where host memory is pinned",
    "optimizer_s": "that the optimizer is a fused kernel, and works on shards",
    "fixed_s": "the host: data loading, logging, checkpoints and garbage collection in the loop",
    "jitter_s": (
        "single slow nodes: time each rank, or take nodes out by halves; and data that arrives late"
    ),
}
"""The place to look first where a term takes longer than predicted."""


BROKEN_DEVICES: tuple[ObservationCode, ...] = ("device_faults",)
"""Faults to be told of a run that is as fast as predicted, too."""
FAULTS: tuple[ObservationCode, ...] = (
    *BROKEN_DEVICES,
    "network_faults",
    "collective_timeouts",
    "throttling",
    "stragglers",
    "data_waits",
    "sockets",
    "allocator_retries",
    "profiling",
    "network_warnings",
)
"""Faults in a log that make a run slow, or end it, whatever its layout: the likeliest cause
first."""

CAVEATS: dict[str, str] = {
    "gradient_bytes": "gradients are summed in other precision: compare the loss",
    "gather_bytes": "parameters are sent in other precision: compare the loss",
}
"""Effects of a switch besides speed and memory, by the field of the stack that it sets."""


@dataclass(frozen=True, slots=True)
class _Fix:
    """Something to do, and how many more steps an hour it promises, as a share."""

    gain: float
    words: str


def speed_summary(prediction: Prediction, step_time_s: float | None) -> str:
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


def failure_summary(kind: FailureKind, check: LayoutCheck, error_line: str | None) -> str:
    quote = f": “{error_line}”" if error_line else ""
    if check.prediction is None:
        rule = check.broken_rules[0]
        return f"the framework refuses this layout ({rule.rule.name}): {rule.message}"
    needs = _memory_words(check.prediction)
    largest = _largest_terms(check.prediction)
    if kind == "out_of_memory":
        return f"it ran out of memory, as was to be expected: {needs} ({largest})"
    if kind == "unlikely_out_of_memory":
        return (
            f"it ran out of memory though it was predicted to fit: {needs}. Look for what no layout"
            " decides: other processes on the devices, sequences longer than said, an evaluation,"
            " fragmentation (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)"
        )
    if kind == "memory_likely":
        return (
            f"it most likely ran out of memory, whatever its log says{quote}: {needs} ({largest})"
        )
    if not quote:
        return f"neither memory nor layout explains it: the layout is legal, and {needs}"
    return f"the error is not one of memory or layout{quote}. The layout is legal, and {needs}"


def _memory_words(prediction: Prediction) -> str:
    stage = f" on stage {prediction.memory_stage}" if prediction.layout.pp > 1 else ""
    return (
        f"a device{stage} needs {prediction.needed_gib:.1f} ({prediction.needed_low_gib:.1f} to"
        f" {prediction.needed_high_gib:.1f}) of {prediction.usable_gib:.1f} GiB, which fits with a"
        f" probability of {percent(prediction.fit_probability)}"
    )


def _largest_terms(prediction: Prediction) -> str:
    largest = sorted(prediction.memory_gib.items(), key=lambda item: -item[1])[:_TERMS_NAMED]
    return "; ".join(f"{gib:.1f} GiB: {MEMORY_MEANING[name]}" for name, gib in largest)


def first_fix_of_failure(
    failure: FailureExplained,
    check: LayoutCheck,
    found: Sequence[Remedy],
    log: LogExplained | None,
) -> str:
    """Returns the first thing to do about a run that died."""
    if failure.kind == "not_of_the_layout":
        where = "the error itself" if failure.error_line else "the last lines of its log"
        words = f"Start with {where}: {failure.summary}."
        return "".join(f"{fault} " for fault in _faults_in_log(log)[:1]) + words
    if failure.kind == "unlikely_out_of_memory":
        return _first_fix_of_surprise(failure.summary, found)
    if check.prediction is None:
        cause = _capitalised(failure.summary)
    else:
        cause = f"As it ran, {_memory_words(check.prediction)}"
    safe = [one for one in found if one.is_safe]
    if safe:
        return f"{_cheapest_fix(safe)}. {cause}."
    if check.broken_rules:
        return f"Set {check.broken_rules[0].cure}. {cause}."
    if found:
        likeliest = max(found, key=lambda one: one.fit_probability)
        return (
            f"No change surely fits: take more chips, or a smaller job. {_imperative(likeliest)}"
            f"{_fit_words(likeliest)}, comes nearest. {cause}."
        )
    return f"No layout of this job surely fits on these chips: take more of them. {cause}."


def _cheapest_fix(safe: Sequence[Remedy]) -> str:
    """The single change that costs least or, where none does it, the best layout of a search."""
    single = [one for one in safe if one.change is not None]
    if not single:
        return f"{_imperative(safe[0])}{_fit_words(safe[0])}"
    fix = f"{_imperative(single[0])}{_fit_words(single[0])}"
    difference = single[0].step_time_s / safe[0].step_time_s - 1
    if difference > _WORTH_NAMING:
        fix += f" (a layout that changes more is {difference:.0%} faster: see what_to_try)"
    return fix


def _first_fix_of_surprise(summary: str, found: Sequence[Remedy]) -> str:
    """Returns the first thing to do about a run that should have fitted: look for another cause,
    and only then change the layout."""
    fix = f"{_capitalised(summary)}."
    for remedy in found[:1]:
        fix += f" If there is none: {_imperative(remedy)}{_fit_words(remedy)}."
    return fix


def _fit_words(remedy: Remedy) -> str:
    """Returns words that say that a remedy fits, and what it costs."""
    words = f": it then fits with a probability of {percent(remedy.fit_probability)}"
    if remedy.gain is None or abs(remedy.gain) < LEAST_GAIN:
        return words
    change = abs(1 / (1 + remedy.gain) - 1)
    return f"{words}, and a step takes {change:.0%} {'less' if remedy.gain > 0 else 'longer'}"


def first_fix_of_speed(
    speed: SpeedExplained,
    gap: GapExplained | None,
    found: Sequence[Remedy],
    log: LogExplained | None,
) -> str:
    """Returns the first thing to do about a run that trains: about the fault that its log shows
    where it is slower than predicted, and else what promises most, if anything does."""
    candidates = [
        *_fixes_of_gap(speed, gap),
        *_fixes_of_layout(speed, _simplest_first(found)),
        *_fixes_of_log(log.observations if log else []),
    ]
    is_slow = gap is not None and gap.gap_s > 0
    faults = _faults_in_log(log) if is_slow else _faults_in_log(log, only=BROKEN_DEVICES)
    if faults:
        slower = f" (it is {speed.slower_by:.0%} slower than predicted)" if is_slow else ""
        return " ".join([f"Start with what the log says{slower}.", *faults[:_MOST_FAULTS]])
    if not candidates:
        return (
            f"Nothing to fix: {speed.summary}, and no change that surely fits gains"
            f" {LEAST_GAIN:.0%} or more."
        )
    return max(candidates, key=lambda fix: fix.gain).words


def _faults_in_log(log: LogExplained | None, only: Sequence[ObservationCode] = FAULTS) -> list[str]:
    """Returns sentences on the faults that a log shows, the likeliest cause first."""
    observations = log.observations if log else []
    found = [one for code in only for one in observations if one.code == code]
    return [f"{_capitalised(one.message)}." for one in found]


def _fixes_of_gap(speed: SpeedExplained, gap: GapExplained | None) -> Iterator[_Fix]:
    if gap is None or gap.gap_s <= 0 or speed.slower_by is None:
        return
    words = f"Find out why it is {speed.slower_by:.0%} slower than predicted{_cause(gap)}"
    if gap.look_at is not None:
        words += f": look at {gap.look_at}"
    words += "."
    if gap.switches:
        suspect = gap.switches[0]
        words += (
            f" Check {suspect.switch} first: the prediction takes {suspect.field} to be"
            f" {value_in_words(suspect.assumed)}; with {value_in_words(suspect.otherwise)} a step"
            f" would take {rounded(suspect.step_time_s)} s."
        )
    yield _Fix(speed.slower_by, words)


def _cause(gap: GapExplained) -> str:
    """Returns the most likely cause of a gap, in words that follow the statement of the gap."""
    if gap.term is None or gap.probability is None:
        return f": {gap.summary}"
    term = TIME_TERMS[gap.term]
    undescribed = gap.undescribed_probability or 0.0
    if gap.probability > undescribed:
        return f", most likely in {term} (probability {percent(gap.probability)})"
    return (
        f". The cause is most likely nothing that a prediction describes (probability"
        f" {percent(undescribed)}): {NOT_DESCRIBED}. The likeliest term is {term}"
    )


def _simplest_first(found: Sequence[Remedy]) -> list[Remedy]:
    """The remedies that surely fit. The best layout of a search, which changes much at once, is
    left out where a single change gains much of what it does."""
    safe = [one for one in found if one.is_safe and one.gain is not None]
    single = max((one.gain or 0.0 for one in safe if one.change is not None), default=0.0)
    return [
        one
        for one in safe
        if one.change is not None or single < _MUCH_OF_THE_GAIN * (one.gain or 0.0)
    ]


def _fixes_of_layout(speed: SpeedExplained, safe: Sequence[Remedy]) -> Iterator[_Fix]:
    for remedy in safe:
        gain = remedy.gain or 0.0
        step_time_s = speed.measured_step_time_s or speed.predicted_step_time_s
        yield _Fix(
            gain,
            f"{_imperative(remedy)}: a step should take {saved_seconds(step_time_s, gain):.2g} s"
            f" less ({gain:.0%} more steps an hour), and it fits with a probability of"
            f" {percent(remedy.fit_probability)}.",
        )


def _fixes_of_log(observations: Sequence[Observation]) -> Iterator[_Fix]:
    for observation in observations:
        if observation.cost is not None and observation.cost >= LEAST_GAIN:
            gain = observation.cost / (1 - observation.cost)
            yield _Fix(gain, f"{_capitalised(observation.message)}.")


def saved_seconds(step_time_s: float, gain: float) -> float:
    """By how much a step of this length becomes shorter with a gain."""
    return step_time_s * (1 - 1 / (1 + gain))


def first_fix_of_reservations(reservations: Sequence[Reservation]) -> str:
    """Returns the first thing to do where settings of the launch were not understood: say them
    otherwise."""
    first = reservations[0]
    others = len(reservations) - 1
    more = f", and {others} more that `reservations` names" if others else ""
    return (
        f"The launch has {first.setting}, which is not understood ({first.reason}){more}. What is"
        f" said here is as if it were not there, and nothing is learnt from the run: {first.cure}."
    )


def first_fix_of_illegal(check: LayoutCheck) -> str:
    """Returns the first thing to do about a run that trained with a layout that its framework
    should refuse."""
    rule = check.broken_rules[0]
    return (
        f"Check the description of the run: it trained, though its layout breaks"
        f" {rule.rule.name}: {rule.message}. Legal would be {rule.cure}."
    )


def _imperative(remedy: Remedy) -> str:
    """A remedy as the beginning of a sentence."""
    if remedy.change is None:
        return f"Run {remedy.words}"
    if remedy.change.switch is not None:
        return _capitalised(remedy.words)
    return f"Change {remedy.words}"


def _capitalised(text: str) -> str:
    return text[0].upper() + text[1:]
