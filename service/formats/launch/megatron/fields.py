"""The flags of Megatron-LM's parser, and argument lists read by them (fields/ has the table).

An argument list becomes texts by the name of the argument, as Megatron dumps them: "True" for a
flag that is on, "['moe_act', 'layernorm']" for a list, and the default of every flag that is not
given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

from models.errors import Invalid
from models.spec import catalogue
from models.spec.switches import switches_of
from service.formats.launch.facts import facts
from service.formats.settings.field import Field
from service.formats.settings.field_table import FieldTable, field_table
from service.formats.shell.faults import (
    PATH,
    require_arguments_defined,
    require_defined,
    undefined_variables,
)

RELEASE = "0.19.2"
_TABLE = f"megatron_core_{RELEASE}"
_EFFECTS = "megatron_effects"
_WHOLE = re.compile(r"[-+]?\d{1,18}", re.ASCII)
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
_PATTERN = re.compile(r"\d{1,9}|[\[\]()0-9*+, ]+", re.ASCII)
_TUPLE = re.compile(r"\(?\s*-?\d{1,9}\s*,\s*-?\d{1,9}\s*\)?", re.ASCII)
_TYPES = {
    "int": (_WHOLE, "a whole number"),
    "float": (_NUMBER, "a number"),
    "moe_freq_type": (_PATTERN, "a whole number or a list such as ([0]*3+[1]*58)"),
    "la_freq_type": (_PATTERN, "a whole number or a list such as ([0]*3+[1]*58)"),
    "no_rope_freq_type": (_PATTERN, "a whole number or a list such as ([0]*3+[1]*58)"),
    "tuple_type": (_TUPLE, "two whole numbers such as 127,0"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag of the parser."""

    name: str
    argument: str
    """The argument that it sets."""
    kind: str
    """The action of argparse: Store, StoreTrue, StoreFalse or BooleanOptional."""
    nargs: str | int | None
    type: str | None
    choices: tuple[str, ...] | None
    """What it may be, by the words that are typed."""
    default: Any

    @property
    def takes_value(self) -> bool:
        return self.kind == "Store"


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """An argument list, flag by flag."""

    values: Mapping[str, str]
    """The text of every argument that is given, by its name."""
    written: Mapping[str, str]
    """What was written of every flag that is known, by the flag."""
    unknown: Mapping[str, str]
    """The words behind each flag that the parser does not have, by the flag."""
    strays: tuple[str, ...]
    """Words that are values of no flag."""


@cache
def flags() -> Mapping[str, Flag]:
    """Every flag of the parser, by its name."""
    found = {}
    for row in facts(_TABLE)["flags"]:
        choices = row.get("choices")
        found[row["name"]] = Flag(
            name=row["name"],
            argument=row.get("dest", row["name"][2:].replace("-", "_")),
            kind=row["kind"],
            nargs=row.get("nargs"),
            type=row.get("type"),
            choices=choices and tuple(str(choice).rpartition(".")[2] for choice in choices),
            default=row["default"],
        )
    return found


@cache
def flag_of_argument() -> Mapping[str, str]:
    """The flag that sets each argument; the one spelt like it where there are several."""
    found: dict[str, str] = {}
    for flag in flags().values():
        if flag.argument not in found or flag.name == f"--{flag.argument.replace('_', '-')}":
            found[flag.argument] = flag.name
    return found


@cache
def defaults() -> Mapping[str, str]:
    """The text of every argument that is not given. The auxiliary loss that balances experts by
    default has a weight of 0 then, which is as good as none."""
    values = {flag.argument: text_of(flag.default) for flag in flags().values()}
    return {**values, "moe_router_load_balancing_type": "none"}


def text_of(value: object) -> str:
    """A value as Megatron dumps it."""
    return value if isinstance(value, str) else str(value)


def value_of(flag: Flag, text: str) -> Any:
    """The value of a flag by the text of its argument, as writers have it: True where one without a
    value is given, None where nothing is."""
    if not flag.takes_value:
        return True if (text == "True") == (flag.kind != "StoreFalse") else None
    if flag.nargs:
        return re.findall(r"[\w+.*|-]{1,400}", text, re.ASCII)
    return int(text) if flag.type == "int" and _WHOLE.fullmatch(text) else text


@cache
def table() -> FieldTable:
    """The flags as settings: which are read, which change nothing, and which are not described. A
    value is the text of the argument, as Megatron dumps it."""
    effects = field_table(_EFFECTS)
    fields = {name: _setting(flag, effects) for name, flag in flags().items()}
    return replace(effects, fields=fields)


