"""Refusals of the service in the words of the command line: the options and arguments of a command
in place of the fields of the request that it sends."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.client.errors import FieldError, Problem, Unauthorized

_PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "cluster": ("on",),
    "cluster.preset": ("on",),
    "cluster.num_chips": ("chips", "on"),
    "num_chips": ("chips",),
    "workload.seq_len": ("seq_len",),
    "workload.global_batch": ("batch",),
    "grid": ("vary",),
    "launch": ("script", "job"),
    "launch.arguments": ("script", "job"),
    "launch.format": ("format_",),
    "first.launch.arguments": ("first",),
    "first.launch.format": ("format_",),
    "second.launch.arguments": ("second",),
    "second.launch.format": ("format_",),
    "recommendation_id": ("recommendation",),
    "prediction_id": ("prediction",),
    "check_id": ("check",),
    "labels": ("label",),
}
"""The parameters of commands that set a field of a request, the likeliest first. Other fields are
set by parameters of the same name."""
_FIELD_IN_TEXT = re.compile(
    r"\b(?:(?:cluster|workload|launch)\.[a-z_]+|[a-z]+_id|(?<=check_id or )launch)\b", re.ASCII
)
"""A field that a sentence names. Fields such as `model` are words too and are left alone, except
`launch` at the end of "prediction_id, recommendation_id, check_id or launch"."""
_ITEM = re.compile(r"^(model|cluster|workload|stack)s\[\d+\]", re.ASCII)
"""The beginning of a field in an item of a sweep's lists."""
_LONGEST_VALUE = 80  # characters: a longer value, such as a whole script, hides the sentence
_UNKNOWN_NAME = "unknown-name"


class Wording:
    """Words for the refusals of one command, with these parameters, as typer has them."""

    def __init__(self, parameters: Sequence[Any]) -> None:
        self._parameters = {parameter.name: parameter for parameter in parameters}

    def sentences(self, problem: Problem) -> tuple[str, list[str]]:
        """Returns what is wrong in a sentence, and lines to print below it: all errors that the
        sentence does not say, and what to do."""
        if isinstance(problem, Unauthorized):
            cure = "give the key in SHARDWRIGHT_KEY, or in the file that SHARDWRIGHT_KEY_FILE names"
            return problem.detail, [cure]
        lines = [self._line(error, problem) for error in problem.errors]
        if len(lines) == 1 and problem.errors[0].rule in problem.detail:
            return lines[0], []
        return self._in_options(problem.detail), lines

    def _line(self, error: FieldError, problem: Problem) -> str:
        """Returns an error in a line: the option, the value, the rule that it breaks, and the help
        of an option that is missing or names nothing."""
        field = _ITEM.sub(r"\1", error.field)
        parameter, rest = self._parameter_of(field)
        place = field if parameter is None else _label(parameter)
        if parameter is not None and rest:
            place += f" ({rest})"
        value = f" {error.value}" if _is_shown(error.value) else ""
        line = f"{place}{value}: {self._in_options(error.rule)}"
        needs_help = error.value is None or problem.type == _UNKNOWN_NAME
        if parameter is None or rest or not needs_help:
            return line
        return f"{line} ({parameter.help.rstrip('.')})"

    def _parameter_of(self, field: str) -> tuple[Any, str]:
        """Returns the parameter that sets a field, or else the part of the request that the field
        is in, and the path of the field within what the parameter sets. The parameter is None where
        the command has none."""
        steps = field.split(".")
        for length in range(len(steps), 0, -1):
            part = ".".join(steps[:length])
            for name in _PARAMETERS.get(part, (part,)):
                if name in self._parameters:
                    return self._parameters[name], ".".join(steps[length:])
        return None, ""

    def _in_options(self, text: str) -> str:
        """Returns a sentence with options in place of the fields that the command has options
        for."""

        def option_of(match: re.Match[str]) -> str:
            parameter, rest = self._parameter_of(match.group())
            return match.group() if parameter is None or rest else _label(parameter)

        return _FIELD_IN_TEXT.sub(option_of, text)


def _label(parameter: Any) -> str:
    """Returns a parameter as help calls it, such as "--seq-len" or "MODEL"."""
    is_option = parameter.param_type_name == "option"
    return str(max(parameter.opts, key=len) if is_option else parameter.name.upper())


def _is_shown(value: object) -> bool:
    """Returns whether an error shows the value: it is a short text or a number."""
    if not isinstance(value, (str, int, float)):
        return False
    return len(str(value)) <= _LONGEST_VALUE and "\n" not in str(value)
