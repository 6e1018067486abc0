"""Logs of Megatron-LM, Megatron-Core, Bridge, Primus and Megatron-DeepSpeed.

`elapsed time per iteration (ms)` is the mean over the iterations since the last such line. Where
forks print "current/average", the first is read. Primus prints tokens per second and GPU beside it.
The *dump* is the list of all arguments that Megatron prints between two rulers at its start.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from service.formats.logs.lines import (
    NUMBER,
    Line,
    Log,
    is_finite,
    is_printed_in_full,
    positive_number,
    printable,
)
from service.formats.logs.steps import Findings, Step

_MARK = "elapsed time per iteration"
_ITERATION = re.compile(r"iteration\s{1,20}(\d{1,12})\s{0,20}/\s{0,20}\d{1,12}", re.IGNORECASE)
_CUT_OFF = re.compile(
    r"iteration\s{1,20}\d{1,12}\s{0,20}/\s{0,20}\d{1,12}\s{0,20}\|\s{0,20}(?:consumed|elapsed|$)"
)
_TIME = re.compile(rf"\s{{0,20}}\((ms|s)\):\s{{0,20}}({NUMBER})(?=[\s|/,]|$)", re.IGNORECASE)
_LOSS = re.compile(rf"lm loss:\s{{0,20}}({NUMBER})", re.IGNORECASE)
_FAILED_ITERATIONS = re.compile(r"number of (?:skipped|nan) iterations:\s{0,20}(\d{1,12})")
_BATCH = re.compile(r"global batch size:\s{0,20}(\d{1,12})")

_MEMORY = "memory (MB)"
_RESERVED = re.compile(rf"max reserved:\s{{0,20}}({NUMBER})", re.IGNORECASE)
_ALLOCATED = re.compile(rf"max allocated:\s{{0,20}}({NUMBER})", re.IGNORECASE)
_MIB_IN_GIB = 1024
_SWIFT_MEMORY = "memory(GiB):"
_DEVICE_MEMORY = "mem usage/free/total/usage_ratio:"
_GIB_USED = re.compile(rf"\s{{0,20}}({NUMBER})\s?Gi?B\b", re.IGNORECASE)
_SHARE = "mem usages:"
_PLAIN_NUMBER = re.compile(rf"\s{{0,20}}({NUMBER})(%?)(?=[\s|,]|$)", re.IGNORECASE)
_DEVICE_RATE = re.compile(rf"\(tokens/s/GPU\):\s{{0,20}}({NUMBER})(?=[\s|/,]|$)", re.IGNORECASE)

_TFLOPS = re.compile(rf"\(TFLOP/s/GPU\):\s{{0,20}}({NUMBER})(?=[\s|/,]|$)", re.IGNORECASE)

_DUMP_START, _DUMP_END = "-- arguments --", "-- end of arguments --"
_ARGUMENT = re.compile(r"(?:^|\s)([A-Za-z_]\w{0,99}) \.{1,60} (.*)", re.ASCII)
_MAX_ARGUMENTS = 4000  # several times as many as Megatron has, for forks
_LINE_REACH = 5000  # characters of a line that are looked at
_NEOX_ORIGIN = re.compile(r"\.{1,60}(?:default|updated)$")
"""The end of a line of GPT-NeoX, which says whether the value is its default."""
_VOCABULARY = "padded vocab (size:"
_PADDED = re.compile(r"new size:\s{0,20}(\d{1,12})")


def find(log: Log) -> Findings:
    """Returns the steps and memory peaks of a log of Megatron or one of its forks."""
    findings = Findings()
    for line in log.lines(_MARK, "iteration "):
        _read(line, findings)
    # Later attempts follow a restart, and lose their first step in any case.
    if findings.history.attempts:
        _mark_start(findings.history.attempts[0])
    for _, _, after in log.around(_MEMORY):
        if reserved := _RESERVED.search(after):
            findings.update_peak("reserved", float(reserved.group(1)) / _MIB_IN_GIB)
        if allocated := _ALLOCATED.search(after):
            findings.update_peak("allocated", float(allocated.group(1)) / _MIB_IN_GIB)
    _find_memory_in_steps(log, findings)
    return findings


def _find_memory_in_steps(log: Log, findings: Findings) -> None:
    """Adds the memory that forks print in their lines of steps. Megatron-SWIFT prints what
    PyTorch has reserved, in GiB; Primus what is in use on the device, in units of 2**30 bytes;
    ROCm's Megatron-LM the share of the device's memory that is in use."""
    findings.find_peaks(log, _SWIFT_MEMORY, _PLAIN_NUMBER, "reserved")
    # There is no kind for what is in use on the device; what is reserved is nearest to it.
    findings.find_peaks(log, _DEVICE_MEMORY, _GIB_USED, "reserved")
    for _, _, after in log.around(_SHARE):
        if share := _PLAIN_NUMBER.match(after):
            parts = 100 if share.group(2) else 1  # a percentage, or a fraction
            findings.update_used_memory_share(float(share.group(1)) / parts)


def arguments(log: Log) -> Mapping[str, str]:
    """Returns the arguments that Megatron dumps between two rulers, as printed:
    {"micro_batch_size": "2"} for "micro_batch_size ........ 2". A later dump overrides an earlier
    one. Beyond _MAX_ARGUMENTS no new names are read.

    The padded size of the vocabulary is printed only after the dump, and is added.
    """
    values: dict[str, str] = {}
    for line in log.section(_DUMP_START, _DUMP_END):
        match = _ARGUMENT.search(line.text[:_LINE_REACH])
        if match and (match.group(1) in values or len(values) < _MAX_ARGUMENTS):
            value = _NEOX_ORIGIN.sub("", match.group(2).strip())  # 2 of "2 ......default"
            values[match.group(1)] = printable(value.strip())
    if values and values.get("padded_vocab_size", "None") == "None":
        for line in log.lines(_VOCABULARY):
            if padded := _PADDED.search(line.text[:_LINE_REACH]):
                values["padded_vocab_size"] = padded.group(1)
    return values


def _read(line: Line, findings: Findings) -> None:
    """Adds the step of "iteration 10/ 500 | elapsed time per iteration (ms): 5321.0 | lm loss:
    2.3E+00 |" to the findings, or notes that it could not be read."""
    if _MARK not in line.text:
        # Other lines than those of steps say "iteration" too, such as those of evaluation.
        if _CUT_OFF.search(line.text[:_LINE_REACH]):
            findings.add_unread(line, "it has no elapsed time")
        return
    for before, after in line.around(_MARK):
        iterations = _ITERATION.findall(before)
        time = _TIME.match(after)
        if not iterations:
            findings.add_unread(line, "it has no iteration number")
        elif not time or not is_printed_in_full(time.group(2), after[time.end() :]):
            findings.add_unread(line, "its elapsed time is no number, or cut off")
        else:
            seconds = float(time.group(2)) / (1000 if time.group(1).lower() == "ms" else 1)
            # The last iteration number is the one beside the time.
            findings.history.add(_step(line, int(iterations[-1]), seconds, before, after))


