"""The flags of Megatron-LM's parser (launch/fields/ has the table), and argument lists and dumps of
arguments as settings by them.

A flag without a value is True where it is given. What it does to its argument, which a dump has, is
another thing: --disable-bias-linear sets add_bias_linear to False. A *dump* is the list of all
arguments that a run prints at its start.
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
from service.formats.settings.stop import Stop
from service.formats.shell.faults import (
    invalid_launch,
    require_arguments_defined,
    require_defined,
    undefined_variables,
)

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
    """Returns the argument that a flag sets: "add_bias_linear" for --disable-bias-linear."""
    argument: str = table().facts["argument"].get(flag, flag[2:].replace("-", "_"))
    return argument


@cache
def flag_of_argument() -> Mapping[str, str]:
    """Returns, for each argument, the flag that sets it: of several the one that is spelt like the
    argument, or else the first."""
    flags: dict[str, str] = {}
    for flag in table().fields:
        argument = argument_of(flag)
        if argument not in flags or flag == f"--{argument.replace('_', '-')}":
            flags[argument] = flag
    return flags


def kind_of_argument(argument: str) -> str:
    """Returns the type of an argument's value, such as "int". An argument without a flag has its
    type in the table's `derived`."""
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
    """Returns the default of every argument, as text. By default the auxiliary loss of experts
    has a weight of 0, which counts as no load balancing."""
    values = {
        argument_of(flag): text_of(flag, field.default) for flag, field in table().fields.items()
    }
    return {**values, "moe_router_load_balancing_type": "none"}


def text_of(flag: str, value: Any) -> str:
    """Returns the text that Megatron dumps for the argument of a flag with this value: "False"
    for --disable-bias-linear with True."""
    return str(not value if switches_off(flag) else value)


def value_of(flag: str, text: str) -> Any:
    """Returns the value of a flag for the text that Megatron dumps of its argument: True for
    --disable-bias-linear where the dump has "False". An unreadable text is returned unchanged."""
    field = table().fields[flag]
    if field.kind == "bool":
        return (text == "True") != switches_off(flag)
    if text in ("None", ""):
        return None
    # "['a', 'b.c']" -> ["a", "b.c"]. Items are numbers, names of modules and layer patterns.
    if field.kind == "list":
        return re.findall(r"[\w+.*|-]{1,400}", text, re.ASCII)
    try:
        return field.parse(text)
    except Invalid:  # where a reader uses the argument, it raises this error again
        return text


def from_words(words: Sequence[str]) -> Settings:
    """Returns the settings of an argument list. A word that is no flag's value is not taken into
    account, and a reservation tells the user so. Raises Invalid for values that Megatron's parser
    refuses, and for undefined shell variables. Values of flags of no account may be undefined, and
    one that the parser refuses is a stop."""
    settings = Settings(table())
    for flag, behind in _words_by_flag(words):
        strays = behind
        if flag in table().fields:
            values, strays = _split_values(flag, behind)
            if table().is_of_no_account(flag):
                settings.stops += _stops_at_words(flag, values)
            settings.put(flag, _value_of_words(flag, values))
            settings.written[flag] = " ".join([flag, *values])
        elif flag:  # an unknown flag may take any number of values, so no word is a stray
            settings.put(flag, " ".join(behind))
            settings.written[flag] = " ".join([flag, *behind])
            continue
        for word in strays:
            require_arguments_defined(word)
            reason = "it is the value of no flag"
            cure = "leave it out, or write the flag in front of it"
            settings.add_text_reservation(word, reason, cure)
    return settings


def from_dump(values: Mapping[str, str]) -> Settings:
    """Returns the settings of a dump, {"micro_batch_size": "2"}, under the names of flags.
    Arguments without a flag keep their own names, and are left out where they are off or where
    Megatron derives them from others."""
    settings = Settings(table())
    for argument, text in values.items():
        flag = flag_of_argument().get(argument)
        is_set = text not in ("None", "False") and not _DERIVED.fullmatch(argument)
        if flag is not None or is_set:
            name = flag or argument
            settings.put(name, text if flag is None else value_of(flag, text))
            settings.written[name] = f"{argument} {text}"
    return settings


def _words_by_flag(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yields each flag with the words behind it. Words in front of the first flag have the flag
    ""."""
    flag = ""
    behind: list[str] = []
    for word in words:
        # A negative number, such as -1, is a value.
        if word.startswith("--") or (word.startswith("-") and not _NUMBER.fullmatch(word)):
            if flag or behind:
                yield flag, behind
            flag, has_value, value = word.partition("=")
            behind = [value] if has_value else []
        else:
            behind.append(word)
    if flag or behind:
        yield flag, behind


def _split_values(flag: str, behind: list[str]) -> tuple[list[str], list[str]]:
    """Returns the words behind a flag that are its values, and those that are not. Raises
    Invalid where a value is missing."""
    field = table().fields[flag]
    if field.kind == "bool":
        return [], behind
    if field.kind == "list":
        if not behind and not field.is_optional:
            raise invalid_launch(flag, "needs at least one value")
        return behind, []
    if not behind:
        raise invalid_launch(flag, "needs a value")
    return behind[:1], behind[1:]


def _stops_at_words(flag: str, words: Sequence[str]) -> Iterator[Stop]:
    """Yields a stop for each of a flag's words that the parser refuses. A word with a variable that
    the text does not define may stand for anything."""
    for word in words:
        if not undefined_variables(word):
            try:
                _parsed_word(_field_of_word(flag), word)
            except Invalid as error:
                source = table().facts["parser"]
                yield Stop(setting=flag, value=word, rule=error.rule, source=source)


def _value_of_words(flag: str, words: Sequence[str]) -> Any:
    """Returns the value of a flag, given its words. Raises Invalid for words that the parser
    refuses; those of flags of no account are joined unread."""
    field = table().fields[flag]
    if field.kind == "bool":
        return True
    if field.use == "no_account":
        return " ".join(words)
    values = [_parsed_word(_field_of_word(flag), word) for word in words]
    return values if field.kind == "list" else values[0]


def _field_of_word(flag: str) -> Field:
    """Returns the field of one word of a flag. The table has "list" as the type of some flags, and
    the type of one item in `items`."""
    field = table().fields[flag]
    if flag in table().facts["by_name"]:  # SIGTERM for 15
        return replace(field, choices=())
    if field.kind != "list":
        return field
    return replace(field, kind=table().facts["items"].get(flag, "str"))


def _parsed_word(field: Field, word: str) -> Any:
    """Returns the value of a word, by the type of the field. Raises Invalid for a word of
    another type, and for an undefined shell variable."""
    require_defined(field.name, word)
    shape, rule = _SHAPES.get(field.kind, (None, ""))  # a regex of words such as 127,0
    try:
        if shape and not shape.fullmatch(word):
            raise invalid_launch(word, rule)
        # An optional field may lack a value in a dump, but a typed "None" is no number.
        return replace(field, is_optional=False).parse(word)
    except Invalid as error:
        raise invalid_launch(f"{field.name} {word[:80]}", error.rule) from None
