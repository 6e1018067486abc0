"""All that the text of a log is looked through for, in one go: what its lines say of the run, how
the run ended, and what an explanation quotes. The text is not needed after that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from models.errors import Invalid
from service.formats.logs.allocator_message import AllocatorMessage, allocator_message
from service.formats.logs.devices import PrintedDevice, printed_devices
from service.formats.logs.failure import (
    last_error,
    tells_crash,
    tells_kill_by_host,
    tells_out_of_memory,
    text_after_last_crash,
    text_after_last_kill_by_host,
    text_after_last_mark,
)
from service.formats.logs.lines import Log, cut_lines
from service.formats.logs.reading import Reading, RunArguments, read, read_arguments
from service.formats.logs.stated_facts import Statement, stated_facts
from service.formats.logs.symptoms import Symptom, symptoms
from shardwright.secrets import mask_secrets


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTrouble:
    """What an explanation quotes of a log."""

    ends_in_crash: bool
    """The last words of a process that failed are followed by no step."""
    last_error: str | None
    symptoms: tuple[Symptom, ...]
    allocator: AllocatorMessage | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogContents:
    """What a log says."""

    reading: Reading | None
    """None where the log has no step to use."""
    refusal: Invalid | None
    """Why there is no reading."""
    printed: RunArguments | None
    """The arguments of a log without a reading, if it prints them."""
    tells_crash: bool
    tells_out_of_memory: bool
    ends_out_of_memory: bool
    """No step follows the message that the run ran out of memory: a retry that trains again shows
    that the layout does fit."""
    ends_killed_by_host: bool
    """No step follows the message that processes were ended because the memory of their host was
    full."""
    devices: tuple[PrintedDevice, ...]
    statements: tuple[Statement, ...]
    """Facts of the run that lines state."""
    cut_lines: int
    """Lines that are longer than is read of one."""
    trouble: LogTrouble

    @property
    def framework(self) -> str | None:
        """That printed the steps or the arguments."""
        source = self.reading or self.printed
        return None if source is None else source.framework

    @property
    def arguments(self) -> Mapping[str, str]:
        if self.reading is not None:
            return self.reading.arguments
        return {} if self.printed is None else self.printed.values


def contents(text: str, framework: str | None, global_batch: int | None) -> LogContents:
    text, cut = cut_lines(text)
    reading = refusal = printed = None
    try:
        reading = read(text, framework, global_batch)
    except Invalid as error:
        refusal = error
        printed = read_arguments(text, framework)
    ran_out = tells_out_of_memory(text)
    crashed = tells_crash(text)
    steps_of = None if reading is None else reading.framework
    return LogContents(
        reading=reading,
        refusal=refusal,
        printed=printed,
        tells_crash=crashed,
        tells_out_of_memory=ran_out,
        ends_out_of_memory=ran_out and not _has_steps(text_after_last_mark(text), steps_of),
        ends_killed_by_host=tells_kill_by_host(text)
        and not _has_steps(text_after_last_kill_by_host(text), steps_of),
        devices=tuple(printed_devices(text)),
        statements=tuple(stated_facts(Log(text).text)),
        cut_lines=cut,
        trouble=LogTrouble(
            ends_in_crash=crashed and not _has_steps(text_after_last_crash(text)),
            last_error=last_error(text),
            symptoms=tuple(symptoms(text)),
            allocator=allocator_message(text),
        ),
    )


def _has_steps(text: str, framework: str | None = None) -> bool:
    """Whether a log, or a part of one, has a step to use."""
    try:
        read(text, framework)
    except Invalid:
        return False
    return True


def masked_unless_clean(log: str) -> str | None:
    """The log with its secrets masked; None where it has none."""
    masked = mask_secrets(log)
    return None if masked == log else masked