def _step(line: Line, iteration: int, seconds: float, before: str, after: str) -> Step:
    """Returns a step of `seconds`, with what else its line prints. `before` and `after` are the
    text on either side of "elapsed time per iteration"."""
    batch = _BATCH.search(after)
    device_rate = positive_number(_DEVICE_RATE.search(after))
    tflops = positive_number(_TFLOPS.search(after))
    # Iterations that were skipped or had a NaN did not do all the work of a step.
    failed = any(map(int, _FAILED_ITERATIONS.findall(after)))
    return Step.printed(
        line,
        before,
        seconds=seconds,
        number=iteration,
        finite=is_finite(_LOSS.search(after)) and not failed,
        batch=int(batch.group(1)) if batch else None,
        tokens=seconds * device_rate if device_rate else None,  # of one GPU
        # FLOP/s of a GPU over its tokens/s.
        flops_per_token=tflops * 1e12 / device_rate if tflops and device_rate else None,
    )


def _mark_start(attempt: list[Step]) -> None:
    """Marks the first step of an attempt as the start of the run where it includes iteration 1, so
    that it is left out as warm-up. Steps are printed at intervals, each the mean of its
    iterations."""
    # A first line at 10 of 10, 20, 30 is the mean of iterations 1 to 10; one at 110 is not.
    interval = attempt[1].number - attempt[0].number if len(attempt) > 1 else 1
    if attempt[0].number <= interval:
        attempt[0] = replace(attempt[0], is_start=True)
