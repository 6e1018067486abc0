"""This module reads flags of torchtitan 0.3.0, or the TOML file of a release before it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from models.errors import Invalid
from models.spec import catalogue
from service.formats.launch.documents import read_toml
from service.formats.launch.job import NO_CHANGES, Changes, LaunchReading, in_words
from service.formats.launch.named_model import named_model
from service.formats.launch.switch_settings import switch_fields
from service.formats.launch.torchtitan.earlier_releases import RELEASE as EARLIER
from service.formats.launch.torchtitan.earlier_releases import (
    EarlierSettings,
    is_earlier,
    words_of_today,
)
from service.formats.launch.torchtitan.pipeline import NAMES, PER_STAGE, READ_SCHEDULES, read_split
from service.formats.launch.torchtitan.stops import stops
from service.formats.launch.torchtitan.writer import (
    FRAMEWORK,
    IMPLEMENTATIONS,
    NAME,
    RECOMPUTE,
    RELEASE,
    TABLE,
)
from service.formats.settings.field import shown
from service.formats.settings.field_table import field_table
from service.formats.settings.release import known_release
from service.formats.settings.reservation import Reservation
from service.formats.settings.settings import Settings
from service.formats.settings.stop import Stop, Stopped, Stops
from service.formats.shell.command import Command, split_command
from service.formats.shell.faults import PATH, require_arguments_defined
from service.formats.shell.files import NO_FILES, LaunchFiles
from service.nearest_names import suggestion

MESH = f"torchtitan {RELEASE}: distributed/parallel_dims.py and pipeline_parallel.py, trainer.py"
_SUBCOMMAND = re.compile(r"activation[-_]checkpoint:([\w-]*)", re.ASCII)
_FILE = "job.config_file"
_TOML_SECTION = re.compile(r"^[ \t]*\[[\w.]+\][ \t\r]*(#.*)?$", re.ASCII | re.MULTILINE)
_HEREDOC = re.compile(r"<<-?[ \t]*['\"\\\\]?[A-Za-z_]")
_OF_PIPELINE = "the micro-batch of the pipeline"
_OF_STEP = "local_batch_size * data-parallel ranks"
_COMPONENTS = ("model", "loss")
"""The components that torch.compile takes, in the order of its default (config/configs.py,
CompileConfig)."""
_SHARDS = "parallelism.data_parallel_shard_degree"
_DEGREES = {
    "pp": "parallelism.pipeline_parallel_degree",
    "dp_replicate": "parallelism.data_parallel_replicate_degree",
    "cp": "parallelism.context_parallel_degree",
    "tp": "parallelism.tensor_parallel_degree",
    "ep": "parallelism.expert_parallel_degree",
}
_COUNTS = (
    _SHARDS,
    "parallelism.pipeline_parallel_microbatch_size",
    "training.local_batch_size",
    "training.seq_len",
)
_IMPLEMENTATIONS = {implementation: name for name, implementation in IMPLEMENTATIONS.items()}


def read(
    text: str,
    version: str | None,
    num_devices: int | None = None,
    *,
    changes: Changes = NO_CHANGES,
    files: LaunchFiles = NO_FILES,
) -> LaunchReading:
    """Returns what a text says.

    `num_devices` is how many devices the job has, where the caller knows it and the text does not
    say. Where neither does and data_parallel_shard_degree is -1, dp_shard is left out: it is what
    the other degrees leave of the devices. Without the model's number of layers, so is the split of
    a pipeline.
    """
    return _Reader(version, num_devices).read(text, changes, files)


def _is_toml(text: str) -> bool:
    """Returns True where a text is a file of settings, and no script that may write one."""
    return _TOML_SECTION.search(text) is not None and not _HEREDOC.search(text)


class _Reader:
    def __init__(self, version: str | None, num_devices: int | None) -> None:
        self.table = field_table(TABLE)
        self.version = version
        self.num_devices = num_devices
        self.settings = Settings(self.table)
        """The settings of the text, by their names in 0.3.0."""
        self.others: dict[str, Any] = {}
        """Flags that 0.3.0 does not have."""
        self.ignored: list[str] = []
        self.stops = Stops(MESH)

    @property
    def given(self) -> dict[str, Any]:
        """Known settings of the text."""
        return self.settings.given

    def read(self, text: str, changes: Changes, files: LaunchFiles) -> LaunchReading:
        older: EarlierSettings | None = None
        if _is_toml(text):
            older = EarlierSettings(read_toml(text))
        else:
            command = split_command(text, files)
            self._read_command(command)
            marks = self._marks_of_release()
            if marks:
                self._refuse_earlier(marks[0])
            elif any(map(is_earlier, self.others)):
                older = EarlierSettings(self._with_file(command.files))
            if older is None:
                self._report_unknown()
            self.num_devices = _num_ranks(command) or self.num_devices
        if older is not None:
            self.settings.given = {**older.given, **self.given}
            self.settings.reservations += older.reservations
            self.ignored += older.ignored
            if RECOMPUTE in changes:
                rule = f"is a command of {FRAMEWORK} {RELEASE}, and the flags are of one before it"
                raise Invalid(PATH, RECOMPUTE, rule)
        self.settings.change(changes)
        return self._reading(older)

    # -- words

    def _read_command(self, command: Command) -> None:
        if (command.program or "").endswith(".sh"):  # run_train.sh
            variables = {"MODULE": "module", "CONFIG": "config"}
            said = {name: command.environment.get(variable) for variable, name in variables.items()}
            for name, value in said.items():
                if value is not None:
                    self.settings.put(name, value)
            if "CONFIG_FILE" in command.environment and "module" not in self.given:
                self.others[_FILE] = command.environment["CONFIG_FILE"]
        words = list(command.words)
        subcommand: str | None = None
        while words:
            word = words.pop(0)
            if match := _SUBCOMMAND.fullmatch(word):
                subcommand = word
                self.given[RECOMPUTE] = self.table.fields[RECOMPUTE].checked(match.group(1))
                continue
            if not word.startswith("--"):
                require_arguments_defined(word)
                rule = "is neither a flag nor its value: flags are --section.option VALUE"
                raise Invalid(PATH, word, rule)
            written, has_value, value = word[2:].partition("=")
            behind = [value] if has_value else _values(words)
            self._read_flag(written, behind, bool(has_value), words, subcommand)
        for branch in command.in_branches:
            self.settings.note(Reservation.of_branch(branch))

    def _read_flag(
        self,
        written: str,
        behind: Sequence[str],
        has_value: bool,
        words: list[str],
        subcommand: str | None,
    ) -> None:
        name = written.replace("-", "_")
        if subcommand and not name.startswith(f"{RECOMPUTE}."):
            rule = (
                f"stands behind {subcommand}, where torchtitan reads only options of"
                f" activation-checkpoint: put it in front"
            )
            raise Invalid(PATH, f"--{written}", rule)
        positive = re.sub(r"(^|\.)no_(\w+)$", r"\1\2", name)
        fields = self.table.fields
        if name not in fields and positive in fields and fields[positive].kind == "bool":
            self.given[positive] = False
            return
        if name not in fields:
            self.others[name] = " ".join(behind) or True
            _drop(words, behind, has_value)
            return
        field = fields[name]
        if field.kind == "bool":
            if has_value:
                section, _, last = name.rpartition(".")
                rule = f"is a flag, without a value: write --{name}, or --{section}.no_{last}"
                raise Invalid(PATH, shown(name, behind[0]), rule)
            self.given[name] = True
        elif not behind:
            raise Invalid(PATH, f"--{written}", "needs a value behind it")
        elif field.kind == "lists":
            self.given[name] = [part.split(",") for part in behind]
            _drop(words, behind, has_value)
        else:
            self.given[name] = field.parse(behind[0])
            _drop(words, behind[:1], has_value)

    def _marks_of_release(self) -> list[str]:
        """Returns what was written that only 0.3.0 has."""
        marks = [f"--{name}" for name in ("module", "config") if name in self.given]
        policy = self.given.get(RECOMPUTE)
        return marks if policy is None else [*marks, f"activation-checkpoint:{policy}"]

    def _refuse_earlier(self, mark: str) -> None:
        """Flags of earlier releases, at which 0.3.0 stops: they are read as what they were."""
        names = [*filter(is_earlier, self.others)]
        written = {name: self.others.pop(name) for name in names}
        for name, value in written.items():
            rule = (
                f"is a flag of torchtitan before 0.3.0, and {mark} is one of 0.3.0: write the flags"
                " of one release"
            )
            cure = words_of_today(name, value)
            source = self.table.facts["parser"]
            self.stops.found.append(
                Stop(setting=f"--{name}", value=value, rule=rule, source=source, cure=cure)
            )
        older = EarlierSettings(written)
        self.settings.given = {**older.given, **self.given}

    def _with_file(self, files: LaunchFiles) -> dict[str, Any]:
        """The flags of an earlier release, and the settings of the file that one of them names."""
        if _FILE not in self.others:
            return self.others
        file = self.others.pop(_FILE)
        return {**read_toml(files.text(file, f"--{_FILE} {file}")), **self.others}

    def _report_unknown(self) -> None:
        """Takes in the flags that 0.3.0 does not have. It stops at them, unless they are of another
        release or of a config function that is not known."""
        name = self.given.get("config")
        configs = self.table.facts["configs"].get(self.given.get("module"), {})
        is_known = self.version in (None, RELEASE) and (name is None or name in configs)
        self.settings.is_other_release = not is_known
        self.settings.given |= self.others

    # -- meaning

    def _reading(self, older: EarlierSettings | None) -> LaunchReading:
        config = older.config if older else self._config()
        values = {**self.table.defaults(), **config.get("sets", {}), **self.given}
        self._replace_degrees(values)
        layout = self._layout(values, config)
        if older:
            layout |= older.layout(values, self.settings)
        self._divide_devices(layout, values)
        workload = self._workload(values, layout, config)
        stack = self._stack(values, layout, config, older)
        unread = self.settings.unread()
        return LaunchReading(
            format=NAME,
            framework=FRAMEWORK,
            version=self._release(older),
            model=_model(config),
            workload=workload,
            stack=stack,
            layout=layout,
            num_devices=self.num_devices,
            devices_setting=None if values[_SHARDS] == -1 else f"--{_SHARDS}",
            num_micro_batches=_num_micro_batches(values, layout, workload),
            default_origins=self._default_origins(values, layout, config, older),
            stops=(
                *self.stops.found,
                *unread.stops,
                *(() if older else stops(values, layout, config)),
            ),
            settings=self.settings.known,
            reservations=unread.reservations,
            ignored=(*self.ignored, *unread.no_account),
            assumed=tuple(older.assumed) if older else (),
        )

    def _release(self, older: EarlierSettings | None) -> str:
        """The release whose defaults hold."""
        written = self.version or (EARLIER if older else None)
        return known_release(NAME, written) or RELEASE

    def _default_origins(
        self,
        values: Mapping[str, Any],
        layout: Mapping[str, Any],
        config: Mapping[str, Any],
        older: EarlierSettings | None,
    ) -> dict[str, str]:
        """Returns the source of each length and batch that nobody wrote."""
        local = "training.local_batch_size"
        of_pipeline = "parallelism.pipeline_parallel_microbatch_size"
        fields = {
            "workload.seq_len": "training.seq_len",
            "layout.micro_batch": of_pipeline if layout["pp"] > 1 else local,
        }
        release = self._release(older)
        sources = {}
        for field, name in fields.items():
            if name in config.get("sets", {}):
                sources[field] = f"what --config {self.given['config']} sets for {name}"
            else:
                sources[field] = f"the default of {name} in {FRAMEWORK} {release}"
        sources = {
            field: sources[field] for field, name in fields.items() if name not in self.given
        }
        if values["training.global_batch_size"] < 0:
            sources["workload.global_batch"] = (
                f"{local}, {values[local]}, of every data-parallel rank, as"
                " training.global_batch_size is not set"
            )
        return sources

    def _config(self) -> Mapping[str, Any]:
        """Returns what the config function sets; nothing where it is none of the release."""
        module, name = self.given.get("module"), self.given.get("config")
        configs = self.table.facts["configs"].get(module, {})
        if name is None:
            reason = "it is not given, and what its function sets is not known"
            cure = "write --module and --config as torchtitan is told them"
            self.settings.reserve_text("--config", reason, cure, is_open=True)
            return {}
        if name not in configs:
            hint = suggestion(name, configs) if module in self.table.facts["modules"] else ""
            reason = f"what this function sets is not known{hint}"
            cure = "write as flags what it sets, and describe the model in the request"
            written = f"--module {module} --config {name}"
            self.settings.reserve_text(written, reason, cure, is_open=True)
        return dict(configs.get(name, {}))

    def _replace_degrees(self, values: dict[str, Any]) -> None:
        """Put 1, or -1 where that is the rest, for numbers at which torchtitan stops whatever the
        others are."""
        for name in (*_DEGREES.values(), *_COUNTS):
            is_ours = values[name] >= 1 or (name == _SHARDS and values[name] == -1)
            if not is_ours:
                self.stops.attempt(partial(_refuse_degree, name, values[name]), None)
                values[name] = -1 if name == _SHARDS else 1

    def _layout(self, values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
        layout: dict[str, Any] = {ours: values[name] for ours, name in _DEGREES.items()}
        known = config.get("model")
        if known and not catalogue.architecture(known).is_moe:
            layout["ep"] = 1  # of a dense model it has no effect
        if values[_SHARDS] != -1:
            layout["dp_shard"] = values[_SHARDS]
        sequence_parallel = values["parallelism.enable_sequence_parallel"] and layout["tp"] > 1
        layout["sequence_parallel"] = sequence_parallel
        layout["offload_optimizer"] = values["training.enable_cpu_offload"]
        layout |= self._recompute(values[RECOMPUTE])
        if layout["pp"] > 1:
            layout |= self._pipeline(values, layout["pp"], config)
            layout["micro_batch"] = values["parallelism.pipeline_parallel_microbatch_size"]
        else:
            layout["micro_batch"] = values["training.local_batch_size"]
        return layout

    def _recompute(self, policy: str) -> dict[str, Any]:
        if policy == "memory-budget":
            name = "activation_checkpoint.memory_budget"
            reason = "the compiler picks what is recomputed, which is read as selective"
            self.settings.reserve(name, reason, "use activation-checkpoint:selective or :full")
        return {"recompute": "selective" if policy == "memory-budget" else policy}

    def _pipeline(
        self, values: Mapping[str, Any], pp: int, config: Mapping[str, Any]
    ) -> dict[str, Any]:
        name = "parallelism.pipeline_parallel_schedule"
        written = values[name]
        schedule, is_same = self.stops.attempt(partial(_schedule, written), ("1f1b", True))
        if not is_same:
            reason = f"this schedule is not described, and read as {schedule}, the nearest"
            self.settings.reserve(name, reason, "use a schedule that is: 1F1B or Interleaved1F1B")
        default_chunks = 1 if schedule in ("1f1b", "afab") else 2
        num_layers = config.get("layers")
        unknown: tuple[int, tuple[int, ...] | None] = (default_chunks, None)
        of_rank, split = self.stops.attempt(
            lambda: read_split(values, num_layers, pp, default_chunks), unknown
        )
        if split is None and (PER_STAGE in self.given or NAMES in self.given):
            reason = "how the layers of the model are split is not known without their number"
            self.settings.reserve(PER_STAGE, reason, "name a --config of torchtitan's own")
        layout: dict[str, Any] = {"schedule": schedule, "virtual_stages": of_rank}
        if split is not None:
            layout["balanced"] = len(set(split)) > 1
            if layout["balanced"]:
                layout["layers_per_chunk"] = list(split)
        return layout

    def _divide_devices(self, layout: dict[str, Any], values: Mapping[str, Any]) -> None:
        """The sharded data-parallel degree and the number of devices, and with them what is
        sharded. FSDP shards over context parallelism too."""
        others = layout["pp"] * layout["dp_replicate"] * layout["cp"] * layout["tp"]
        if "dp_shard" not in layout and self.num_devices is not None:
            layout["dp_shard"] = self.stops.attempt(
                partial(_remaining, self.num_devices, others), max(self.num_devices // others, 1)
            )
        elif "dp_shard" in layout:
            degrees = others * layout["dp_shard"]
            self.stops.attempt(partial(_require_devices, self.num_devices, degrees, others), None)
            self.num_devices = self.num_devices or degrees
        layout |= self._sharding(layout, values)

    def _sharding(self, layout: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        name = "parallelism.fsdp_reshard_after_forward"
        policy = values[name]
        reshards = policy == "always" or (policy == "default" and layout["pp"] == 1)
        replicates = layout["dp_replicate"] > 1
        shard = layout.get("dp_shard")
        is_sharded = shard is None or shard > 1
        if not replicates:
            # At degree 1 FSDP shards nothing; whoever says how, or offloads, means FSDP.
            means_fsdp = name in self.given or layout["offload_optimizer"]
            is_sharded = is_sharded or layout["cp"] > 1 or means_fsdp
        elif layout["cp"] > 1 and not is_sharded:
            reason = (
                "with replicas and context parallelism, parameters are sharded over context"
                " parallelism, and read as whole"
            )
            self.settings.reserve(_SHARDS, reason, "use a degree of 2 or more")
        if not is_sharded:
            return {"zero_stage": 0}
        return {"zero_stage": 3, "reshard": reshards}

    def _workload(
        self, values: Mapping[str, Any], layout: Mapping[str, Any], config: Mapping[str, Any]
    ) -> dict[str, Any]:
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
            self.settings.reserve("training.dtype", reason, "use float32 for both, or bfloat16")
        if values["debug.moe_force_load_balance"]:
            workload["routing"] = "balanced"
        batch = self._global_batch(values, layout)
        return workload if batch is None else {**workload, "global_batch": batch}

    def _global_batch(self, values: Mapping[str, Any], layout: Mapping[str, Any]) -> int | None:
        local: int = values["training.local_batch_size"]
        batch: int = values["training.global_batch_size"]
        micro_batch: int = layout["micro_batch"]
        name = "training.local_batch_size"
        self.stops.attempt(partial(_require_multiple, name, local, micro_batch, _OF_PIPELINE), None)
        if "dp_shard" not in layout:
            return batch if batch > 0 else None
        step = local * layout["dp_replicate"] * layout["dp_shard"]
        if batch < 0:
            return step
        name = "training.global_batch_size"
        self.stops.attempt(partial(_require_multiple, name, batch, step, _OF_STEP), None)
        batch = batch or step
        if layout["pp"] > 1 and batch > step:
            times = batch // step
            reason = f"the pipeline fills and drains {times} times a step, and is read as once"
            cure = f"use {local * times}, so that all micro-batches pass it at once"
            self.settings.reserve("training.local_batch_size", reason, cure)
        return batch

    def _stack(
        self,
        values: Mapping[str, Any],
        layout: Mapping[str, Any],
        config: Mapping[str, Any],
        older: EarlierSettings | None,
    ) -> dict[str, Any]:
        release = known_release(NAME, self.version or (EARLIER if older else None))
        said = {**config.get("sets", {}), **self.given}
        components = values["compile.components"]
        compiles = values["compile.enable"]
        said["compile.enable"] = compiles and "model" in components
        if "compile.components" in said:  # in any order
            said["compile.components"] = [
                component for component in _COMPONENTS if component in components
            ]
        may_capture = older is None and layout["pp"] == 1 and layout["ep"] == 1
        captures = may_capture and not values["training.disable_cuda_graphs"]
        said["training.disable_cuda_graphs"] = not captures
        scaling = config.get("scaling", {})
        stack = {"name": NAME, **switch_fields(NAME, said, release), **scaling}
        if captures:  # kernels that are not compiled too
            stack["launch"] = "graph"
        if compiles and "model" not in components:
            stack["loss"] = "compiled" if "loss" in components else "pytorch"
        if layout["tp"] > 1 and not layout["sequence_parallel"]:
            stack["sequence_parallel"] = [True, False]
        schedule = layout.get("schedule", "1f1b")
        own = catalogue.stack(NAME).schedules
        if schedule not in own:
            stack["schedules"] = [*own, schedule]
        return stack


def _num_ranks(command: Command) -> int | None:
    """The ranks of a job; run_train.sh starts NGPU of them on one machine."""
    written = command.environment.get("NGPU", "")
    return command.num_ranks or (int(written) if re.fullmatch(r"\d{1,6}", written) else None)


def _values(words: Sequence[str]) -> list[str]:
    """The words in front of the next flag or subcommand."""
    values = []
    for word in words:
        if word.startswith("--") or _SUBCOMMAND.fullmatch(word):
            break
        values.append(word)
    return values


def _drop(words: list[str], values: Sequence[str], has_value: bool) -> None:
    """Take away the words that were the values of a flag."""
    if not has_value:
        del words[: len(values)]


def _schedule(written: str) -> tuple[str, bool]:
    """The schedule of a name of PyTorch's, and whether it is the same."""
    if written.lower() not in READ_SCHEDULES:
        known = "1F1B, Interleaved1F1B, GPipe, ZBVZeroBubble"
        rule = f"must be a schedule such as {known}"
        raise Stopped("--parallelism.pipeline_parallel_schedule", written, rule)
    return READ_SCHEDULES[written.lower()]


