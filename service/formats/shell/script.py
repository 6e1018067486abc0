"""A launch script, once it is read: the commands that it starts, and the files that it writes. A
*doubt* is an assignment that may or may not have run, as the text does not decide its branch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from service.formats.shell.variables import Doubt, Value


@dataclass(frozen=True, slots=True)
class Statement:
    """One simple command: its words, and the variables that it is started with."""

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    doubts: tuple[Doubt, ...] = ()
    """Assignments that may have made it another command."""
    defaults: tuple[str, ...] = ()
    """Variables that nothing sets, with the default that the text has for each: TP=4."""

    def with_doubts_of(self, outer: Statement) -> Statement:
        """Returns this statement of a script with the doubts and defaults of `outer`, the command
        that runs the script, added to its own: they may have made it another script."""
        return replace(
            self,
            doubts=tuple(dict.fromkeys((*outer.doubts, *self.doubts))),
            defaults=tuple(dict.fromkeys((*outer.defaults, *self.defaults))),
        )


@dataclass(slots=True)
class Script:
    """The commands of a text in the order in which they run, and the files that they write."""

    statements: list[Statement] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)
    """The values that the variables hold at the end."""
    written: dict[str, str] = field(default_factory=dict)
    """Files that the script writes, by name."""
    edits: dict[str, str] = field(default_factory=dict)
    """By name of a file, the command that changes it in place."""
    batch_texts: list[str] = field(default_factory=list)
    """Texts that are batch scripts of a scheduler: the text itself, and those that it submits."""
    unsent_sources: list[tuple[str, int]] = field(default_factory=list)
    """Files that `source` reads and that were not sent, each with the number of its line."""

    @property
    def submits_others(self) -> bool:
        return len(self.batch_texts) > 1
