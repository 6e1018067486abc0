"""A single change gives a layout one other value of one knob, or of one switch of the software.

A *knob* is a choice in a layout (models.layouts.neighbours). A *switch* is a choice of the
software, such as a kernel, and each value of it is a *setting*, with the arguments that set it
(models.spec.switches).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import NormalDist
from typing import Any

from models.cost.memory_uncertainty import MemoryUncertainty
from models.cost.predictions import Predictions, predict
from models.errors import Invalid
from models.layouts.neighbours import KNOBS, Knob, neighbours
from models.layouts.rules import broken_rules
from models.spec.constraints import SAFE_FIT_PROBABILITY
from models.spec.hardware import GIB
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import Profile
from models.spec.switches import Setting, Switch, applies, changed, switches_of

WHOLE_LAYOUT = "layout"
"""The name of a change that makes a layout another one, where no single knob does as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The prediction of a layout without intervals: the seconds of a step in all and by term, the
    GiB that the fullest device needs, and the probability that the layout fits."""

    step_time_s: float
    time: Mapping[str, float]
    needed_gib: float
    fit_probability: float

    @property
    def is_safe(self) -> bool:
        """Return whether the layout is as sure to fit as a recommended one."""
        return self.fit_probability >= SAFE_FIT_PROBABILITY


_PARTS_OF_KNOBS = ("recompute_layers",)  # the knob "recompute" has this field too


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleChange:
    """A layout with one change, and its prediction.

    `knob` is the name of the changed knob in models.layouts.neighbours.KNOBS, and `follows` names
    the fields of the layout that change with it. Where the software is told otherwise instead,
    `switch` and `setting` say so, `knob` is the field of the stack, and the problem has the changed
    stack. Where the layout becomes another one, `knob` is WHOLE_LAYOUT. `given` is the prediction
    without the change; None where that layout is not legal. `num_settings` is the number of
    settings of a framework that make the change, where that is known.
    """

    knob: str
    before: Any
    after: Any
    problem: Problem
    layout: Layout
    outcome: Outcome
    given: Outcome | None
    follows: tuple[str, ...] = ()
    switch: Switch | None = None
    setting: Setting | None = None
    num_settings: int = 1

    @property
    def is_whole(self) -> bool:
        """Return whether the layout becomes another one as a whole, so that this is no single
        change."""
        return self.knob == WHOLE_LAYOUT

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the fields of the layout that `before` and `after` have values of, or the field of
        the stack."""
        if self.is_whole:
            return self.follows  # whole_change puts all fields that differ there
        return (self.knob,) if self.switch else KNOBS[self.knob].fields

    @property
    def saved_s(self) -> float | None:
        """Return the seconds by which a step becomes shorter; None where the given layout is not
        legal."""
        return None if self.given is None else self.given.step_time_s - self.outcome.step_time_s

    @property
    def gain(self) -> float | None:
        """Return the given step time over the changed one, less 1; None where the given layout is
        not legal."""
        if self.given is None:
            return None
        return self.given.step_time_s / self.outcome.step_time_s - 1

    @property
    def words(self) -> str:
        """Return the change as somebody would say it: "tp from 8 to 4, with dp_shard 16"."""
        if self.is_whole:
            return f"no single change does as well; the best layout changes: {self._knobs_in_words}"
        if self.switch is None or self.setting is None:
            words = knob_change_in_words(self.knob, self.before, self.after)
            return f"{words}{self._followers_in_words}"
        values = f"{self.knob} from {value_in_words(self.before)} to {value_in_words(self.after)}"
        if not self.setting.arguments:
            return f"leave out {self.switch.name} ({values})"
        return f"set {self.setting.words} ({values})"

    @property
    def _knobs_in_words(self) -> str:
        """Return words on all knobs in which two whole layouts differ. The knob "recompute" names
        recompute_layers too, which has no words of its own (_PARTS_OF_KNOBS)."""
        before = dict(zip(self.fields, self.before, strict=True))
        after = dict(zip(self.fields, self.after, strict=True))
        changes = [
            knob_change_in_words(name, self._value_of(knob, before), self._value_of(knob, after))
            for name, knob in KNOBS.items()
            if name not in _PARTS_OF_KNOBS and before.keys() & {*knob.fields}
        ]
        return ", ".join(changes)

    def _value_of(self, knob: Knob, values: Mapping[str, Any]) -> Any:
        """Return the value of a knob, a list for a knob of several fields. `values` has the fields
        that the two layouts differ in, before or after the change. Fields that it lacks have the
        values of the layout. (Knob.value needs a valid layout, which the mixture may not be.)"""
        of_fields = [values.get(field, getattr(self.layout, field)) for field in knob.fields]
        return of_fields[0] if len(of_fields) == 1 else of_fields

    @property
    def _followers_in_words(self) -> str:
        """Return words on the fields that change with the knob and have to be set too, such as ",
        with dp_shard 16"."""
        followers = [
            f"{name} {value_in_words(getattr(self.layout, name))}" for name in self.follows
        ]
        return f", with {' and '.join(followers)}" if followers else ""