def _require_multiple(name: str, value: int, divisor: int, what: str) -> None:
    if value % divisor or not value:
        below = value // divisor * divisor
        cure = f"--{name} {in_words(multiple for multiple in (below, below + divisor) if multiple)}"
        raise Stopped(f"--{name}", value, f"must be a multiple of {what} = {divisor}", cure)


def _remaining(num_devices: int, others: int) -> int:
    """The devices over the other degrees."""
    if num_devices % others:
        rule = f"is what the other degrees, {others} in all, leave of {num_devices} devices"
        cure = f"degrees whose product divides {num_devices}"
        raise Stopped(f"--{_SHARDS}", -1, f"{rule}, which they must divide", cure)
    return num_devices // others


def _require_devices(num_devices: int | None, degrees: int, others: int) -> None:
    if num_devices not in (None, degrees):
        rule = (
            f"with the other degrees multiply to {degrees}, and the job has {num_devices} devices"
        )
        raise Stopped(f"--{_SHARDS}", degrees // others, rule, f"--{_SHARDS} -1")


def _refuse_degree(name: str, value: int) -> None:
    rest = ", or -1 for what the others leave" if name == _SHARDS else ""
    raise Stopped(f"--{name}", value, f"must be at least 1{rest}", f"--{name} {-1 if rest else 1}")


def _num_micro_batches(
    values: Mapping[str, Any], layout: Mapping[str, Any], workload: Mapping[str, Any]
) -> int | None:
    """The micro-batches of a data-parallel rank in a step. Unless a global batch is given, they are
    those of the local one."""
    if values["training.global_batch_size"] < 0:
        return max(values["training.local_batch_size"] // layout["micro_batch"], 1)
    if "dp_shard" not in layout:
        return None
    ranks = layout["dp_replicate"] * layout["dp_shard"]
    return max(workload["global_batch"] // (ranks * layout["micro_batch"]), 1)


def _model(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The model that a config function trains; none predicts several tokens."""
    name = config.get("model")
    return None if name is None else named_model(name, mtp_layers=0)
