"""Puts together what a launch configuration says and what the request says beside it: a plain
question, and the layout to answer it for.

A *stop* is a setting at which the framework itself refuses to start. A *reservation* is a setting
that was not understood though it could change the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from typing import Any

from models.errors import Invalid
from service.errors import NotATrainingJob, Refused
from service.field_violations import MAX_VALUE_CHARACTERS, truncate
from service.formats.launch.formats import FORMATS, READ_NAMES
from service.formats.launch.job import NO_CHANGES, Changes, LaunchReading, OwnName
from service.formats.launch.knob_settings import KNOB_SETTINGS
from service.formats.launch.recognition import (
    Recognized,
    command_fault,
    job_without_training,
    other_format,
    program_without_training,
    recognized,
    unread_framework,
)
from service.formats.settings.reservation import Reservation
from service.formats.settings.stop import Stop
from service.formats.shell.command import Command, with_reason
from service.formats.shell.faults import Undefined, shortened
from service.json_pointers import relocate_errors
from service.resolve.launch_assumptions import taken_defaults
from service.resolve.launch_cluster import LaunchCluster
from service.resolve.launch_errors import LaunchErrors
from service.resolve.launch_joining import Joining
from service.resolve.launch_nodes import command_in
from service.resolve.resolution import ResolvedQuestion, Resolver
from service.schemas.architecture import ShapeFields
from service.schemas.launch_form import LaunchForm, LaunchRead
from service.schemas.launch_request import QuestionParts
from service.schemas.layer_list import LayerListFields
from service.schemas.layout import LayoutFields
from service.schemas.question import PinnedQuestion

_AS_FIELDS = "model, workload, stack and layout as fields in place of the launch"
_MOST_UNREAD = 10  # people read some; all are in the answer to the whole launch
_MOST_UNREAD_CHARACTERS = 120


@dataclass(frozen=True, slots=True)
class LaunchedQuestion:
    """A launch configuration as a plain question and a layout."""

    question: PinnedQuestion
    resolved: ResolvedQuestion
    layout: LayoutFields
    read: LaunchRead
    layout_field: str
    """The field of the request that has the layout, for errors about it."""
    stops: tuple[Stop, ...]
    """Faults at which the framework would stop, where such were allowed."""
    typed: Mapping[str, Any]
    """The settings of the launch, by the names that the format has for them when it is written."""
    reservations: tuple[Reservation, ...] = ()
    """Settings of the launch that were not understood: no verdict rests on them."""
    overruled: tuple[str, ...] = ()
    """Sentences about values of the launch in whose place those of the request were taken."""

    unpadded_vocabulary: int | None = None
    """Entries of the vocabulary that the launch pads in its own way, where it alone says them."""
    own_names: Mapping[str, OwnName] = dataclass_field(default_factory=dict)
    """The names that the tool of the launch has for settings, by those in `typed`."""

    @property
    def unpadded(self) -> PinnedQuestion:
        """Returns the question with the vocabulary before padding, to be compared with a launch
        that pads it differently."""
        model = self.question.model
        if self.unpadded_vocabulary is None or not isinstance(model, ShapeFields | LayerListFields):
            return self.question
        unpadded = model.model_copy(update={"vocab_size": self.unpadded_vocabulary})
        return self.question.model_copy(update={"model": unpadded})

    @property
    def settings(self) -> Mapping[str, str]:
        """Returns the framework's names for the knobs of the layout."""
        return KNOB_SETTINGS[self.read.format]


