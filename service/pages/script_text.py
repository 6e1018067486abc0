"""The text of a launch (a script or command that starts a training) as somebody typed it: on which
line a setting stands, and how the text reads with some settings changed. An *option* is a setting
that begins with two dashes."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_VALUE = r"""(?:"[^"\n]*"|'[^'\n]*'|[^\s\\,;]+)"""
_LINES_AROUND = 2  # of a change: enough to find it, and no more


def line_of(text: str, names: Iterable[str]) -> int | None:
    """Returns the number of the first line, from 1, that has a setting; None where no line has.
    `names` are its names, and the first that the text has decides."""
    for name in names:
        match = re.search(_pattern(name), text)
        if match is not None:
            return text.count("\n", 0, match.start()) + 1
    return None


def number_of(text: str, names: Iterable[str]) -> int | None:
    """Returns the whole number that the text gives to a setting by any of its `names`; None where
    it gives none. "--seq-length 4096" gives 4096."""
    for name in names:
        match = re.search(rf"{_pattern(name)}[\s=:]+(\d+)\b", text)
        if match is not None:
            return int(match[1])
    return None


def _pattern(name: str) -> str:
    """Returns a regular expression for the whole name of a setting, with or without two dashes
    before it. Dashes and underscores in the name match each other, as most parsers read them."""
    bare = re.escape(name.lstrip("-"))
    # re.escape writes a dash as "\-". For "--tp-size" the result matches "--tp_size" and "tp-size",
    # but not "--tp-size-max".
    either = re.sub(r"(?:\\-|_)", "[-_]", bare)
    return rf"(?<![\w.-])(?:--)?{either}(?![\w-])"


def changed(
    text: str, settings: Sequence[Mapping[str, Any]], anchors: Iterable[str]
) -> tuple[str, list[Mapping[str, Any]]]:
    """Returns the text with each setting at its new value `to`, and the settings for which the text
    has no place. A new option is put before the first of the settings `anchors` that the command
    line has."""
    without_place = []
    for setting in settings:
        rewritten = _with_value(text, setting) or _with_new_option(text, setting, anchors)
        if rewritten is None:
            without_place.append(setting)
        else:
            text = rewritten
    return text, without_place


def _with_value(text: str, setting: Mapping[str, Any]) -> str | None:
    """Returns the text with a new value of a setting that it already has; None where it does not
    have it."""
    name = setting["name"]
    last_part = name.lstrip("-").split(".")[-1]
    # A TOML or YAML file has the sections of a name above it, and the last part beside the value.
    for spelling in dict.fromkeys((name, last_part)):
        # Matches such as "--tp 8" (between: " ", value: "8"), "tp = 8", or the flag "--bf16".
        name_and_value = (
            rf"(?P<name>{_pattern(spelling)})(?P<between>\s*[=:]\s*|[ \t]+)?(?P<value>{_VALUE})?"
        )
        place = re.search(name_and_value, text)
        if place is not None:
            return _with_value_at(text, place, name, setting["to"])
    return None


def _with_value_at(text: str, place: re.Match[str], name: str, value: Any) -> str:
    """Returns the text with a new value of the setting `name` at the place where it stands: its
    name, what is between, and its old value. The value None removes the setting."""
    before, after = text[: place.start()], text[place.end() :]
    old = place["value"] or ""
    # An option that another one follows, as --bf16 in "--bf16 --tp 8", has no value: it is switched
    # on by being there, and what was read as its old value belongs to the text behind it.
    is_flag = place["name"].startswith("--") and (not old or old.startswith("-"))
    if is_flag:
        option = "" if value in (None, False) else _option(name, value) + (place["between"] or "")
        return before + option + old + after
    if value is None:
        return before + after.lstrip(" \t")
    return text[: place.start("value")] + _shell_word(value) + text[place.end("value") :]


def _with_new_option(text: str, setting: Mapping[str, Any], anchors: Iterable[str]) -> str | None:
    """Returns the text with a new option of a command line, before the first of the settings
    `anchors` that it has. None where the setting is not an option, or the text has none of the
    settings `anchors`."""
    if not setting["name"].startswith("--"):
        return None
    for name in anchors:
        match = re.search(_pattern(name), text)
        if match is not None and match[0].startswith("--"):
            option = _option(setting["name"], setting["to"])
            return f"{text[: match.start()]}{option} {text[match.start() :]}"
    return None


def _option(name: str, value: Any) -> str:
    """Returns an option of a command line, such as "--tp 8", or a bare "--bf16" for True."""
    return name if value is True else f"{name} {_shell_word(value)}"


def _shell_word(value: Any) -> str:
    """Returns a value as a shell takes it: items of a list with spaces between, a boolean as true
    or false, and anything else quoted where it must be."""
    if isinstance(value, list):
        return " ".join(map(_shell_word, value))
    return str(value).lower() if isinstance(value, bool) else shlex.quote(str(value))


def diff(before: str, after: str) -> list[tuple[str, str]]:
    """Returns the lines of a unified diff with their kind: "added", "removed", "same", or "place"
    for a line that says where a hunk begins."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), lineterm="", n=_LINES_AROUND
    )
    kinds = {"+": "added", "-": "removed", " ": "same", "@": "place"}
    # The first two lines name files, which these texts are not.
    return [(kinds[line[0]], line) for line in list(lines)[2:]]