def knob_changes_in_words(before: Layout, after: Layout) -> str:
    """Return words on the knobs in which two layouts differ, such as "tp from 8 to 4, pp from 1 to
    2"."""
    # The knob "recompute" names recompute_layers too, which has no words of its own.
    changes = [
        knob_change_in_words(name, knob.value(before), knob.value(after))
        for name, knob in KNOBS.items()
        if name not in _PARTS_OF_KNOBS and knob.value(before) != knob.value(after)
    ]
    return ", ".join(changes)


def knob_change_in_words(knob: str, before: Any, after: Any) -> str:
    """Return words on the change of a knob's value, such as "tp from 8 to 4". `before` and `after`
    are tuples for a knob of several fields."""
    if knob == "recompute":
        return f"recompute from {_policy_in_words(*before)} to {_policy_in_words(*after)}"
    fields = KNOBS[knob].fields
    if len(fields) == 1:
        return f"{knob} from {value_in_words(before)} to {value_in_words(after)}"
    parts = zip(fields, before, after, strict=True)
    return " and ".join(
        f"{name} from {value_in_words(old)} to {value_in_words(new)}"
        for name, old, new in parts
        if old != new
    )


def _policy_in_words(recompute: str, modules: tuple[str, ...], layers: int) -> str:
    """Return a recompute policy in words, such as "selective (core_attn)" or "full (4 layers of a
    chunk)"."""
    if modules:
        return f"{recompute} ({', '.join(modules)})"
    return f"{recompute} ({layers} layers of a chunk)" if layers else recompute


def value_in_words(value: Any) -> str:
    """Return a value of a knob or a switch as it stands in a sentence, such as "on" for True."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        # A placement is "tp < cp < dp", from the inside outwards; other tuples are numbers.
        separator = " < " if any(isinstance(part, str) for part in value) else ", "
        return separator.join(map(str, value)) or "none"
    return str(value)


def single_changes(problem: Problem, profile: Profile, layout: Layout) -> list[SingleChange]:
    """Return every legal single change of a layout whose knobs are all settled
    (models.layouts.defaults). Changes that surely fit come first, then the others, each by step
    time.

    The given layout may be illegal, or not fit. Every change of an illegal layout makes it legal,
    and the first changes of a layout that does not fit make it fit in the shortest steps.
    """
    variants = neighbours(problem, layout)
    # The cost model is not meaningful for an illegal layout, which may have an impossible split.
    is_legal = not broken_rules(problem, layout)
    base = _predict(problem, profile, [layout]) if is_legal else None
    given_outcome = None if base is None else _outcomes_of(base, profile)[0]
    outcomes_of_variants = outcomes(problem, profile, [variant for _, variant in variants])
    changes = [
        SingleChange(
            knob=name,
            before=KNOBS[name].value(layout),
            after=KNOBS[name].value(variant),
            problem=problem,
            layout=variant,
            outcome=outcome,
            given=given_outcome,
            follows=tuple(
                field
                for field in KNOBS[name].followers
                if getattr(variant, field) != getattr(layout, field)
            ),
        )
        for (name, variant), outcome in zip(variants, outcomes_of_variants, strict=True)
    ]
    changes += _switch_changes(problem, profile, layout, base, given_outcome)
    return sorted(
        changes, key=lambda change: (not change.outcome.is_safe, change.outcome.step_time_s)
    )


def _switch_changes(
    problem: Problem,
    profile: Profile,
    layout: Layout,
    base: Predictions | None,
    given: Outcome | None,
) -> Iterator[SingleChange]:
    """Yield the legal changes of every switch of the stack that matters to the layout and does not
    change what is computed. `base` is the prediction with the stack as it is, as one row, and
    `given` its outcome; both are None where the layout is not legal."""
    for switch in switches_of(problem.stack):
        if switch.numerics or not applies(switch, problem, layout):
            continue
        before = getattr(problem.stack, switch.field)
        for setting in _other_settings(switch, before):
            switched = _with_setting(problem, switch, setting)
            if switched is None or broken_rules(switched, layout):
                continue
            # The switch itself leaves results alone, but its settings may come with others.
            if _brings_other_numerics(switched, layout, setting):
                continue
            if base is None:
                predictions = _predict(switched, profile, [layout])
            else:
                predictions = base.with_stack(switched, profile.coefficients(switched.scopes))
            (outcome,) = _outcomes_of(predictions, profile)
            yield SingleChange(
                knob=switch.field,
                before=before,
                after=setting.value,
                problem=switched,
                layout=layout,
                outcome=outcome,
                given=given,
                switch=switch,
                setting=setting,
            )


def _brings_other_numerics(problem: Problem, layout: Layout, setting: Setting) -> bool:
    """Return whether whoever makes this setting in practice also changes a switch that alters
    results, such as a precision (`setting.brings`). Such a change is not only one of speed."""
    return any(
        switch.numerics and switch.field in setting.brings and applies(switch, problem, layout)
        for switch in switches_of(problem.stack)
    )


def _other_settings(switch: Switch, value: Any) -> list[Setting]:
    """Return a setting for each other value of a switch, the first listed. `only_read` settings are
    left out: they are understood in a job's arguments, but the framework does not run with them."""
    by_value: dict[Any, Setting] = {}
    for setting in switch.settings:
        if not setting.only_read:
            by_value.setdefault(setting.value, setting)
    return [setting for other, setting in by_value.items() if other != value]