def launched_question(
    resolver: Resolver,
    launch: LaunchForm,
    parts: QuestionParts,
    field: str = "launch",
    parts_source: str = "the request",
    *,
    allow_stops: bool = False,
    changes: Changes = NO_CHANGES,
) -> LaunchedQuestion:
    """Returns the question that a launch and the other members of its request ask together.

    `field` is the launch's place in the request. `parts_source` names the source of the other
    members in words, for errors about a contradiction. `changes` are settings that replace those of
    the launch.

    Raises NotATrainingJob, Invalid or Refused for a launch that cannot be read, for fields that
    both lack, and where the two contradict each other. Unless `allow_stops`, raises Refused for
    settings at which the framework itself would stop.
    """
    recognition = _recognized_format(launch, field)
    reading = _read_launch(launch, recognition.format, field, changes)
    command = command_in(launch.text, launch.beside)
    to_fill_in = launch.placeholders or {}
    reading = replace(
        reading,
        # An answer that is sent back lacks the settings that it leaves to the caller to fill in.
        stops=tuple(stop for stop in reading.stops if stop.setting not in to_fill_in),
        reservations=tuple(_open_reservations(reading, parts, command)),
    )
    if reading.certain_stops and not allow_stops:
        raise _stop_errors(reading.certain_stops, field)
    stops = list(reading.stops)
    overruled = list[str]()
    errors = LaunchErrors(reading, field, parts_source, stops if allow_stops else None)
    cluster = LaunchCluster(resolver, parts.cluster, reading, command, errors, overruled)
    joining = Joining(resolver, parts, launch, reading, cluster, errors)
    question, layout, assumed = joining.joined()
    with joining.blaming_launch():
        resolved = resolver.resolve(question)
    generation = resolved.problem.cluster.chip.generation
    stops = [stop for stop in stops if generation not in stop.not_on]
    if stops and not allow_stops:
        raise _stop_errors(stops, field)
    # A layout that the launch states need not lie within the limits of the search.
    if not any(stop.hides_layout for stop in stops):
        resolved = resolved.for_layouts([layout.with_stack_defaults(resolved.problem).build()])
    read = _launch_read(launch, reading, recognition, command, overruled, assumed)
    return LaunchedQuestion(
        question=question,
        resolved=resolved,
        layout=layout,
        read=read,
        layout_field=f"{field}.arguments",
        stops=tuple(stops),
        typed=reading.settings,
        reservations=reading.reservations,
        overruled=tuple(overruled),
        # None where the request says the vocabulary too.
        unpadded_vocabulary=reading.unpadded_vocabulary
        if _leaves_vocabulary(parts.model)
        else None,
        own_names=reading.own_names,
    )


def _launch_read(
    launch: LaunchForm,
    reading: LaunchReading,
    recognition: Recognized,
    command: Command | None,
    overruled: list[str],
    assumed: list[str],
) -> LaunchRead:
    """Returns the part of the answer on how the launch was read. `overruled` and `assumed` are
    sentences: on values of the launch that the request replaced, and on what was assumed."""
    unread = [reservation.text for reservation in reading.reservations]
    notes = () if command is None else command.notes
    warnings = [
        truncate(warning, MAX_VALUE_CHARACTERS) for warning in reading.warnings[:_MOST_UNREAD]
    ]
    return LaunchRead(
        format=reading.format,
        format_from=recognition.by or None,
        framework=reading.framework,
        version=reading.version,
        unread=[truncate(text, _MOST_UNREAD_CHARACTERS) for text in unread[:_MOST_UNREAD]],
        unread_count=len(unread),
        warnings=[*overruled, *notes, *warnings],
        ignored_count=len(reading.ignored),
        assumed=[
            *_version_assumption(launch, reading),
            *taken_defaults(() if command is None else command.defaults),
            *reading.assumed,
            *assumed,
        ],
    )


def _leaves_vocabulary(model: object) -> bool:
    """Returns whether the request leaves the size of the vocabulary to the launch."""
    return model is None or (isinstance(model, dict) and "vocab_size" not in model)


def _open_reservations(
    reading: LaunchReading, parts: QuestionParts, command: Command | None
) -> Iterator[Reservation]:
    """Yields the reservations of a launch that the request does not answer, and one for each file
    that its script edits, whose content is then not known."""
    yield from (each for each in reading.reservations if not _is_answered(each, parts))
    for file, edit in command.edits.items() if command is not None else ():
        yield Reservation.of_edit(file, shortened(edit))


