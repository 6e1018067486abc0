"""The fields of Megatron-Bridge's configurations, and what Megatron-LM calls them (fields/ has the
table).

Fields are dotted: `model.tensor_model_parallel_size` is of the section `model`. Arguments are those
of Megatron-LM's parser, by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from service.formats.megatron.flags import flag_of_argument
from service.formats.settings.field_table import FieldTable, field_table

RELEASE = "0.6.2"
_MODEL = "model."


def table() -> FieldTable:
    return field_table(f"megatron_bridge_{RELEASE}")


def precisions() -> Mapping[str, Mapping[str, str]]:
    """Returns the arguments that each named mixed precision sets: {"bf16_mixed": {"bf16":
    "True"}, …}."""
    by_name: Mapping[str, Mapping[str, str]] = table().facts["precisions"]
    return by_name


@cache
def argument_of_field() -> Mapping[str, str]:
    """Returns, for each field of Megatron-Bridge, the equivalent argument of Megatron-LM."""
    renamed: Mapping[str, str] = table().facts["renamed"]
    arguments = {field: argument for argument, field in renamed.items()}
    for field in table().fields:
        argument = field.removeprefix(_MODEL)
        # Fields of the model have the argument's name, unless that argument is a renamed one.
        is_alike = field.startswith(_MODEL) and argument in flag_of_argument()
        if is_alike and argument not in renamed:
            arguments[field] = argument
    return arguments


def field_of_argument(argument: str) -> str:
    """Returns the field of Megatron-Bridge for an argument of Megatron-LM:
    "model.tensor_model_parallel_size"."""
    field: str = table().facts["renamed"].get(argument, f"{_MODEL}{argument}")
    return field
