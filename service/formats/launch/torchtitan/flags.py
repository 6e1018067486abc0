"""Reads the words of a launch of torchtitan: flags of 0.3.0, or flags and the TOML file of a
release before it.

A *stop* is a setting with which torchtitan refuses to start. A *stray* is a word that is neither a
flag nor the value of one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from service.formats.launch.documents import read_toml
from service.formats.launch.torchtitan.earlier_releases import (
    EarlierSettings,
    is_of_earlier_release,
    words_of_today,
)
from service.formats.launch.torchtitan.writer import RECOMPUTE, RELEASE, TABLE
from service.formats.settings.field import Field, shown
from service.formats.settings.field_table import field_table
from service.formats.settings.reservation import Reservation
from service.formats.settings.settings import Settings
from service.formats.settings.stop import Stop
from service.formats.shell.command import Command, split_command
from service.formats.shell.faults import invalid_launch, require_arguments_defined
from service.formats.shell.files import LaunchFiles

_SUBCOMMAND = re.compile(r"activation[-_]checkpoint:([\w-]*)", re.ASCII)
_CONFIG_FILE = "job.config_file"
_TOML_SECTION = re.compile(r"^[ \t]*\[[\w.]+\][ \t\r]*(#.*)?$", re.ASCII | re.MULTILINE)
_HEREDOC = re.compile(r"<<-?[ \t]*['\"\\\\]?[A-Za-z_]")
_VARIABLES = {"MODULE": "module", "CONFIG": "config"}
"""The settings that run_train.sh takes from its environment."""


@dataclass(slots=True)
class LaunchedSettings:
    """The settings of a text, by their names in 0.3.0."""

    settings: Settings
    earlier: EarlierSettings | None = None
    """The settings as a release before 0.3.0 has them, where the text is one of it."""
    num_ranks: int | None = None
    """By the launcher, or by NGPU for run_train.sh; None where neither says."""
    stops: list[Stop] = field(default_factory=list)


def read_flags(text: str, version: str | None, files: LaunchFiles) -> LaunchedSettings:
    """Returns the settings of a command, or of a TOML file of a release before 0.3.0. Raises
    Invalid for what torchtitan's parser refuses."""
    # A text with a heredoc is a script, even where that heredoc writes a TOML file.
    if _TOML_SECTION.search(text) and not _HEREDOC.search(text):
        earlier = EarlierSettings(read_toml(text))
        return _with_earlier(LaunchedSettings(Settings(field_table(TABLE))), earlier)
    return _CommandReader(version, split_command(text, files)).read()


def _with_earlier(launched: LaunchedSettings, earlier: EarlierSettings) -> LaunchedSettings:
    """Adds the settings of an earlier release to a launch. Settings under names of 0.3.0
    override them."""
    settings = launched.settings
    settings.given = {**earlier.given, **settings.given}
    settings.reservations += earlier.reservations
    launched.earlier = earlier
    return launched


@dataclass(frozen=True, slots=True)
class _Flag:
    """A flag with the words behind it, up to the next flag or subcommand."""

    name: str
    values: list[str]
    strays: list[str]
    """Words behind --name=value."""
    has_equals: bool
    """The value is a part of the word, as in --name=value."""


