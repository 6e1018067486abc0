"""The setting of each framework for a knob of a layout, which is a field such as tp, and for the
global batch. Where there are several, it is the one that a person would change first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from service.formats.launch.facts import facts
from service.formats.launch.job import in_words

KNOB_SETTINGS: Mapping[str, Mapping[str, str]] = {
    name: settings for name, settings in facts("knob_settings").items() if name != "source"
}
"""The settings by format and knob."""
_COUNTS = (
    "tp", "pp", "cp", "ep", "etp", "dp_shard", "dp_replicate", "micro_batch", "global_batch",
    "virtual_stages",
)  # fmt: skip
_COUNTED_OTHERWISE = {
    "torchtitan": ("virtual_stages",),
    "maxtext": ("virtual_stages", "micro_batch", "dp_shard", "dp_replicate"),
}
"""Knobs whose setting counts something else, as MaxText's batch is that of a device."""
_SCHEDULE_OF_CHUNKS = ("megatron", "megatron-bridge")
"""Formats in which the schedule follows from virtual stages."""


def alternatives_in_settings(format_: str, knob: str, values: Sequence[Any]) -> str | None:
    """Returns alternative values of a field of the layout, or of the global batch, as advice in
    one setting of the format: "--tensor-model-parallel-size 1 or 2". None where no single setting
    expresses them."""
    setting = KNOB_SETTINGS[format_].get(knob)
    if setting is None:
        return None
    # These formats derive the schedule from the number of chunks, which this setting gives:
    # without it a rank has one chunk, and runs 1f1b.
    if knob == "schedule" and format_ in _SCHEDULE_OF_CHUNKS:
        return f"without {setting}" if "1f1b" in values else None
    if knob in _COUNTS and knob not in _COUNTED_OTHERWISE.get(format_, ()):
        return f"{setting} {in_words(sorted(values))}"
    if knob in ("sequence_parallel", "offload_optimizer") and len(values) == 1:
        if format_ == "megatron":  # flags without a value
            return setting if values[0] else f"without {setting}"
        return f"{setting} {str(values[0]).lower()}" if knob == "sequence_parallel" else None
    return None
