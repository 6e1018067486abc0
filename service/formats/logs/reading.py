"""A training log as one measurement: the step time that a person would read from it, and what that
rests on.

*Findings* are the steps and memory peaks of one framework in a log, before any are selected. A
*speed regime* is a stretch of steps that keep one speed. *Unread* lines look like steps and could
not be read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import accumulate
from statistics import median
from typing import Literal, get_args

import numpy as np

from models.errors import Invalid
from service.formats.logs import (
    deepspeed,
    foreign,
    huggingface,
    maxtext,
    megatron,
    nemo,
    nemo_parameters,
    swift,
    torchtitan,
)
from service.formats.logs.lines import Log, Unread
from service.formats.logs.speed_regimes import speed_regimes
from service.formats.logs.step_selection import Selection, select
from service.formats.logs.steps import Findings, MemoryKind, Step
from service.nearest_names import unknown_name

Framework = Literal[
    "megatron", "nemo", "torchtitan", "maxtext", "ms-swift", "deepspeed", "huggingface"
]
Unit = Literal["step_time_s", "tokens_per_s_per_chip"]

FRAMEWORKS: tuple[Framework, ...] = get_args(Framework)

_FINDERS: dict[Framework, Callable[[Log], Findings]] = {
    "megatron": megatron.find,
    "nemo": nemo.find,
    "torchtitan": torchtitan.find,
    "maxtext": maxtext.find,
    "ms-swift": swift.find,
    "deepspeed": deepspeed.find,
    "huggingface": huggingface.find,
}
_BENEATH: tuple[Framework, ...] = ("ms-swift", "deepspeed", "huggingface")
"""Frameworks on which others are built, so that their lines stand in the logs of those others. One
of them is read only where no other framework has steps: the first in this order that has some."""
_ARGUMENTS: dict[Framework, Callable[[Log], Mapping[str, str]]] = {
    "megatron": megatron.arguments,
    "nemo": nemo_parameters.arguments,
}
_WHOLE = re.compile(r"\d{1,12}", re.ASCII)
_UNITS: dict[Framework, Unit] = {"torchtitan": "tokens_per_s_per_chip"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedRegime:
    """Consecutive steps, of those used, that keep one speed."""

    first_step: int
    """The number of the first of them."""
    steps: int
    """The number of steps of the regime."""
    value: float
    """Their median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A reading of a log. `steps_used` and the counts of `left_out` add up to `steps_found`."""

    framework: Framework
    unit: Unit
    """The unit of `value`, `low` and `high`."""
    value: float
    """The median of the steps used, or of the speed regime that the middle one is in."""
    low: float
    """The 10th percentile of the steps used."""
    high: float
    """Their 90th percentile."""
    steps_found: int
    steps_used: int
    last_line: int
    """The line, from 1, that the last step found begins in, used or not. A step that repeats the
    number of the one before, as a bar does that is drawn again, is none."""
    left_out: Mapping[str, int]
    """For each reason the number of steps that were not used."""
    regimes: tuple[SpeedRegime, ...]
    """More than one where the speed changed for good, by 3% or more."""
    restarts: int
    """The number of times that the step number went back."""
    earlier_runs: int
    """The number of runs of other lengths in the log, before the one that was read."""
    global_batch: int | None
    """Sequences of the steps used, where they are printed."""
    device_tokens: float | None
    """Tokens of a step on each device, where they follow from what is printed."""
    flops_per_token: float | None
    """FLOPs of the model for a token, where they follow from what is printed."""
    memory_gib: float | None
    """The largest peak printed."""
    memory_kind: MemoryKind | None
    """"reserved" if such peaks are printed, else "allocated"."""
    used_memory_share: float | None
    """The largest share of a device's memory in use, where no peak is printed and that is."""
    unread: tuple[Unread, ...]
    """Lines that look like steps and could not be read, at most 20."""
    arguments: Mapping[str, str]
    """The arguments of the run, as Megatron names them."""
    timestamp: datetime | None
    """The date and time printed beside the last step used; where steps have none, those at the
    start of the last line that has any."""


@dataclass(frozen=True, slots=True)
class RunArguments:
    """The arguments that a log prints, in Megatron's names."""

    framework: Framework
    values: Mapping[str, str]


_FindingsByFramework = Mapping[Framework, Findings]


