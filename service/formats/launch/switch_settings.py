"""The switches of a stack in the settings of a launch.

A *switch* is a choice of software that no layout makes, such as a kernel. Its *arguments* are the
framework's settings that make this choice. Its *condition*, such as "tp", says in which layouts it
means something.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from models.errors import Invalid
from models.spec import catalogue
from models.spec.switches import Condition, read_switches, releases, switches_of
from service.formats.shell.faults import invalid_launch


def switch_fields(
    stack_id: str,
    arguments: Mapping[str, Any],
    release: str | None,
    may_apply: Callable[[Condition], bool] = lambda condition: True,
) -> dict[str, Any]:
    """Returns the fields of a stack that these arguments set, and the release's defaults for its
    other switches. `may_apply` tells by a switch's condition, such as "tp", whether the switch may
    mean something here. Raises Invalid for a value that a switch does not have."""
    try:
        return read_switches(stack_id, arguments, release, may_apply)
    except Invalid as error:
        raise invalid_launch(f"{error.field} = {error.value}", error.rule) from None


def set_switches(
    settings: Mapping[str, Any], stack_id: str, release: str, layout: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the fields of a stack that switches among all settings of a launch set, and the
    release's defaults for its other switches. `layout` decides which switches mean something.
    Raises Invalid for an unknown value."""
    names = [name for switch in switches_of(catalogue.stack(stack_id)) for name in switch.arguments]
    switches = {
        name: _with_word_no(settings[name], name, stack_id)
        for name in names
        if settings.get(name) is not None
    }
    known_release = release if release in releases(stack_id) else None  # None is the newest
    return switch_fields(
        stack_id, switches, known_release, lambda condition: _may_apply(condition, layout)
    )


@cache
def values_of_switches(stack_id: str) -> Mapping[str, frozenset[str]]:
    """Returns the values that each argument of a stack's switches can have, in lower case:
    {"compile": {"true", "false"}}."""
    values_of: dict[str, set[str]] = defaultdict(set)
    for arguments in _arguments_of_switches(stack_id):
        for name, value in arguments.items():
            values_of[name].add(str(value).lower())
    return {name: frozenset(values) for name, values in values_of.items()}


def _arguments_of_switches(stack_id: str) -> Iterator[Mapping[str, Any]]:
    """Yields, for each value of each switch of a stack, the arguments that choose it."""
    for switch in switches_of(catalogue.stack(stack_id)):
        for setting in switch.settings:
            yield setting.arguments


def _with_word_no(value: Any, name: str, stack_id: str) -> Any:
    """Returns a switch's value, with "no" for False where the switch takes words, since YAML
    reads `NO` as false."""
    if value is not False:
        return value
    arguments = _arguments_of_switches(stack_id)
    has_words = any(isinstance(values.get(name), str) for values in arguments)
    return "no" if has_words else value


def _may_apply(condition: Condition, layout: Mapping[str, Any]) -> bool:
    """Returns True where a switch with this condition, such as "tp" or "zero_3", may apply to a
    layout. Conditions that the layout does not decide count as met."""
    if condition in ("tp", "cp", "ep", "pp"):
        return layout.get(condition, 1) > 1
    if condition == "zero_3":
        return layout["zero_stage"] == 3
    return condition != "zero_1_2" or layout["zero_stage"] in (1, 2)
