"""The switches of a stack in the settings of a launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from models.errors import Invalid
from models.spec import catalogue
from models.spec.switches import Condition, read_switches, releases, switches_of
from service.formats.shell.faults import PATH


def switch_fields(
    stack_id: str,
    arguments: Mapping[str, Any],
    release: str | None,
    may_hold: Callable[[Condition], bool] = lambda condition: True,
) -> dict[str, Any]:
    """Fields of the stack as some arguments set its switches, or as the release does. Raises
    Invalid where a value is none that the switch has."""
    try:
        return read_switches(stack_id, arguments, release, may_hold)
    except Invalid as error:
        raise Invalid(PATH, f"{error.field} = {error.value}", error.rule) from None


def set_switches(
    given: Mapping[str, Any], stack_id: str, release: str, layout: Mapping[str, Any]
) -> dict[str, Any]:
    """Fields of the stack as some settings have its switches, or as the release does. Raises
    Invalid where a value is none that the switch has."""
    named = {
        name: _unspoiled(given[name], name, stack_id)
        for switch in switches_of(catalogue.stack(stack_id))
        for name in switch.arguments
        if given.get(name) is not None
    }
    dated = release if release in releases(stack_id) else None
    return switch_fields(stack_id, named, dated, lambda condition: _holds(condition, layout))


@cache
def values_of_switches(stack_id: str) -> Mapping[str, frozenset[str]]:
    """The values, in lower case, that the arguments of a stack's switches have, by argument."""
    values_of: dict[str, set[str]] = {}
    for switch in switches_of(catalogue.stack(stack_id)):
        for setting in switch.settings:
            for name, value in setting.arguments.items():
                values_of.setdefault(name, set()).add(str(value).lower())
    return {name: frozenset(values) for name, values in values_of.items()}


def _unspoiled(value: Any, name: str, stack_id: str) -> Any:
    """A value as it was meant: YAML reads `NO` as false, where a switch has words for values."""
    is_word = any(
        isinstance(setting.arguments.get(name), str)
        for switch in switches_of(catalogue.stack(stack_id))
        for setting in switch.settings
    )
    return "no" if value is False and is_word else value


def _holds(condition: Condition, layout: Mapping[str, Any]) -> bool:
    """Returns True where the condition of a switch may hold in a layout as requests write it."""
    if condition in ("tp", "cp", "ep", "pp"):
        return layout.get(condition, 1) > 1
    if condition in ("zero_1_2", "zero_3"):
        return (layout["zero_stage"] == 3) == (condition == "zero_3") and layout["zero_stage"] > 0
    return True
