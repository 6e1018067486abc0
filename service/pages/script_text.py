"""The text of a launch as somebody typed it: on which line a setting stands, and how the text reads
with some settings changed."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_VALUE = r"""(?:"[^"\n]*"|'[^'\n]*'|[^\s\\,;]+)"""
_LINES_AROUND = 2  # of a change: enough to find it, and no more


def line_of(text: str, names: Iterable[str]) -> int | None:
    """Returns the number of the first line, from 1, that has one of these settings, the first name
    that is found; None where there is none."""
    for name in names:
        match = re.search(_pattern(name), text)
        if match is not None:
            return text.count("\n", 0, match.start()) + 1
    return None


def number_of(text: str, names: Iterable[str]) -> int | None:
    """Returns the whole number that the text gives to the first of these settings that it has; None
    where it gives none."""
    for name in names:
        match = re.search(rf"{_pattern(name)}[\s=:]+(\d+)\b", text)
        if match is not None:
            return int(match[1])
    return None


def _pattern(name: str) -> str:
    """Returns a regular expression for a setting by its whole name. Dashes and underscores are the
    same to most parsers."""
    bare = re.escape(name.lstrip("-"))
    either = re.sub(r"(?:\\-|_)", "[-_]", bare)
    return rf"(?<![\w.-])(?:--)?{either}(?![\w-])"


def changed(
    text: str, settings: Sequence[Mapping[str, Any]], beside: Iterable[str]
) -> tuple[str, list[Mapping[str, Any]]]:
    """Returns the text with the `to` of each setting, and the settings for which it has no place.
    One that the text does not have yet is put before the first of the settings `beside`, if that is
    an option of a command line."""
    without_place = []
    for setting in settings:
        rewritten = _with_value(text, setting) or _with_new_option(text, setting, beside)
        if rewritten is None:
            without_place.append(setting)
        else:
            text = rewritten
    return text, without_place


def _with_value(text: str, setting: Mapping[str, Any]) -> str | None:
    """Returns the text with another value of a setting that it has; None where it has none."""
    name, value = setting["name"], setting["to"]
    sections = name.lstrip("-").split(".")
    # A TOML or YAML file has the sections of a name above it, and the last part beside the value.
    for part in dict.fromkeys((name, sections[-1])):
        match = re.search(rf"({_pattern(part)})(\s*[=:]\s*|[ \t]+)?({_VALUE})?", text)
        if match is None:
            continue
        whole = match[1]
        between = match[2] or ""
        old = match[3] or ""
        is_flag = whole.startswith("--") and (not old or old.startswith("-"))
        if is_flag:
            words = "" if value in (None, False) else _option(name, value) + between
            return text[: match.start()] + words + text[match.start(3) if old else match.end() :]
        if value is None:
            return text[: match.start()] + text[match.end() :].lstrip(" \t")
        return text[: match.start(3)] + _word(value) + text[match.end(3) :]
    return None


def _with_new_option(text: str, setting: Mapping[str, Any], beside: Iterable[str]) -> str | None:
    """Returns the text with an option that it does not have, put before the first of the settings
    `beside`; None where the setting is no option, or the text has none of those."""
    if not setting["name"].startswith("--"):
        return None
    for name in beside:
        match = re.search(_pattern(name), text)
        if match is not None and match[0].startswith("--"):
            option = _option(setting["name"], setting["to"])
            return f"{text[: match.start()]}{option} {text[match.start() :]}"
    return None


def _option(name: str, value: Any) -> str:
    return name if value is True else f"{name} {_word(value)}"


def _word(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_word, value))
    return str(value).lower() if isinstance(value, bool) else shlex.quote(str(value))


def diff(before: str, after: str) -> list[tuple[str, str]]:
    """Returns the lines that differ, with some around them: each with "added", "removed" or
    "same"."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), lineterm="", n=_LINES_AROUND
    )
    kinds = {"+": "added", "-": "removed", " ": "same", "@": "place"}
    return [(kinds[line[0]], line) for line in list(lines)[2:]]
