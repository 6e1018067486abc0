"""All that the text of a log is looked through for, in one go: what its lines say of the run, how
the run ended, and what an explanation quotes. The text is not needed after that.

A *reading* is the step time and its grounds. A *symptom* is a line in which the software or a
device itself says that something makes the run slow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from models.errors import Invalid
from service.formats.logs.allocator_message import AllocatorMessage, allocator_message
from service.formats.logs.devices import PrintedDevice, printed_devices
from service.formats.logs.failure import (
    HOST_OUT_OF_MEMORY,
    OUT_OF_MEMORY,
    ending,
    ends_in_crash,
    last_error,
    ran_out_in_evaluation,
)
from service.formats.logs.lines import Log, cut_lines
from service.formats.logs.reading import Reading, RunArguments, read, read_arguments
from service.formats.logs.stated_facts import Statement, stated_facts
from service.formats.logs.symptoms import Symptom, symptoms
from shardwright.secrets import mask_secrets

OutOfMemoryCause = Literal["other_processes", "evaluation", "host"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTrouble:
    """The parts of a log that an explanation quotes."""

    ends_in_crash: bool
    """The last words of a process that failed are followed by no step, and the run had neither been
    stopped nor trained to its end."""
    last_error: str | None
    symptoms: tuple[Symptom, ...]
    allocator: AllocatorMessage | None
    out_of_memory_cause: OutOfMemoryCause | None
    """Why memory ran out, where the layout of the training is not to blame; None where it may be,
    and where none ran out. "host": it was that of a host, and not of a device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogContents:
    """A log, read in all the ways that answers need."""

    reading: Reading | None
    """None where the log has no step to use."""
    refusal: Invalid | None
    """Why there is no reading."""
    printed: RunArguments | None
    """The arguments of a log without a reading, if it prints them."""
    ends_out_of_memory: bool
    """A message says that the run ran out of memory, and no step follows it. Steps behind it would
    be of a retry, which shows that the layout fits."""
    devices: tuple[PrintedDevice, ...]
    statements: tuple[Statement, ...]
    """Facts of the run that lines state."""
    cut_lines: int
    """The number of lines that were too long to be read whole."""
    trouble: LogTrouble

    @property
    def framework(self) -> str | None:
        """Returns the framework that printed the log's steps, or else its arguments; None where
        neither is known."""
        source = self.reading or self.printed
        return None if source is None else source.framework

    @property
    def arguments(self) -> Mapping[str, str]:
        """Returns the arguments that the log prints, by Megatron's names; none where it prints
        none."""
        if self.reading is not None:
            return self.reading.arguments
        return {} if self.printed is None else self.printed.values


def read_contents(text: str, framework: str | None, global_batch: int | None) -> LogContents:
    """Returns everything that a log tells: its steps, or why they could not be read, failures,
    devices and stated facts. `framework` and `global_batch` are the request's, where it gives
    them."""
    text, cut = cut_lines(text)
    reading = refusal = printed = None
    try:
        reading = read(text, framework, global_batch)
    except Invalid as error:
        refusal = error
        printed = read_arguments(text, framework)  # a run that crashed early still prints them
    allocator = allocator_message(text)
    end = ending(text, 0 if reading is None else reading.last_line)
    return LogContents(
        reading=reading,
        refusal=refusal,
        printed=printed,
        ends_out_of_memory=OUT_OF_MEMORY.search(end) is not None,
        devices=tuple(printed_devices(text)),
        statements=tuple(stated_facts(Log(text).text)),  # Log removes the colours
        cut_lines=cut,
        trouble=LogTrouble(
            ends_in_crash=ends_in_crash(end),
            last_error=last_error(end) or last_error(text),
            symptoms=tuple(symptoms(text)),
            allocator=allocator,
            out_of_memory_cause=_out_of_memory_cause(end, allocator, reading),
        ),
    )


def _out_of_memory_cause(
    end: str, allocator: AllocatorMessage | None, reading: Reading | None
) -> OutOfMemoryCause | None:
    """Returns why memory ran out at the end of a log, where the layout of the training is not to
    blame; None where it may be, and where none ran out. An evaluation counts where steps of
    training came before it."""
    if OUT_OF_MEMORY.search(end) is None:
        return "host" if HOST_OUT_OF_MEMORY.search(end) else None
    if allocator is not None and allocator.others_held_much:
        return "other_processes"
    if reading is not None and ran_out_in_evaluation(end):
        return "evaluation"
    return None


def masked_unless_clean(log: str) -> str | None:
    """Returns the log with its secrets masked; None where it has none, so that a caller in
    another process need not be sent the same text back."""
    masked = mask_secrets(log)
    return None if masked == log else masked
