"""Puts together what a launch configuration says and what the request says beside it: a plain
question, and the layout to answer it for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from models.errors import Invalid
from models.layouts.rule import Rule
from models.layouts.rule_sources import rule_source
from models.layouts.rules import RULES_BY_NAME
from models.spec import catalogue
from models.spec.architecture import Architecture
from models.spec.catalogue import as_tuples
from models.spec.hardware import Chip
from models.spec.stack import Stack
from models.spec.switches import changed, releases
from service.errors import NotATrainingJob, Refused
from service.field_violations import MAX_VALUE_CHARACTERS, truncate, violation_of_pydantic
from service.formats.launch.formats import FORMATS, TOOLS
from service.formats.launch.job import NO_CHANGES, Changes, LaunchReading, OwnName
from service.formats.launch.knob_settings import KNOB_SETTINGS
from service.formats.launch.recognition import (
    Recognized,
    other_format,
    recognized,
    starts_nothing_known,
    starts_something_else,
    unread_framework,
)
from service.formats.settings.reservation import Reservation
from service.formats.settings.stop import Stop
from service.formats.shell.command import Command, explained
from service.formats.shell.faults import Undefined
from service.json_pointers import relocate_errors
from service.resolve.launch_assumptions import (
    batch_values,
    taken_defaults,
    unwritten_values,
)
from service.resolve.launch_nodes import chips_on_node, command_in, machine_of_nodes
from service.resolve.model_values import model_values
from service.resolve.resolution import ModelForm, ResolvedQuestion, Resolver
from service.schemas.architecture import HuggingFaceConfig, ShapeFields, is_config
from service.schemas.cluster import ClusterFields, ClusterPreset
from service.schemas.launch_form import LaunchForm, LaunchRead
from service.schemas.launch_request import QuestionParts
from service.schemas.layer_list import LayerListFields, is_layer_list
from service.schemas.layout import LayoutFields
from service.schemas.question import PinnedQuestion
from service.schemas.stack import StackFields
from service.schemas.workload import WorkloadFields

Form = TypeVar("Form", bound=BaseModel)
Joined = TypeVar("Joined")
_DEVICES = RULES_BY_NAME["mesh_fills_cluster"]
_BATCH = RULES_BY_NAME["batch_divides"]
_WITHOUT_SLURM = ("google",)
"""Vendors whose chips no Slurm hands out: a feature v4 is an architecture of x86, and no TPU."""
_AS_FIELDS = "model, workload, stack and layout as fields in place of the launch"
_OF_TRAINER = ("fsdp", "deepspeed")
_MOST_UNREAD = 10  # people read some; all are in the answer to the whole launch
_MOST_UNREAD_CHARACTERS = 120
_MOST_HINTS = 3
_MOST_PADDING = 1024
"""Entries that pad a vocabulary to a multiple for each rank of tensor parallelism, at most."""


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
    """The settings of the launch, by the names that writers have for them."""
    reservations: tuple[Reservation, ...] = ()
    """Settings of the launch on which no verdict rests."""
    overruled: tuple[str, ...] = ()
    """Sentences about values of the launch in whose place those of the request were taken."""

    unpadded_vocabulary: int | None = None
    """Entries of the vocabulary that the launch pads in its own way, where it alone says them."""
    own_names: Mapping[str, OwnName] = dataclass_field(default_factory=dict)
    """The names that the tool of the launch has for settings, by those that writers have."""

    @property
    def unpadded(self) -> PinnedQuestion:
        """The question of a launch that may pad its vocabulary otherwise."""
        model = self.question.model
        if self.unpadded_vocabulary is None or not isinstance(model, ShapeFields | LayerListFields):
            return self.question
        whole = model.model_copy(update={"vocab_size": self.unpadded_vocabulary})
        return self.question.model_copy(update={"model": whole})

    @property
    def settings(self) -> Mapping[str, str]:
        """The framework's names for the knobs of the layout."""
        return KNOB_SETTINGS[self.read.format]


