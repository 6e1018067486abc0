"""Logs of torchtitan. `tps` is tokens per second and device since the last such line, which early
versions call `wps`; `memory` is the most that was ever reserved."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from service.formats.logs.lines import NUMBER, Line, Log, is_finite, parse_timestamp
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
    findings = Findings()
    for line in log.lines(_MARK):
        for before, after in line.around(_MARK):
            if not before.endswith(_EVALUATION):
                _read(line, before, after, findings)
    return findings


def _read(line: Line, before: str, after: str, findings: Findings) -> None:
    begin = _BEGIN.match(after)
    rate = _RATE.search(after)
    memory = _MEMORY.search(after)
    if begin and rate and _GROUPED_NUMBER.fullmatch(rate.group(1)):
        tokens_per_s = float(rate.group(1).replace(",", ""))
        step = _step(line, int(begin.group(1)), begin.group(2), tokens_per_s)
        tflops = _TFLOPS.search(after)
        flops = float(tflops.group(1).replace(",", "")) * 1e12 if tflops else 0.0
        findings.history.add(
            replace(
                step,
                timestamp=parse_timestamp(before),
                flops_per_token=flops / tokens_per_s if flops and tokens_per_s else None,
            )
        )
        if memory:
            per_gib = 1024 if memory.group(2) == "M" else 1
            findings.update_peak("reserved", float(memory.group(1)) / per_gib)
    elif _LOOKS_LIKE_A_STEP.match(after):
        findings.add_unread(line, "it has no tps or wps, or it is cut off")


def _step(line: Line, index: int, loss: str, rate: float) -> Step:
    return Step(
        number=index,
        value=rate,
        time=1 / rate if rate else math.inf,
        finite=is_finite(loss) and 0 < rate < math.inf,
        is_start=index == 1,
        label=line.label,
    )
