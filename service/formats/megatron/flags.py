"""The flags of Megatron-LM's parser (launch/fields/ has the table), and argument lists and dumps of
arguments as settings by them.

A flag without a value is True where it is given. What it does to its argument, which a dump has, is
another thing: --disable-bias-linear sets add_bias_linear to False.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from models.errors import Invalid
from service.formats.settings.field import Field
from service.formats.settings.field_table import FieldTable, field_table
from service.formats.settings.settings import Settings
from service.formats.shell.faults import PATH, require_arguments_defined, require_defined

RELEASE = "0.19.2"
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
_SHAPES = {
    "pattern": (
        re.compile(r"\d{1,9}|[\[\]()0-9*+, ]+", re.ASCII),
        "must be a whole number or a list such as ([0]*3+[1]*58)",
    ),
    "pair": (
        re.compile(r"\(?\s*-?\d{1,9}\s*,\s*-?\d{1,9}\s*\)?", re.ASCII),
        "must be two whole numbers such as 127,0",
    ),
}
"""Kinds of values that are texts of a shape of their own."""
_DERIVED = re.compile(
    r"world_size|rank|local_rank|data_parallel_size|params_dtype|padded_vocab_size|iteration"
    r"|consumed_\w+|skipped_\w+|virtual_pipeline_model_parallel_size|variable_seq_lengths"
    r"|transformer_pipeline_model_parallel_size|do_\w+|cpu_offloading|use_custom_fsdp"
    r"|use_layer_wise_distributed_optimizer|\w*gtp_weight_remat_size|use_dist_ckpt|async_\w+"
)
"""Arguments of a dump that no flag sets."""


@cache
def table() -> FieldTable:
    return field_table(f"megatron_core_{RELEASE}")


def argument_of(flag: str) -> str:
    """The argument that a flag sets."""
    named: str = table().facts["argument"].get(flag, flag[2:].replace("-", "_"))
    return named


@cache
def flag_of_argument() -> Mapping[str, str]:
    """The flag that sets each argument; the one spelt like it where there are several."""
    flags: dict[str, str] = {}
    for flag in table().fields:
        argument = argument_of(flag)
        if argument not in flags or flag == f"--{argument.replace('_', '-')}":
            flags[argument] = flag
    return flags


def kind_of_argument(argument: str) -> str:
    """Returns the kind of an argument's value, whether a flag sets it or Megatron derives it."""
    flag = flag_of_argument().get(argument)
    kind: str = table().facts["derived"][argument] if flag is None else table().fields[flag].kind
    return kind


def takes_value(flag: str) -> bool:
    return table().fields[flag].kind != "bool"


def switches_off(flag: str) -> bool:
    """Returns True where a flag without a value sets its argument to False."""
    return flag in table().facts["off"]


@cache
def defaults() -> Mapping[str, str]:
    """The text of every argument that is not given. The auxiliary loss that balances experts by
    default has a weight of 0 then, which is as good as none."""
    values = {argument_of(name): text_of(name, f.default) for name, f in table().fields.items()}
    return {**values, "moe_router_load_balancing_type": "none"}


def text_of(flag: str, value: Any) -> str:
    """Returns what Megatron dumps of the argument of a flag that has a value."""
    return str(not value if switches_off(flag) else value)


def value_of(flag: str, text: str) -> Any:
    """The value of a flag, by what Megatron dumps of its argument."""
    field = table().fields[flag]
    if field.kind == "bool":
        return (text == "True") != switches_off(flag)
    if text in ("None", ""):
        return None
    if field.kind == "list":
        return re.findall(r"[\w+.*|-]{1,400}", text, re.ASCII)
    try:
        return field.parse(text)
    except Invalid:  # which the reader of the argument reports, if it has one
        return text


def from_words(words: Sequence[str]) -> Settings:
    """The settings of an argument list, as Megatron's parser takes it. Raises Invalid where a value
    has another type than its flag, or is none of its choices."""
    settings = Settings(table())
    for name, given in _grouped(words):
        strays = given
        if name in table().fields:
            own, strays = _own_values(name, given)
            settings.put(name, _value(name, own))
            settings.written[name] = " ".join([name, *own])
        elif name:
            settings.put(name, " ".join(given))
            settings.written[name] = " ".join([name, *given])
            continue
        for word in strays:
            require_arguments_defined(word)
            reason = "it is the value of no flag"
            cure = "leave it out, or write the flag in front of it"
            settings.reserve_text(word, reason, cure)
    return settings


def from_dump(values: Mapping[str, str]) -> Settings:
    """The settings of values by the name of the argument, as Megatron dumps them."""
    settings = Settings(table())
    for argument, text in values.items():
        flag = flag_of_argument().get(argument)
        is_set = text not in ("None", "False") and not _DERIVED.fullmatch(argument)
        if flag is not None or is_set:
            name = flag or argument
            settings.put(name, text if flag is None else value_of(flag, text))
            settings.written[name] = f"{argument} {text}"
    return settings


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


def _own_values(flag: str, given: list[str]) -> tuple[list[str], list[str]]:
    """The words that belong to a flag, and those behind that do not."""
    field = table().fields[flag]
    if field.kind == "bool":
        return [], given
    if field.kind == "list":
        if not given and not field.is_optional:
            raise Invalid(PATH, flag, "needs at least one value")
        return given, []
    if not given:
        raise Invalid(PATH, flag, "needs a value")
    return given[:1], given[1:]


def _value(flag: str, given: Sequence[str]) -> Any:
    """The value of a flag. Raises Invalid for one that the parser refuses."""
    field = table().fields[flag]
    if field.kind == "bool":
        return True
    if field.use == "no_account":
        return " ".join(given)
    if field.kind != "list":
        return _parsed(field, given[0])
    item = replace(field, kind=table().facts["items"].get(flag, "str"))
    return [_parsed(item, word) for word in given]


def _parsed(field: Field, word: str) -> Any:
    require_defined(field.name, word)
    shape, rule = _SHAPES.get(field.kind, (None, ""))
    try:
        if shape and not shape.fullmatch(word):
            raise Invalid(PATH, word, rule)
        return replace(field, is_optional=False).parse(word)
    except Invalid as error:
        raise Invalid(PATH, f"{field.name} {word[:80]}", error.rule) from None