def launched_question(
    resolver: Resolver,
    launch: LaunchForm,
    parts: QuestionParts,
    field: str = "launch",
    other: str = "the request",
    *,
    allow_stops: bool = False,
    changes: Changes = NO_CHANGES,
) -> LaunchedQuestion:
    """The question that a launch and the other members of its request ask together. `field` is
    where the launch stands in the request, and `other` says in words what those members are.
    `changes` are settings to read in place of those of the launch.

    Raises Invalid or Refused for what cannot be read, is missing in both, or contradicts the other;
    and for what the framework itself would stop at, unless `allow_stops`.
    """
    known = _format_of(launch, field)
    reading = _read(launch, known.format, field, changes)
    if reading.stops and not allow_stops:
        raise Refused([stop_error(stop, f"{field}.arguments") for stop in reading.stops])
    reservations = tuple(
        reservation for reservation in reading.reservations if not _is_answered(reservation, parts)
    )
    reading = replace(reading, reservations=reservations)
    stops = list(reading.stops)
    command = command_in(launch.text, launch.beside)
    joining = _Joining(
        resolver=resolver,
        parts=parts,
        launch=launch,
        reading=reading,
        command=command,
        field=field,
        other=other,
        stops=stops if allow_stops else None,
    )
    question, layout, assumed = joining.joined()
    with joining.blaming_launch():
        resolved = resolver.resolve(question)
    if not any(stop.hides_layout for stop in stops):
        resolved = resolved.for_layouts([layout.with_stack_defaults(resolved.problem).build()])
    unread = [reservation.text for reservation in reading.reservations]
    read = LaunchRead(
        format=reading.format,
        format_from=known.by or None,
        framework=reading.framework,
        version=reading.version,
        unread=[truncate(text, _MOST_UNREAD_CHARACTERS) for text in unread[:_MOST_UNREAD]],
        unread_count=len(unread),
        warnings=[
            *joining.overruled,
            *(command.notes if command else ()),
            *(
                truncate(warning, MAX_VALUE_CHARACTERS)
                for warning in reading.warnings[:_MOST_UNREAD]
            ),
        ],
        ignored_count=len(reading.ignored),
        assumed=[
            *_version_assumed(launch, reading),
            *taken_defaults(command.defaults if command else ()),
            *reading.assumed,
            *assumed,
        ],
    )
    return LaunchedQuestion(
        question=question,
        resolved=resolved,
        layout=layout,
        read=read,
        layout_field=f"{field}.arguments",
        stops=tuple(stops),
        typed=reading.settings,
        reservations=reading.reservations,
        overruled=tuple(joining.overruled),
        unpadded_vocabulary=reading.unpadded_vocabulary
        if _leaves_vocabulary(parts.model)
        else None,
        own_names=reading.own_names,
    )


def _leaves_vocabulary(model: object) -> bool:
    """Returns whether a request leaves it to its launch to say the vocabulary."""
    return model is None or (isinstance(model, dict) and "vocab_size" not in model)


def _is_answered(reservation: Reservation, parts: QuestionParts) -> bool:
    """Returns whether the request itself says what a launch says in words that are not
    understood."""
    part, _, name = reservation.answered_by.partition(".")
    given = getattr(parts, part, None) if part else None
    return bool(given) and (not name or (isinstance(given, Mapping) and name in given))


def _format_of(launch: LaunchForm, field: str) -> Recognized:
    """The format of a launch: what it names, else what its text tells. Raises NotATrainingJob for a
    command that starts something else, and Invalid where the text does not tell."""
    unread = unread_framework(launch.text, launch.beside) if launch.format is None else None
    if unread is not None:
        program, framework = unread
        rule = f"starts {framework}, whose settings are not read: give {_AS_FIELDS}"
        raise Invalid(f"{field}.arguments", program, rule)
    if launch.settings is None:
        other = starts_nothing_known(launch.text, launch.beside)
        if other is not None:
            raise NotATrainingJob(f"{field}.arguments", *other)
    if launch.format is not None:
        return Recognized(launch.format, "")
    format_ = recognized(launch.text, launch.beside)
    if format_ is None:
        other = starts_something_else(launch.text, launch.beside)
        if other is not None:
            raise NotATrainingJob(f"{field}.arguments", *other)
        rule = f"is not told by what the launch starts: give one of {', '.join(FORMATS)}"
        raise Invalid(f"{field}.format", None, rule)
    return format_


def _read(launch: LaunchForm, format_: str, field: str, changes: Changes) -> LaunchReading:
    """Reads a launch with some settings changed. Raises Invalid at the field of the launch."""
    likely = None if launch.format is None else other_format(format_, launch.text)
    if likely is not None:
        rule = f"is not the format of these arguments, which look like {likely}: give {likely}"
        raise Invalid(f"{field}.format", launch.format, rule)
    try:
        with relocate_errors("launch", field):
            return _read_or_explained(launch, format_, changes)
    except RecursionError:
        raise Invalid(f"{field}.arguments", None, "are nested too deep") from None


