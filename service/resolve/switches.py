"""The switches of the software that the prediction of a layout rests on, in the framework's own
words. A *switch* is a choice of the software that no layout makes, such as which kernel computes
the loss. The value that is *taken* is the one that tuned recipes set."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from models.advice.switch_effects import SwitchEffect, switch_effects
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import Profile
from models.spec.switches import Setting, Switch
from service.formats.launch.formats import format_named
from service.schemas.switches import OtherSetting, SwitchAnswer

StackDocument = str | Mapping[str, Any]
"""A stack as a request has it."""


def switches_answer(
    problem: Problem, profile: Profile, layout: Layout, stack: StackDocument | None = None
) -> list[SwitchAnswer]:
    """Returns the switches of the stack that move step time or memory of a layout by more than 2%,
    the largest effect first. `stack` is the request's, if there is one."""
    asked = stack or problem.stack.id
    form = {"name": asked} if isinstance(asked, str) else asked
    return [_switch_answer(effect, form) for effect in switch_effects(problem, profile, layout)]


def _switch_answer(effect: SwitchEffect, stack: Mapping[str, Any]) -> SwitchAnswer:
    """Returns a switch as answers show it: its value and its default in the framework's words, and
    the other value with its effect and how a request sets it. `stack` is the stack as a request
    writes it."""
    switch = effect.switch
    is_default = effect.value == effect.default.value
    # `since` is the release from which on the framework's default, or else tuned recipes, have this
    # value. Any other value is the request's own, and of no release.
    setting_since = effect.default if is_default else effect.taken
    changed_stack = {**stack, switch.field: effect.otherwise}
    format_ = format_named(str(stack["name"]))
    release = stack.get("version")
    return SwitchAnswer(
        field=f"stack.{switch.field}",
        name=switch.name if format_ is None else format_.name_in(switch.name, release),
        value=_framework_value(switch, effect.value),
        is_default=is_default,
        default=_framework_value(switch, effect.default.value),
        since=setting_since.release if setting_since.value == effect.value else None,
        otherwise=OtherSetting(
            value=_framework_value(switch, effect.otherwise),
            step_time_s=effect.step_time_s,
            needed_gib=effect.needed_gib,
            how=f"stack: {json.dumps(changed_stack)}",
        ),
    )


def _framework_value(switch: Switch, value: Any) -> str:
    """Returns a value of a switch as the framework's setting says it, such as "set" or "False". A
    value that no setting gives is shown as it is."""
    setting = next((candidate for candidate in switch.settings if candidate.value == value), None)
    if setting is None:
        return str(value)
    return _without_name(switch.name, setting)


def _without_name(name: str, setting: Setting) -> str:
    """Returns a setting without the name of its switch, such as "3" for "--level 3"."""
    if not setting.arguments:
        return "not set"
    text = setting.words.removeprefix(name).lstrip(" =")
    return text or "set"
