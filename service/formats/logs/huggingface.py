"""Logs of the Trainer of transformers, and of those that are built on it: TRL, axolotl,
LLaMA-Factory, Unsloth. Of three forms the first that a log has is read.

- Lines of LLaMA-Factory's `trainer_log.jsonl`: `"current_steps"` with `"elapsed_time"`, to the
  second (extras/callbacks.py).
- The bar of tqdm that the Trainer draws (trainer_callback.py), `12/100 [00:35<04:15, 2.90s/it]`.
  Evaluation draws bars of another length: those that took longest are of the training.
- What it prints in the end: `train_runtime` and `train_steps_per_second`, the means of the whole
  run, with its warm-up and evaluations (trainer_utils.py, speed_metrics).

A step is one of the optimizer. axolotl (utils/bench.py) and LLaMA-Factory (`vram_reserved`) print
memory in GiB.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from service.formats.logs.lines import NUMBER, Line, Log, is_finite, parse_timestamp
from service.formats.logs.progress import Bar, bars_in, span_s
from service.formats.logs.steps import Findings, MemoryKind, Step

_JSON_MARK = '"current_steps":'
_JSON = re.compile(r'\s{0,9}(\d{1,12}),.{0,400}?"elapsed_time": "([^"]{1,40})"')
_BAR_MARKS = ("s/it", "it/s")
_OF_TRAINING = re.compile(r"(?:train(?:ing)?|steps?|epochs? ?\d*|)", re.IGNORECASE)
"""The label before a progress bar of training. Other labels are of data sets and checkpoints."""
_STEPS_PER_SECOND = "train_steps_per_second"
_RUNTIME = "train_runtime"
_TOTAL = "Total optimization steps"
_VALUE = re.compile(
    rf"['\"]?\s{{0,40}}[:=]\s{{0,40}}['\"]?({NUMBER})(?=['\",\s}}]|$)", re.IGNORECASE
)
_SPAN = re.compile(r"['\"]?\s{0,40}[:=]\s{0,40}['\"]?([\d:.]{1,30})(?=['\",\s}]|$)")
_INTEGER = re.compile(r"\s{0,9}=\s{0,9}([\d,]{1,20})")
_LOSS = re.compile(rf"['\"]loss['\"]: ['\"]?({NUMBER})", re.IGNORECASE)
_PEAKS: dict[str, MemoryKind] = {
    "memory/max_allocated (GiB)": "allocated",
    "memory/max_mem_allocated(gib)": "allocated",
    "memory/device_reserved (GiB)": "reserved",
    "memory/device_mem_reserved(gib)": "reserved",
    "vram_allocated": "allocated",
    "vram_reserved": "reserved",
}


def find(log: Log) -> Findings:
    findings = Findings()
    for step in _journal(log) or _bars(log) or _whole_run(log):
        findings.history.add(step)
    for mark, kind in _PEAKS.items():
        for line in log.lines(mark):
            for _, after in line.around(mark):
                if peak := _VALUE.match(after):
                    findings.update_peak(kind, float(peak[1]))
    return findings


def _journal(log: Log) -> list[Step]:
    """The means of the steps between two lines of a `trainer_log.jsonl`."""
    seen: list[tuple[int, float, Line, str]] = []
    for line in log.lines(_JSON_MARK):
        for before, after in line.around(_JSON_MARK):
            match = _JSON.match(after)
            elapsed = span_s(match[2]) if match else None
            if match and elapsed is not None:
                seen.append((int(match[1]), elapsed, line, before + after))
    steps = list[Step]()
    for (earlier, start, _, _), (number, end, line, text) in pairwise(seen):
        if number > earlier and end >= start:
            steps.append(_step(line, number, (end - start) / (number - earlier), text))
    return steps


def _bars(log: Log) -> list[Step]:
    """A step for each bar of the training that says how long an iteration takes."""
    drawn: defaultdict[int, list[tuple[Bar, Line]]] = defaultdict(list)
    for line in log.lines(*_BAR_MARKS):
        for bar in bars_in(line.text):
            if bar.done and _OF_TRAINING.fullmatch(bar.what):
                drawn[bar.total].append((bar, line))
    if not drawn:
        return []
    of_training = max(drawn.values(), key=_longest_s)
    if _total_steps(log) in drawn:
        of_training = drawn[_total_steps(log) or 0]
    return [_step(line, bar.done, bar.seconds, line.text) for bar, line in of_training]


def _longest_s(drawn: Sequence[tuple[Bar, Line]]) -> tuple[float, int]:
    return max(bar.elapsed_s for bar, _ in drawn), len(drawn)


def _whole_run(log: Log) -> list[Step]:
    """The mean of a run that has ended."""
    steps = _total_steps(log)
    for line in log.lines(_RUNTIME):
        for before, after in line.around(_RUNTIME):
            runtime = _runtime_s(after)
            if steps and runtime:
                return [_step(line, steps, runtime / steps, before, starts=False)]
    for line in log.lines(_STEPS_PER_SECOND):
        for before, after in line.around(_STEPS_PER_SECOND):
            rate = _VALUE.match(after)
            if rate and float(rate[1]) > 0:
                return [_step(line, steps or 1, 1 / float(rate[1]), before, starts=False)]
    return []


def _runtime_s(after: str) -> float | None:
    """Returns the runtime, which a dictionary gives in seconds and the table of metrics in hours,
    minutes and seconds."""
    match = _SPAN.match(after)
    if match is None:
        return None
    if ":" in match[1]:
        return span_s(match[1])
    try:
        return float(match[1])
    except ValueError:
        return None


def _total_steps(log: Log) -> int | None:
    """Returns the number of steps that the Trainer announces for the last run of the log."""
    totals = [
        int(match[1].replace(",", ""))
        for line in log.lines(_TOTAL)
        for _, after in line.around(_TOTAL)
        if (match := _INTEGER.match(after))
    ]
    return totals[-1] if totals else None


def _step(line: Line, number: int, seconds: float, text: str, *, starts: bool = True) -> Step:
    loss = _LOSS.search(text)
    return Step(
        number=number,
        value=seconds,
        time=seconds,
        finite=is_finite(loss and loss[1]),
        is_start=starts and number == 1,
        label=line.label,
        timestamp=parse_timestamp(text[:200]),
    )
