"""Logs of the Trainer of transformers, and of those that are built on it: TRL, axolotl,
LLaMA-Factory, Unsloth. Of three forms the first that a log has is read.

- Lines of LLaMA-Factory's `trainer_log.jsonl`: `"current_steps"` with `"elapsed_time"`, to the
  second (extras/callbacks.py).
- The bar of tqdm that the Trainer draws (trainer_callback.py), `12/100 [00:35<04:15, 2.90s/it]`. A
  step's own time is worked out from the means of two drawings (`progress.own_seconds`).
  Evaluation draws bars of another length: those that took longest are of the training, unless a
  later run follows.
- What it prints in the end: `train_runtime` and `train_steps_per_second`, the means of the whole
  run, with its warm-up and evaluations (trainer_utils.py, speed_metrics). The runtime of a resumed
  run begins at the resume, and its steps are counted from there.

A step is one of the optimizer. axolotl (utils/bench.py) and LLaMA-Factory (`vram_reserved`) print
memory in GiB.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.formats.logs.lines import NUMBER, Line, Log, is_finite, positive_number
from service.formats.logs.progress import Bar, bars_in, own_seconds, span_s
from service.formats.logs.steps import Findings, MemoryKind, Step

_JSON_MARK = '"current_steps":'
_JSON = re.compile(r'\s{0,9}(\d{1,12}),.{0,400}?"elapsed_time": "([^"]{1,40})"')
_BAR_MARKS = ("s/it", "it/s")
_OF_TRAINING = re.compile(r"(?:train(?:ing)?|steps?|)", re.IGNORECASE)
"""The label before a progress bar of training. Other labels are of data sets and checkpoints, or of
epochs: such bars, of Lightning and others, count batches, of which a step may have several."""
_STEPS_PER_SECOND = "train_steps_per_second"
_RUNTIME = "train_runtime"
_TOTAL = "Total optimization steps"
_RESUMED = "Continuing training from global step"
_RESUMED_FROM = re.compile(rf"{_RESUMED} (\d{{1,12}})")
_VALUE = re.compile(
    rf"['\"]?\s{{0,40}}[:=]\s{{0,40}}['\"]?({NUMBER})(?=['\",\s}}]|$)", re.IGNORECASE
)
_SPAN = re.compile(r"['\"]?\s{0,40}[:=]\s{0,40}['\"]?([\d:.]{1,30})(?=['\",\s}]|$)")
_INTEGER = re.compile(r"\s{0,9}=\s{0,9}([\d,]{1,20})")
_LOSS = re.compile(rf"['\"]loss['\"]: ['\"]?({NUMBER})", re.IGNORECASE)
_EVALUATED = re.compile(r"['\"]eval_\w|Running (?:Evaluation|Prediction)|eval metrics")
"""The words that the Trainer prints of an evaluation."""
_PEAKS: dict[str, MemoryKind] = {
    "memory/max_allocated (GiB)": "allocated",
    "memory/max_mem_allocated(gib)": "allocated",
    "memory/device_reserved (GiB)": "reserved",
    "memory/device_mem_reserved(gib)": "reserved",
    "vram_allocated": "allocated",
    "vram_reserved": "reserved",
}


@dataclass(frozen=True, slots=True)
class _Drawing:
    """A drawing of a progress bar, and the line that it stands in."""

    bar: Bar
    line: Line


def find(log: Log) -> Findings:
    """Returns the steps and memory peaks of a log of the Trainer. Steps come from
    trainer_log.jsonl, else from progress bars, else from the summary at the end."""
    findings = Findings()
    for step in _steps_of_journal(log) or _steps_of_bars(log, findings) or _mean_step_of_run(log):
        findings.history.add(step)
    for mark, kind in _PEAKS.items():
        findings.find_peaks(log, mark, _VALUE, kind)
    return findings


def _steps_of_journal(log: Log) -> list[Step]:
    """Returns a step with the mean time between each two lines of a trainer_log.jsonl:
    {"current_steps": 10, "total_steps": 500, "loss": 2.3, "elapsed_time": "0:00:35"}."""
    steps = list[Step]()
    last_number: int | None = None
    last_elapsed_s = 0.0
    for line, before, after in log.around(_JSON_MARK):
        match = _JSON.match(after)
        elapsed_s = span_s(match[2]) if match else None
        if match is None or elapsed_s is None:
            continue
        number = int(match[1])
        # A number or a clock that falls back begins another run, whose first line has no mean.
        if last_number is not None and number > last_number and elapsed_s >= last_elapsed_s:
            seconds = (elapsed_s - last_elapsed_s) / (number - last_number)
            steps.append(_step(line, number, seconds, before + after))
        last_number = number
        last_elapsed_s = elapsed_s
    return steps


def _steps_of_bars(log: Log, findings: Findings) -> list[Step]:
    """Returns a step for each drawing of the training's progress bar that has a new count and a
    time for an iteration. Of several runs the last counts, and `findings` notes the others."""
    drawn: defaultdict[int, list[_Drawing]] = defaultdict(list)
    for line in log.lines(*_BAR_MARKS):
        for bar in bars_in(line.text):
            if bar.done and _OF_TRAINING.fullmatch(bar.label):
                drawn[bar.total].append(_Drawing(bar, line))
    if not drawn:
        return []
    runs = _bars_of_runs(log, drawn)
    findings.earlier_runs = len(runs) - 1
    times = own_seconds([drawing.bar for drawing in runs[-1]])
    return [
        _step(drawing.line, drawing.bar.done, seconds, drawing.line.text)
        for drawing, seconds in zip(runs[-1], times, strict=True)
        if seconds is not None
    ]


def _bars_of_runs(log: Log, drawn: Mapping[int, Sequence[_Drawing]]) -> list[Sequence[_Drawing]]:
    """Returns the drawings of the bar of each run in a log, the last run last. `drawn` has the
    drawings of each bar by its length. Bars of runs have a total of steps that the log announces.
    Where it announces none, the bar that took longest is one, and so is a bar that is first drawn
    when that one had ended."""
    totals = _announced_totals(log)
    if totals and totals[-1] in drawn:
        last_first = dict.fromkeys(reversed(totals))
        return [drawn[total] for total in reversed(last_first) if total in drawn]
    runs = [max(drawn.values(), key=_length)]
    last_loss = _last_line(log, _LOSS, "loss")
    last_evaluation = _last_line(log, _EVALUATED, "eval", "Running ")
    for drawings in drawn.values():  # in the order of their first drawings
        end = runs[-1][-1].line.number
        # An evaluation is no run. Losses of a training follow only in another run.
        is_run = last_loss >= end or (last_evaluation < end and _is_closed(runs[-1]))
        if drawings[0].line.number > end and is_run:
            runs.append(drawings)
    return runs


def _length(drawings: Sequence[_Drawing]) -> tuple[float, int]:
    """Returns how long a bar took. The number of its drawings tells apart bars that took equally
    long."""
    return max(drawing.bar.elapsed_s for drawing in drawings), len(drawings)


def _is_closed(drawings: Sequence[_Drawing]) -> bool:
    """Returns whether the process that drew a bar had ended: tqdm then draws the bar once more,
    with the mean of all its iterations."""
    if len(drawings) == 1:
        return False
    before, last = drawings[-2].bar, drawings[-1].bar
    return before.done == last.done and before.seconds != last.seconds


def _last_line(log: Log, pattern: re.Pattern[str], *marks: str) -> int:
    """Returns the number of the last line that has the pattern, among those that contain one of the
    marks; 0 where none has it."""
    return max((line.number for line in log.lines(*marks) if pattern.search(line.text)), default=0)


def _mean_step_of_run(log: Log) -> list[Step]:
    """Returns the mean step time of a finished run as one step, from train_runtime or
    train_steps_per_second; no step where neither is printed. Of several runs the last counts."""
    total = next(reversed(_announced_totals(log)), None)
    resumed_from = _resumed_from(log)
    for line, before, after in reversed([*log.around(_RUNTIME)]):
        runtime = _runtime_s(after)
        rate = positive_number(_VALUE.match(after.partition(_STEPS_PER_SECOND)[2]))
        steps = total or (round(rate * runtime) if rate and runtime else 0)
        if runtime and steps > resumed_from:
            seconds = runtime / (steps - resumed_from)
            return [_step(line, steps, seconds, before, starts=False)]
    if resumed_from:  # the printed rate also counts the steps that were done before
        return []
    for line, before, after in reversed([*log.around(_STEPS_PER_SECOND)]):
        rate = positive_number(_VALUE.match(after))
        if rate:  # the step number is only shown, so 1 will do
            return [_step(line, total or 1, 1 / rate, before, starts=False)]
    return []


def _runtime_s(after: str) -> float | None:
    """Returns the runtime in seconds, printed as seconds or as hours, minutes and seconds; None
    where it is neither."""
    match = _SPAN.match(after)
    if match is None:
        return None
    if ":" in match[1]:
        return span_s(match[1])
    try:
        return float(match[1])
    except ValueError:
        return None


def _announced_totals(log: Log) -> list[int]:
    """Returns the number of steps that the Trainer announces for each run in the log."""
    return [
        int(match[1].replace(",", ""))
        for _, _, after in log.around(_TOTAL)
        if (match := _INTEGER.match(after))
    ]


def _resumed_from(log: Log) -> int:
    """Returns the step from which the last run in the log was resumed; 0 where it began anew."""
    step = 0
    for line in log.lines(_TOTAL, _RESUMED):  # the total is announced first
        match = _RESUMED_FROM.search(line.text)
        step = int(match[1]) if match else 0
    return step


def _step(line: Line, number: int, seconds: float, text: str, *, starts: bool = True) -> Step:
    """Returns a step of `seconds`. `text` is searched for its loss and, at its beginning, for a
    timestamp. `starts` is False for a mean over the whole run."""
    return Step.printed(
        line,
        text[:200],
        seconds=seconds,
        number=number,
        finite=is_finite(_LOSS.search(text)),
        is_start=starts and number == 1,
    )
