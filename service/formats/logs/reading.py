"""A training log as one measurement: the step time that a person would read from it, and what it
rests on."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import accumulate
from statistics import median
from typing import Literal, get_args

import numpy as np

from models.errors import Invalid, UnknownName
from service.formats.logs import maxtext, megatron, nemo, nemo_parameters, torchtitan
from service.formats.logs.levels import stretches
from service.formats.logs.lines import Log, Unread
from service.formats.logs.steps import Found, MemoryKind, Step
from service.formats.logs.typical import Selection, select

Framework = Literal["megatron", "nemo", "torchtitan", "maxtext"]
Unit = Literal["step_time_s", "tokens_per_s_per_chip"]

FRAMEWORKS: tuple[Framework, ...] = get_args(Framework)

_FINDERS: dict[Framework, Callable[[Log], Found]] = {
    "megatron": megatron.find,
    "nemo": nemo.find,
    "torchtitan": torchtitan.find,
    "maxtext": maxtext.find,
}
_ARGUMENTS: dict[Framework, Callable[[Log], Mapping[str, str]]] = {
    "megatron": megatron.arguments,
    "nemo": nemo_parameters.arguments,
}
_WHOLE = re.compile(r"\d{1,12}", re.ASCII)
_UNITS: dict[Framework, Unit] = {"torchtitan": "tokens_per_s_per_chip"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A stretch of the steps used that keeps its speed: `value` is their median, from `first_step`
    on."""

    first_step: int
    steps: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """`value` is the median of the steps used, or of the level that the middle one has; `low` and
    `high` are their 10th and 90th percentile, all in `unit`.

    `left_out`: for each reason the steps not used, so that these and `steps_used` add up to
    `steps_found`. `restarts`: how often the step number went back. `global_batch`: sequences of
    those used, where printed. `device_tokens`: those of a step on each device, where that follows
    from what is printed. `memory_gib`: the largest peak printed; what was reserved rather than what
    was allocated of it, if both are. `levels`: more than one where the speed changed for good, by
    3% or more (levels.py). `unread`: lines that look like steps and could not be read, at most 20.
    `arguments`: as Megatron names them. `stamp`: the date and time printed beside the last step
    used; where steps have none, the last of another line.
    """

    framework: Framework
    unit: Unit
    value: float
    low: float
    high: float
    steps_found: int
    steps_used: int
    left_out: Mapping[str, int]
    levels: tuple[Level, ...]
    restarts: int
    global_batch: int | None
    device_tokens: float | None
    memory_gib: float | None
    memory_kind: MemoryKind | None
    unread: tuple[Unread, ...]
    arguments: Mapping[str, str]
    stamp: datetime | None


def read(text: str, framework: str | None = None, global_batch: int | None = None) -> Reading:
    """Of the steps of `framework`, or of the one whose steps the log has. Raises Invalid where
    there is no answer.

    Where the batch size grows, of the steps with `global_batch` sequences; without it, of those
    with as many as the arguments say, or as most steps have.
    """
    if framework is not None and framework not in FRAMEWORKS:
        raise UnknownName("framework", framework[:60], FRAMEWORKS)
    log = Log(text)
    found = {name: finder(log) for name, finder in _FINDERS.items()}
    name = _named(log, found, framework) if framework else _recognised(log, found)
    arguments = _ARGUMENTS[name](log) if name in _ARGUMENTS else {}
    said = arguments.get("global_batch_size", "")
    asked = global_batch or (int(said) if _WHOLE.fullmatch(said) else None)
    reading = _reading(name, found[name], select(found[name].runs, asked), arguments)
    return reading if reading.stamp else replace(reading, stamp=log.stamp)


def _named(log: Log, found: Mapping[Framework, Found], framework: str) -> Framework:
    name = next(name for name in FRAMEWORKS if name == framework)
    if not found[name].runs.count:
        raise Invalid("log", None, _nothing(log, found, [name]))
    return name


def _recognised(log: Log, found: Mapping[Framework, Found]) -> Framework:
    names = [name for name, each in found.items() if each.runs.count]
    if not names:
        raise Invalid("log", None, _nothing(log, found, FRAMEWORKS))
    if len(names) > 1:
        raise Invalid(
            "log", None, f"mixes {_counted(found)}; give the steps of one framework, or name it"
        )
    return names[0]


def _nothing(log: Log, found: Mapping[Framework, Found], sought: Sequence[Framework]) -> str:
    if log.is_blank:
        return "is empty"
    if not log.is_text:
        return "is not text"
    nothing = f"has no step of {' or '.join(sought)}"
    if counted := _counted(found):
        return f"{nothing}; it has {counted}"
    miss = next((miss for name in sought for miss in found[name].unread), None)
    return f"{nothing}; line {miss.line} looks like one, but {miss.reason}" if miss else nothing


def _counted(found: Mapping[Framework, Found]) -> str:
    return " and ".join(_steps(name, each) for name, each in found.items() if each.runs.count)


def _steps(name: Framework, found: Found) -> str:
    return f"{found.runs.count} step{'s' if found.runs.count > 1 else ''} of {name}"


def _reading(
    name: Framework, found: Found, selection: Selection, arguments: Mapping[str, str]
) -> Reading:
    if found.runs.only_falls:
        raise Invalid(
            "log", None, f"has {_steps(name, found)}, the newest first; turn its lines round"
        )
    if not selection.used:
        why = ", ".join(f"{count} {reason}" for reason, count in selection.left_out.items())
        raise Invalid("log", None, f"has {_steps(name, found)} and none to use: {why}")
    low, high = np.percentile([step.value for step in selection.used], [10, 90]).tolist()
    levels = tuple(_levels(selection.used))
    tokens = [
        step.tokens
        for step in selection.used
        if step.tokens is not None and math.isfinite(step.tokens)
    ]
    kind: MemoryKind | None = next(
        (kind for kind in ("reserved", "allocated") if kind in found.peaks), None
    )
    return Reading(
        framework=name,
        unit=_UNITS.get(name, "step_time_s"),
        value=_typical(selection.used, levels),
        low=low,
        high=high,
        steps_found=found.runs.count,
        steps_used=len(selection.used),
        left_out=selection.left_out,
        levels=levels,
        restarts=len(found.runs.stretches) - 1,
        global_batch=selection.batch,
        device_tokens=median(tokens) if tokens else None,
        memory_gib=found.peaks[kind] if kind else None,
        memory_kind=kind,
        unread=tuple(found.unread),
        arguments=arguments,
        stamp=selection.used[-1].stamp,
    )


def _typical(steps: Sequence[Step], levels: Sequence[Level]) -> float:
    """Between levels there may be a time that no step had."""
    values = [step.value for step in steps]
    if len(levels) == 1:
        return median(values)
    middle = sorted(range(len(values)), key=values.__getitem__)[(len(values) - 1) // 2]
    ends = accumulate(level.steps for level in levels)
    return next(level.value for level, end in zip(levels, ends, strict=True) if middle < end)


def _levels(steps: Sequence[Step]) -> Iterator[Level]:
    values = [step.value for step in steps]
    for level in stretches(values):
        members = values[level]
        yield Level(first_step=steps[level.start].number, steps=len(members), value=median(members))
