"""Unsaid fields are assumptions of a prediction about the software that no launch argument states:
the job may run with another value.

A *switch* is a choice of the software that launch arguments can set (models.spec.switches).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from typing import Any

from models.cost.predictions import Predictions
from models.prediction.prediction import predictions_of
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import Profile
from models.spec.stack import Stack
from models.spec.switches import Switch, applies, as_launched, switches_of

_NO_BEHAVIOUR = ("id", "name", "aliases", "vendors", "like", "source", "age_years")
_FIELDS = tuple(field.name for field in fields(Stack) if field.name not in _NO_BEHAVIOUR)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsaidField:
    """A field of the stack that moves the prediction of a layout, and that no argument sets."""

    field: str
    value: Any
    """The value that is predicted with."""
    launched: Any
    """The value that the framework has with the launch arguments of the layout."""
    switch: Switch | None
    """The switch that sets the field for other models or layouts; None where there is none."""


def unsaid_fields(
    problem: Problem, profile: Profile, layout: Layout, said: Collection[str] = ()
) -> list[UnsaidField]:
    """Return the fields of the stack that have another value once the layout is launched with the
    arguments that we write for it, and whose other value changes the layout's predicted step time
    or memory. The launched release is as old as the stack says (`age_years`). `said` are fields
    that the caller stated by other settings than switches; they are left out.

    Fields that move nothing are left out, such as which schedules there are: the launch names the
    one to use.
    """
    stack = problem.stack
    launched = as_launched(problem, layout, profile.software_year)
    differing = [
        name
        for name in _FIELDS
        if name not in said and getattr(stack, name) != getattr(launched, name)
    ]
    if not differing:
        return []
    assumed = predictions_of(problem, profile, layout)

    def moves_prediction(name: str) -> bool:
        """Return whether the prediction changes if this field of the stack has the value that the
        framework really has when it is launched, in place of the assumed one."""
        as_it_runs = replace(problem, stack=replace(stack, **{name: getattr(launched, name)}))
        # The stack decides, by its scopes, which coefficients of the profile apply.
        predicted = assumed.with_stack(as_it_runs, profile.coefficients(as_it_runs.scopes))
        return _outcome(predicted) != _outcome(assumed)

    return [
        UnsaidField(
            field=name,
            value=getattr(stack, name),
            launched=getattr(launched, name),
            switch=_switch_elsewhere(problem, layout, name),
        )
        for name in differing
        if moves_prediction(name)
    ]


def _outcome(predictions: Predictions) -> tuple[float, float]:
    return float(predictions.step_time_s[0]), float(predictions.needed_bytes[0])


def _switch_elsewhere(problem: Problem, layout: Layout, field: str) -> Switch | None:
    """Return the switch that sets a field for other models or layouts, but does not apply to this
    one, as the reason why no argument sets the field here; None where there is none."""
    for switch in switches_of(problem.stack):
        if switch.field == field and switch.settings and not applies(switch, problem, layout):
            return switch
    return None
