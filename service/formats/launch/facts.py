"""The facts of the frameworks' releases: the files of the folder `fields`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def facts(name: str) -> Mapping[str, Any]:
    """Returns what the file of this name holds. It is shared by all who ask: nobody changes it."""
    content: Mapping[str, Any] = json.loads(
        (files(__package__) / "fields" / f"{name}.json").read_text()
    )
    return content


def placeholders(format_: str, **needed: bool) -> dict[str, str]:
    """Returns what the caller of a format fills in: what every job needs, and what goes with the
    parts that this one needs."""
    parts: Mapping[str, Mapping[str, str]] = facts("placeholders")[format_]
    needed["always"] = True
    return {
        name: words for part in parts if needed.get(part) for name, words in parts[part].items()
    }