def _read_or_explained(launch: LaunchForm, format_: str, changes: Changes) -> LaunchReading:
    """Reads a launch. An error about a variable says where it stands, and why nobody can know its
    value."""
    read = FORMATS[format_].read
    try:
        return read(launch.text, launch.version, changes=changes, files=launch.beside)
    except Undefined as fault:
        raise explained(fault, launch.text, launch.beside) from None


def stop_error(stop: Stop, place: str) -> Invalid:
    """Returns a fault at which the framework stops as an error of the launch at `place` in the
    request."""
    says_cure = not stop.cure or stop.cure in stop.rule
    rule = stop.rule if says_cure else f"{stop.rule}; instead: {stop.cure}"
    return Invalid(f"{place}.{stop.setting}", stop.value, rule)


def _version_assumed(launch: LaunchForm, reading: LaunchReading) -> list[str]:
    if launch.version is not None:
        return []
    return [f"the release is {reading.framework} {reading.version}: launch.version names another"]


@dataclass(frozen=True, slots=True)
class _Joining:
    """Joins a launch and its request, part by part."""

    resolver: Resolver
    parts: QuestionParts
    launch: LaunchForm
    reading: LaunchReading
    command: Command | None
    field: str
    """The field of the request that has the launch."""
    other: str
    """Words for the source of the parts that the launch does not say."""
    stops: list[Stop] | None
    """Faults at which the framework stops, to which more are added; None where it must stop at
    nothing."""
    overruled: list[str] = dataclass_field(default_factory=list)
    """Sentences about values of the launch in whose place those of the request are taken."""

    def joined(self) -> tuple[PinnedQuestion, LayoutFields, list[str]]:
        """The plain question, the layout, and what was assumed of it. Raises Refused for all that
        is wrong with any member."""
        faults = list[Invalid]()
        cluster = _collected(lambda: self._in_nodes(self._cluster()), faults)
        sized = None if cluster is None else _collected(lambda: self._sized(cluster), faults)
        said, assumed = sized or (dict(self.reading.layout), list[str]())
        is_batch_open = sized is None and self.reading.num_micro_batches is not None
        members = {
            "model": _collected(self._model, faults),
            "cluster": cluster,
            "workload": (
                None if is_batch_open else _collected(lambda: self._workload(said), faults)
            ),
            "stack": _collected(self._stack, faults),
            "profile": self.parts.profile,
        }
        if len(faults) == 1:
            raise faults[0]
        if faults:
            raise Refused(faults)
        question = PinnedQuestion.model_validate(members)
        global_batch = question.workload.global_batch
        said |= self._micro_batch(said, global_batch)
        if any(stop.hides_layout for stop in self.stops or ()):
            return question, LayoutFields(), []
        layout = self._validated("layout", LayoutFields, {}, said)
        ranks = _data_parallel(said)
        assumed += self._assumed_of_cluster(question.cluster)
        assumed += unwritten_values(self.reading, self._given())
        assumed += batch_values(self.reading, layout.micro_batch, global_batch, ranks)
        return question, layout, assumed

    def _given(self) -> dict[str, Mapping[str, Any]]:
        """The fields that the request has of its own, by part."""
        model = self.parts.model
        return {"model": model if isinstance(model, dict) else {}, "workload": self.parts.workload}

    @contextmanager
    def blaming_launch(self) -> Iterator[None]:
        """Turns an error, raised in the block, about a part that only the launch says into one of
        the launch."""
        try:
            yield
        except Invalid as fault:
            part = fault.field.partition(".")[0]
            said = getattr(self.reading, part, None)
            if said is not None and not getattr(self.parts, part, None):
                raise self._said(fault.field, fault.value, fault.rule) from None
            raise

    # -- the parts

    def _model(self) -> ModelForm:
        given = self.parts.model
        said = self.reading.model or {}
        if is_config(said):
            if given is None:
                return HuggingFaceConfig(dict(said))
            said = {}  # what the request itself says goes before a file beside it
        name = said["name"] if said.keys() == {"name"} else None
        if given is None:
            if name is None and not said.keys() & {"num_layers", "hidden_size"}:
                raise self._missing("model")
            return self._described({}, said) if name is None else str(name)
        known = _flat(said) if name is None else self._counts(name)
        if isinstance(given, dict):
            if "model.vocab_size" in self.reading.unwritten:
                known = {**known, "vocab_size": None}
            self._require_same("model", known, _flat(given))
            return self._described(given, said if name is None else {})
        self._require_same("model", known, self._counts(given))
        return given

    def _described(
        self, given: Mapping[str, Any], said: Mapping[str, Any]
    ) -> ShapeFields | LayerListFields:
        """The model in the form that its fields are of."""
        if is_layer_list({**said, **given}):
            return self._validated("model", LayerListFields, given, said)
        return self._validated("model", ShapeFields, given, said)

    def _counts(self, form: ModelForm) -> dict[str, object]:
        """The values of a model that a launch may say too."""
        model = self._architecture(form)
        counts = {"vocab_size": model.vocab_size, "mtp_layers": model.mtp_layers}
        return {**model_values(model), **counts}

    def _architecture(self, form: ModelForm) -> Architecture:
        return self.resolver.architecture(form).value

    def _cluster(self) -> ClusterPreset | ClusterFields:
        form = self.parts.cluster or self._asked_chips()
        if form is None:
            raise Invalid("cluster", None, "is required: a launch does not name its chips")
        chip, _, size = self.resolver.cluster_parts(form)
        self._warn_of_other_chip(chip.value)
        said = self.reading.num_devices
        devices = self._given_devices(chip.value) if said is None else said
        if size.num_chips is None and size.torus_shape is None:
            if devices is None:
                raise self._missing("cluster.num_chips")
            return form.model_copy(update={"num_chips": devices // chip.value.devices_per_chip})
        asked = self.resolver.cluster(form).cluster.num_devices
        if self._is_overruled(asked) or (said is None and devices not in (None, asked)):
            self.overruled.append(
                f"the launch starts {devices} ranks, and the request has {asked} devices: the"
                " request is taken, as `sbatch -N` goes before #SBATCH"
            )
        elif said not in (None, asked):
            rule = f"runs on {devices} devices where the request has {asked}: leave num_chips out"
            error = Invalid(f"{self.field}.arguments", f"{devices} devices", rule)
            self._stop_or(
                error,
                self.reading.devices_setting,
                _DEVICES,
                f"makes {devices} devices with the settings beside it, and the job has {asked}",
                cure=f"values that make {asked} devices",
            )
        return form

    def _is_overruled(self, num_devices: int) -> bool:
        """Returns whether the request has another number of devices than launchers start. A number
        that follows from settings of the framework is no fact of a scheduler."""
        is_said = self.reading.num_devices not in (None, num_devices)
        return is_said and self.reading.devices_setting is None

    def _given_devices(self, chip: Chip) -> int | None:
        """The devices that a scheduler gives a job which finds them when it starts. TPUs are asked
        for by chips, GPUs by devices."""
        asked = None if self.command is None else self.command.num_ranks
        if asked is None or chip.vendor != "google":
            return asked
        return asked * chip.devices_per_chip

    def _warn_of_other_chip(self, chip: Chip) -> None:
        """Note where the script asks for GPUs that are not those of the request."""
        asked = None if self.parts.cluster is None else self._asked_chips()
        if asked is None or chip.id.startswith(asked.preset.lower()):
            return
        if self.resolver.cluster_parts(asked)[0].value.id != chip.id:
            self.overruled.append(
                f"the script asks for GPUs {asked.preset}, and the request has {chip.id}: the"
                " request is taken"
            )

    def _asked_chips(self) -> ClusterPreset | None:
        """The chips by the name that the scheduler has for them, where the catalogue has it too;
        else by the feature of nodes that is a chip, where just one is."""
        if self.command is None:
            return None
        if self.command.chip is not None:
            return self._preset(self.command.chip)
        named = dict[str, ClusterPreset]()
        for feature in self.command.features:
            preset = self._preset(feature)
            chip = None if preset is None else self.resolver.cluster_parts(preset)[0].value
            if preset is not None and chip is not None and chip.vendor not in _WITHOUT_SLURM:
                named.setdefault(chip.id, preset)
        return next(iter(named.values())) if len(named) == 1 else None

    def _preset(self, name: str) -> ClusterPreset | None:
        """The cluster of a name, where the catalogue has it."""
        try:
            form = ClusterPreset(preset=name)
            self.resolver.cluster_parts(form)
        except (Invalid, ValidationError):
            return None
        return form

    def _in_nodes(self, form: ClusterPreset | ClusterFields) -> ClusterPreset | ClusterFields:
        """The cluster in the nodes of the script, unless the request says how it is cut."""
        if form.chips_per_domain is not None:
            return form
        cluster = self.resolver.cluster(form).cluster
        machine = machine_of_nodes(self.command, cluster)
        if machine is not None and isinstance(form, ClusterPreset):
            return form.model_copy(update={"preset": machine})
        chips = chips_on_node(self.command, cluster)
        return form if chips is None else form.model_copy(update={"chips_per_domain": chips})

    def _assumed_of_cluster(self, form: ClusterPreset | ClusterFields) -> Iterator[str]:
        given = self.parts.cluster
        if given is None and isinstance(form, ClusterPreset):
            yield f"cluster.preset is {form.preset}: the chips that the launch asks for"
        elif isinstance(form, ClusterPreset) and form.preset != getattr(given, "preset", None):
            domain = self.resolver.cluster(form).cluster.fabric.domain
            yield (
                f"cluster.preset is {form.preset}: a node of the script has {domain} of"
                f" {getattr(given, 'preset', None)}, and NVLink joins them in such machines"
            )
        if form.chips_per_domain and not (given and given.chips_per_domain):
            domain = self.resolver.cluster(form).cluster.fabric.domain
            yield (
                f"cluster.chips_per_domain is {form.chips_per_domain}: what a node of the script"
                f" has, and scale-up links, which can join {domain} chips, end at the node"
            )

    def _workload(self, layout: Mapping[str, Any]) -> WorkloadFields:
        given = self.parts.workload
        said = dict(self.reading.workload)
        steps = self.reading.num_micro_batches
        if "global_batch" not in said and steps and "micro_batch" in layout:
            said["global_batch"] = layout["micro_batch"] * steps * _data_parallel(layout)
        # A batch that the request has in tokens is compared with that of the launch in sequences.
        in_tokens = given.get("global_batch_tokens") is not None
        batch = {"global_batch"} if in_tokens else set[str]()
        others = {name: value for name, value in said.items() if name not in batch}
        asked = self._validated("workload", WorkloadFields, given, others)
        firm = {name: value for name, value in said.items() if not self._gives_way(name)}
        self._require_same("workload", firm, asked.model_dump(include={*given} | batch))
        return asked

    def _gives_way(self, name: str) -> bool:
        """Returns whether a value of the workload is a default that a file which was not sent may
        set otherwise, so that the request's value holds."""
        field = f"workload.{name}"
        origins = [field]
        if self._counts_batch(field):
            origins += ["num_micro_batches", "layout.micro_batch"]
        return self.reading.is_open and any(origin in self.reading.unwritten for origin in origins)

    def _micro_batch(self, layout: Mapping[str, Any], global_batch: int) -> dict[str, int]:
        """The micro-batch, where only the batch and its number of micro-batches are said."""
        steps = self.reading.num_micro_batches
        if "micro_batch" in layout or steps is None:
            return {}
        ranks = _data_parallel(layout)
        micro_batch, remainder = divmod(global_batch, steps * ranks)
        if remainder or not micro_batch:
            rule = (
                f"has {steps} micro-batches on each of {ranks} data-parallel ranks, of which the"
                f" global batch of {global_batch} must be a multiple"
            )
            error = Invalid(f"{self.field}.arguments", steps, rule)
            self._stop_or(
                error,
                self.reading.micro_batches_setting,
                _BATCH,
                rule,
                cure=f"a global batch of {max(micro_batch, 1) * steps * ranks}",
                hides_layout=True,
            )
        return {"micro_batch": max(micro_batch, 1)}

    def _stack(self) -> str | StackFields:
        """The stack of the request, or else of the format, with the switches of the launch that are
        not what the stack has anyway."""
        said = dict(self.reading.stack)
        own = catalogue.stack(said.pop("name"))
        form = self.parts.stack
        base = own if form is None else self._stack_of(form, own.calibrated_as)
        given = form.changes() if isinstance(form, StackFields) else {}
        age = {name: given[name] for name in ("version", "age_years") if name in given}
        is_dated = self.launch.version is not None and self.reading.version in releases(base.id)
        if is_dated and not age:
            age = {"version": self.reading.version}
        usual = StackFields.model_validate({"name": base.id, **age}).build(base)
        # What a switch brings with it where somebody asks for it, a launch says or does not have.
        switches = _differing(said, usual)
        given_as_values = {name: as_tuples(value) for name, value in switches.items()}
        switches |= _differing(said, changed(usual, given_as_values))
        if not (age or switches or given):
            return base.id
        return self._validated("stack", StackFields, {"name": base.id, **given}, age | switches)

    def _sized(self, cluster: ClusterPreset | ClusterFields) -> tuple[dict[str, Any], list[str]]:
        """The layout as the launch says it, with the data-parallel degree that its devices leave;
        and what was assumed."""
        said = dict(self.reading.layout)
        num_devices = self.resolver.cluster(cluster).cluster.num_devices
        if self._is_overruled(num_devices):
            said.pop("dp_shard" if said.get("zero_stage") else "dp_replicate", None)
        knob = _open_degree(said)
        if knob is None:
            return said, []
        said[knob] = self._remaining_devices(said, num_devices)
        if said[knob] == 1:
            return said, []
        return said, [f"layout.{knob} is {said[knob]}: what {num_devices} devices leave"]

    @staticmethod
    def _remaining_devices(said: Mapping[str, Any], num_devices: int) -> int:
        """The devices that other degrees leave. Where these do not divide, a rule of layouts says
        so (models.layouts.rules)."""
        axes = ("pp", "cp", "tp", "dp_replicate", "dp_shard")
        taken = math.prod(said.get(axis, 1) for axis in axes)
        return max(num_devices // max(taken, 1), 1)

    def _stack_of(self, form: str | StackFields, framework: str) -> Stack:
        """The stack that the request names. Raises Invalid where it is of another framework."""
        name = form if isinstance(form, str) else form.name
        base = self.resolver.stack(name).value
        if name.lower() in TOOLS and framework in _OF_TRAINER:
            return catalogue.stack(framework)  # which its file tells
        if base.calibrated_as != framework:
            field = "stack" if isinstance(form, str) else "stack.name"
            rule = f"does not run {self.reading.framework}, of which the launch is: leave it out"
            raise Invalid(field, base.id, rule)
        return base

    # -- errors

    def _stop_or(
        self,
        error: Invalid,
        setting: str | None,
        broken: Rule,
        rule: str,
        cure: str,
        *,
        hides_layout: bool = False,
    ) -> None:
        """Remember that the framework stops at a setting, as at a layout that breaks a rule. Raises
        the error where stops are not allowed, or no setting is to blame."""
        if setting is None or self.stops is None:
            raise error
        self.stops.append(
            Stop(
                setting=setting,
                value=error.value,
                rule=rule,
                source=rule_source(broken, catalogue.stack(str(self.reading.stack["name"]))),
                cure=cure,
                hides_layout=hides_layout,
            )
        )

    def _said(self, name: str, value: object, rule: str) -> Invalid:
        return Invalid(f"{self.field}.arguments", f"{name} = {value}", rule)

    def _require_same(
        self, part: str, ran: Mapping[str, object], asked: Mapping[str, object]
    ) -> None:
        """Refuse values of the launch that are not those of the request, where both have them."""
        faults = [
            self._contradiction(f"{part}.{name}", value, asked[name])
            for name, value in ran.items()
            if value is not None and name in asked and not self._is_same(name, value, asked[name])
        ]
        if faults:
            raise Refused(faults)

    def _is_same(self, name: str, ran: Any, asked: Any) -> bool:
        """Returns whether two values are equal. A vocabulary also equals itself padded, since
        Megatron makes it a multiple of the tensor-parallel ranks."""
        if name != "vocab_size" or not isinstance(asked, int):
            return bool(ran == asked)
        padding = _MOST_PADDING * max(self.reading.layout.get("tp", 1), 1)
        return bool(asked <= ran < asked + padding)

    def _contradiction(self, name: str, ran: object, asked: object) -> Invalid:
        rule = f"contradicts {name} = {asked} of {self.other}"
        if name in self.reading.counted:
            rule += f" ({self.reading.counted[name]})"
        unwritten = self.reading.unwritten
        origin = unwritten.get(name) or unwritten.get(
            "num_micro_batches" if self._counts_batch(name) else name
        )
        if origin is None:
            return self._said(name, ran, f"{rule}: leave it to the launch")
        cure = f"write it in the launch, or leave it out of {self.other}{self._hint()}"
        return self._said(name, ran, f"{rule}, and nobody wrote it ({origin}): {cure}")

    def _counts_batch(self, name: str) -> bool:
        """Returns whether a value is a global batch that follows from the number of
        micro-batches."""
        return name == "workload.global_batch" and "global_batch" not in self.reading.workload

    def _missing(self, name: str) -> Invalid:
        """Returns the error for a field that neither the launch nor the request says. It shows
        where to write it."""
        part, *steps = name.split(".")
        if name in self.reading.asks:
            return Invalid(name, None, f"is required: {self.reading.asks[name]}")
        beside = "…"
        for step in reversed(steps):
            beside = f'{{"{step}": {beside}}}'
        rule = f'is required: the launch does not say it; write it there, or "{part}": {beside}'
        return Invalid(name, None, f"{rule} beside it{self._hint()}")

    def _hint(self) -> str:
        """Returns words on parts of the launch that are not understood and may have said a field,
        the misspelt ones first."""
        reading = self.reading
        unread = [reservation.text for reservation in reading.reservations]
        problems = [*unread, *(f"{stop.setting} {stop.rule}" for stop in reading.stops)]
        near = [problem for problem in problems if "did you mean" in problem] or unread
        listed = "; ".join(
            truncate(problem, MAX_VALUE_CHARACTERS) for problem in near[:_MOST_HINTS]
        )
        return f". Not understood in the launch: {listed}" if listed else ""

    def _validated(
        self, part: str, form: type[Form], given: Mapping[str, Any], said: Mapping[str, Any]
    ) -> Form:
        """The fields of the request and of the launch in one form. Raises Refused for what is
        missing in both, and for what is wrong in either."""
        joined = _joined(said, given)
        try:
            return form.model_validate(joined)
        except ValidationError as error:
            faults = [self._fault(part, form, given, item) for item in error.errors()]
            raise Refused(faults) from None

    def _fault(
        self, part: str, form: type[BaseModel], given: Mapping[str, Any], item: Any
    ) -> Invalid:
        violation = violation_of_pydantic(item, form, item["loc"], root=[part], in_body=True)
        if item["type"].startswith("missing"):
            return self._missing(violation.field)
        if item["loc"] and item["loc"][0] in given:
            return Invalid(violation.field, violation.value, violation.rule)
        return self._said(violation.field, violation.value, violation.rule)


def _joined(said: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The members of both, those that are objects joined alike; `given` goes before `said`."""
    joined = {**said, **given}
    for name, value in given.items():
        if isinstance(value, Mapping) and isinstance(said.get(name), Mapping):
            joined[name] = _joined(said[name], value)
    return joined


def _collected(join: Callable[[], Joined], faults: list[Invalid]) -> Joined | None:
    """Returns the result of joining a part. Where it cannot be joined, returns None and adds the
    reasons to `faults`."""
    try:
        return join()
    except Invalid as fault:
        faults.append(fault)
    except Refused as refused:
        faults += refused.errors
    return None


def _differing(said: Mapping[str, Any], stack: Stack) -> dict[str, Any]:
    """The fields of a stack that a launch says otherwise."""
    return {name: value for name, value in said.items() if as_tuples(value) != getattr(stack, name)}


def _data_parallel(layout: Mapping[str, Any]) -> int:
    return int(layout.get("dp_shard", 1) * layout.get("dp_replicate", 1))


def _flat(model: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a shape, with those of its experts and of its attention among them. A whole
    shape without experts has none."""
    dense = {"num_experts": 0} if model.keys() >= {"num_layers", "hidden_size"} else {}
    nested = [model.get(name) or {} for name in ("mla", "moe")]
    own = {name: value for name, value in model.items() if name not in ("mla", "moe")}
    return {**dense, **own, **nested[0], **nested[1]}


def _open_degree(said: Mapping[str, Any]) -> str | None:
    """The data-parallel degree that a launch leaves to the number of devices, if any."""
    if "dp_shard" in said:
        return None if "dp_replicate" in said else "dp_replicate"
    is_replicated = said.get("zero_stage") == 0 and "dp_replicate" not in said
    return "dp_replicate" if is_replicated else "dp_shard"