def _with_setting(problem: Problem, switch: Switch, setting: Setting) -> Problem | None:
    """Return the problem with this setting of a switch; None where the chips or the workload rule
    it out."""
    try:
        return replace(problem, stack=changed(problem.stack, {switch.field: setting.value}))
    except Invalid:
        return None


def whole_change(problem: Problem, profile: Profile, layout: Layout, other: Layout) -> SingleChange:
    """Return the change from a layout, legal or not, to a legal other layout as a whole."""
    names = tuple(
        field.name
        for field in fields(Layout)
        if getattr(layout, field.name) != getattr(other, field.name)
    )
    (outcome,) = outcomes(problem, profile, [other])
    return SingleChange(
        knob=WHOLE_LAYOUT,
        before=tuple(getattr(layout, name) for name in names),
        after=tuple(getattr(other, name) for name in names),
        problem=problem,
        layout=other,
        outcome=outcome,
        given=outcome_if_legal(problem, profile, layout),
        follows=names,
    )


def outcome_if_legal(problem: Problem, profile: Profile, layout: Layout) -> Outcome | None:
    return None if broken_rules(problem, layout) else outcomes(problem, profile, [layout])[0]


def outcomes(problem: Problem, profile: Profile, layouts: Sequence[Layout]) -> list[Outcome]:
    """Return the predicted outcome of each layout. The layouts must be legal: the cost model is not
    meaningful for others."""
    return _outcomes_of(_predict(problem, profile, layouts), profile) if layouts else []


def _predict(problem: Problem, profile: Profile, layouts: Sequence[Layout]) -> Predictions:
    return predict(problem, Layouts.of(layouts), profile.coefficients(problem.scopes))


def _outcomes_of(predictions: Predictions, profile: Profile) -> list[Outcome]:
    """Return the outcome of each row of the predictions, which were made with this profile."""
    problem = predictions.problem
    uncertainty = MemoryUncertainty.of(problem, profile)
    # How many standard deviations the memory available lies above what is predicted.
    deviations = uncertainty.deviations(predictions, problem.cluster).tolist()
    terms = {name: seconds.tolist() for name, seconds in predictions.time.items()}
    step_times = predictions.step_time_s.tolist()
    needed_bytes = predictions.needed_bytes.tolist()
    return [
        Outcome(
            step_time_s=step_times[row],
            time={name: seconds[row] for name, seconds in terms.items()},
            needed_gib=needed_bytes[row] / GIB,
            fit_probability=NormalDist().cdf(deviations[row]),
        )
        for row in range(len(step_times))
    ]
