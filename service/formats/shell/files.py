"""Files that belong to a launch: those that are sent beside it, and those that it writes. Settings
of the training may stand in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from os.path import commonprefix

from models.errors import Invalid
from service.formats.shell.faults import PATH, invalid_launch, shortened
from service.formats.shell.headers import Header

_VARIABLE = re.compile(r"\$\{?\w+[^/}]{0,99}\}?", re.ASCII)


class NotSent(Invalid):
    """A launch names a file whose text was not sent; `name` is that of the file."""

    def __init__(self, name: str, setting: str) -> None:
        rule = (
            f"has settings that were not sent: send the text of that file as launch.files"
            f' {{"{shortened(name)}": "…"}}, or in the script that writes it (cat > FILE <<END)'
        )
        super().__init__(PATH, shortened(setting), rule)
        self.name = name


@dataclass(frozen=True, slots=True)
class LaunchFiles:
    """The files that were sent beside the text of a launch, by name, and its environment."""

    texts: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    header: Header | None = None
    """The requests to the scheduler of the object that had the text in it, if there was one."""

    def text(self, name: str, setting: str | None = None) -> str:
        """Returns the text of the file that a command calls `name`; `setting` is how the command
        writes it, for the error. Raises NotSent where that file was not sent."""
        text = self.find(name)
        if text is None:
            raise NotSent(name, setting or name)
        return text

    def find(self, name: str) -> str | None:
        """Returns the text of a file; None where it was not sent."""
        sent_name = self.sent_name(name)
        return None if sent_name is None else self.texts[sent_name]

    def __contains__(self, name: str) -> bool:
        return self.sent_name(name) is not None

    def with_written(self, texts: Mapping[str, str]) -> LaunchFiles:
        """Returns these files together with those that a script writes, which replace files of
        the same name."""
        if not texts:
            return self
        written = {tuple(_components(name)) for name in texts}
        sent = {
            name: text
            for name, text in self.texts.items()
            if tuple(_components(name)) not in written
        }
        return replace(self, texts={**sent, **texts})

    def sent_name(self, name: str) -> str | None:
        """Returns the name under which a file was sent: of those with the same last part, the
        one that shares most folders with `name`. None where there is none. Raises Invalid where
        different files are equally near."""
        if name in self.texts:
            return name
        # The command may call a file by another path than the request, which sent only its name.
        components = _components(name)
        if not components or _VARIABLE.fullmatch(components[-1]):  # it may be any file
            return None
        shared = {sent: _common_end(components, _components(sent)) for sent in self.texts}
        most = max(shared.values(), default=0)
        if not most:
            return None
        nearest = [sent for sent, count in shared.items() if count == most]
        if len({self.texts[sent] for sent in nearest}) > 1:
            exact = [sent for sent in nearest if _components(sent) == components]
            if len(exact) != 1:
                names = ", ".join(shortened(sent) for sent in nearest[:5])
                rule = f"may be any of {names} of launch.files: write its folder into the command"
                raise invalid_launch(shortened(name), rule)
            return exact[0]
        return nearest[0]

    def certain_name(self, name: str) -> str | None:
        """Returns the name under which a file was sent; None where it was not, and where it may be
        one of several."""
        with suppress(Invalid):
            return self.sent_name(name)
        return None

    def only_text(self) -> str | None:
        """Returns the text of the only file; None where there are several, or none."""
        return next(iter(self.texts.values())) if len(self.texts) == 1 else None


NO_FILES = LaunchFiles()


def _components(name: str) -> list[str]:
    return [part for part in name.strip().strip("'\"").split("/") if part not in ("", ".")]


def _common_end(first: list[str], second: list[str]) -> int:
    """Returns how many components two paths share at their ends: 2 for a/b/c and x/b/c."""
    return len(commonprefix([first[::-1], second[::-1]]))
