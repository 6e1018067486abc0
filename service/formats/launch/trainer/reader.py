"""Reads launches of the Trainer of transformers as the question that they pose, so that they can be
checked before they start: the layout with FSDP, DeepSpeed or Megatron, the workload and the model.

A *tool* is a program around the Trainer that has names of its own for settings, such as axolotl. A
*stop* is a setting with which the framework refuses to start, and a *reservation* a remark that a
setting could matter and is not, or not fully, taken into account.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from models.spec.adapters import BaseBits
from models.spec.switches import releases
from service.formats.launch.accelerate import sharding
from service.formats.launch.accelerate import writer as accelerate_writer
from service.formats.launch.accelerate.launcher import with_prefixes
from service.formats.launch.accelerate.sharding import ddp_layout, fsdp_layout, megatron_layout
from service.formats.launch.deepspeed import document as deepspeed_document
from service.formats.launch.deepspeed import writer as deepspeed_writer
from service.formats.launch.deepspeed.document import (
    add_reservation_for_reduction,
    num_devices,
    read_document_settings,
)
from service.formats.launch.job import NO_CHANGES, Changes, LaunchReading, with_changes
from service.formats.launch.trainer.deepspeed_arguments import (
    document_of,
    stop_at_refused,
    stop_at_settings_of_file,
    with_trainer_values,
)
from service.formats.launch.trainer.dialects import DIALECTS, in_names_of_trainer, trainer_table
from service.formats.launch.trainer.fsdp_arguments import stop_at_strategy_of_fsdp1, with_fsdp
from service.formats.launch.trainer.kernels import lifted_rules, read_switches
from service.formats.launch.trainer.launched import Launched, launched_in
from service.formats.launch.trainer.megatron_swift import read_megatron
from service.formats.launch.trainer.models import MODEL_NAMES, NamedModel, named_model
from service.formats.launch.trainer.objectives import count_in_sequences, read_objective
from service.formats.launch.trainer.trainer_settings import OBJECTIVE, TrainerSettings
from service.formats.launch.trainer.training import (
    accumulation_steps,
    checkpoints_activations,
    read_workload,
)
from service.formats.launch.trainer.trl import fill_in_defaults, preset_of
from service.formats.settings.field import shown
from service.formats.settings.field_table import field_table
from service.formats.settings.reservation import Reservation
from service.formats.settings.settings import NOTHING_UNREAD, Settings, UnreadSettings
from service.formats.settings.stop import Stops
from service.formats.shell.faults import invalid_launch
from service.formats.shell.files import NO_FILES, LaunchFiles

_ACCELERATE = accelerate_writer.NAME
_DEEPSPEED = deepspeed_writer.NAME
_TRAINER_ARGUMENTS = (*MODEL_NAMES, "per_device_train_batch_size", "distributed_type")
"""Settings of which any one shows that the Trainer runs."""


def read(
    text: str,
    version: str | None,
    *,
    changes: Changes = NO_CHANGES,
    files: LaunchFiles = NO_FILES,
    default_dialect: str = "transformers",
) -> LaunchReading:
    """Returns the reading of a document, a command line or a script. Number of devices, sequence
    length and model are read only where the launcher or an argument gives them. A document of no
    known tool counts as one of `default_dialect`."""
    launched = launched_in(text, files, default_dialect)
    if launched.dialect == "megatron_swift":
        return read_megatron(launched, version, changes)
    return _Reader(launched, version, changes, default_dialect).reading()


@dataclass(slots=True)
class _Reader:
    """Turns the settings of one launch into a LaunchReading."""

    launched: Launched
    version: str | None
    changes: Changes
    default_dialect: str
    reservations: list[Reservation] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    default_origins: dict[str, str] = field(default_factory=dict)
    """Sentences on the defaults that values come from, by field of the request."""
    counting_notes: dict[str, str] = field(default_factory=dict)
    """Sentences on numbers that are counted otherwise than the launch does, by field."""
    stops: Stops = field(init=False)

    @property
    def _is_tool(self) -> bool:
        return self.launched.dialect in DIALECTS

    def reading(self) -> LaunchReading:
        """Returns the reading of the launch: by DeepSpeed where it has a DeepSpeed document,
        else by accelerate."""
        self.reservations += self.launched.reservations
        if self.launched.dialect == _DEEPSPEED:  # a document alone
            trainer = TrainerSettings()
            unread_of_tool = NOTHING_UNREAD
            arguments = self._arguments_of(trainer)
            document: Mapping[str, Any] | None = self.launched.settings
        else:
            trainer, unread_of_tool = in_names_of_trainer(self.launched, self.version)
            self.assumed += trainer.assumed
            self.default_origins |= trainer.default_origins(self.launched.settings)
            arguments = self._arguments_of(trainer)
            document = document_of(arguments, self.launched.files, self.reservations)
        if document is None and self._lacks_document(arguments):
            document = {}  # read by its defaults, with a reservation
        if document is None:
            reading = self._read_accelerate(arguments)
        else:
            reading = self._read_deepspeed(document, arguments)
        return self._in_words_of_tool(reading, trainer, unread_of_tool)

    def _arguments_of(self, trainer: TrainerSettings) -> dict[str, Any]:
        """Returns all settings outside of a DeepSpeed document, under the names of accelerate
        and the Trainer: {"distributed_type": "FSDP", "fsdp_config.fsdp_version": 2, "bf16":
        True}."""
        # The program's arguments override those of `accelerate launch`, and both override the
        # accelerate document that `trl --accelerate_config` names.
        arguments = {**with_prefixes(self.launched.launcher), **with_prefixes(trainer.settings)}
        preset = arguments.pop("accelerate_config", None)
        if preset is not None:
            document = preset_of(str(preset), self.launched.files, self.reservations)
            arguments = {**document, **arguments}
        arguments = with_fsdp(arguments, self.launched.files, self.reservations)
        if self.launched.objective and not self._is_tool:  # by the program's name, as in dpo.py
            arguments.setdefault(OBJECTIVE, self.launched.objective)
        if self.launched.dialect == "trl":  # TRL's configs override defaults of the Trainer
            fill_in_defaults(arguments, self.default_origins, self.assumed)
        # accelerate's default backend is written out: switches are read from given settings alone.
        if "parallelism_config.parallelism_config_sp_size" in arguments:
            backend = "parallelism_config.parallelism_config_sp_backend"
            arguments.setdefault(backend, "deepspeed")
        return arguments

    def _checked_settings(self, arguments: Mapping[str, Any]) -> Settings:
        """Returns arguments as settings that are checked by the tables of accelerate and the
        Trainer."""
        table = trainer_table(self.launched.dialect)
        settings = Settings(table, arguments)
        settings.is_other_release = self.version not in (None, table.release)
        # The objective of a plain script is read from its name (dpo.py), so messages show that.
        if not self._is_tool:
            settings.written[OBJECTIVE] = self.launched.program
        return settings

    def _num_ranks(self, settings: Settings) -> int | None:
        """Returns the number of ranks that the launcher starts; None where it is not known.
        accelerate's -1 means as many as there are devices."""
        ranks = settings.integer("num_processes", least=-1) or self.launched.num_devices
        return ranks if ranks is not None and ranks > 0 else None

    # -- DeepSpeed

    def _lacks_document(self, arguments: Mapping[str, Any]) -> bool:
        """Returns True, and adds a reservation, where a script runs under DeepSpeed and
        nothing says which document it takes. The Trainer takes none unless an argument names it."""
        is_for_deepspeed = _DEEPSPEED in (self.default_dialect, self.launched.launcher_name)
        has_trainer = bool(arguments.keys() & {*_TRAINER_ARGUMENTS})
        lacks = self.launched.is_command and is_for_deepspeed and not has_trainer
        if lacks:
            reason = "the document that says how DeepSpeed shards is not named"
            cure = "write --deepspeed_config ds.json, and send its text as launch.files['ds.json']"
            self.reservations.append(
                Reservation(setting="deepspeed", reason=reason, cure=cure, is_open=True)
            )
        return lacks

    def _read_deepspeed(
        self, document: Mapping[str, Any], arguments: Mapping[str, Any]
    ) -> LaunchReading:
        """Returns the reading of a DeepSpeed document, completed by the arguments of the Trainer
        where there are some."""
        self.stops = Stops(deepspeed_document.SOURCE)
        has_trainer = bool(arguments)
        trainer_settings = self._checked_settings(arguments)
        num_ranks = self._num_ranks(trainer_settings)
        ulysses = trainer_settings.integer("parallelism_config.parallelism_config_sp_size") or 1
        document = dict(document)
        stop_at_settings_of_file(self.launched, self.stops)
        # accelerate hands the degree of Ulysses on to DeepSpeed, whose document may leave it out.
        if ulysses > 1:
            document.setdefault("sequence_parallel_size", ulysses)
        if has_trainer:
            document = with_trainer_values(
                document, trainer_settings, num_ranks, self.launched, self.stops
            )
        document = with_changes(document, self.changes)
        settings = Settings(field_table(_DEEPSPEED), document)
        parts = read_document_settings(settings, self.stops, has_trainer=has_trainer)
        self.default_origins |= parts.default_origins
        layout = parts.layout
        workload = parts.workload
        stop_at_refused(self.launched, layout, self.stops)
        if has_trainer:
            workload = self._completed_by_trainer(layout, workload, trainer_settings)
        if any(reservation.is_open for reservation in self.reservations):
            layout.pop("zero_stage", None)  # the file that was not sent may set another one
        _put_data_parallel_degree(layout, num_ranks)
        stack = self._stack_fields(settings, trainer_settings, _DEEPSPEED, layout)
        add_reservation_for_reduction(settings, stack)
        devices_setting = None  # where a launcher says how many it starts
        if num_ranks is None:
            says_ranks = "data_parallel_size" in document
            devices_setting = "data_parallel_size" if says_ranks else "train_batch_size"
        return self._with_model_and_unread(
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
                num_micro_batches=parts.accumulation_steps,
                accumulation_setting="gradient_accumulation_steps",
                settings=document,
            ),
            [settings.unread(), trainer_settings.unread()],
            arguments,
        )

    def _completed_by_trainer(
        self, layout: dict[str, Any], workload: dict[str, Any], trainer_settings: Settings
    ) -> dict[str, Any]:
        """Returns the workload of a DeepSpeed document completed by the Trainer's arguments, which
        also set recompute and offload of activations in `layout`."""
        # The precision is DeepSpeed's, so `default_origins` must not name the Trainer's default.
        # Shards of the optimizer have an fp32 copy of the parameters, mixed precision or not.
        workload_of_trainer = read_workload(
            trainer_settings,
            self.assumed,
            default_origins={},
            fp32_copy="always" if layout["zero_stage"] else "in_mixed_precision",
        )
        if workload.get("precision") == "fp32":  # neither bf16 nor fp16 is on
            del workload["precision"]  # the format that the model is loaded in counts
        workload = workload_of_trainer | workload  # the document's values count
        layout["recompute"] = "full" if checkpoints_activations(trainer_settings) else "none"
        layout["offload_activations"] = trainer_settings.boolean("activation_offloading")
        objective = read_objective(trainer_settings)
        self.counting_notes |= count_in_sequences(objective, layout, workload)
        return workload

    # -- FSDP, replicas and Megatron

    def _read_accelerate(self, arguments: Mapping[str, Any]) -> LaunchReading:
        """Returns the reading of FSDP, plain data parallelism or Megatron as accelerate runs
        them."""
        self.stops = Stops(sharding.SOURCE)
        arguments = with_changes(arguments, self.changes)
        settings = self._checked_settings(arguments)
        num_ranks = self._num_ranks(settings)
        stack, layout = self._parallelism(settings, num_ranks)
        # FSDP keeps an fp32 copy of a model that is loaded in 16 bits; plain replicas do not.
        has_copy = stack == "fsdp" and layout["zero_stage"] > 0
        workload = read_workload(
            settings,
            self.assumed,
            self.default_origins,
            fp32_copy="in_mixed_precision" if has_copy else "never",
        )
        steps = accumulation_steps(settings)
        sequences = settings.integer("per_device_train_batch_size")
        if sequences is not None:
            layout["micro_batch"] = sequences
        batch = settings.integer("global_batch_size")
        if batch is not None:
            workload["global_batch"] = batch
        elif steps is None and sequences is not None:
            steps = 1
            self.default_origins["num_micro_batches"] = "the default of gradient_accumulation_steps"
        self.counting_notes |= count_in_sequences(read_objective(settings), layout, workload)
        switches: dict[str, Any] = {}
        if stack == "fsdp":
            # `settings` has accelerate's document and the Trainer's arguments in one.
            switches = self._stack_fields(settings, settings, stack, layout)
        return self._with_model_and_unread(
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
                accumulation_setting="gradient_accumulation_steps",
                settings=arguments,
            ),
            [settings.unread()],
            arguments,
        )

    def _parallelism(self, settings: Settings, num_ranks: int | None) -> tuple[str, dict[str, Any]]:
        """Returns the name of the stack, "fsdp" or "megatron", that the distributed_type
        selects, and the fields of the layout. Plain data parallelism is "fsdp" with ZeRO 0. Raises
        Invalid for an unknown type."""
        kind = str(settings.text("distributed_type") or "no").upper()
        recompute = "full" if checkpoints_activations(settings) else "none"
        if kind == "FSDP":
            stop_at_strategy_of_fsdp1(settings, self.stops)
            if settings.boolean("fsdp_config.fsdp_activation_checkpointing"):
                recompute = "full"
            layout = {"recompute": recompute, **fsdp_layout(settings, num_ranks, self.stops)}
            layout["offload_activations"] |= settings.boolean("activation_offloading")
            return "fsdp", layout
        if kind == "MEGATRON_LM":
            return "megatron", megatron_layout(settings, num_ranks, self.stops)
        if kind != "NO" and not kind.startswith("MULTI_"):
            rule = "must be FSDP, DEEPSPEED, MEGATRON_LM, NO or one of MULTI_…"
            raise invalid_launch(shown("distributed_type", kind), rule)
        layout = {**ddp_layout(settings, num_ranks), "recompute": recompute}
        if settings.boolean("activation_offloading"):
            layout["offload_activations"] = True
        return "fsdp", layout

    # -- what both have

    def _release(self, stack: str, newest: str) -> str:
        """Returns the release of the stack whose defaults apply: the requested one where it is
        known, else `newest`. A tool's own release is not one of the stack."""
        if self.version is None or self._is_tool or self.version not in releases(stack):
            return newest
        return self.version

    def _stack_fields(
        self, document: Settings, arguments: Settings, stack: str, layout: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Returns the fields of the stack that the settings of a document and of the Trainer
        decide. Rules of the stack that do not bind the Trainer are among them, as False."""
        values = {**document.given, **arguments.given}
        release = self._release(stack, "")  # "" stands for the newest
        switches = read_switches(values, arguments, stack, release, layout, self.assumed)
        return switches | lifted_rules(arguments, layout, is_tool=self._is_tool)

    def _with_model_and_unread(
        self,
        reading: LaunchReading,
        unread_parts: list[UnreadSettings],
        arguments: Mapping[str, Any],
    ) -> LaunchReading:
        """Returns the reading with its model, and with the settings that nothing has read."""
        setting = next((name for name in MODEL_NAMES if arguments.get(name)), None)
        model = NamedModel(id=None)
        workload = reading.workload
        if setting is not None:
            name = str(arguments[setting])
            model = named_model(setting, name, self.launched.files)
            workload = self._with_frozen_bits(workload, model, f"{setting} = {name}")
        unread = UnreadSettings.joined(unread_parts)
        return replace(
            reading,
            model=model.config if model.id is None else {"name": model.id},
            unresolved_parts={"model": model.problem} if model.problem else {},
            workload=workload,
            default_origins=self.default_origins,
            counting_notes=self.counting_notes,
            stops=(*self.stops.noted, *unread.stops),
            reservations=unread.reservations,
            warnings=unread.warnings,
            ignored=unread.no_account,
        )

    def _with_frozen_bits(
        self, workload: Mapping[str, Any], model: NamedModel, setting: str
    ) -> Mapping[str, Any]:
        """Returns the workload with the bits of frozen weights that the name of the model
        implies, such as 4 for unsloth/llama-3-8b-bnb-4bit. Only adapters have frozen weights.
        `setting` is what the notes call it."""
        lora = workload.get("lora")
        # Settings that quantize further than the checkpoint's name says override it.
        if not model.bits or lora is None or lora["base_bits"] <= model.bits:
            return workload
        if model.bits not in get_args(BaseBits):
            reason = f"frozen weights of {model.bits} bits are not described"
            cure = "judge it with a model of 4 bits"
            self.reservations.append(Reservation(setting=setting, reason=reason, cure=cure))
            return workload
        self.assumed.append(f"{setting}: by its name its weights have {model.bits} bits")
        return {**workload, "lora": {**lora, "base_bits": model.bits}}

    def _in_words_of_tool(
        self,
        reading: LaunchReading,
        trainer: TrainerSettings,
        unread_of_tool: UnreadSettings,
    ) -> LaunchReading:
        """Returns the reading with settings called by the tool's own names, and with those
        settings of the tool that nothing has read."""
        reservations = [
            replace(reservation, setting=trainer.in_name_of_tool(reservation.setting))
            for reservation in reading.reservations
        ]
        return replace(
            reading,
            framework=trainer.framework or reading.framework,
            version=trainer.release or reading.version,
            own_names=trainer.own_names,
            unresolved_parts={
                part: trainer.in_name_of_tool(problem)
                for part, problem in reading.unresolved_parts.items()
            },
            assumed=tuple(self.assumed),
            stops=(*self.launched.stops, *unread_of_tool.stops, *reading.stops),
            reservations=(*self.reservations, *reservations, *unread_of_tool.reservations),
            warnings=(*unread_of_tool.warnings, *reading.warnings),
            ignored=tuple(dict.fromkeys((*unread_of_tool.no_account, *reading.ignored))),
        )


def _put_data_parallel_degree(layout: dict[str, Any], num_ranks: int | None) -> None:
    """Sets dp_shard, or dp_replicate under ZeRO 0, to the ranks that pp, cp and tp leave over.
    An unknown ZeRO stage counts as sharded. Leaves the layout alone where it has a data-parallel
    degree, or where the ranks are unknown or do not divide evenly."""
    has_degree = "dp_shard" in layout or "dp_replicate" in layout
    model_parallel = layout["pp"] * layout["cp"] * layout["tp"]
    if num_ranks is None or has_degree or num_ranks % model_parallel:
        return
    axis = "dp_shard" if layout.get("zero_stage", 3) else "dp_replicate"
    layout[axis] = num_ranks // model_parallel
