"""Logs of DeepSpeed. Of three forms the first that a log has is read, since it is the most exact.

- `iter time (s)` of the pipeline engine: the mean since the last such line
  (runtime/pipe/engine.py).
- `CurrSamplesPerSec` of the throughput timer: the samples of a step over its time
  (utils/timer.py). Early versions print `SamplesPerSec`, which is a running mean. The
  configuration that DeepSpeed prints has the samples of a step (`train_batch_size`).
- `wall_clock_breakdown`: `time (ms) | fwd: … | bwd: … | step: …` after each step, whose sum is the
  time of the step but for its data (runtime/engine.py). Steps are numbered as they come.

Memory is printed in 2**30 bytes as GB.
"""

from __future__ import annotations

import re

from service.formats.logs.lines import NUMBER, Line, Log
from service.formats.logs.stated_facts import stated_facts
from service.formats.logs.steps import Findings, Step

_RATE_MARKS = ("CurrSamplesPerSec=", ", SamplesPerSec=")
_STEP_OF_RATE = re.compile(
    r"(?:global_step=|\d{1,9}/)(\d{1,12})(?:, RunningAvgSamplesPerSec=\S{1,40} )?$"
)
_RATE = re.compile(rf"({NUMBER})(?=[,\s]|$)", re.IGNORECASE)
_MAX_ALLOCATED = re.compile(rf"MaxMemAllocated=({NUMBER})GB", re.IGNORECASE)
_PIPELINE_MARK = "iter time (s):"
_STEP_OF_PIPELINE = re.compile(r"steps: (\d{1,12}) loss: ")
_SECONDS = re.compile(rf"\s{{0,9}}({NUMBER})(?=\s)", re.IGNORECASE)
_BREAKDOWN_MARK = "time (ms) |"
_OF_A_STEP = re.compile(rf" (fwd|bwd|step): ({NUMBER})(?=\s|$)", re.IGNORECASE)
_WHOLE_STEP = {"fwd", "bwd", "step"}


def find(log: Log) -> Findings:
    """Returns the steps of a log in the most exact of DeepSpeed's three forms that it has."""
    for read in (_pipeline_steps, _throughput_steps, _breakdown_steps):
        findings = read(log)
        # Unread lines of a form are told, rather than a less exact form read in its place.
        if findings.history.count or findings.unread:
            return findings
    return Findings()


def _pipeline_steps(log: Log) -> Findings:
    """Returns the steps of lines such as "steps: 10 loss: 2.3 iter time (s): 1.5 samples/sec:
    42.7"."""
    findings = Findings()
    for line, before, after in log.around(_PIPELINE_MARK):
        number = _STEP_OF_PIPELINE.search(before)
        seconds = _SECONDS.match(after)
        if number and seconds:
            findings.history.add(_step(line, int(number[1]), float(seconds[1]), before))
        elif number:
            findings.add_unread(line, "its time is no number, or cut off")
    return findings


def _throughput_steps(log: Log) -> Findings:
    """Returns the steps of lines such as "global_step=10, …, CurrSamplesPerSec=61.2". Times are
    in seconds a step where the log states one global batch, and otherwise in seconds a sample."""
    findings = Findings()
    batches = {
        statement.value for statement in stated_facts(log.text) if statement.fact == "global_batch"
    }
    batch = int(batches.pop()) if len(batches) == 1 else None
    findings.in_samples = batch is None  # the reader multiplies by the batch of the request
    # Without any of the marks the loop finds nothing, whichever mark is taken.
    mark = next((mark for mark in _RATE_MARKS if mark in log.text), _RATE_MARKS[0])
    for line, before, after in log.around(mark):
        number = _STEP_OF_RATE.search(before)
        rate = _RATE.match(after)
        if number is None or rate is None or not float(rate[1]) > 0:
            findings.add_unread(line, "it has no step and samples per second, or they are cut off")
            continue
        seconds = (batch or 1) / float(rate[1])
        findings.history.add(_step(line, int(number[1]), seconds, before, batch))
        if peak := _MAX_ALLOCATED.search(after):
            findings.update_peak("allocated", float(peak[1]))
    return findings


def _breakdown_steps(log: Log) -> Findings:
    """Returns the steps of lines such as "time (ms) | fwd: 120.1 | bwd: 250.2 | step: 12.3",
    numbered in their order."""
    findings = Findings()
    number = 0
    for line, before, after in log.around(_BREAKDOWN_MARK):
        parts = {name: float(ms) for name, ms in _OF_A_STEP.findall(after)}
        if parts.keys() == _WHOLE_STEP:  # other such lines have the times of micro-steps
            number += 1
            findings.history.add(_step(line, number, sum(parts.values()) / 1000, before))
    return findings


def _step(line: Line, number: int, seconds: float, before: str, batch: int | None = None) -> Step:
    """Returns a step of `seconds`. `before` is the text in front of its time, which may have a
    timestamp."""
    is_start = number == 1
    return Step.printed(
        line, before, seconds=seconds, number=number, is_start=is_start, batch=batch
    )
