"""A job that an object describes, such as a Kubernetes Job, as the text of a shell that starts it.
Its *header* is the machines that it asks for, as the options of Slurm that would ask for them: they
are then read like those of a batch script."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from service.formats.shell.headers import Header


@dataclass(frozen=True, slots=True, kw_only=True)
class JobText:
    """The command of a job, its variables, and the machines that it asks for."""

    text: str
    """A command of the shell, a script, or arguments alone."""
    environment: Mapping[str, str] = field(default_factory=dict)
    header: Header | None = None
    """The machines, as the options of Slurm that would ask for them; None where the object says
    nothing of them."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts that the object has beside the command, such as those of a ConfigMap."""


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Returns a value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def as_list(value: Any) -> list[Any]:
    """Returns a value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def positive_integer(value: Any) -> int | None:
    """Returns a whole number from 1 up, given as a number or a text; None for anything else. More
    than seven digits are no count of machines."""
    match = re.fullmatch(r"\d{1,7}", str(value), re.ASCII)  # no match for True and False
    return int(match[0]) or None if match else None


def environment_of(value: Any) -> dict[str, str]:
    """Returns environment variables given as a mapping, {"TP": 8}, or as a list, [{"name": "TP",
    "value": "8"}]. Entries without a value, such as references to secrets, are left out."""
    pairs = [
        (variable.get("name"), variable.get("value"))
        for variable in as_list(value)
        if as_mapping(variable)
    ]
    pairs += list(as_mapping(value).items())
    return {str(name): _text(content) for name, content in pairs if name and content is not None}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def slurm_header(
    name: str,
    *,
    nodes: int | None,
    gpus: int | None,
    chip: str | None,
    as_written: Mapping[str, str],
) -> Header | None:
    """Returns the machines that a job asks for, in the words of Slurm; None where it does not
    say. `as_written` has, for each option, how the job's object writes it, for messages."""
    options = {"nodes": str(nodes)} if nodes else {}
    if gpus:
        options["gpus-per-node"] = f"{chip}:{gpus}" if chip else str(gpus)
    return Header(name=name, options=options, as_written=as_written) if options else None
