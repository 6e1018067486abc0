"""The facts of the frameworks' releases: the files of the folder `fields`. A *placeholder* is a
setting that no layout decides, such as the path of the data, for the caller to fill in."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from models.package_data import read_json


@cache
def facts(name: str) -> Mapping[str, Any]:
    """Returns the content of fields/NAME.json. All callers share it, so none may change it."""
    content: Mapping[str, Any] = read_json(__package__, f"fields/{name}.json")
    return content


def placeholders(format_: str, **needed: bool) -> dict[str, str]:
    """Returns the settings that a caller must fill in, each with a sentence on what to put
    there. The format's table has parts: `always`, and those that `needed` switches on."""
    parts: Mapping[str, Mapping[str, str]] = facts("placeholders")[format_]
    needed["always"] = True
    return {
        name: words for part in parts if needed.get(part) for name, words in parts[part].items()
    }
