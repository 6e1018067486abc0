"""Sentences on what a launch leaves open, and on what is assumed for it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from service.formats.launch.job import LaunchReading
from service.formats.launch.knob_settings import KNOB_SETTINGS

_DECIDES = re.compile(r"\w{1,40}=(?:-?\d{1,12}|[A-Za-z]\w{0,19})", re.ASCII)
_MOST_DEFAULTS = 10
"""Variables that one sentence names."""


def unwritten_values(
    reading: LaunchReading, given: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    """Values that nobody wrote and where they come from, but for those that the request, `given` by
    part, has itself."""
    parts: Mapping[str, Mapping[str, Any]] = {
        "model": reading.model or {},
        "workload": reading.workload,
        "layout": reading.layout,
    }
    for field, origin in reading.default_origins.items():
        part, _, name = field.partition(".")
        value = parts.get(part, {}).get(name)
        if value is not None and name not in given.get(part, {}):
            yield f"{field} is {value}: {origin}"


def taken_defaults(defaults: Sequence[str]) -> Iterator[str]:
    """The variables of a script that nothing sets, as TP=4, where their values are numbers or
    single words: paths and names change nothing."""
    taken = [default for default in defaults if _DECIDES.fullmatch(default)]
    if taken:
        others = len(taken) - _MOST_DEFAULTS
        shown = ", ".join(default.replace("=", " is ", 1) for default in taken[:_MOST_DEFAULTS])
        more = f" and {others} more" if others > 0 else ""
        yield (
            f"{shown}{more}: what the script takes where nothing sets them; launch.environment does"
        )


def batch_values(
    reading: LaunchReading, micro_batch: int, global_batch: int, ranks: int
) -> Iterator[str]:
    """Yields sentences on how micro-batch, accumulation and global batch follow from each other on
    `ranks` data-parallel ranks. A launch says two of the three at most."""
    steps = reading.num_micro_batches
    said_micro_batch = reading.layout.get("micro_batch")
    says_batch = "global_batch" in reading.workload
    on_ranks = f"on each of {ranks} data-parallel ranks"
    if steps is None and said_micro_batch is None:
        own = KNOB_SETTINGS[reading.format].get("micro_batch", "another setting")
        owner = " of TrainingArguments" if reading.format == "accelerate" else ""
        accumulation = global_batch // (ranks * micro_batch)
        taken = f"layout.micro_batch is {micro_batch}"
        if reading.micro_batches_setting is None:
            yield f"{taken}: the launch does not say it; {own}{owner} sets it"
        else:
            yield (
                f"{taken}, with {accumulation} micro-batches a step {on_ranks}: the launch says"
                f" neither; {own} and {reading.micro_batches_setting}{owner} set them"
            )
    elif steps is None and not says_batch and reading.micro_batches_setting:
        accumulation = global_batch // (ranks * micro_batch)
        yield (
            f"{reading.micro_batches_setting} is {accumulation}: a global batch of {global_batch}"
            f" in micro-batches of {micro_batch} {on_ranks}, as the launch does not say it"
        )
    elif steps is not None and (said_micro_batch is None or not says_batch):
        origin = reading.default_origins.get("num_micro_batches")
        number = f"{steps} micro-batch{'es' * (steps > 1)}{f' ({origin})' if origin else ''}"
        if said_micro_batch is None:
            taken = f"layout.micro_batch is {micro_batch}: a global batch of {global_batch} in"
        else:
            taken = f"workload.global_batch is {global_batch}: micro-batches of {micro_batch},"
        yield f"{taken} {number} {on_ranks}"
