"""Files that belong to a launch: those that are sent beside it, and those that it writes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from models.errors import Invalid
from service.formats.shell.faults import PATH, shortened
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
        name_and_text = self.named(name)
        if name_and_text is None:
            raise NotSent(name, setting or name)
        return self.texts[name_and_text]

    def find(self, name: str) -> str | None:
        """Returns the text of a file; None where it was not sent."""
        name_and_text = self.named(name)
        return None if name_and_text is None else self.texts[name_and_text]

    def __contains__(self, name: str) -> bool:
        return self.named(name) is not None

    def with_written(self, texts: Mapping[str, str]) -> LaunchFiles:
        """Returns these files together with those that a script writes, which replace files of
        the same name."""
        return replace(self, texts={**self.texts, **texts}) if texts else self

    def named(self, name: str) -> str | None:
        """Returns the name under which a file was sent: of those with the same last part, the
        one that shares most folders with `name`. None where there is none. Raises Invalid where
        different files are equally near."""
        if name in self.texts:
            return name
        steps = _steps(name)
        if not steps or _VARIABLE.fullmatch(steps[-1]):
            return None
        shared = {sent: _common_end(steps, _steps(sent)) for sent in self.texts}
        most = max(shared.values(), default=0)
        if not most:
            return None
        nearest = [sent for sent, count in shared.items() if count == most]
        if len({self.texts[sent] for sent in nearest}) > 1:
            exact = [sent for sent in nearest if _steps(sent) == steps]
            if len(exact) != 1:
                names = ", ".join(shortened(sent) for sent in nearest[:5])
                rule = f"may be any of {names} of launch.files: write its folder into the command"
                raise Invalid(PATH, shortened(name), rule)
            return exact[0]
        return nearest[0]

    def only_text(self) -> str | None:
        """Returns the text of the only file; None where there are several, or none."""
        return next(iter(self.texts.values())) if len(self.texts) == 1 else None


NO_FILES = LaunchFiles()


def _steps(name: str) -> list[str]:
    return [step for step in name.strip().strip("'\"").split("/") if step not in ("", ".")]


def _common_end(first: list[str], second: list[str]) -> int:
    """Returns how many components two paths share at their ends: 2 of a/b/c and x/b/c."""
    count = 0
    for one, other in zip(reversed(first), reversed(second), strict=False):
        if one != other:
            break
        count += 1
    return count
