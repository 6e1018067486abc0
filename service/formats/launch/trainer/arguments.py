"""The arguments of a program of transformers as settings."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import takewhile
from typing import Any

from service.formats.shell.faults import require_arguments_defined

_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_][\w.]{0,99})=(.*)", re.ASCII | re.DOTALL)
_FILE = re.compile(r"[^-\s]\S*\.(?:ya?ml|json)", re.ASCII)


def settings_of(words: Sequence[str]) -> dict[str, Any]:
    """Returns settings by name with underscores: {"use_peft": "true", "lora_r": "16"} of --use-peft
    --lora_r=16, or of lora_r=16. A flag with several values has a list."""
    settings: dict[str, Any] = {}
    at = 0
    while at < len(words):
        name, value, at = _setting(words, at)
        if name is not None:
            settings[name] = value
    return settings


def documents_in(words: Sequence[str]) -> list[str]:
    """Returns the files of YAML or JSON in front of all flags: config.yml of `axolotl train
    config.yml --bf16 true`."""
    positional = takewhile(lambda word: not word.startswith("-"), words)
    return [word for word in positional if _FILE.fullmatch(word)]


def _setting(words: Sequence[str], at: int) -> tuple[str | None, Any, int]:
    """Returns the name and the value of the setting at a place among words, and the place behind
    it. A word that is no setting has no name."""
    word = words[at]
    if override := _OVERRIDE.fullmatch(word):
        return override.group(1), override.group(2), at + 1
    require_arguments_defined(word)
    if not word.startswith("--"):
        return None, None, at + 1
    flag, equals, value = word.partition("=")
    name = flag.lstrip("-").replace("-", "_")
    if equals:
        return name, value, at + 1
    values: list[str] = []
    at += 1
    while at < len(words) and not words[at].startswith("--"):
        values.append(words[at])
        at += 1
    if len(values) > 1:
        for candidate in values:
            require_arguments_defined(candidate)
        return name, values, at
    return name, values[0] if values else "true", at


def flags_of(words: Sequence[str], switches: Collection[str] = ()) -> dict[str, str]:
    """Returns the flags of a launcher by name with underscores. Those of `switches` have no
    value."""
    flags: dict[str, str] = {}
    at = 0
    while at < len(words):
        require_arguments_defined(words[at])
        flag, equals, value = words[at].partition("=")
        name = flag.lstrip("-").replace("-", "_")
        has_value = at + 1 < len(words) and not words[at + 1].startswith("-")
        if equals or name in switches or not has_value:
            flags[name] = value if equals else "true"
            at += 1
        else:
            flags[name] = words[at + 1]
            at += 2
    return flags
