"""This module reads flags of torchtitan 0.3.0, or the TOML file of a release before it, as the
question that a launch poses, so that it can be checked before it starts.

A *config function* is the one in torchtitan's own code that --config names: it sets the model and
other defaults. A *stop* is a setting with which torchtitan refuses to start. A *reservation* is a
remark that a setting could matter and is not, or not fully, taken into account. `stops.attempt`
notes the stop that a call raises, and goes on with the value `instead`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from models.spec import catalogue
from service.formats.launch.job import NO_CHANGES, Changes, LaunchReading, in_words
from service.formats.launch.named_model import model_of_catalogue
from service.formats.launch.switch_settings import switch_fields
from service.formats.launch.torchtitan.earlier_releases import RELEASE as EARLIER
from service.formats.launch.torchtitan.flags import LaunchedSettings, read_flags
from service.formats.launch.torchtitan.pipeline import PER_STAGE, READ_SCHEDULES, read_split
from service.formats.launch.torchtitan.stops import (
    compiles_model,
    stops_at_start,
    stops_of_earlier_release,
)
from service.formats.launch.torchtitan.writer import (
    FRAMEWORK,
    IMPLEMENTATIONS,
    NAME,
    RECOMPUTE,
    RELEASE,
)
from service.formats.settings.release import known_release
from service.formats.settings.stop import Stopped, Stops
from service.formats.shell.faults import invalid_launch
from service.formats.shell.files import NO_FILES, LaunchFiles
from service.nearest_names import suggestion

MESH_SOURCE = (
    f"torchtitan {RELEASE}: distributed/parallel_dims.py and pipeline_parallel.py, trainer.py"
)
EARLIER_MESH_SOURCE = (
    f"torchtitan {EARLIER}: distributed/parallel_dims.py and pipeline_parallel.py, train.py"
)
_OF_PIPELINE = "the micro-batch of the pipeline"
_OF_ROUND = "local_batch_size * data-parallel ranks"
_COMPONENTS = ("model", "loss")
"""The components that torch.compile takes, in the order of its default (config/configs.py,
CompileConfig)."""
_SHARD_DEGREE = "parallelism.data_parallel_shard_degree"
_DEGREES = {
    "pp": "parallelism.pipeline_parallel_degree",
    "dp_replicate": "parallelism.data_parallel_replicate_degree",
    "cp": "parallelism.context_parallel_degree",
    "tp": "parallelism.tensor_parallel_degree",
    "ep": "parallelism.expert_parallel_degree",
}
_COUNTS = (
    _SHARD_DEGREE,
    "parallelism.pipeline_parallel_microbatch_size",
    "training.local_batch_size",
    "training.seq_len",
)
_IMPLEMENTATIONS = {implementation: name for name, implementation in IMPLEMENTATIONS.items()}


def read(
    text: str,
    version: str | None,
    *,
    changes: Changes = NO_CHANGES,
    files: LaunchFiles = NO_FILES,
) -> LaunchReading:
    """Returns the reading of a command line or TOML file of torchtitan.

    If data_parallel_shard_degree is -1 and the text does not say how many devices the job has,
    dp_shard is left out, since it takes the devices that the other degrees leave. The split of a
    pipeline is left out where the model's number of layers is not known.
    """
    launched = read_flags(text, version, files)
    if launched.earlier is not None and RECOMPUTE in changes:
        rule = f"is a command of {FRAMEWORK} {RELEASE}, and the flags are of one before it"
        raise invalid_launch(RECOMPUTE, rule)
    launched.settings.change(changes)
    return _Reader(launched, version).reading()


class _Reader:
    """Turns the settings of one launch, by their names in 0.3.0, into a LaunchReading."""

    def __init__(self, launched: LaunchedSettings, version: str | None) -> None:
        self.settings = launched.settings
        self.given = launched.settings.given
        self.earlier = launched.earlier
        """The settings as a release before 0.3.0 has them, where the text is one of it."""
        self.version = version
        self.num_devices = launched.num_ranks
        self.stops = Stops(MESH_SOURCE if self.earlier is None else EARLIER_MESH_SOURCE)
        self.stops.noted += launched.stops
        self.config: Mapping[str, Any] = (
            self._read_config() if self.earlier is None else self.earlier.config
        )
        """The decisions of the launch's config function, such as the model. The member "sets" has
        the settings that the function makes, by their names."""
        defaults = self.settings.table.defaults()
        self.values = {**defaults, **self.config.get("sets", {}), **self.given}
        """All settings: those of the text, else of the config function, else the defaults."""

    def reading(self) -> LaunchReading:
        """Returns the reading of all settings."""
        earlier = self.earlier
        values = self.values
        self._replace_degrees()
        layout = self._layout()
        if earlier:
            layout |= earlier.layout(values, layout, self.settings)
        self._divide_devices(layout)
        workload = self._workload(layout)
        stack = self._stack(layout)
        unread = self.settings.unread()
        if earlier:
            at_start = stops_of_earlier_release(values, layout, earlier)
        else:
            at_start = stops_at_start(values, layout, self.config)
        return LaunchReading(
            format=NAME,
            framework=FRAMEWORK,
            version=self._release or RELEASE,
            model=_model(self.config),
            workload=workload,
            stack=stack,
            layout=layout,
            num_devices=self.num_devices,
            # A shard degree of -1 takes what devices there are, and does not tell how many.
            devices_setting=None if values[_SHARD_DEGREE] == -1 else f"--{_SHARD_DEGREE}",
            num_micro_batches=_num_micro_batches(values, layout, workload),
            default_origins=self._default_origins(layout),
            stops=(*self.stops.noted, *unread.stops, *at_start),
            settings=self.settings.known,
            reservations=unread.reservations,
            ignored=(*(earlier.ignored if earlier else ()), *unread.no_account),
            assumed=tuple(earlier.assumed) if earlier else (),
        )

    @property
    def _release(self) -> str | None:
        """Returns the release whose defaults apply; None for the newest."""
        return known_release(NAME, self.version or (EARLIER if self.earlier else None))

    def _default_origins(self, layout: Mapping[str, Any]) -> dict[str, str]:
        """Returns sentences for the answer that say which default a sequence length or a batch
        comes from, by the field of the request. Settings that the text gives have none."""
        local_batch = "training.local_batch_size"
        of_pipeline = "parallelism.pipeline_parallel_microbatch_size"
        fields = {
            "workload.seq_len": "training.seq_len",
            "layout.micro_batch": of_pipeline if layout["pp"] > 1 else local_batch,
        }
        origins: dict[str, str] = {}
        for field, name in fields.items():
            if name in self.given:
                continue
            if name in self.config.get("sets", {}):
                origins[field] = f"what --config {self.given['config']} sets for {name}"
            else:
                release = self._release or RELEASE
                origins[field] = f"the default of {name} in {FRAMEWORK} {release}"
        if self.values["training.global_batch_size"] < 0:
            origins["workload.global_batch"] = (
                f"{local_batch}, {self.values[local_batch]}, of every data-parallel rank, as"
                " training.global_batch_size is not set"
            )
        return origins

    def _read_config(self) -> Mapping[str, Any]:
        """Returns what the config function of the launch sets: {"model": "llama-3-8b", "sets":
        {"training.seq_len": 8192}}. Returns nothing, and adds a reservation, for a function
        that is not named or not known. The reservation is open: whatever else was read may be
        otherwise, because the function may set anything."""
        module = self.given.get("module")
        name = self.given.get("config")
        configs = self.settings.table.facts["configs"].get(module, {})
        if name is None:
            reason = "it is not given, and what its function sets is not known"
            cure = "write --module and --config as torchtitan is told them"
            self.settings.add_text_reservation("--config", reason, cure, is_open=True)
            return {}
        if name not in configs:
            hint = (
                suggestion(name, configs) if module in self.settings.table.facts["modules"] else ""
            )
            reason = f"what this function sets is not known{hint}"
            cure = "write as flags what it sets, and describe the model in the request"
            self.settings.add_text_reservation(
                f"--module {module} --config {name}", reason, cure, is_open=True
            )
        return dict(configs.get(name, {}))

    def _replace_degrees(self) -> None:
        """Replaces degrees and counts below 1, which torchtitan refuses, and notes a stop for
        each. The degree of sharding becomes -1, which takes the devices that the others leave."""
        for name in (*_DEGREES.values(), *_COUNTS):
            degree = self.values[name]
            instead = 1
            rule = "must be at least 1"
            if name == _SHARD_DEGREE:
                instead = -1
                rule += ", or -1 for what the others leave"
            if degree < 1 and degree != instead:
                self.stops.note(Stopped(f"--{name}", degree, rule, f"--{name} {instead}"))
                self.values[name] = instead

    def _layout(self) -> dict[str, Any]:
        """Returns the fields of the layout, except for those that need the number of devices."""
        values = self.values
        layout: dict[str, Any] = {axis: values[name] for axis, name in _DEGREES.items()}
        model = self.config.get("model")
        if model and not catalogue.architecture(model).is_moe:
            layout["ep"] = 1  # of a dense model it has no effect
        if values[_SHARD_DEGREE] != -1:
            layout["dp_shard"] = values[_SHARD_DEGREE]
        sequence_parallel = values["parallelism.enable_sequence_parallel"] and layout["tp"] > 1
        layout["sequence_parallel"] = sequence_parallel
        layout["offload_optimizer"] = values["training.enable_cpu_offload"]
        layout |= self._recompute(values[RECOMPUTE])
        if layout["pp"] > 1:
            layout |= self._pipeline(layout["pp"])
            layout["micro_batch"] = values["parallelism.pipeline_parallel_microbatch_size"]
        else:
            layout["micro_batch"] = values["training.local_batch_size"]
        return layout

    def _recompute(self, policy: str) -> dict[str, Any]:
        """Returns the recompute of the layout. Adds a reservation where the compiler chooses
        what to recompute."""
        if policy == "memory-budget":
            name = "activation_checkpoint.memory_budget"
            reason = "the compiler picks what is recomputed, which is read as selective"
            self.settings.add_reservation(
                name, reason, "use activation-checkpoint:selective or :full"
            )
        return {"recompute": "selective" if policy == "memory-budget" else policy}

    def _pipeline(self, pp: int) -> dict[str, Any]:
        """Returns the schedule of the pipeline and its split over chunks, the latter where the
        number of layers is known. Adds reservations for a schedule or a split that is not
        modelled."""
        name = "parallelism.pipeline_parallel_schedule"
        # An unknown schedule is a stop, and needs no reservation too: (…, True) stands in for it.
        schedule, is_described = self.stops.attempt(
            partial(_schedule_named, self.values[name]), instead=("1f1b", True)
        )
        if not is_described:
            reason = f"this schedule is not described, and read as {schedule}, the nearest"
            self.settings.add_reservation(
                name, reason, "use a schedule that is: 1F1B or Interleaved1F1B"
            )
        elif schedule == "zero_bubble_v" and compiles_model(self.values):
            reason = "torch.compile is said not to go with schedules that split backward passes"
            self.settings.add_reservation(name, reason, "leave --compile.enable out")
        # Under a schedule with several chunks a rank, torchtitan makes two unless told otherwise.
        default_chunks = 1 if schedule in ("1f1b", "afab") else 2
        num_layers = self.config.get("layers")
        unsplit: tuple[int, tuple[int, ...] | None] = (default_chunks, None)
        virtual_stages, split = self.stops.attempt(
            lambda: read_split(self.values, num_layers, pp, default_chunks), instead=unsplit
        )
        if split is None and num_layers is None and PER_STAGE in self.given:
            reason = "how the layers of the model are split is not known without their number"
            named = "model.flavor" if self.earlier else "--config"
            self.settings.add_reservation(PER_STAGE, reason, f"name a {named} of torchtitan's own")
        layout: dict[str, Any] = {"schedule": schedule, "virtual_stages": virtual_stages}
        if split is not None:
            # `balanced` is the field of layouts whose stages may have unequal numbers of layers.
            layout["balanced"] = len(set(split)) > 1
            if layout["balanced"]:
                layout["layers_per_chunk"] = list(split)
        return layout

    def _divide_devices(self, layout: dict[str, Any]) -> None:
        """Sets the layout's sharded data-parallel degree and ZeRO stage, and the number of
        devices where the degrees determine it. Notes a stop where degrees and devices contradict
        each other."""
        # torchtitan's mesh has these degrees and dp_shard; ep lies within them.
        others = layout["pp"] * layout["dp_replicate"] * layout["cp"] * layout["tp"]
        if "dp_shard" in layout:
            product = others * layout["dp_shard"]
            if self.num_devices not in (None, product):
                rule = f"with the other degrees multiply to {product}, and the job has"
                rule += f" {self.num_devices} devices"
                cure = f"--{_SHARD_DEGREE} -1"
                self.stops.note(Stopped(f"--{_SHARD_DEGREE}", layout["dp_shard"], rule, cure))
            self.num_devices = self.num_devices or product
        elif self.num_devices is not None:
            # A remainder is a stop, and the reading goes on with the quotient.
            layout["dp_shard"] = max(self.num_devices // others, 1)
            if self.num_devices % others:
                rule = f"is what the other degrees, {others} in all, leave of {self.num_devices}"
                rule += " devices, which they must divide"
                cure = f"degrees whose product divides {self.num_devices}"
                self.stops.note(Stopped(f"--{_SHARD_DEGREE}", -1, rule, cure))
        layout |= self._sharding(layout)

    def _sharding(self, layout: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the ZeRO stage, and whether FSDP frees gathered parameters after forward."""
        name = "parallelism.fsdp_reshard_after_forward"
        policy = self.values[name]
        # By default a pipeline keeps gathered parameters, which each micro-batch would gather anew.
        reshards = policy == "always" or (policy == "default" and layout["pp"] == 1)
        dp_shard = layout.get("dp_shard")
        is_sharded = dp_shard is None or dp_shard > 1  # an unknown degree counts as sharding
        if layout["dp_replicate"] == 1:
            # FSDP shards over context parallelism too. On one rank it shards nothing, and counts as
            # on where the text sets its resharding or its offload.
            means_fsdp = name in self.given or layout["offload_optimizer"]
            is_sharded = is_sharded or layout["cp"] > 1 or means_fsdp
        elif layout["cp"] > 1 and not is_sharded:
            reason = (
                "with replicas and context parallelism, parameters are sharded over context"
                " parallelism, and read as whole"
            )
            self.settings.add_reservation(_SHARD_DEGREE, reason, "use a degree of 2 or more")
        if not is_sharded:
            return {"zero_stage": 0}
        return {"zero_stage": 3, "reshard": reshards}

    def _workload(self, layout: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fields of the workload. Precision and optimizer are left out where they
        depend on a config function that is not known."""
        config = self.config
        values = self.values
        precision = config.get("precision", "bf16")
        if values["training.mixed_precision_param"] == "float32" and precision == "bf16":
            precision = "fp32"
        optimizer = config.get("optimizer")
        if optimizer is None:
            optimizer = _IMPLEMENTATIONS.get(values["optimizer.implementation"], "adamw")
        workload = {"seq_len": values["training.seq_len"]}
        # A function that is not known may convert layers, and choose another optimizer.
        if config or precision == "fp32":
            workload["precision"] = precision
        if config or "optimizer.implementation" in self.given:
            workload["optimizer"] = optimizer
        if values["training.dtype"] == "bfloat16" and precision != "fp32":
            workload["master_weights"] = False
        elif values["training.dtype"] == "bfloat16":
            reason = "parameters have 16 bits where products have 32, and are read as 32"
            self.settings.add_reservation(
                "training.dtype", reason, "use float32 for both, or bfloat16"
            )
        if values["debug.moe_force_load_balance"]:
            workload["routing"] = "balanced"
        batch = self._global_batch(layout)
        return workload if batch is None else {**workload, "global_batch": batch}

    def _global_batch(self, layout: Mapping[str, Any]) -> int | None:
        """Returns the global batch; None where it depends on an unknown number of devices. Notes
        a stop where batch sizes are not multiples of each other, and a reservation where a
        pipeline runs several times in a step."""
        local: int = self.values["training.local_batch_size"]
        batch: int = self.values["training.global_batch_size"]
        self._note_unless_multiple("training.local_batch_size", layout["micro_batch"], _OF_PIPELINE)
        if "dp_shard" not in layout:
            return batch if batch > 0 else None
        # The sequences that all ranks take in one round of gradient accumulation.
        per_round = local * layout["dp_replicate"] * layout["dp_shard"]
        if batch < 0:  # not set: a step is one round
            return per_round
        self._note_unless_multiple("training.global_batch_size", per_round, _OF_ROUND)
        batch = batch or per_round  # 0 is one of the stops noted above
        if layout["pp"] > 1 and batch > per_round:
            times = batch // per_round
            reason = f"the pipeline fills and drains {times} times a step, and is read as once"
            cure = f"use {local * times}, so that all micro-batches pass it at once"
            self.settings.add_reservation("training.local_batch_size", reason, cure)
        return batch

    def _note_unless_multiple(self, name: str, divisor: int, what: str) -> None:
        """Notes a stop (torchtitan refuses to start) where the setting `name` is 0 or no multiple
        of `divisor`. `what` names the divisor for the message."""
        value = self.values[name]
        if value % divisor or not value:
            below = value // divisor * divisor
            multiples = in_words(multiple for multiple in (below, below + divisor) if multiple)
            rule = f"must be a multiple of {what} = {divisor}"
            self.stops.note(Stopped(f"--{name}", value, rule, f"--{name} {multiples}"))

    def _stack(self, layout: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fields of the stack: its switches, which are choices of software that no
        layout makes. Those of compilation and CUDA graphs have the value that takes effect, since
        other settings may overrule them. The others have the value that the text gives."""
        config = self.config
        values = self.values
        switches = {**config.get("sets", {}), **self.given}
        components = values["compile.components"]
        switches["compile.enable"] = compiles_model(values)
        if "compile.components" in switches:  # given in any order, compared in that of the table
            switches["compile.components"] = [
                component for component in _COMPONENTS if component in components
            ]
        # CUDA graphs came with 0.3.0, and go with neither pp nor ep.
        may_capture = self.earlier is None and layout["pp"] == 1 and layout["ep"] == 1
        captures = may_capture and not values["training.disable_cuda_graphs"]
        switches["training.disable_cuda_graphs"] = not captures
        scaling = config.get("scaling", {})  # of fp8: {"fp8_scaling": "rowwise"}
        stack = {"name": NAME, **switch_fields(NAME, switches, self._release), **scaling}
        if captures:
            stack["launch"] = "graph"  # kernels may be captured uncompiled
        if values["compile.enable"] and not compiles_model(values):
            stack["loss"] = "compiled" if "loss" in components else "pytorch"
        if layout["tp"] > 1 and not layout["sequence_parallel"]:
            stack["sequence_parallel"] = [True, False]  # the catalogue's stack has True alone
        if layout.get("etp", 1) > 1:
            stack["expert_tensor_parallel"] = True  # gone in 0.3.0, of which the catalogue's is
        schedule = layout.get("schedule", "1f1b")
        schedules = catalogue.stack(NAME).schedules
        if schedule not in schedules:  # the job runs one that the catalogue's stack does not offer
            stack["schedules"] = [*schedules, schedule]
        return stack


def _schedule_named(name: str) -> tuple[str, bool]:
    """Returns the pipeline schedule for PyTorch's name of it, and True: ("interleaved", True) for
    "Interleaved1F1B". For a schedule that is not modelled, returns the nearest one and False.
    Raises Stopped for an unknown name."""
    if name.lower() not in READ_SCHEDULES:
        rule = "must be a schedule such as 1F1B, Interleaved1F1B, GPipe, ZBVZeroBubble"
        raise Stopped("--parallelism.pipeline_parallel_schedule", name, rule)
    return READ_SCHEDULES[name.lower()]


def _num_micro_batches(
    values: Mapping[str, Any], layout: Mapping[str, Any], workload: Mapping[str, Any]
) -> int | None:
    """Returns the micro-batches of a data-parallel rank in a step. Without a global batch these
    are those of the local batch. None where the number of ranks is not known."""
    if values["training.global_batch_size"] < 0:
        return max(values["training.local_batch_size"] // layout["micro_batch"], 1)
    if "dp_shard" not in layout:
        return None
    ranks = layout["dp_replicate"] * layout["dp_shard"]
    # A batch that does not divide evenly is a stop, noted in _global_batch.
    return max(workload["global_batch"] // (ranks * layout["micro_batch"]), 1)


def _model(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the model that a config function trains, as a request names it; None for an
    unknown function. No config function trains multi-token prediction."""
    name = config.get("model")
    return None if name is None else model_of_catalogue(name, mtp_layers=0)
