"""Spans of time and the bars of tqdm, as trainers print them to say how far a run is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_CLOCK = re.compile(r"(?:(\d{1,4}) days?, )?(?:(\d{1,5}):)?(\d{1,2}):(\d\d(?:\.\d{1,9})?)")
_WORDS = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s?([dhms])\b")
_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_TIMES = re.compile(
    r" \[(?P<elapsed>[\d:]{4,12})<[\d:?]{1,12}, {1,9}"
    r"(?P<rate>\d{1,9}(?:\.\d{1,9})?)(?P<unit>s/it|it/s)"
)
"""The end of a bar, as tqdm draws it (tqdm/std.py, format_meter)."""
_COUNT = re.compile(r"(\d{1,12})/(\d{1,12})$")
_COUNT_REACH = 30  # two numbers of 12 digits and a stroke
_LABEL = re.compile(
    r"(?:^|[\s\]])([A-Za-z][\w ]{0,40}(?:\d/\d{1,6})?|\S{1,40}\)(?=:))?:?\s{0,9}\d{1,3}$"
)
_LABEL_REACH = 60  # a label of 40 characters and a percentage
_BAR_REACH = 300  # characters of a bar before its times
_SMOOTHING = 0.3
"""The weight of the last interval in tqdm's mean (tqdm/std.py, `smoothing`)."""
_DECIMALS = 6  # of a second: means have fewer, and arithmetic adds noise
_CLOCK_ERROR_S = 1.5
"""Seconds by which the clock of two drawings may be off: it is printed in whole seconds, and the
printed means are rounded too."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A drawing of a progress bar."""

    label: str
    """The words before it."""
    done: int
    total: int
    elapsed_s: float
    seconds: float
    """Seconds of an iteration: an exponential mean over the intervals between drawings."""


def bars_in(text: str) -> Iterator[Bar]:
    """Yields the drawings of progress bars in a text that show a time for an iteration. A bar may
    be cut off at its start, and then has no label."""
    for times in _TIMES.finditer(text):
        start = times.start()
        rate = float(times["rate"])
        # The count stands in front of the times: "12/100 [00:35<04:15, 2.90s/it".
        count = _COUNT.search(text[max(0, start - _COUNT_REACH) : start])
        if count is None or not rate > 0:
            continue
        # The label stands in front of the percentage: "Training:  45%|####".
        # A carriage return divides it from the drawing before.
        drawn = text[max(0, start - _BAR_REACH) : start].rpartition("\r")[2]
        before, _, _ = drawn.rpartition("%|")
        label = _LABEL.search(before[-_LABEL_REACH:])
        yield Bar(
            label=(label[1] or "").strip() if label else "",
            done=int(count[1]),
            total=int(count[2]),
            elapsed_s=span_s(times["elapsed"]) or 0.0,
            seconds=rate if times["unit"] == "s/it" else 1 / rate,
        )


def own_seconds(bars: Sequence[Bar]) -> list[float | None]:
    """Returns, for each drawing of one bar, the seconds of an iteration since the drawing before.
    It is None for a drawing that repeats the one before, and the drawn mean for the first drawing
    of a run.

    The drawn mean keeps a pause, such as an evaluation, for some ten drawings. tqdm divides an
    exponential mean of the seconds between drawings by one of their iterations. The seconds of one
    interval follow from two such means, and are held against the clock, which is too coarse to be
    used alone for short steps.
    """
    seconds = list[float | None]()
    last: Bar | None = None
    mean_iterations: float | None = None  # between drawings, weighted as tqdm does
    for bar in bars:
        if last is None or bar.done < last.done:  # a run begins, or the log begins within one
            seconds.append(bar.seconds)
            mean_iterations = _SMOOTHING if bar.done == 1 else None
        elif bar.done == last.done:
            seconds.append(None)
            continue
        else:
            iterations = bar.done - last.done
            earlier = iterations if mean_iterations is None else mean_iterations
            mean_iterations = _SMOOTHING * iterations + (1 - _SMOOTHING) * earlier
            mean_s = bar.seconds * mean_iterations
            interval_s = (mean_s - (1 - _SMOOTHING) * last.seconds * earlier) / _SMOOTHING
            clock_s = bar.elapsed_s - last.elapsed_s
            # They differ where drawings are missing from the log, or after a resumed run's start.
            if abs(interval_s - clock_s) > _CLOCK_ERROR_S:
                interval_s = clock_s
            seconds.append(round(interval_s / iterations, _DECIMALS))
        last = bar
    return seconds


def span_s(text: str) -> float | None:
    """Returns the seconds of a span of time such as "1:02:03", "35.25" or "1h 2m 3s"; None for
    any other text."""
    if clock := _CLOCK.fullmatch(text):
        days, hours, minutes, seconds = (float(part or 0) for part in clock.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    words = _WORDS.findall(text)
    if words and not _WORDS.sub("", text).strip():
        return sum(float(number) * _SECONDS[unit] for number, unit in words)
    return None