def _is_answered(reservation: Reservation, parts: QuestionParts) -> bool:
    """Returns whether the request gives the field that a reservation leaves open. A reservation is
    a setting of the launch that was not understood; it names the field that would settle it."""
    part, _, name = reservation.answered_by.partition(".")  # such as "workload.seq_len"
    request_part = getattr(parts, part, None) if part else None
    if not name:
        return bool(request_part)
    if isinstance(request_part, Mapping):
        return name in request_part
    return getattr(request_part, name, None) is not None


def _recognized_format(launch: LaunchForm, field: str) -> Recognized:
    """Returns the format that the request names, or else the one that the launch's text shows.
    Raises NotATrainingJob if the text starts something else, and Invalid if no format can be told
    or its framework is not read."""
    # A framework that is known by its program, but of which no reader exists.
    unread = unread_framework(launch.text, launch.beside) if launch.format is None else None
    if unread is not None:
        program, framework = unread
        rule = f"starts {framework}, whose settings are not read: give {_AS_FIELDS}"
        raise Invalid(f"{field}.arguments", program, rule)
    # A command that trains nothing, such as `ls`, is refused whatever format the request names.
    if launch.settings is None:
        other = program_without_training(launch.text, launch.beside)
        if other is not None:
            raise NotATrainingJob(f"{field}.arguments", *other)
    if launch.format is not None:
        return Recognized(launch.format, "")  # "": the request names it
    format_ = recognized(launch.text, launch.beside)
    # No format is recognised: the job starts no training program, or the caller has to name one.
    if format_ is None:
        job = job_without_training(launch.text, launch.beside)
        if job is not None:
            raise NotATrainingJob(f"{field}.arguments", *job)
        fault = command_fault(launch.text, launch.beside)
        if fault is not None:
            raise Invalid(f"{field}.arguments", fault.value, fault.rule)
        rule = f"is not told by what the launch starts: give one of {', '.join(READ_NAMES)}"
        raise Invalid(f"{field}.format", None, rule)
    return format_


def _read_launch(launch: LaunchForm, format_: str, field: str, changes: Changes) -> LaunchReading:
    """Reads a launch with some settings changed. Raises Invalid at the field of the launch, also if
    its text looks like another format than the one named."""
    likely = None if launch.format is None else other_format(format_, launch.text)
    if likely is not None:
        rule = f"is not the format of these arguments, which look like {likely}: give {likely}"
        raise Invalid(f"{field}.format", launch.format, rule)
    try:
        with relocate_errors("launch", field):
            return _read_explaining_undefined(launch, format_, changes)
    except RecursionError:
        raise Invalid(f"{field}.arguments", None, "are nested too deep") from None


def _read_explaining_undefined(launch: LaunchForm, format_: str, changes: Changes) -> LaunchReading:
    """Reads a launch. If a variable is undefined, raises an error that says where it is used and
    why its value cannot be known."""
    read = FORMATS[format_].read
    try:
        return read(launch.text, launch.version, changes=changes, files=launch.beside)
    except Undefined as fault:
        raise with_reason(fault, launch.text, launch.beside) from None


def _stop_errors(stops: Sequence[Stop], field: str) -> Refused:
    """Returns the errors for settings at which the framework stops, in the launch at this field."""
    return Refused([_stop_error(stop, f"{field}.arguments") for stop in stops])


def _stop_error(stop: Stop, place: str) -> Invalid:
    """Returns the error for a setting at which the framework stops. `place` is the launch's
    field."""
    is_rule_enough = not stop.cure or stop.cure in stop.rule
    rule = stop.rule if is_rule_enough else f"{stop.rule}; instead: {stop.cure}"
    return Invalid(f"{place}.{stop.setting}", stop.value, rule)


def _version_assumption(launch: LaunchForm, reading: LaunchReading) -> list[str]:
    """Returns a sentence on the release of the framework, if the request does not name one."""
    if launch.version is not None:
        return []
    return [f"the release is {reading.framework} {reading.version}: launch.version names another"]
