"""The arguments of a program of transformers as settings: flags (--bf16), overrides (a.b=c), and
the YAML or JSON files in front of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from typing import Any

from service.formats.shell.faults import require_arguments_defined
from service.formats.shell.programs import option_name

_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_][\w.]{0,99})=(.*)", re.ASCII | re.DOTALL)
_FILE = re.compile(r"[^-\s]\S*\.(?:ya?ml|json)", re.ASCII)


def settings_of(words: Sequence[str]) -> dict[str, Any]:
    """Returns the flags of a command line as settings, with underscores in their names:
    {"use_peft": "true", "lora_r": "16"} for --use-peft --lora_r=16. A flag with several values
    has a list. Raises Undefined for a shell variable without a value that may hold flags."""
    values_of: dict[str, list[str]] = {}
    flag: str | None = None  # whose values may follow
    for word in words:
        if flag is not None and not word.startswith("--"):
            values = values_of[flag]
            values.append(word)
            # A flag's only value may be an undefined $VARIABLE, which is refused where the flag is
            # read. One among several values may hold flags.
            if len(values) > 1:
                require_arguments_defined(values[-2])
                require_arguments_defined(word)
            continue
        flag = None
        if override := _OVERRIDE.fullmatch(word):
            values_of[override.group(1)] = [override.group(2)]
            continue
        require_arguments_defined(word)
        if word.startswith("--"):
            name = option_name(word)
            _, equals, value = word.partition("=")
            values_of[name] = [value] if equals else []
            flag = None if equals else name
    return {name: _value(values) for name, values in values_of.items()}


def _value(values: list[str]) -> str | list[str]:
    """Returns the value of a flag with these words behind it; "true" where there are none."""
    if not values:
        return "true"
    return values if len(values) > 1 else values[0]


def with_switched_off(
    settings: Mapping[str, Any], on_by_default: Collection[str]
) -> dict[str, Any]:
    """Returns the settings with --no_remove_unused_columns as remove_unused_columns "false", which
    the parser of transformers has for the switches that are on by default (hf_argparser.py)."""
    negated = {f"no_{name}": name for name in on_by_default}
    return {
        negated.get(name, name): "false" if name in negated else value
        for name, value in settings.items()
    }


def documents_in(words: Sequence[str]) -> list[str]:
    """Returns the YAML and JSON files in front of all flags: ["config.yml"] for `config.yml
    --bf16 true`."""
    positional = takewhile(lambda word: not word.startswith("-"), words)
    return [word for word in positional if _FILE.fullmatch(word)]


def flags_of(words: Sequence[str], switches: Collection[str] = ()) -> dict[str, str]:
    """Returns the flags of a launcher by name, with underscores: {"num_processes": "8"}. Those
    in `switches` take no value, and are "true", as is any flag that another flag follows. Raises
    Undefined for a shell variable without a value that may hold flags."""
    flags: dict[str, str] = {}
    index = 0
    while index < len(words):
        require_arguments_defined(words[index])
        name = option_name(words[index])
        _, equals, value = words[index].partition("=")
        has_value = index + 1 < len(words) and not words[index + 1].startswith("-")
        if equals or name in switches or not has_value:
            flags[name] = value if equals else "true"
            index += 1
        else:
            flags[name] = words[index + 1]
            index += 2
    return flags
