"""A launch configuration has two parts, whatever the framework: the job that it starts, and the
configuration itself. A LaunchReading is the way back: what a launch text asks for, as a request.

A *stop* is a setting at which the framework itself refuses to start. A *reservation* is a setting
that is not understood and could change the answer. A *knob* is a field of a layout.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from models.cost.pipeline.stage_partition import layers_of_chunks
from models.errors import Invalid
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from service.formats.launch.machines import Machines
from service.formats.model_details import NO_DETAILS, ModelDetails
from service.formats.settings.reservation import Reservation
from service.formats.settings.stop import Stop

Changes = Mapping[str, Any]
"""Settings to read in place of those of a text, by their names; None for one that is left out."""
NO_CHANGES: Changes = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job is a layout of a problem that is to be launched. The stack of the problem has the
    switches: choices of software that no layout makes, such as kernels."""

    problem: Problem
    layout: Layout
    """Every field has its final value."""
    layers_per_chunk: tuple[int, ...]
    """The numbers of layers of the pp * virtual_stages chunks, in the order of the model."""
    family: str | None = None
    """The model_type of Hugging Face, where it is known."""
    details: ModelDetails = NO_DETAILS
    nodes: tuple[str, ...] = ()
    """The names of equally large nodes that the job is to run on, in the order of ranks."""

    @classmethod
    def of(
        cls,
        problem: Problem,
        layout: Layout,
        *,
        family: str | None = None,
        details: ModelDetails = NO_DETAILS,
        nodes: tuple[str, ...] = (),
    ) -> Self:
        """Returns the job of a legal layout, with its layers divided over pipeline chunks as
        predictions divide them."""
        chunks = layers_of_chunks(problem, Layouts.of([layout]))[0]  # of the one layout
        return cls(
            problem=problem,
            layout=layout,
            layers_per_chunk=tuple(map(len, chunks)),
            family=family,
            details=details,
            nodes=nodes,
        )

    @property
    def machines(self) -> Machines:
        """Returns the machines of the job: the named nodes where there are some, else the
        machines that such a cluster usually has."""
        devices = self.layout.num_devices
        if self.nodes:
            return Machines(
                nodes=len(self.nodes),
                devices_per_node=devices // len(self.nodes),
                segment=1,  # the names place the job, and not a Slurm segment
                names=self.nodes,
            )
        return Machines.of(self.problem.cluster)

    @property
    def has_capacity(self) -> bool:
        """Returns True for a mixture of experts whose experts take a fixed number of tokens."""
        problem = self.problem
        return problem.architecture.is_moe and problem.workload.capacity_factor is not None

    @property
    def num_micro_batches(self) -> int:
        """Counts the micro-batches of one data-parallel rank in a step."""
        return self.problem.workload.global_batch // (self.layout.dp * self.layout.micro_batch)


class Inexpressible(Invalid):
    """A layout, a workload or a stack has a value that a framework has no setting for. Its rule is
    the cure, what to ask for instead, until `in_format` says which format it is about.

    `is_refused` says that the framework itself has no such value. Otherwise only the settings that
    are written here lack it, and a script of the caller's own may have it."""

    def __init__(self, field: str, value: object, cure: str, *, is_refused: bool = False) -> None:
        super().__init__(field, value, cure)
        self.cure = cure
        self.is_refused = is_refused

    def in_format(self, name: str) -> Self:
        """Says that the launch format `name` has no setting for the value, in place, and returns
        this error."""
        self.rule = f"cannot be said in {name}: {self.rule}"
        self.args = (f"{self.field} = {self.value!r}: {self.rule}",)
        return self


class UnknownLayers(Inexpressible):
    """A framework's program makes no such layers; `supported` says which it makes."""

    def __init__(self, field: str, value: object, supported: str) -> None:
        cure = f"{supported}; ask for deepspeed or fsdp, beside which a script makes the model"
        super().__init__(field, value, cure)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfiguration:
    """The configuration with which a framework runs a layout.

    `settings` are the framework's own names in its own order and nesting: Megatron's with their
    dashes ("--tensor-model-parallel-size": 4, a flag without a value is True), torchtitan's and
    Megatron-Bridge's dotted, MaxText's keys, DeepSpeed's and accelerate's documents as they are.
    Values are of JSON.
    """

    format: str
    framework: str
    version: str
    """The release of the framework that it is written for."""
    settings: Mapping[str, Any]
    script_arguments: Mapping[str, Any] = field(default_factory=dict)
    """Beside a document of the launcher, what the training script itself must be told, by the names
    of transformers' TrainingArguments."""
    script: str = ""
    """The training program that the caller has to name, in words; empty where the format knows its
    name."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of every rank."""
    placeholders: Mapping[str, str] = field(default_factory=dict)
    """For every setting that the layout cannot decide (data, tokenizer, learning rate, checkpoints
    and resuming), by its name: what to put there."""
    list_placeholders: tuple[str, ...] = ()
    """The placeholders of which a value is any number of words."""
    placeholder_defaults: Mapping[str, str] = field(default_factory=dict)
    """Placeholders that have the value of another one unless they are given."""
    slurm: Mapping[str, bool | int | str] = field(default_factory=dict)
    """Options of sbatch, without dashes: nodes, ntasks-per-node, segment. True has no value."""
    notes: tuple[str, ...] = ()
    """The things that a person must know or do besides, a sentence each."""