class _CommandReader:
    """Reads the words of one command, and decides of which release its flags are."""

    def __init__(self, version: str | None, command: Command) -> None:
        self.version = version
        self.command = command
        self.table = field_table(TABLE)
        self.settings = Settings(self.table)
        self.unknown: dict[str, Any] = {}
        """Flags that 0.3.0 does not have."""

    def read(self) -> LaunchedSettings:
        """Returns the settings of the command, which is one of 0.3.0 unless it has flags that only
        earlier releases have. With such flags it counts as a launch of an earlier release. Where
        another word is of 0.3.0 alone, it counts as one of 0.3.0, and these flags are stops."""
        self._read_variables()
        self._read_words()
        for branch in self.command.in_branches:  # assignments that may or may not have run
            self.settings.note(Reservation.of_branch(branch))
        launched = LaunchedSettings(self.settings, num_ranks=_num_ranks(self.command))
        earlier_flags = [*filter(is_of_earlier_release, self.unknown)]
        newest_word = self._word_of_newest_release()
        if earlier_flags and newest_word:
            launched.stops = self._refuse_earlier(earlier_flags, newest_word)
        elif earlier_flags:
            return _with_earlier(launched, EarlierSettings(self._with_file()))
        self._take_unknown()
        return launched

    def _read_variables(self) -> None:
        """Reads the environment variables that run_train.sh turns into flags; only where that
        script starts the launch."""
        environment = self.command.environment
        if not (self.command.program or "").endswith(".sh"):
            return
        for variable, name in _VARIABLES.items():
            if variable in environment:
                self.settings.put(name, environment[variable])
        # A TOML file is of a release before 0.3.0, and MODULE shows that 0.3.0 runs.
        if "CONFIG_FILE" in environment and "module" not in self.settings.given:
            self.unknown[_CONFIG_FILE] = environment["CONFIG_FILE"]

    def _read_words(self) -> None:
        """Reads the flags of the command line, and the subcommand such as
        activation-checkpoint:full behind them. Raises Invalid for other words."""
        subcommand: str | None = None
        for part in _flags_and_strays(self.command.words):
            if isinstance(part, _Flag):
                self._read_flag(part, subcommand)
            elif match := _SUBCOMMAND.fullmatch(part):
                subcommand = part
                self.settings.put(RECOMPUTE, self.table.fields[RECOMPUTE].checked(match[1]))
            else:
                _refuse_stray(part)

    def _read_flag(self, flag: _Flag, subcommand: str | None) -> None:
        """Puts one flag into the settings. Raises Invalid for words behind it that are not its
        value, and for a flag behind a subcommand, such as activation-checkpoint:full, that is no
        option of that subcommand."""
        name = flag.name.replace("-", "_")
        if subcommand and not name.startswith(f"{RECOMPUTE}."):
            rule = (
                f"stands behind {subcommand}, where torchtitan reads only options of"
                " activation-checkpoint: put it in front"
            )
            raise invalid_launch(f"--{flag.name}", rule)
        # --section.no_option switches an option off; `positive` is its name without the no_.
        positive = re.sub(r"(^|\.)no_(\w+)$", r"\1\2", name)
        switched_off = self.table.fields.get(positive)
        strays = flag.strays
        if name in self.table.fields:
            value, others = _value_and_rest(self.table.fields[name], flag)
            self.settings.put(name, value)
            strays = [*others, *strays]
        elif switched_off is not None and switched_off.kind == "bool":
            _require_no_value(switched_off, flag)
            self.settings.put(positive, False)
            strays = flag.values
        else:
            self.unknown[name] = " ".join(flag.values) or True
        if strays:
            _refuse_stray(strays[0])

    def _word_of_newest_release(self) -> str | None:
        """Returns a flag or subcommand of the text that only 0.3.0 has; None where there is
        none."""
        given = self.settings.given
        flag = next((f"--{name}" for name in ("module", "config") if name in given), None)
        if flag is None and RECOMPUTE in given:
            return f"activation-checkpoint:{given[RECOMPUTE]}"
        return flag

    def _refuse_earlier(self, names: Sequence[str], newest_word: str) -> list[Stop]:
        """Returns a stop for each flag of an earlier release, which 0.3.0 refuses. `newest_word`
        shows that the text is of 0.3.0. The values of these flags are still read, under the names
        of 0.3.0, so that the rest of the launch can be judged."""
        flags = {name: self.unknown.pop(name) for name in names}
        self.settings.given = {**EarlierSettings(flags).given, **self.settings.given}
        rule = (
            f"is a flag of torchtitan before {RELEASE}, and {newest_word} is one of {RELEASE}:"
            " write the flags of one release"
        )
        source = self.table.facts["parser"]
        return [
            Stop(
                setting=f"--{name}",
                value=value,
                rule=rule,
                source=source,
                cure=words_of_today(name, value),
            )
            for name, value in flags.items()
        ]

    def _with_file(self) -> dict[str, Any]:
        """Returns the settings of the TOML file that job.config_file names, overridden by the
        other flags of the earlier release."""
        file = self.unknown.pop(_CONFIG_FILE, None)
        if file is None:
            return self.unknown
        text = self.command.files.text(file, f"--{_CONFIG_FILE} {file}")
        return {**read_toml(text), **self.unknown}

    def _take_unknown(self) -> None:
        """Adds the flags that 0.3.0 does not have to the settings, where unknown names become
        stops. Where another release runs, or the config function is not known, they may be valid,
        and become reservations (remarks that they could matter)."""
        name = self.settings.given.get("config")
        configs = self.table.facts["configs"].get(self.settings.given.get("module"), {})
        knows_flags = self.version in (None, RELEASE) and (name is None or name in configs)
        self.settings.is_other_release = not knows_flags
        self.settings.given |= self.unknown


def _flags_and_strays(words: Sequence[str]) -> Iterator[_Flag | str]:
    """Yields the flags of a command line with the words behind them, and each word that belongs
    to no flag, such as the subcommand of activation checkpointing."""
    flag: _Flag | None = None
    for word in words:
        begins_flag = word.startswith("--")
        if flag is not None and not begins_flag and not _SUBCOMMAND.fullmatch(word):
            # A flag with its value behind = takes no further words.
            (flag.strays if flag.has_equals else flag.values).append(word)
            continue
        if flag is not None:
            yield flag
            flag = None
        if begins_flag:
            name, equals, value = word[2:].partition("=")
            flag = _Flag(name, [value] if equals else [], [], has_equals=bool(equals))
        else:
            yield word
    if flag is not None:
        yield flag


def _value_and_rest(field_: Field, flag: _Flag) -> tuple[Any, list[str]]:
    """Returns the value of a flag by the type of its field, and the words behind it that are not
    part of the value. Raises Invalid for a value that does not fit."""
    if field_.kind == "bool":
        _require_no_value(field_, flag)
        return True, flag.values
    if not flag.values:
        raise invalid_launch(f"--{flag.name}", "needs a value behind it")
    if field_.kind == "lists":
        return [part.split(",") for part in flag.values], []
    return field_.parse(flag.values[0]), flag.values[1:]


def _require_no_value(field_: Field, flag: _Flag) -> None:
    """Raises Invalid for a flag of a boolean field that has a value behind =, as in
    --compile.enable=true, which torchtitan's parser refuses."""
    if flag.has_equals:
        section, _, last = field_.name.rpartition(".")
        rule = f"is a flag, without a value: write --{field_.name}, or --{section}.no_{last}"
        raise invalid_launch(shown(flag.name, flag.values[0]), rule)


def _refuse_stray(word: str) -> None:
    """Raises Invalid for a word that is neither a flag nor the value of one."""
    require_arguments_defined(word)
    rule = "is neither a flag nor its value: flags are --section.option VALUE"
    raise invalid_launch(word, rule)


def _num_ranks(command: Command) -> int | None:
    """Returns the number of ranks that the launcher starts, or run_train.sh on one machine by
    NGPU; None where neither says so."""
    num_gpus = command.environment.get("NGPU", "")
    if command.num_ranks:
        return command.num_ranks
    return int(num_gpus) if re.fullmatch(r"\d{1,6}", num_gpus) else None
