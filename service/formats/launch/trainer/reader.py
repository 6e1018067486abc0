"""Reads launches of the Trainer: the layout with FSDP, DeepSpeed or Megatron, the workload and the
model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from models.errors import Invalid
from models.spec.adapters import BaseBits
from models.spec.switches import releases
from service.formats.launch.accelerate import sharding
from service.formats.launch.accelerate import writer as accelerate_writer
from service.formats.launch.accelerate.launcher import with_prefixes
from service.formats.launch.accelerate.sharding import fsdp, megatron, replicas
from service.formats.launch.deepspeed import document as deepspeed_document
from service.formats.launch.deepspeed import writer as deepspeed_writer
from service.formats.launch.deepspeed.document import (
    check_reduction,
    num_devices,
    read_document_settings,
)
from service.formats.launch.job import NO_CHANGES, Changes, LaunchReading, with_changes
from service.formats.launch.trainer.deepspeed_arguments import document_of, filled
from service.formats.launch.trainer.dialects import DIALECTS, in_names_of_trainer, trainer_table
from service.formats.launch.trainer.fsdp_arguments import with_fsdp
from service.formats.launch.trainer.kernels import lifted_rules, read_switches
from service.formats.launch.trainer.launched import Launched, launched_in
from service.formats.launch.trainer.megatron_swift import read_megatron
from service.formats.launch.trainer.models import NamedModel, named_model
from service.formats.launch.trainer.objectives import in_sequences, read_objective
from service.formats.launch.trainer.trainer_settings import OBJECTIVE, TrainerSettings
from service.formats.launch.trainer.training import (
    accumulation_steps,
    checkpoints,
    micro_batch,
    offloads_activations,
    read_workload,
)
from service.formats.launch.trainer.trl import fill_in_defaults, preset_of
from service.formats.settings.field import shown
from service.formats.settings.field_table import field_table
from service.formats.settings.reservation import Reservation
from service.formats.settings.settings import Settings, UnreadSettings
from service.formats.settings.stop import Stops
from service.formats.shell.faults import PATH
from service.formats.shell.files import NO_FILES, LaunchFiles

_ACCELERATE = accelerate_writer.NAME
_DEEPSPEED = deepspeed_writer.NAME
_MODEL_NAMES = ("model_name_or_path", "model_id")
_TRAINER = (*_MODEL_NAMES, "per_device_train_batch_size", "distributed_type")
"""Settings of which each tells of the Trainer."""


def read(
    text: str,
    version: str | None,
    *,
    changes: Changes = NO_CHANGES,
    files: LaunchFiles = NO_FILES,
    otherwise: str = "transformers",
) -> LaunchReading:
    """Returns what a document, a command line or a script says. It has the number of devices, the
    length of sequences and the model only where a launcher or a training argument says them. A
    document by which no tool is known is read as one of `otherwise`."""
    launched = launched_in(text, files, otherwise)
    if launched.dialect == "megatron_swift":
        return read_megatron(launched, version, changes)
    return _Reader(launched, version, changes, otherwise).reading()


@dataclass(slots=True)
class _Reader:
    """Reads one launch, part by part."""

    launched: Launched
    version: str | None
    changes: Changes
    otherwise: str
    reservations: list[Reservation] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    default_origins: dict[str, str] = field(default_factory=dict)
    counting_notes: dict[str, str] = field(default_factory=dict)
    stops: Stops = field(init=False)

    @property
    def _is_tool(self) -> bool:
        return self.launched.dialect in DIALECTS

    def reading(self) -> LaunchReading:
        self.reservations += self.launched.reservations
        is_document = self.launched.dialect == _DEEPSPEED
        if is_document:
            trainer, own = TrainerSettings(), None
        else:
            trainer, own = in_names_of_trainer(self.launched, self.version)
        self.assumed += trainer.assumed
        self.default_origins |= _defaults_of_tool(trainer, self.launched)
        given = self._given(trainer)
        files, reservations = self.launched.files, self.reservations
        document: Mapping[str, Any] | None = self.launched.settings
        if not is_document:
            document = document_of(given, files, reservations)
        if document is None and self._lacks_document(given):
            document = {}
        if document is None:
            answer = self._of_accelerate(given)
        else:
            answer = self._of_deepspeed(document, given)
        return self._with_rest(answer, trainer, own)

    def _given(self, trainer: TrainerSettings) -> dict[str, Any]:
        """All settings but those of a DeepSpeed document, in the names of accelerate."""
        given = {**with_prefixes(self.launched.launcher), **with_prefixes(trainer.settings)}
        preset = given.pop("accelerate_config", None)
        if preset is not None:
            given = {**preset_of(str(preset), self.launched.files, self.reservations), **given}
        given = with_fsdp(given, self.launched.files, self.reservations)
        if self.launched.objective and not self._is_tool:
            given.setdefault(OBJECTIVE, self.launched.objective)
        if self.launched.dialect == "trl":
            fill_in_defaults(given, self.default_origins, self.assumed)
        if "parallelism_config.parallelism_config_sp_size" in given:
            backend = "parallelism_config.parallelism_config_sp_backend"
            given.setdefault(backend, "deepspeed")
        return given

    def _arguments(self, given: Mapping[str, Any]) -> Settings:
        """Settings of accelerate and the Trainer."""
        settings = Settings(trainer_table(self.launched.dialect), given)
        if not self._is_tool:
            settings.written[OBJECTIVE] = self.launched.program
        return settings

    # -- DeepSpeed

    def _lacks_document(self, given: Mapping[str, Any]) -> bool:
        """Returns True where a script is started for DeepSpeed and nothing says which document it
        takes. The Trainer takes none unless it is told so."""
        is_for_it = _DEEPSPEED in (self.otherwise, self.launched.launcher_name)
        lacks = self.launched.is_command and is_for_it and not given.keys() & {*_TRAINER}
        if lacks:
            reason = "the document that says how DeepSpeed shards is not named"
            cure = "write --deepspeed_config ds.json, and send its text as launch.files['ds.json']"
            self.reservations.append(
                Reservation(setting="deepspeed", reason=reason, cure=cure, is_open=True)
            )
        return lacks

    def _of_deepspeed(self, document: Mapping[str, Any], given: Mapping[str, Any]) -> LaunchReading:
        self.stops = Stops(deepspeed_document.SOURCE)
        has_trainer = bool(given)
        arguments = self._arguments(given)
        num_ranks = arguments.integer("num_processes", least=-1) or self.launched.num_devices
        num_ranks = num_ranks if num_ranks and num_ranks > 0 else None
        sequence = arguments.integer("parallelism_config.parallelism_config_sp_size") or 1
        document = {**document}
        if sequence > 1:
            document.setdefault("sequence_parallel_size", sequence)
        is_open = any(reservation.is_open for reservation in self.reservations)
        full = dict(document)
        if has_trainer:
            full = filled(document, arguments, None, self.stops)
        full = with_changes(full, self.changes)
        settings = Settings(field_table(_DEEPSPEED), full)
        said = read_document_settings(settings, self.stops, has_trainer=has_trainer)
        self.default_origins |= said.default_origins
        layout = said.layout
        workload = said.workload
        if has_trainer:
            origins: dict[str, str] = {}
            trained = read_workload(arguments, self.assumed, origins, has_own_copy=True)
            workload = {**trained, **workload}
            layout["recompute"] = "full" if checkpoints(arguments) else "none"
            layout["offload_activations"] = offloads_activations(arguments)
            self.counting_notes |= in_sequences(read_objective(arguments), layout, workload)
        if is_open:
            layout.pop("zero_stage", None)  # of a document that was not sent
        self._size(layout, num_ranks)
        stack = self._switches(settings, arguments, _DEEPSPEED, layout)
        stack |= lifted_rules(arguments, layout, is_tool=self._is_tool)
        check_reduction(settings, stack)
        devices_setting = None  # where a launcher says how many it starts
        if num_ranks is None:
            says_ranks = "data_parallel_size" in full
            devices_setting = "data_parallel_size" if says_ranks else "train_batch_size"
        return self._finished(
            LaunchReading(
                format=_DEEPSPEED,
                framework=deepspeed_writer.FRAMEWORK,
                version=self._release(_DEEPSPEED, deepspeed_writer.RELEASE),
                model=None,
                workload=workload,
                stack={"name": _DEEPSPEED, **stack},
                layout=layout,
                num_devices=num_ranks or num_devices(layout),
                devices_setting=devices_setting,
                num_micro_batches=said.steps,
                micro_batches_setting="gradient_accumulation_steps",
                settings=full,
            ),
            [settings.unread(), arguments.unread()],
            given,
        )

    def _size(self, layout: dict[str, Any], num_ranks: int | None) -> None:
        """Put the data-parallel degree into a layout, where the number of ranks is known."""
        has_degree = "dp_shard" in layout or "dp_replicate" in layout
        others = layout["pp"] * layout["cp"] * layout["tp"]
        if num_ranks is None or has_degree or num_ranks % others:
            return
        key = "dp_shard" if layout.get("zero_stage", 3) else "dp_replicate"
        layout[key] = num_ranks // others

    # -- FSDP, replicas and Megatron

    def _of_accelerate(self, given: Mapping[str, Any]) -> LaunchReading:
        self.stops = Stops(sharding.SOURCE)
        given = with_changes(given, self.changes)
        settings = self._arguments(given)
        ranks = settings.integer("num_processes", least=-1) or self.launched.num_devices
        num_ranks = ranks if ranks is not None and ranks > 0 else None
        stack, layout = self._parallelism(settings, num_ranks)
        workload = read_workload(
            settings,
            self.assumed,
            self.default_origins,
            has_own_copy=stack == "fsdp" and layout["zero_stage"] > 0,
        )
        steps = accumulation_steps(settings)
        micro = micro_batch(settings)
        if micro is not None:
            layout["micro_batch"] = micro
        batch = settings.integer("global_batch_size")
        if batch is not None:
            workload["global_batch"] = batch
        elif steps is None and micro is not None:
            steps = 1
            self.default_origins["num_micro_batches"] = "the default of gradient_accumulation_steps"
        self.counting_notes |= in_sequences(read_objective(settings), layout, workload)
        switches: dict[str, Any] = {}
        if stack == "fsdp":
            switches = self._switches(settings, settings, stack, layout)
            switches |= lifted_rules(settings, layout, is_tool=self._is_tool)
        return self._finished(
            LaunchReading(
                format=_ACCELERATE,
                framework=accelerate_writer.FRAMEWORK,
                version=self._release("fsdp", accelerate_writer.RELEASE),
                model=None,
                workload=workload,
                stack={"name": stack, **switches},
                layout=layout,
                num_devices=num_ranks,
                num_micro_batches=steps,
                micro_batches_setting="gradient_accumulation_steps",
                settings=given,
            ),
            [settings.unread()],
            given,
        )

    def _parallelism(self, settings: Settings, num_ranks: int | None) -> tuple[str, dict[str, Any]]:
        """The stack that a kind of distributed training is, and the layout."""
        kind = str(settings.text("distributed_type") or "no").upper()
        recompute = "full" if checkpoints(settings) else "none"
        if kind == "FSDP":
            if settings.boolean("fsdp_config.fsdp_activation_checkpointing"):
                recompute = "full"
            layout = {"recompute": recompute, **fsdp(settings, num_ranks, self.stops)}
            layout["offload_activations"] |= offloads_activations(settings)
            return "fsdp", layout
        if kind == "MEGATRON_LM":
            return "megatron", megatron(settings, num_ranks, self.stops)
        if kind != "NO" and not kind.startswith("MULTI_"):
            rule = "must be FSDP, DEEPSPEED, MEGATRON_LM, NO or one of MULTI_…"
            raise Invalid(PATH, shown("distributed_type", kind), rule)
        offload = {"offload_activations": True} if offloads_activations(settings) else {}
        return "fsdp", {**replicas(settings, num_ranks), "recompute": recompute, **offload}

    # -- what both have

    def _release(self, stack: str, newest: str) -> str:
        """The release whose defaults are taken: the one that is asked for where it is known. That
        of a tool is none of the stack."""
        if self.version is None or self._is_tool or self.version not in releases(stack):
            return newest
        return self.version

    def _switches(
        self,
        document: Settings,
        arguments: Settings,
        stack: str,
        layout: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Fields of the stack by the settings of a document and of the Trainer."""
        given = {**document.given, **arguments.given}
        release = self._release(stack, "")
        return read_switches(given, arguments, stack, release, layout, self.assumed)

    def _finished(
        self,
        answer: LaunchReading,
        unread: list[UnreadSettings],
        given: Mapping[str, Any],
    ) -> LaunchReading:
        """The reading with its model, and with what was not read."""
        name = next((candidate for candidate in _MODEL_NAMES if given.get(candidate)), None)
        model = NamedModel(id=None)
        if name:
            model = named_model(name, str(given[name]), self.launched.files)
        workload = self._with_bits(answer.workload, model, f"{name} = {given.get(name or '')}")
        return replace(
            answer,
            model=model.config if model.id is None else {"name": model.id},
            unresolved_parts={"model": model.ask} if model.ask else {},
            workload=workload,
            default_origins=self.default_origins,
            counting_notes=self.counting_notes,
            stops=(
                *self.stops.found,
                *(stop for settings in unread for stop in settings.stops),
            ),
            reservations=tuple(
                reservation for settings in unread for reservation in settings.reservations
            ),
            warnings=tuple(warning for settings in unread for warning in settings.warnings),
            ignored=tuple(name for settings in unread for name in settings.no_account),
        )

    def _with_bits(
        self, workload: Mapping[str, Any], model: NamedModel, setting: str
    ) -> dict[str, Any]:
        """The workload with frozen weights of as many bits as the name of the model says."""
        lora = workload.get("lora")
        if not model.bits or lora is None or lora["base_bits"] <= model.bits:
            return dict(workload)
        if model.bits not in get_args(BaseBits):
            reason = f"frozen weights of {model.bits} bits are not described"
            cure = "judge it with a model of 4 bits"
            self.reservations.append(Reservation(setting=setting, reason=reason, cure=cure))
            return dict(workload)
        self.assumed.append(f"{setting}: by its name its weights have {model.bits} bits")
        return {**workload, "lora": {**lora, "base_bits": model.bits}}

    def _with_rest(
        self, answer: LaunchReading, trainer: TrainerSettings, own: UnreadSettings | None
    ) -> LaunchReading:
        """The reading with what its tool does not read, in the words of the tool."""
        reservations = [
            replace(reservation, setting=_spelt(reservation.setting, trainer))
            for reservation in answer.reservations
        ]
        unresolved_parts = {
            part: _spelt(ask, trainer) for part, ask in answer.unresolved_parts.items()
        }
        whole = replace(
            answer,
            unresolved_parts=unresolved_parts,
            assumed=tuple(self.assumed),
            reservations=(*self.reservations, *reservations),
        )
        if own is None:
            return whole
        return replace(
            whole,
            framework=trainer.framework,
            version=trainer.release or answer.version,
            own_names=trainer.own_names,
            stops=(*own.stops, *whole.stops),
            reservations=(*whole.reservations, *own.reservations),
            warnings=(*own.warnings, *whole.warnings),
            ignored=(*own.no_account, *whole.ignored),
        )


_ORIGINS = {
    "max_length": "workload.seq_len",
    "per_device_train_batch_size": "layout.micro_batch",
    "gradient_accumulation_steps": "num_micro_batches",
    "bf16": "workload.precision",
}
"""Settings of the Trainer of which the defaults of tools are noted, and what they decide."""


def _defaults_of_tool(trainer: TrainerSettings, launched: Launched) -> dict[str, str]:
    """Returns the source of each value that nobody wrote, by its field."""
    return {
        field: f"the default of {trainer.source_names.get(name, name)} in {trainer.framework}"
        for name, field in _ORIGINS.items()
        if name in trainer.settings
        and trainer.source_names.get(name, name) not in launched.settings
    }


def _spelt(text: str, trainer: TrainerSettings) -> str:
    """A setting and its value with the name that its tool has for it."""
    name, equals, value = text.partition(" = ")
    return f"{trainer.source_names.get(name, name)}{equals}{value}"