def read(text: str, framework: str | None = None, global_batch: int | None = None) -> Reading:
    """Returns the step time of a log, from the steps of `framework`, or of the only framework whose
    steps it has.

    Only steps with `global_batch` sequences are used; without it, those with the batch that the
    log's arguments state, or else the most frequent one. Raises UnknownName for a framework that
    is not supported, and Invalid where the log has no answer.
    """
    if framework is not None and framework not in FRAMEWORKS:
        raise unknown_name("framework", framework[:60], FRAMEWORKS)
    log, findings = _find_steps(Log(text), framework)
    if framework:
        name = _require_steps_of(framework, log, findings)
    else:
        name = _recognise_framework(log, findings)
    arguments = _ARGUMENTS[name](log) if name in _ARGUMENTS else {}
    batch_argument = arguments.get("global_batch_size", "")
    if not global_batch and _WHOLE.fullmatch(batch_argument):  # it may be "None"
        global_batch = int(batch_argument)
    if findings[name].in_samples:  # times are of one sequence; those of a step are asked for
        findings[name].history.scale(_samples_of_a_step(name, findings[name], global_batch))
    selection = select(findings[name].history, global_batch)
    reading = _reading_of_steps(name, findings[name], selection, arguments)
    return reading if reading.timestamp else replace(reading, timestamp=log.timestamp)


def read_arguments(text: str, framework: str | None = None) -> RunArguments | None:
    """Returns the arguments that a log prints, whether or not it has steps: those of
    `framework`, or of the first framework that printed some. None where there are none."""
    log = Log(text)
    for name, read_from in _ARGUMENTS.items():
        if framework in (None, name) and (values := read_from(log)):
            return RunArguments(name, values)
    return None


def _find_steps(log: Log, framework: str | None) -> tuple[Log, _FindingsByFramework]:
    """Returns the findings of each framework, and the log that they are from: `log`, or a log in
    which lines are joined that a terminal seems to have wrapped, if that reads at least as well.
    Joining is tried even where every piece can be read, because a piece may end within a
    number."""
    best = log
    findings = _findings(log, framework)
    for every_full_line in (False, True):
        unwrapped = log.unwrapped(every_full_line=every_full_line)
        if unwrapped is None:
            continue
        joined = _findings(unwrapped, framework)
        before = _legibility(findings)  # (steps, minus the unread lines)
        after = _legibility(joined)
        has_more_steps = after[0] > before[0]
        reads_as_well = after > before or (after == before and _is_legible(findings))
        # Joining every full line also joins lines that were not wrapped, and hides unread ones, so
        # it must find more steps.
        if has_more_steps or (reads_as_well and not every_full_line):
            best = unwrapped
            findings = joined
        if _is_legible(findings):
            break
    return best, findings


def _findings(log: Log, requested: str | None) -> _FindingsByFramework:
    """Returns the findings by framework. Trainers in `_BENEATH`, such as that of transformers, also
    print lines in the logs of frameworks that are built on them. So one of them has findings only
    where it is requested, or where no other framework and none before it has steps."""
    findings = {name: find(log) for name, find in _FINDERS.items()}
    with_steps = [name for name in findings if findings[name].history.count]
    with_own_steps = [name for name in with_steps if name not in _BENEATH]
    # Without any step all keep their findings, whose unread lines an error quotes.
    counted = {requested, *(with_own_steps or with_steps[:1] or FRAMEWORKS)}
    for name in _BENEATH:
        if name not in counted:
            findings[name] = Findings()
    return findings


def _is_legible(findings: _FindingsByFramework) -> bool:
    """Returns True where the log has steps, and every line that looks like a step could be read."""
    steps, minus_unread = _legibility(findings)
    return steps > 0 and minus_unread == 0


def _legibility(findings: _FindingsByFramework) -> tuple[int, int]:
    """Returns the number of steps, and the negated number of lines that look like steps and
    could not be read. Of two pairs the greater is the better reading."""
    steps = sum(of_framework.history.count for of_framework in findings.values())
    unread = sum(len(of_framework.unread) for of_framework in findings.values())
    return steps, -unread


def _require_steps_of(framework: str, log: Log, findings: _FindingsByFramework) -> Framework:
    """Returns the framework of this name. Raises Invalid where the log has no steps of it."""
    name = next(name for name in FRAMEWORKS if name == framework)  # typed as a Framework
    if not findings[name].history.count:
        raise Invalid("log", None, _no_steps_rule(log, findings, [name]))
    return name


def _recognise_framework(log: Log, findings: _FindingsByFramework) -> Framework:
    """Returns the only framework whose steps the log has. Raises Invalid where it has none, or
    several."""
    names = [name for name, of_framework in findings.items() if of_framework.history.count]
    if not names:
        raise Invalid("log", None, _no_steps_rule(log, findings, FRAMEWORKS))
    if len(names) > 1:
        rule = f"mixes {_step_counts(findings)}; give the steps of one framework, or name it"
        raise Invalid("log", None, rule)
    return names[0]


def _samples_of_a_step(name: Framework, findings: Findings, global_batch: int | None) -> int:
    """Returns the samples of a step, for times that are counted by sample. Raises Invalid where
    the global batch is not known."""
    if global_batch is None:
        rule = (
            f"has {_step_count(name, findings)} in samples per second, and does not say how many"
            " samples a step has: send the lines with train_batch_size too, or give"
            " workload.global_batch"
        )
        raise Invalid("log", None, rule)
    return global_batch


