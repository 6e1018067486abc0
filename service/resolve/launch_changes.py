"""Changes of a launch in the words of its framework: which settings to write otherwise, found by
reading the launch again with these.

A *change* is of one knob (a field of the layout) or of one switch (a setting that decides a field
of the stack). *Written* settings are those with which the framework would run a layout. A job
*stops* where the framework itself refuses to start it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from models.advice.single_changes import Outcome, SingleChange, outcomes
from models.errors import Invalid
from models.layouts.rules import broken_rules
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import Profile
from service.errors import Refused
from service.formats.launch.formats import FORMATS
from service.formats.launch.job import Changes, LaunchReading
from service.formats.launch.knob_settings import KNOB_SETTINGS
from service.resolve.launch_settings import written_settings
from service.resolve.launched_question import LaunchedQuestion
from service.schemas.launch_form import LaunchForm

_MOST_READINGS = 100  # each reads the launch again, while a submission waits for the check


@dataclass(frozen=True, slots=True)
class _Job:
    """The problem and the layout that a launch starts."""

    problem: Problem
    layout: Layout
    stops: bool
    """True where the framework stops at a setting."""


class LaunchChanges:
    """Finds the settings of a launch that make a change of its layout or its stack."""

    def __init__(
        self,
        launch: LaunchForm,
        launched: LaunchedQuestion,
        profile: Profile,
        read: Callable[[Changes], LaunchedQuestion],
    ) -> None:
        """Sets up the changes of a launch. `launched` is the launch as it was sent, and `read`
        reads the launch with some of its settings changed."""
        self._launch = launch
        self._launched = launched
        self._launched_layout = _settled_layout(launched)
        self._profile = profile
        self._read = read
        self._readings_left = _MOST_READINGS
        self._settings: dict[tuple[str, str], Changes] = {}

    def typed_value(self, name: str) -> Any:
        """Returns the value of a setting as it was typed; None where it was not."""
        return self._launched.typed.get(name)

    def settings(self, change: SingleChange) -> Changes:
        """Returns the settings to write for a change that `in_settings` returned, by name. None as
        a value means that the setting is to be removed."""
        return self._settings.get(_key(change), {})

    def in_settings(self, change: SingleChange) -> SingleChange | None:
        """Returns the change made by as few settings of the launch as possible. Its prediction is
        for the launch with only these settings changed, which `settings` gives later. None where no
        settings make the change."""
        written = self._written(change.problem, change.layout)
        if not written:
            return None
        for names in self._settings_to_try(change, written):
            # A setting is removed by None. One that the launch has with this value is no change.
            changes = {
                name: written.get(name)
                for name in names
                if not _is_same(self.typed_value(name), written.get(name))
            }
            job = self._job_with_change(change, changes) if changes else None
            if job is not None:
                return self._remember(change, *self._fewest_settings(change, changes, job))
        return None

    def outcome(self, changes: Changes) -> Outcome | None:
        """Returns the prediction for the launch with these settings changed; None where it cannot
        be read or its layout is not legal."""
        job = self._legal_job(changes)
        if job is None:
            return None
        (outcome,) = outcomes(job.problem, self._profile, [job.layout])
        return outcome

    def _remember(self, change: SingleChange, changes: Changes, job: _Job) -> SingleChange:
        """Keeps the settings that make a change, and returns the change with the prediction for the
        job that they start."""
        self._settings[_key(change)] = changes
        (outcome,) = outcomes(job.problem, self._profile, [job.layout])
        return replace(
            change,
            problem=job.problem,
            layout=job.layout,
            outcome=outcome,
            num_settings=len(changes),
        )

    def _written(self, problem: Problem, layout: Layout) -> Mapping[str, Any]:
        """Returns the settings with which the launch's framework runs this layout; empty where it
        cannot."""
        return written_settings(FORMATS[self._launched.read.format], problem, layout)

    def _settings_to_try(
        self, change: SingleChange, written: Mapping[str, Any]
    ) -> Iterator[list[str]]:
        """Yields lists of names of settings that may make a change, the shortest first: the
        settings of its knobs, then all that differ from the launch, and at last all settings. For a
        switch, only its own arguments are tried."""
        if change.switch is not None:
            yield [*change.switch.arguments]
            return
        launched_layout = self._launched_layout
        knobs = KNOB_SETTINGS[self._launched.read.format]
        differing = [
            name
            for knob, name in knobs.items()
            if hasattr(change.layout, knob)
            and getattr(change.layout, knob) != getattr(launched_layout, knob, None)
        ]
        yield [*dict.fromkeys(differing)]
        problem = self._launched.resolved.problem
        launched = {}  # the settings that would be written for the launched layout
        if launched_layout is not None and not broken_rules(problem, launched_layout):
            launched = dict(self._written(problem, launched_layout))
        if launched:
            names = {**launched, **written}
            yield [name for name in names if launched.get(name) != written.get(name)]
        # Settings that the launch has and the changed layout does not need are removed.
        yield [*{**written, **self._launched.typed}]

    def _fewest_settings(
        self, change: SingleChange, changes: Changes, job: _Job
    ) -> tuple[Changes, _Job]:
        """Returns the fewest of `changes` that make the change, and the job that they start. `job`
        is the job that all of `changes` start."""
        if len(changes) == 1:
            return changes, job
        reading_of_all = self._read_launch_alone(changes)
        if reading_of_all is None:  # nothing to compare the readings of fewer with
            return changes, job

        def reads_alike(fewer: Changes) -> bool:
            reading = self._read_launch_alone(fewer)
            return reading is not None and _is_alike(reading, of_all=reading_of_all)

        def makes_change(fewer: Changes) -> bool:
            return self._job_with_change(change, fewer) is not None

        # Reading the launch alone is far cheaper than resolving the job, so it is tried first.
        for is_enough in (reads_alike, makes_change):
            fewest = _fewest(changes, fixed={}, is_enough=is_enough)
            fewest_job = self._job_with_change(change, fewest)
            if fewest_job is not None:
                return fewest, fewest_job
        # The readings are used up, or no fewer settings were found to make the change alone.
        return changes, job

    def _read_launch_alone(self, changes: Changes) -> LaunchReading | None:
        """Returns the launch as read with some settings changed, without the fields of the request
        that would complete it. None where it cannot be read."""
        with suppress(Invalid):
            return FORMATS[self._launched.read.format].read(
                self._launch.text, self._launch.version, changes=changes, files=self._launch.beside
            )
        return None

    def _job_with_change(self, change: SingleChange, changes: Changes) -> _Job | None:
        """Returns the job of the launch with some settings changed. None where it would not start
        or does not have the change, or where _MOST_READINGS are used up."""
        self._readings_left -= 1
        if self._readings_left < 0:
            return None
        job = self._legal_job(changes)
        if job is None or job.stops or not self._is_made(change, job.problem, job.layout):
            return None
        return job

    def _legal_job(self, changes: Changes) -> _Job | None:
        """Returns the job of the launch with some settings changed; None where the launch cannot be
        read, or its layout is not legal."""
        with suppress(Invalid, Refused):
            launched = self._read(changes)
            layout = _settled_layout(launched)
            problem = launched.resolved.problem
            if layout is not None and not broken_rules(problem, layout):
                return _Job(problem, layout, stops=bool(launched.stops))
        return None

    def _is_made(self, change: SingleChange, problem: Problem, layout: Layout) -> bool:
        """Returns whether this problem and layout are those that the change asks for. Two layouts
        count as equal if the framework writes them with equal settings."""
        after_change = change.problem
        if (problem.cluster, problem.workload) != (after_change.cluster, after_change.workload):
            return False
        # Megatron pads the vocabulary for the ranks of tensor parallelism.
        padded = replace(after_change.architecture, vocab_size=problem.architecture.vocab_size)
        if problem.architecture != padded:
            return False
        # The knob of a switch is the field of the stack that it decides.
        if change.switch and getattr(problem.stack, change.knob) != change.after:
            return False
        if layout == change.layout:
            return True
        written = self._written(problem, layout)
        return bool(written) and written == self._written(problem, change.layout)


def _fewest(changes: Changes, fixed: Changes, is_enough: Callable[[Changes], bool]) -> Changes:
    """Returns those of `changes` that cannot be left out: with `fixed` they are enough. Each half
    is searched with the other half fixed, as in QuickXplain (Junker, 2004), which takes few
    readings if few settings matter."""
    if is_enough(fixed):
        return {}
    if len(changes) == 1:
        return changes
    items = [*changes.items()]
    half = len(items) // 2
    first, second = dict(items[:half]), dict(items[half:])
    needed_of_second = _fewest(second, {**fixed, **first}, is_enough)
    needed_of_first = _fewest(first, {**fixed, **needed_of_second}, is_enough)
    return {**needed_of_first, **needed_of_second}


def _is_alike(of_fewer: LaunchReading, *, of_all: LaunchReading) -> bool:
    """Returns whether a launch with fewer of the changed settings seems to start the same job as
    the launch with all of them. The two readings must agree in every value of layout, workload and
    devices that both have. The framework must start the launch with fewer; whether it starts the
    launch with all of them is not tested."""
    parts = (
        (of_fewer.layout, of_all.layout),
        (of_fewer.workload, of_all.workload),
        ({"devices": of_fewer.num_devices}, {"devices": of_all.num_devices}),
    )
    same = all(
        fewer[name] == every[name] for fewer, every in parts for name in fewer.keys() & every.keys()
    )
    return same and not of_fewer.certain_stops


def _settled_layout(launched: LaunchedQuestion) -> Layout | None:
    """Returns the layout that a launch settles; None where the framework stops before it has
    one."""
    if any(stop.hides_layout for stop in launched.stops):
        return None
    return launched.layout.with_stack_defaults(launched.resolved.problem).build()


def _key(change: SingleChange) -> tuple[str, str]:
    return change.knob, repr(change.after)


def _is_same(typed: Any, written: Any) -> bool:
    """Returns whether two values of a setting are equal, whether written as text or as a number.
    None stands for a setting that is not written."""
    return _comparable(typed) == _comparable(written)


def _comparable(value: Any) -> Any:
    """Returns a value of a setting in a form that can be compared: numbers and flags as text in
    lower case, lists as texts."""
    if isinstance(value, (list, tuple)):
        return [*map(str, value)]
    return None if value is None else str(value).lower()
