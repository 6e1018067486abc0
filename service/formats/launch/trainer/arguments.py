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
    """Returns the flags of a command line as settings, with underscores in their names:
    {"use_peft": "true", "lora_r": "16"} of --use-peft --lora_r=16. A flag with several values
    has a list."""
    settings: dict[str, Any] = {}
    at = 0
    while at < len(words):
        name, value, at = _setting(words, at)
        if name is not None:
            settings[name] = value
    return settings


def documents_in(words: Sequence[str]) -> list[str]:
    """Returns the YAML and JSON files in front of all flags: ["config.yml"] of `config.yml
    --bf16 true`."""
    positional = takewhile(lambda word: not word.startswith("-"), words)
    return [word for word in positional if _FILE.fullmatch(word)]


def _setting(words: Sequence[str], at: int) -> tuple[str | None, Any, int]:
    """Returns the name and the value of the setting that begins at index `at` of the words, and
    the index behind it. The name of a word that is no setting is None."""
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
    """Returns the flags of a launcher by name, with underscores: {"num_processes": "8"}. Those
    in `switches` take no value, and are "true"."""
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