def with_changes(settings: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    """Returns settings with some of them replaced; a change to None removes a setting."""
    unchanged = {name: value for name, value in settings.items() if name not in changes}
    return unchanged | {name: value for name, value in changes.items() if value is not None}


def in_words(values: Iterable[int]) -> str:
    """Returns alternatives in words, such as "1, 2 or 4"."""
    *others, last = map(str, values)
    return f"{', '.join(others)}{' or ' if others else ''}{last}"


@dataclass(frozen=True, slots=True)
class OwnName:
    """The name that a tool has for a setting of the framework which it starts."""

    name: str
    values: Mapping[str, Any] = field(default_factory=dict)
    """The values that it calls otherwise, by those of the framework in JSON."""

    def value(self, value: Any) -> Any:
        """Returns a value as the tool writes it."""
        # The keys of `values` are JSON, since a value such as a list cannot be a key.
        return self.values.get(json.dumps(value, default=str), value)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchReading:
    """A launch configuration as it is read, in the JSON form of requests.

    A part is None where the configuration says nothing of it, as a DeepSpeed document says nothing
    of the model. Values that a framework would fill in itself are filled in, by the defaults of the
    release that it is read for.
    """

    format: str
    framework: str
    version: str
    model: Mapping[str, Any] | None
    """Fields of ShapeFields; or the name alone, of a model of the catalogue; or a config.json as it
    is, by its model_type."""
    workload: Mapping[str, Any]
    """The fields of WorkloadFields that are said."""
    stack: Mapping[str, Any]
    """Fields of StackFields, the name first, with the switches as they are set or default."""
    layout: Mapping[str, Any]
    """Fields of LayoutFields."""
    num_devices: int | None
    """The number of devices that the job has, where that is said or follows."""
    devices_setting: str | None = None
    """The setting from which the number of devices follows; None where a setting states it."""
    memory_fraction: float | None = None
    """The part of a chip's memory that the framework may allocate, where the launch limits it."""
    num_micro_batches: int | None = None
    """The micro-batches of one data-parallel rank in a step (gradient accumulation), where they are
    stated. A global batch or a micro-batch that is not stated follows from them and the devices."""
    accumulation_setting: str | None = None
    """The setting that states num_micro_batches, such as gradient_accumulation_steps."""
    default_origins: Mapping[str, str] = field(default_factory=dict)
    """By field, such as workload.seq_len or num_micro_batches, words for where its value comes
    from, because the launch does not set it."""
    unpadded_vocabulary: int | None = None
    """Entries of the vocabulary before the framework pads them for its tensor-parallel ranks, where
    it does and they are said."""
    counting_notes: Mapping[str, str] = field(default_factory=dict)
    """By field, words for how its value is counted, because the launch counts it otherwise."""
    assumed: tuple[str, ...] = ()
    """The settings that are counted as something else than they are, in words."""
    unresolved_parts: Mapping[str, str] = field(default_factory=dict)
    """By part of the request, such as model: why the launch leaves it open, and what to send."""
    stops: tuple[Stop, ...] = ()
    """Settings that were read but that the framework refuses, beyond the rules of layouts."""
    reservations: tuple[Reservation, ...] = ()
    """Settings that are not understood and could change time, memory or what is legal."""
    warnings: tuple[str, ...] = ()
    """Names that the framework takes and ignores, with the nearest that it knows."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings that are set, by the names that the format's writer has for them."""
    own_names: Mapping[str, OwnName] = field(default_factory=dict)
    """The tool's own names of settings, by the names that the format's writer has for them."""
    settings_of_fields: Mapping[str, str] = field(default_factory=dict)
    """By field, such as model.num_key_value_heads, the setting that says it, for errors."""
    ignored: tuple[str, ...] = ()
    """Settings that change neither time nor memory (data paths, logging, learning rate)."""

    @property
    def certain_stops(self) -> tuple[Stop, ...]:
        """Returns the stops at which the framework stops whatever the chip."""
        return tuple(stop for stop in self.stops if not stop.not_on)

    @property
    def is_open(self) -> bool:
        """Returns True where a file with unknown settings was not sent, so that anything could
        be set there."""
        return any(reservation.is_open for reservation in self.reservations)
