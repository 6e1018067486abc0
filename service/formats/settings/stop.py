"""A stop: a setting at which the framework itself refuses to start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from models.errors import Invalid

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A reason at which the framework stops before the first step."""

    setting: str
    """The setting as the framework writes it."""
    value: object
    rule: str
    source: str
    """The release and the file that stops."""
    cure: str = ""
    """The text to write instead; empty where the rule says it."""
    meant: str = ""
    """The setting that is probably meant by a name that the framework does not have."""
    is_of_name: bool = False
    """The framework has no such name, whatever else is set."""
    hides_layout: bool = False
    """The layout that the job means cannot be told; the layout that was read is another one."""
    not_on: tuple[str, ...] = ()
    """Generations of chips on which the framework does not stop."""


class Stopped(Invalid):
    """A framework's parser accepts a setting, but the framework then refuses to start with it."""

    def __init__(self, setting: str, value: object, rule: str, cure: str = "") -> None:
        shown = setting if value is None else f"{setting} {value}"
        super().__init__("launch.arguments", shown, rule)  # the field that the error names
        self.setting = setting
        self.setting_value = value
        self.cure = cure

    def stop(self, source: str) -> Stop:
        """Returns this error as a stop; `source` is the file of the framework that refuses the
        setting."""
        return Stop(
            setting=self.setting,
            value=self.setting_value,
            rule=self.rule,
            source=source,
            cure=self.cure,
            hides_layout=True,  # no layout is known where reading it ended in this error
        )


class Stops:
    """Collects the reasons to stop, so that a reader can go on with the rest of a configuration.
    `source` is the file of the framework that makes these checks."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.noted: list[Stop] = []

    def attempt(self, read: Callable[[], Value], *, instead: Value) -> Value:
        """Returns the result of `read`. Where it raises Stopped, notes the stop and returns
        `instead`."""
        try:
            return read()
        except Stopped as stopped:
            self.note(stopped)
            return instead

    def note(self, stopped: Stopped) -> None:
        """Notes a reason to stop, once."""
        stop = stopped.stop(self.source)
        if stop not in self.noted:
            self.noted.append(stop)