def _setting(flag: Flag, effects: FieldTable) -> Field:
    known = effects.field(flag.name)
    predicted = effects.facts["values_as_predicted"].get(flag.name, ())
    if flag.argument in effects.facts["read"] or flag.name in switch_names("megatron"):
        known = Field(name=flag.name, kind="any")
    elif known is None:
        known = Field(name=flag.name, kind="any", use="not_described")
    return replace(
        known, name=flag.name, default=text_of(flag.default), as_predicted=tuple(predicted)
    )


@cache
def switch_names(stack_id: str) -> frozenset[str]:
    """The arguments that set the switches of a stack."""
    found = (switch.arguments for switch in switches_of(catalogue.stack(stack_id)))
    return frozenset(name for names in found for name in names)


def is_read(argument: str) -> bool:
    """Whether the model, the workload or the layout is read from an argument."""
    return argument in table().facts["read"]


@lru_cache(maxsize=4096)
def is_harmless(name: str) -> bool:
    """Whether a flag is known to change neither time nor memory."""
    known = field_table(_EFFECTS).field(name)
    return known is not None and known.use == "no_account"


def is_as_predicted(name: str, text: str) -> bool:
    """Whether a value of a flag is what predictions assume anyway."""
    field = table().fields[name]
    return text == field.default or text in field.as_predicted


def parse(words: Sequence[str]) -> Typed:
    """An argument list as Megatron's parser takes it. Raises Invalid where a value has another type
    than its flag, or is none of its choices."""
    values: dict[str, str] = {}
    written: dict[str, str] = {}
    unknown: dict[str, str] = {}
    strays: list[str] = []
    for name, given in _grouped(words):
        flag = flags().get(name)
        if not name:
            _require_defined(given)
            strays += given
            continue
        if flag is None:
            unknown[name] = " ".join(given)
            continue
        own, others = _own_values(flag, given)
        _require_defined(others)
        strays += others
        written[name] = " ".join([name, *own])
        if not is_harmless(name):
            values[flag.argument] = _text(flag, own)
        elif not any(map(undefined_variables, own)):
            values[flag.argument] = " ".join(own) or "True"
    return Typed(values=values, written=written, unknown=unknown, strays=tuple(strays))


def _require_defined(others: Sequence[str]) -> None:
    """Raises Invalid where words that are values of no flag are variables of unknown value."""
    for word in others:
        require_arguments_defined(word)


def _grouped(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each flag with the words behind it. Words in front of the first are by themselves."""
    name = ""
    given: list[str] = []
    for word in words:
        if word.startswith("--") or (word.startswith("-") and not _NUMBER.fullmatch(word)):
            if name or given:
                yield name, given
            name, has_value, value = word.partition("=")
            given = [value] if has_value else []
        else:
            given.append(word)
    if name or given:
        yield name, given


def _own_values(flag: Flag, given: list[str]) -> tuple[list[str], list[str]]:
    """The words that belong to a flag, and those behind that do not."""
    if not flag.takes_value:
        return [], given
    if flag.nargs in ("+", "*"):
        if flag.nargs == "+" and not given:
            raise Invalid(PATH, flag.name, "needs at least one value")
        return given, []
    count = flag.nargs if isinstance(flag.nargs, int) else 1
    if len(given) < count:
        needs = "a value" if count == 1 else f"{count} values"
        raise Invalid(PATH, flag.name, f"needs {needs}")
    return given[:count], given[count:]


def _text(flag: Flag, given: Sequence[str]) -> str:
    """The text of an argument as Megatron dumps it. Raises Invalid for a value that its parser
    refuses."""
    if not flag.takes_value:
        is_off = flag.kind == "StoreFalse" or (
            flag.kind == "BooleanOptional" and flag.name.startswith("--no-")
        )
        return str(not is_off)
    for word in given:
        require_defined(flag.name, word)
        pattern, kind = _TYPES.get(flag.type or "", (None, ""))
        if pattern and not pattern.fullmatch(word):
            raise Invalid(PATH, f"{flag.name} {word[:80]}", f"must be {kind}")
        if flag.choices and word not in flag.choices:
            rule = f"must be one of {', '.join(flag.choices)}"
            raise Invalid(PATH, f"{flag.name} {word[:80]}", rule)
    return str(list(given)) if flag.nargs else given[0]
