"""Logs of torchtitan. `tps` is tokens per second and device since the last such line, which early
versions call `wps`; `memory` is the most that was ever reserved."""

from __future__ import annotations

import math
import re

from service.formats.logs.lines import NUMBER, Line, Log, parse_timestamp
from service.formats.logs.steps import Findings, Step

_MARK = "step:"
_BEGIN = re.compile(
    rf"\s{{0,20}}(\d{{1,12}})\s{{1,20}}loss:\s{{0,20}}({NUMBER})(?=\s|$)", re.IGNORECASE
)
_LOOKS_LIKE_A_STEP = re.compile(r"\s{0,20}\d{1,12}\s{1,20}loss:")
_RATE = re.compile(
    r"\b[tw]ps:\s{0,20}([\d,]{1,30}(?:\.\d{1,9})?|nan|inf)(?=[\s\"\\]|$)", re.IGNORECASE
)
_TFLOPS = re.compile(r"\btflops:\s{0,20}([\d,]{1,12}\.\d{1,9})(?=[\s\"\\]|$)")
_GROUPED_NUMBER = re.compile(r"\d{1,3}(?:,\d{3})*(?:\.\d+)?|\d+(?:\.\d+)?|nan|inf", re.IGNORECASE)
_MEMORY = re.compile(r"memory:\s{0,20}(\d{1,9}(?:\.\d{1,9})?)([GM])iB")
_EVALUATION = "validate "


def find(log: Log) -> Findings:
    """Returns the steps and the memory peak of a torchtitan log, without those of evaluation."""
    findings = Findings()
    for line, before, after in log.around(_MARK):
        if not before.endswith(_EVALUATION):
            _read(line, before, after, findings)
    return findings


def _read(line: Line, before: str, after: str, findings: Findings) -> None:
    """Adds the step of "step: 10 loss: 9.8 memory: 45.2GiB(57.1%) tps: 5,432 tflops: 212.4 mfu:
    21.5%" to the findings, or notes that it could not be read."""
    begin = _BEGIN.match(after)
    rate = _RATE.search(after)
    # A rate that is cut off, such as 5,4 of 5,432, has no groups of three digits.
    if begin is None or rate is None or not _GROUPED_NUMBER.fullmatch(rate.group(1)):
        if _LOOKS_LIKE_A_STEP.match(after):
            findings.add_unread(line, "it has no tps or wps, or it is cut off")
        return
    index = int(begin.group(1))
    tokens_per_s = _without_commas(rate)
    tflops = _TFLOPS.search(after)
    flops = _without_commas(tflops) * 1e12 if tflops else 0.0
    findings.history.add(
        Step(
            number=index,
            line=line.number,
            value=tokens_per_s,
            # Tokens of a step are not printed, but all steps have equally many.
            time=1 / tokens_per_s if tokens_per_s else math.inf,
            finite=math.isfinite(float(begin.group(2))) and 0 < tokens_per_s < math.inf,
            is_start=index == 1,
            flops_per_token=flops / tokens_per_s if flops and tokens_per_s else None,
            label=line.label,
            timestamp=parse_timestamp(before),
        )
    )
    if memory := _MEMORY.search(after):
        per_gib = 1024 if memory.group(2) == "M" else 1
        findings.update_peak("reserved", float(memory.group(1)) / per_gib)


def _without_commas(match: re.Match[str]) -> float:
    """Returns a printed number without the commas between its digits: 5432.0 for "5,432"."""
    return float(match.group(1).replace(",", ""))