def _no_steps_rule(log: Log, findings: _FindingsByFramework, sought: Sequence[Framework]) -> str:
    """Returns the sentence, for an error, that says why no steps of the frameworks in `sought`
    were found."""
    if log.is_blank:
        return "is empty"
    if not log.is_text:
        return "is not text"
    rule = f"has no step of {' or '.join(sought)}"
    if counts := _step_counts(findings):
        return f"{rule}; it has {counts}"
    unread = next((line for name in sought for line in findings[name].unread), None)
    if unread is not None:
        return (
            f"{rule}; line {unread.line} looks like one, but {unread.reason}: send the lines whole,"
            " as the file has them, or send measured.step_time_s to POST /v1/reports"
        )
    if known := foreign.recognise(log.text):
        return f"{rule}; {known.rule}"
    return (
        f"{rule}: paste the lines that have the time of a step, or send measured.step_time_s to"
        " POST /v1/reports"
    )


def _step_counts(findings: _FindingsByFramework) -> str:
    """Returns the number of steps of each framework in words, for an error."""
    counts = [
        _step_count(name, of_framework)
        for name, of_framework in findings.items()
        if of_framework.history.count
    ]
    return " and ".join(counts)


def _step_count(name: Framework, findings: Findings) -> str:
    count = findings.history.count
    return f"{count} step{'s' if count > 1 else ''} of {name}"


def _reading_of_steps(
    name: Framework, findings: Findings, selection: Selection, arguments: Mapping[str, str]
) -> Reading:
    """Returns the step time of the selected steps, and everything else that they tell. Raises
    Invalid where no step can be used."""
    if findings.history.is_reversed:
        rule = f"has {_step_count(name, findings)}, the newest first; turn its lines round"
        raise Invalid("log", None, rule)
    if selection.left_out.get("ramp_up") == findings.history.count:
        rule = (
            f"has {_step_count(name, findings)}, and every step is of the ramp-up phase, whose"
            " batch is not yet that of the run: send the log with some steps after it"
        )
        raise Invalid("log", None, rule)
    if not selection.used:
        why = ", ".join(f"{count} {reason}" for reason, count in selection.left_out.items())
        raise Invalid("log", None, f"has {_step_count(name, findings)} and none to use: {why}")
    low, high = np.percentile([step.value for step in selection.used], [10, 90]).tolist()
    regimes = tuple(_regimes(selection.used))
    # A device runs out by what is reserved, which is more than what is allocated.
    kind: MemoryKind | None = next(
        (kind for kind in ("reserved", "allocated") if kind in findings.peaks), None
    )
    return Reading(
        framework=name,
        unit=_UNITS.get(name, "step_time_s"),
        value=_typical_value(selection.used, regimes),
        low=low,
        high=high,
        steps_found=findings.history.count,
        steps_used=len(selection.used),
        last_line=findings.history.attempts[-1][-1].line,
        left_out=selection.left_out,
        regimes=regimes,
        restarts=len(findings.history.attempts) - 1,
        earlier_runs=findings.earlier_runs,
        global_batch=selection.batch,
        device_tokens=_median(step.tokens for step in selection.used),
        flops_per_token=_median(step.flops_per_token for step in selection.used),
        memory_gib=findings.peaks[kind] if kind else None,
        memory_kind=kind,
        used_memory_share=None if kind else findings.used_memory_share,  # a peak says more
        unread=tuple(findings.unread),
        arguments=arguments,
        timestamp=selection.used[-1].timestamp,
    )


def _median(values: Iterable[float | None]) -> float | None:
    """Returns the median of the values that are known and positive; None where none is."""
    known = [value for value in values if value is not None and 0 < value < math.inf]
    return median(known) if known else None


def _typical_value(steps: Sequence[Step], regimes: Sequence[SpeedRegime]) -> float:
    """Returns the median of the steps. Where the run had several speeds, it is the median of the
    regime that holds the middle value: the mean of two speeds is a value that no step had."""
    values = [step.value for step in steps]
    if len(regimes) == 1:
        return median(values)
    # `middle` is the index of the step with the middle value. A regime holds the indices below its
    # end, from the end of the one before.
    middle = sorted(range(len(values)), key=values.__getitem__)[(len(values) - 1) // 2]
    ends = accumulate(regime.steps for regime in regimes)
    return next(regime.value for regime, end in zip(regimes, ends, strict=True) if middle < end)


def _regimes(steps: Sequence[Step]) -> Iterator[SpeedRegime]:
    """Yields the stretches of consecutive steps that keep one speed, each with its first step's
    number, its length and its median."""
    values = [step.value for step in steps]
    for regime in speed_regimes(values):
        regime_values = values[regime]
        yield SpeedRegime(
            first_step=steps[regime.start].number,
            steps=len(regime_values),
            value=median(regime_values),
        )
