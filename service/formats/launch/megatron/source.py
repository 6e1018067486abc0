"""The forms that the arguments of Megatron-LM are sent in: as they are typed, as it dumps them at
the start of a run, or as YAML. A *recipe* is YAML with the arguments in an object of their own. An
*argument* has a name, seq_length, and a *flag* that sets it, --seq-length."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from service.formats.launch.documents import read_yaml, sent_settings
from service.formats.launch.job import Changes
from service.formats.launch.megatron.writer import words
from service.formats.megatron.flags import (
    argument_of,
    defaults,
    flag_of_argument,
    from_dump,
    from_words,
    table,
    takes_value,
    text_of,
)
from service.formats.settings.field_table import field_table
from service.formats.settings.reservation import Reservation
from service.formats.settings.settings import Settings, changes_nothing
from service.formats.shell.command import Command, split_command
from service.formats.shell.files import LaunchFiles
from service.formats.shell.programs import option_name

_DUMPED = re.compile(r"(?:^|\s)([A-Za-z_]\w{0,99}) \.{1,60} (.*)", re.ASCII)
_FEWEST_DUMPED = 3  # fewer lines of that form may be of another program
_LINE_REACH = 5000  # characters of a line that are looked at
_YAML_LINE = re.compile(r"\s*(?:-\s+)?-{0,2}[A-Za-z_][\w-]*\s*:(\s.*)?", re.ASCII)
_ARGUMENT_OBJECTS = ("ARGS", "ARGUMENTS")
"""Endings of the names of objects in a recipe that have arguments."""
_YAML = "--yaml-cfg"
_DEEPSPEED_FILES = ("--deepspeed_config", "--deepspeed-config")
_STAGE = "zero_optimization.stage"
_SAID_BY_FLAGS = (
    _STAGE, "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
    "bf16.enabled", "fp16.enabled",
)  # fmt: skip
"""Settings of DeepSpeed that Megatron-DeepSpeed has flags for as well."""
_ENVIRONMENT_OBJECT = "ENV_VARS"
"""The object of a recipe that has environment variables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A text as it is read, whatever its form."""

    settings: Settings
    """The settings that are given, by flag."""
    without_flag: Mapping[str, str] = field(default_factory=dict)
    """The texts of arguments that no flag of Megatron-LM sets, by name: those that it derives and
    dumps, those of Megatron-DeepSpeed, and the number of ranks that a launcher starts."""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, str]:
        """Returns the text of every argument, by default where the text does not set it. An
        argument is set by a flag or is among those without one, never both."""
        of_flags = {
            argument_of(flag): text_of(flag, self.settings.given[flag]) for flag in self.flags
        }
        return {**defaults(), **of_flags, **self.without_flag}

    @property
    def flags(self) -> list[str]:
        """Returns the given names that are flags of Megatron. The others are flags that it does not
        have, and dumped arguments without a flag."""
        return [name for name in self.settings.given if name in self.settings.table.fields]

    def change(self, changes: Changes) -> None:
        """Replaces flags. A change removes every flag that sets the same argument; a change to
        None sets none in its place."""
        arguments = {argument_of(flag) for flag in changes}
        for flag in self.flags:
            if argument_of(flag) in arguments:
                self.settings.change({flag: None})
        values = {flag: value for flag, value in changes.items() if value is not None}
        self.settings.update(from_words(words(values)))


def read_source(text: str, files: LaunchFiles) -> Source:
    """Returns the arguments of a text, which is a dump in a log, YAML or a command line. Raises
    Invalid for what the parser of Megatron refuses."""
    # When it starts, Megatron dumps every argument into its log: "hidden_size ........ 4096".
    matches = [_DUMPED.search(line[:_LINE_REACH]) for line in text.splitlines()]
    values = {match.group(1): match.group(2).strip() for match in matches if match}
    if sum(match is not None for match in matches) >= _FEWEST_DUMPED:
        return Source(settings=from_dump(values), without_flag=_without_flag(values))
    lines = [line for line in text.splitlines() if line.strip() and line.lstrip()[0] != "#"]
    if lines and all(map(_YAML_LINE.fullmatch, lines)):
        return _read_document(read_yaml(text))
    command = split_command(text, files)
    settings, of_deepspeed = _read_words(command.words)
    ranks = {"world_size": str(command.num_ranks)} if command.num_ranks else {}
    file = settings.given.get(_YAML)
    if file is not None:  # its values stand in place of all flags
        source = _read_document(read_yaml(command.files.text(file, settings.shown(_YAML))))
        of_deepspeed = dict(source.without_flag)
        source.settings.reservations += settings.reservations
        source.settings.stops.clear()  # the parser sees no value of the file
        settings = source.settings
    of_deepspeed |= _read_deepspeed_files(settings, command.files)
    for reservation in _branch_reservations(command):
        settings.note(reservation)
    return Source(
        settings=settings,
        without_flag={**of_deepspeed, **ranks},
        environment=command.environment,
    )


def _read_deepspeed_files(settings: Settings, files: LaunchFiles) -> dict[str, str]:
    """Returns the arguments that the configuration of DeepSpeed sets, which Megatron-DeepSpeed
    names in a flag: its ZeRO stage. Removes the flag. Adds a reservation for a file that was not
    sent, and for settings that matter and that no flag repeats."""
    arguments: dict[str, str] = {}
    for flag in _DEEPSPEED_FILES:
        if flag not in settings.given:
            continue
        written = settings.shown(flag)
        file = settings.given.pop(flag)
        document = Settings(
            field_table("deepspeed"), sent_settings(file, written, files, settings.reservations)
        )
        if document.given:  # the file was sent
            arguments["zero_stage"] = str(document.integer(_STAGE, least=0))
        settings.reservations += document.unread().reservations
        for name, value in document.known.items():
            field = document.table.field(name)
            if field is None or field.use != "read" or name in _SAID_BY_FLAGS:
                continue
            if not changes_nothing(field, value):
                reason = f"it stands in {file}, and is read of flags alone"
                settings.add_text_reservation(document.shown(name), reason)
    return arguments


def _without_flag(values: Mapping[str, str]) -> dict[str, str]:
    """Returns the arguments that no flag sets, such as those that Megatron derives."""
    return {name: text for name, text in values.items() if name not in flag_of_argument()}


def _read_words(words: Sequence[str]) -> tuple[Settings, dict[str, str]]:
    """Returns the settings of a command line, with names of Megatron's forks translated, and the
    arguments of flags that only Megatron-DeepSpeed has."""
    flag_of_alias = table().facts["same_as"]
    settings = from_words([flag_of_alias.get(word, word) for word in words])
    of_deepspeed = {
        argument: str(settings.given.pop(name)) or "True"  # of a flag without a value
        for name, argument in table().facts["of_deepspeed"].items()
        if name in settings.given
    }
    if "deepspeed" in of_deepspeed:
        of_deepspeed.setdefault("zero_stage", "1")  # the default of --zero-stage
    return settings, of_deepspeed


def _branch_reservations(command: Command) -> Iterable[Reservation]:
    """Yields a reservation for each assignment in a branch of a script that may or may not run,
    `if …; then ARGS=--fp8-hybrid; fi`, where it has flags that matter or gives a variable another
    value."""
    for assignment in command.in_branches:
        flags = re.findall(r"(?<![\w-])--[a-z][\w-]{0,99}", assignment, re.ASCII)
        flags_matter = not all(map(table().is_of_no_account, flags))
        changes_value = not flags and assignment in command.replaced_in_branches
        if flags_matter or changes_value:
            yield Reservation.of_branch(assignment)


def _read_document(document: Any) -> Source:
    """Returns the arguments of a YAML document, whose names may have dashes or underscores. A
    recipe has them in an object of its own, beside its environment: {"MODEL_ARGS":
    {"--num-layers": 32}, "ENV_VARS": {"CUDA_DEVICE_MAX_CONNECTIONS": 1}}."""
    flag_of_alias = table().facts["same_as"]
    flags: dict[str, Any] = {}
    others: dict[str, str] = {}
    for key, value in _innermost_settings(_arguments_of(document)):
        name = option_name(key)
        flag = f"--{name.replace('_', '-')}"
        if flag_of_alias.get(flag, flag) in table().fields:
            flags[flag] = value
        else:
            others[name] = str(value)
    settings, of_deepspeed = _read_words(list(_words_of(flags)))
    settings.update(from_dump(others))
    environment = document.get(_ENVIRONMENT_OBJECT) if isinstance(document, Mapping) else None
    return Source(
        settings=settings,
        without_flag={**of_deepspeed, **_without_flag(others)},
        environment={
            str(name): str(value)
            for name, value in (environment if isinstance(environment, Mapping) else {}).items()
        },
    )


def _arguments_of(document: Any) -> Any:
    """Returns the objects of a recipe that hold arguments, such as MODEL_ARGS, merged into one;
    the whole document where it has no such object."""
    if not isinstance(document, Mapping):
        return {}
    arguments: dict[str, Any] = {}
    for name, section in document.items():
        if str(name).upper().endswith(_ARGUMENT_OBJECTS) and isinstance(section, Mapping):
            arguments |= section
    return arguments or document


def _words_of(values: Mapping[str, Any]) -> Iterable[str]:
    """Yields the words of a command line that sets these flags: "--seq-length", "4096". A flag
    whose value is false or null is left out."""
    for flag, value in values.items():
        if value is True:
            yield flag
            # A few flags take the word True; the others are switches.
            if flag in table().fields and takes_value(flag):
                yield "True"
        elif value not in (False, None):
            yield flag
            # A text such as "1 2" has several values.
            yield from map(str, value) if isinstance(value, list) else str(value).split()


def _innermost_settings(document: Any) -> Iterable[tuple[str, Any]]:
    """Yields the innermost names of a document with their values, whatever sections they are in."""
    if isinstance(document, Mapping):
        for name, value in document.items():
            if isinstance(value, Mapping):
                yield from _innermost_settings(value)
            else:
                yield str(name), value
