"""Sentences on what a launch leaves open, and on what is assumed for it.

The *origin* of a value that the launch does not write says in words where it comes from: a default
of the framework, or another setting.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from service.formats.launch.job import LaunchReading
from service.formats.launch.knob_settings import KNOB_SETTINGS

_NUMBER_OR_WORD = re.compile(r"\w{1,40}=(?:-?\d{1,12}|[A-Za-z]\w{0,19})", re.ASCII)
_MOST_DEFAULTS = 10
"""Variables that one sentence names."""


def unwritten_values(
    reading: LaunchReading, request_fields: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    """Yields sentences on values that the framework sets by itself because the launch does not,
    with their origin. Fields that the request itself sets are left out; `request_fields` has them
    by part of the request."""
    parts: Mapping[str, Mapping[str, Any]] = {
        "model": reading.model or {},
        "workload": reading.workload,
        "layout": reading.layout,
    }
    for field, origin in reading.default_origins.items():
        part, _, name = field.partition(".")
        value = parts.get(part, {}).get(name)
        if value is not None and name not in request_fields.get(part, {}):
            yield f"{field} is {value}: {origin}"


def taken_defaults(defaults: Sequence[str]) -> Iterator[str]:
    """Yields a sentence on a script's variables that have their defaults because nothing sets them.
    `defaults` has them in the form "TP=4". Only numbers and single words count: others, such as
    paths, are no settings of the job."""
    defaults_used = [default for default in defaults if _NUMBER_OR_WORD.fullmatch(default)]
    if defaults_used:
        others = len(defaults_used) - _MOST_DEFAULTS
        shown = ", ".join(
            default.replace("=", " is ", 1) for default in defaults_used[:_MOST_DEFAULTS]
        )
        more = f" and {others} more" if others > 0 else ""
        yield (
            f"{shown}{more}: what the script takes where nothing sets them; launch.environment does"
        )


def batch_assumptions(
    reading: LaunchReading, micro_batch: int, global_batch: int, ranks: int
) -> Iterator[str]:
    """Yields a sentence on how the size of micro-batches, their number on a rank and the global
    batch follow from each other, if the launch leaves one or two of the three open. `ranks` is the
    number of data-parallel ranks."""
    launched_count = reading.num_micro_batches
    launched_micro_batch = reading.layout.get("micro_batch")
    has_batch = "global_batch" in reading.workload
    on_ranks = f"on each of {ranks} data-parallel ranks"
    # The launch says neither: the micro-batch has its default size, from which the number follows.
    if launched_count is None and launched_micro_batch is None:
        setting = KNOB_SETTINGS[reading.format].get("micro_batch", "another setting")
        owner = " of TrainingArguments" if reading.format == "accelerate" else ""
        count = global_batch // (ranks * micro_batch)
        fact = f"layout.micro_batch is {micro_batch}"
        if reading.accumulation_setting is None:
            yield f"{fact}: the launch does not say it; {setting}{owner} sets it"
        else:
            yield (
                f"{fact}, with {count} micro-batches a step {on_ranks}: the launch says"
                f" neither; {setting} and {reading.accumulation_setting}{owner} set them"
            )
    # The number follows from the micro-batch of the launch and the batch of the request.
    elif launched_count is None and not has_batch and reading.accumulation_setting:
        count = global_batch // (ranks * micro_batch)
        yield (
            f"{reading.accumulation_setting} is {count}: a global batch of {global_batch}"
            f" in micro-batches of {micro_batch} {on_ranks}, as the launch does not say it"
        )
    # The launch says the number: one of micro-batch and global batch follows from the other.
    elif launched_count is not None and (launched_micro_batch is None or not has_batch):
        origin = reading.default_origins.get("num_micro_batches")
        number = f"{launched_count} micro-batch{'es' if launched_count > 1 else ''}"
        if origin:
            number += f" ({origin})"
        if launched_micro_batch is None:
            fact = f"layout.micro_batch is {micro_batch}: a global batch of {global_batch} in"
        else:
            fact = f"workload.global_batch is {global_batch}: micro-batches of {micro_batch},"
        yield f"{fact} {number} {on_ranks}"
