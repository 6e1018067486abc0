"""Logs of MaxText. `seconds` is the time between two steps on the clock of the host, which can run
ahead of the devices at first.

Steps of a growing batch are marked `[Rampup Batch Size Phase]`. They are steps of other runs than
the one that is asked for, and never used.

`Tokens/s/device` is the tokens that a step trains on, over these seconds.
"""

from __future__ import annotations

import re

from service.formats.logs.lines import (
    NUMBER,
    Line,
    Log,
    is_finite,
    is_printed_in_full,
    positive_number,
)
from service.formats.logs.steps import Findings, Step

_MARK = "completed step:"
_STEP = re.compile(
    rf"\s{{0,20}}(\d{{1,12}}),\s{{0,20}}seconds:\s{{0,20}}({NUMBER})(?=[\s,\"\\]|$)(?!,\d)",
    re.IGNORECASE,
)
_LOSS = re.compile(rf"\bloss:\s{{0,20}}({NUMBER})", re.IGNORECASE)
_RATE = re.compile(rf"Tokens/s/device:\s{{0,20}}({NUMBER})(?=[\s,\"\\]|$)", re.IGNORECASE)
_TFLOPS = re.compile(rf"TFLOP/s/device:\s{{0,20}}({NUMBER})(?=[\s,\"\\]|$)", re.IGNORECASE)
_RAMP_UP_REACH = 100  # in front of a step, on its own line
_RAMP_UP = re.compile(r"ramp[-_ ]?up\b.{0,60}$", re.IGNORECASE)
"""Before the mark of a step."""
_PLAN = "Total memory size:"
_TOTAL = re.compile(r"\s{0,20}(\d{1,9}(?:\.\d{1,9})?) GB")


def find(log: Log) -> Findings:
    """Returns the steps of a MaxText log, and as memory what the compiler planned, in GiB, which
    MaxText prints as GB."""
    findings = Findings()
    for line, before, after in log.around(_MARK):
        _read(line, before, after, findings)
    findings.find_peaks(log, _PLAN, _TOTAL, "allocated")
    return findings


def _read(line: Line, before: str, after: str, findings: Findings) -> None:
    """Adds the step of "completed step: 7, seconds: 5.321, TFLOP/s/device: 210.5,
    Tokens/s/device: 3079.4, total_weights: 65536, loss: 9.8" to the findings, or notes that it
    could not be read. `before` and `after` are the text on either side of "completed step"."""
    step = _STEP.match(after)
    if step is None or not is_printed_in_full(step.group(2), after[step.end() :]):
        findings.add_unread(line, "it has no step and seconds, or they are cut off")
        return
    index = int(step.group(1))
    seconds = float(step.group(2))
    rate = positive_number(_RATE.search(after))
    tflops = positive_number(_TFLOPS.search(after))
    findings.history.add(
        Step.printed(
            line,
            before,
            seconds=seconds,
            number=index,
            finite=is_finite(_LOSS.search(after)),
            is_start=index == 0,
            is_ramp_up=_RAMP_UP.search(before[-_RAMP_UP_REACH:]) is not None,
            tokens=seconds * rate if rate else None,  # the rate is of this step's own seconds
            # FLOP/s of a device over its tokens/s.
            flops_per_token=tflops * 1e12 / rate if tflops and rate else None,
        )
    )
