"""Switch effects say how step time and memory would change with another value of each switch.

A *switch* is a choice of the software that no layout makes, such as a kernel. Its *taken* value is
the one that tuned recipes set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from models.cost.predictions import Predictions
from models.errors import Invalid
from models.prediction.prediction import predictions_of
from models.spec.hardware import GIB
from models.spec.identity import cached_by_identity
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import Profile
from models.spec.stack import Stack
from models.spec.switches import Dated, Switch, applies, changed, switches_of

_CHANGED_STACKS = 256  # stacks with one switch changed, which all layouts of a question share
_WORTH_NAMING = 0.02  # of the step time, or of the memory needed: smaller effects are not shown


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchEffect:
    """One switch of the stack, and what another value of it would change."""

    switch: Switch
    value: Any
    default: Dated
    """The behaviour of the framework when it is told nothing, in the release that is predicted."""
    taken: Dated
    """The value that tuned recipes set in that release."""
    otherwise: Any
    """The default, where that is not the value; else the value of recipes, or the first other
    value."""
    step_time_s: float
    """The seconds that a step takes with the other value, less those that it takes now."""
    needed_gib: float
    """The GiB that a device needs with the other value, less those that it needs now."""
    share: float
    """The larger of the two effects, as a share of the step time or memory now."""


@dataclass(frozen=True, slots=True)
class _Cost:
    """The seconds of a step, and the GiB that a device needs."""

    step_time_s: float
    needed_gib: float


def switch_effects(problem: Problem, profile: Profile, layout: Layout) -> list[SwitchEffect]:
    """Return the switches that matter to a layout and move its step time or memory by more than
    _WORTH_NAMING, the largest effect first."""
    base = predictions_of(problem, profile, layout)

    def cost(stack: Stack) -> _Cost:
        """Return the predicted cost of the layout with another stack."""
        asked = replace(problem, stack=stack)
        # The stack decides, by its scopes, which coefficients of the profile apply.
        return _cost(base.with_stack(asked, profile.coefficients(asked.scopes)))

    base_cost = _cost(base)
    # Old software had the defaults, and was tuned by the recipes, of its year.
    year = profile.software_year - problem.stack.age_years if problem.stack.age_years else None
    effects = list[SwitchEffect]()
    for switch in switches_of(problem.stack):
        if switch.settings and applies(switch, problem, layout):
            effect = _effect(switch, problem.stack, year, base_cost, cost)
            if effect and effect.share > _WORTH_NAMING:
                effects.append(effect)
    return sorted(effects, key=lambda effect: -effect.share)


def _cost(predictions: Predictions) -> _Cost:
    return _Cost(float(predictions.step_time_s[0]), float(predictions.needed_bytes[0]) / GIB)


def _effect(
    switch: Switch, stack: Stack, year: float | None, base: _Cost, cost: Callable[[Stack], _Cost]
) -> SwitchEffect | None:
    """Return the effect of the first other value of a switch that runs on the chip; None where
    there is none. `year` dates the software, None for today's. `base` is the cost with the stack as
    it is, and `cost` returns that with another stack."""
    default = switch.default_at(year)
    taken = switch.recipe_value_at(year)
    value = getattr(stack, switch.field)
    for otherwise in _other_values(switch, value, default, taken):
        with suppress(Invalid):  # the kernel may not be written for the chip
            changed_cost = cost(_with_switch(stack, switch.field, otherwise))
            step_time_s = changed_cost.step_time_s - base.step_time_s
            needed_gib = changed_cost.needed_gib - base.needed_gib
            return SwitchEffect(
                switch=switch,
                value=value,
                default=default,
                taken=taken,
                otherwise=otherwise,
                step_time_s=step_time_s,
                needed_gib=needed_gib,
                share=max(abs(step_time_s) / base.step_time_s, abs(needed_gib) / base.needed_gib),
            )
    return None


@cached_by_identity(_CHANGED_STACKS)
def _with_switch(stack: Stack, field: str, value: Any) -> Stack:
    """Return the stack with another value of a field. Results are cached, because all layouts of a
    question ask for the same ones."""
    return changed(stack, {field: value})


def _other_values(switch: Switch, value: Any, default: Dated, taken: Dated) -> Iterator[Any]:
    """Return the values that a switch can be set to instead: first the framework's default, then
    the value of tuned recipes, then the others."""
    settable = [setting.value for setting in switch.settings if not setting.only_read]
    candidates = (default.value, taken.value, *settable)
    return (other for other in dict.fromkeys(candidates) if other != value and other in settable)
