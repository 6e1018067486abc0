"""The switches of a stack in the settings of a launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from models.errors import Invalid
from models.spec import catalogue
from models.spec.switches import Condition, read_switches, releases, switches_of
from service.formats.launch.documents import Settings, shown
from service.formats.shell.faults import PATH


def known_release(settings: Settings, stack_id: str, version: str | None, newest: str) -> str:
    """The release whose defaults are taken: the one that is asked for where it is known. Otherwise
    the newest, which stands among the unread settings where another was asked for."""
    if version is None:
        return newest
    if version in releases(stack_id):
        return version
    if version != newest:
        known = ", ".join(releases(stack_id)) or newest
        settings.unread.append(f"{shown('version', version)} (read as {newest}; known: {known})")
    return newest


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


def take_switches(
    settings: Settings, stack_id: str, release: str, layout: Mapping[str, Any]
) -> dict[str, Any]:
    """Fields of the stack as the settings have its switches, or as the release does. Takes these
    settings out. Raises Invalid where a value is none that the switch has."""
    given: dict[str, Any] = {}
    for switch in switches_of(catalogue.stack(stack_id)):
        for name in switch.arguments:
            value = settings.take(name)
            if value is not None:
                given[name] = _unspoiled(value, name, stack_id)
    dated = release if release in releases(stack_id) else None
    return switch_fields(stack_id, given, dated, lambda condition: _holds(condition, layout))


def _unspoiled(value: Any, name: str, stack_id: str) -> Any:
    """A value as it was meant: YAML reads `NO` as false, where a switch has words for values."""
    is_word = any(
        isinstance(setting.arguments.get(name), str)
        for switch in switches_of(catalogue.stack(stack_id))
        for setting in switch.settings
    )
    return "no" if value is False and is_word else value


def _holds(condition: Condition, layout: Mapping[str, Any]) -> bool:
    """Whether the condition of a switch may hold in a layout as requests write it."""
    if condition in ("tp", "cp", "ep", "pp"):
        return layout.get(condition, 1) > 1
    if condition in ("zero_1_2", "zero_3"):
        return (layout["zero_stage"] == 3) == (condition == "zero_3") and layout["zero_stage"] > 0
    return True
