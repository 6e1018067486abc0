"""This module reads key=value settings, or a YAML file, of MaxText 0.2.5 as the question that a
launch poses, so that it can be checked before it starts.

A *stop* is a setting with which MaxText refuses to start. A *reservation* is a remark that a
setting could matter and is not, or not fully, taken into account. A *switch* is a choice of
software that no layout makes, such as a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from models.layouts.factors import divisors
from models.spec.architecture import Architecture
from models.spec.switches import Condition
from models.spec.workload import MAX_CAPACITY
from service.formats.launch.job import NO_CHANGES, Changes, LaunchReading, in_words
from service.formats.launch.maxtext.mesh_reading import MeshReader
from service.formats.launch.maxtext.model import read_model, takes_muon
from service.formats.launch.maxtext.remat import LAYER_INPUT, POLICIES, TENSORS, read_remat
from service.formats.launch.maxtext.setting_sources import SettingSources
from service.formats.launch.maxtext.stops import TYPES, stops_of_data, stops_of_kernels
from service.formats.launch.maxtext.writer import DROPLESS, FRAMEWORK, NAME, RELEASE, TABLE
from service.formats.launch.switch_settings import switch_fields
from service.formats.settings.field import shown
from service.formats.settings.field_table import field_table
from service.formats.settings.release import known_release
from service.formats.settings.settings import Settings
from service.formats.settings.stop import Stop, Stopped, Stops
from service.formats.shell.faults import invalid_launch
from service.formats.shell.files import NO_FILES, LaunchFiles

MUON = "maxtext 0.2.5: utils/muon_utils.py, get_muon_weight_dimension_numbers"
_PRECISIONS = {
    "int8": "int8",
    **dict.fromkeys(
        (
            "fp8", "nanoo_fp8", "fp8_nanoo", "fp8_gpu", "fp8_full", "fp8_e4m3", "fp8_e5m2",
            "te_fp8_delayedscaling", "te_fp8_currentscaling",
        ),
        "fp8",
    ),
    "te_mxfp8": "mxfp8",
    "te_nvfp4": "nvfp4",
    "te_nvfp4_no_rht": "nvfp4",
    "te_no_quant": "bf16",
}  # fmt: skip
_WITHOUT_ACCUMULATION = ("fp8", "nanoo_fp8", "fp8_gpu", "te_fp8_delayedscaling")
"""The quantizations that MaxText does not combine with gradient accumulation."""
_DTYPES = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}
_OPTIMIZERS = {"adamw": "adamw", "adam_pax": "adamw", "muon": "muon"}
_CONTEXTS = {"all_gather": "allgather", "ring": "ring", "ulysses": "ulysses"}


def read(
    text: str,
    version: str | None,
    *,
    changes: Changes = NO_CHANGES,
    files: LaunchFiles = NO_FILES,
) -> LaunchReading:
    """Returns the reading of a command line or YAML file of MaxText.

    MaxText finds out its devices when it starts. A degree of -1 is therefore left out of the
    layout, and so is the global batch, which MaxText counts in sequences per device.
    """
    settings = Settings(field_table(TABLE))
    settings.is_other_release = version not in (None, RELEASE)
    sources = SettingSources(settings)
    sources.read(text, changes, files)
    return _Reader(sources).reading(version)


class _Reader:
    """Turns the settings of one launch into a LaunchReading."""

    def __init__(self, sources: SettingSources) -> None:
        self.settings = sources.settings
        self.of_model = sources.of_model
        self.ignored = sources.ignored
        self.assumed = sources.assumed
        self.memory_fraction = sources.memory_fraction
        self.may_be_earlier = sources.may_be_earlier
        self.given = sources.settings.given
        self.values = {**sources.settings.table.defaults(), **self.of_model, **self.given}
        """All settings: those of the text, else of the file of the model, else the defaults."""
        self.stops = Stops(TYPES)
        self.mesh = MeshReader(self.values, self.settings, sources.slices)

    def reading(self, version: str | None) -> LaunchReading:
        """Returns the reading of all settings, with the defaults of a release."""
        release = known_release(NAME, version)
        no_model: tuple[dict[str, Any] | None, Architecture | None] = (None, None)
        model, architecture = self.stops.attempt(
            lambda: read_model(self.values, self.settings, self.of_model), instead=no_model
        )
        degrees = self.mesh.degrees(self.stops)
        layout = self.mesh.layout(degrees)
        if architecture is not None and not architecture.is_moe:
            layout["ep"] = 1  # in a dense model the expert axis shards like fsdp
        batch, micro_batches = self._batch(layout)
        layout |= self._pipeline(layout["pp"], architecture)
        layout |= self._recompute(architecture)
        layout["offload_optimizer"] = self.values["optimizer_memory_host_offload"]
        workload = self._workload()
        stack = self._stack(layout, release)
        unread = self.settings.unread()
        return LaunchReading(
            format=NAME,
            framework=FRAMEWORK,
            version=release or RELEASE,
            model=model,
            workload={**workload, **({"global_batch": batch} if batch else {})},
            stack=stack,
            layout=layout,
            num_devices=self.mesh.num_devices,
            devices_setting=self.mesh.devices_setting,
            memory_fraction=self.memory_fraction,
            num_micro_batches=micro_batches,
            default_origins=self._default_origins(),
            stops=(
                *self.stops.noted,
                *unread.stops,
                *_stops(self.values, math.prod(degrees["fsdp"])),
                *(() if self.may_be_earlier else stops_of_kernels(self.values)),
                *stops_of_data(self.values, is_earlier=self.may_be_earlier),
            ),
            settings=self.settings.known,
            reservations=unread.reservations,
            warnings=unread.warnings,
            ignored=(*self.ignored, *unread.no_account),
            assumed=tuple(self.assumed),
        )

    def _default_origins(self) -> dict[str, str]:
        """Returns sentences for the answer that say which default a sequence length or a batch
        comes from, by the field of the request. Settings that the text gives have none."""
        fields = {
            "workload.seq_len": "max_target_length",
            "workload.global_batch": "per_device_batch_size",
            "layout.micro_batch": "per_device_batch_size",
        }
        defaults = self.settings.table.defaults()
        return {
            field: f"the default of {name}, which is {defaults[name]:g} in {FRAMEWORK} {RELEASE}"
            for field, name in fields.items()
            if name not in self.given
        }

    def _batch(self, layout: dict[str, Any]) -> tuple[int | None, int]:
        """Returns the global batch, None without the number of devices, and the number of
        micro-batches of a data-parallel rank in a step. Sets the layout's micro-batch. Raises
        Invalid, or notes a stop that names a batch which works, where sequences do not divide
        evenly."""
        values = self.values
        name = "per_device_batch_size"
        devices_of_rank = layout["pp"] * layout["cp"] * layout["tp"]
        # A decimal such as 0.333333 stands for the fraction nearby.
        per_device = Fraction(values[name]).limit_denominator(10**6)
        steps = values["gradient_accumulation_steps"]
        at_once = self._micro_batches_of_pipeline(layout["pp"])
        # A forward pass of a rank has `per_device` sequences of each of its devices.
        micro_batch = per_device * devices_of_rank / max(at_once, 1)  # 0 is refused next
        if steps < 1 or at_once < 1 or micro_batch.denominator > 1 or micro_batch < 1:
            rule = (
                f"gives a data-parallel rank of {devices_of_rank} devices {float(micro_batch):g}"
                f" sequences in each of {at_once} micro-batches: both must be whole numbers"
            )
            if at_once <= 1 or steps < 1:
                raise invalid_launch(shown(name, values[name]), rule)
            # The smallest batch a device that gives whole sequences, near the given one.
            least = float(Fraction(at_once * max(round(micro_batch), 1), devices_of_rank))
            self.stops.note(Stopped(name, values[name], rule, f"{name}={least:g}"))
        layout["micro_batch"] = max(int(micro_batch), 1)
        devices = self.mesh.num_devices
        batch = int(per_device * steps * devices) if devices else None
        return batch, steps * at_once

    def _micro_batches_of_pipeline(self, pp: int) -> int:
        """Returns the number of micro-batches that pass a pipeline between its filling and its
        draining; 1 without a pipeline."""
        if pp == 1:
            return 1
        values = self.values
        if values["gradient_accumulation_steps"] > 1:
            reason = "the pipeline fills and drains as often, and is read as once"
            cure = "use num_pipeline_microbatches instead"
            self.settings.add_reservation("gradient_accumulation_steps", reason, cure)
        count: int = values["num_pipeline_microbatches"]
        if count != -1:
            return count
        # MaxText's default is one for each stage, or two where a stage passes each on a step late.
        return 2 * pp if values["pipeline_delay_activation_forwarding"] else pp

    def _pipeline(self, pp: int, architecture: Architecture | None) -> dict[str, Any]:
        """Returns the schedule of a pipeline as fields of the layout; none without a pipeline.
        Adds a reservation where stages take turns with several groups of layers (a circular
        pipeline). Notes a stop where stages do not divide the layers."""
        if pp == 1:
            return {}
        values = self.values
        per_stage = values["num_layers_per_pipeline_stage"]
        repeats = values["num_pipeline_repeats"]
        pipeline_layers = values["pipeline_parallel_layers"]
        if per_stage < 1 or repeats < -1 or repeats == 0:
            name = "num_pipeline_repeats" if per_stage >= 1 else "num_layers_per_pipeline_stage"
            self.stops.note(Stopped(name, values[name], "must be at least 1", f"{name}=1"))
            # Legal values stand in. -1 repeats are as many as the layers of the model need.
            per_stage, repeats = max(per_stage, 1), repeats or -1
        if pipeline_layers != -1:
            reason = "only these layers are in the pipeline, and all are read as such"
            self.settings.add_reservation("pipeline_parallel_layers", reason, "leave it out")
        if architecture is not None and repeats == -1:
            repeats, remainder = divmod(architecture.num_layers, pp * per_stage)
            if remainder and pipeline_layers == -1:
                self.stops.note(_uneven_stages(per_stage, pp, architecture.num_layers))
                repeats = max(repeats, 1)
        if repeats != 1:
            reason = "a circular pipeline is read as if each stage ran all of its layers at once"
            cure = "use num_layers_per_pipeline_stage so that there is one repeat"
            self.settings.add_text_reservation(shown("num_pipeline_repeats", repeats), reason, cure)
        gathers_once = values["pipeline_fsdp_ag_once"]
        # JAX differentiates the pipeline as a whole, so all forwards run before all backwards.
        return {"schedule": "afab", "virtual_stages": 1, "reshard": not gathers_once}

    def _recompute(self, architecture: Architecture | None) -> dict[str, Any]:
        """Returns recompute and offload of activations as fields of the layout. Settings that
        name tensors count only with remat_policy=custom, and are ignored otherwise."""
        policy = self.values["remat_policy"]
        if policy is not None and policy not in POLICIES:
            rule = f"must be one of {', '.join(POLICIES)}"
            raise invalid_launch(shown("remat_policy", policy), rule)
        if policy != "custom":
            fields = (*TENSORS, LAYER_INPUT)
            idle = [shown(name, self.given[name]) for name in fields if name in self.given]
            self.ignored += [f"{setting} (without remat_policy=custom)" for setting in idle]
        knobs, reasons = read_remat(self.values, architecture)
        for reason in reasons:
            self.settings.add_reservation(
                "remat_policy", reason, "use minimal_with_context, or full"
            )
        return knobs

    def _workload(self) -> dict[str, Any]:
        """Returns the fields of the workload, without its batch. Adds reservations for
        optimizers and number formats that are not modelled."""
        values = self.values
        seq_len = values["max_target_length"]
        if seq_len < 1:
            raise invalid_launch(shown("max_target_length", seq_len), "must be at least 1")
        workload: dict[str, Any] = {"seq_len": seq_len}
        workload["precision"] = self._precision()
        optimizer = values["opt_type"]
        workload["optimizer"] = _OPTIMIZERS.get(optimizer, "sgd_momentum")
        if optimizer not in _OPTIMIZERS:
            self.settings.add_reservation(
                "opt_type", "its state is not described, read as one of momentum"
            )
        if values["weight_dtype"] in ("bfloat16", "float16") and workload["precision"] != "fp32":
            workload["master_weights"] = False
        elif values["weight_dtype"] != "float32":
            reason = "parameters and moments of this type are read as float32"
            self.settings.add_reservation("weight_dtype", reason)
        if values["mu_dtype"] not in ("", None, values["weight_dtype"]):
            reason = f"the first moment is read as {values['weight_dtype']}"
            self.settings.add_reservation("mu_dtype", reason)
        if values["use_random_routing"]:
            workload["routing"] = "balanced"
        workload |= _capacity(values)
        if values["routed_bias"]:
            workload["load_balancing"] = "bias"
        elif values["load_balance_loss_weight"] > 0:
            workload["load_balancing"] = "micro_batch_loss"
        return workload

    def _precision(self) -> str:
        """Returns the number format of matrix products, which quantization decides, or else
        dtype."""
        quantization = self.values["quantization"] or ""
        if quantization in _PRECISIONS:
            return _PRECISIONS[quantization]
        if quantization:
            self.settings.add_reservation(
                "quantization", "products of this type are read as of `dtype`"
            )
        dtype = self.values["dtype"]
        if dtype not in _DTYPES:
            self.settings.add_reservation("dtype", "products of this type are read as bfloat16")
        return _DTYPES.get(dtype, "bf16")

    def _stack(self, layout: Mapping[str, Any], release: str | None) -> dict[str, Any]:
        """Returns the fields of the stack, with each switch as the text sets it, or as the
        release does by default."""

        def may_apply(condition: Condition) -> bool:
            # Switches with any other condition are set even where they have no effect.
            return condition != "ep" or layout["ep"] > 1

        values = self.values
        if not values["sparse_matmul"] and values["capacity_factor"] <= 0:
            reason = "every expert computes every token, and is read as its own alone"
            self.settings.add_reservation("sparse_matmul", reason, "use true, or a capacity_factor")
        # In the table of switches, each value of megablox (grouped kernels) has sparse_matmul=true
        # beside it.
        switches = {name: value for name, value in self.given.items() if name != "sparse_matmul"}
        if "megablox" in switches:
            switches["sparse_matmul"] = True
        stack = {"name": NAME, **switch_fields(NAME, switches, release, may_apply)}
        strategy = values["context_parallel_strategy"]
        if layout["cp"] > 1 and strategy != "all_gather":
            stack["context"] = _CONTEXTS.get(strategy, "allgather")
            if strategy not in _CONTEXTS:
                self.settings.add_reservation(
                    "context_parallel_strategy", "it is read as all_gather"
                )
        if not layout.get("reshard", True):
            stack["reshard"] = [True, False]  # the catalogue's stack has True alone
        return stack


def _capacity(values: Mapping[str, Any]) -> dict[str, float]:
    """Returns the capacity factor of experts as a field of the workload; none without one, and
    with sparse matrix products, which have no capacity (layers/moe.py)."""
    factor = values["capacity_factor"]
    if values["sparse_matmul"] or factor <= 0:
        return {}
    if factor > MAX_CAPACITY:
        rule = f"must be at most {MAX_CAPACITY:g} times the even share of an expert"
        raise invalid_launch(shown("capacity_factor", factor), rule)
    return {"capacity_factor": factor}


def _stops(values: Mapping[str, Any], fsdp_degree: int) -> Iterator[Stop]:
    """Yields a stop for each setting that MaxText refuses when it starts (configs/types.py).
    Rules of layouts are checked elsewhere. `fsdp_degree` is 0 where it is not known: the axis
    then takes all devices that the others leave, and counts as above 1."""
    if values["shard_optimizer_over_data"] and fsdp_degree != 1:
        rule = "does not go with fsdp: set ici_fsdp_parallelism=1, or leave it out"
        yield Stop(setting="shard_optimizer_over_data", value=True, rule=rule, source=TYPES)
    steps = values["gradient_accumulation_steps"]
    if values["quantization"] in _WITHOUT_ACCUMULATION and steps > 1:
        rule = f"does not go with quantization={values['quantization']}: use 1"
        yield Stop(setting="gradient_accumulation_steps", value=steps, rule=rule, source=TYPES)
    if values["opt_type"] == "muon" and not takes_muon(values):
        rule = "is not made for layers of this model: use adamw"
        yield Stop(setting="opt_type", value="muon", rule=rule, source=MUON)
    factor = values["capacity_factor"]
    if factor >= 0 and values["model_name"].startswith(DROPLESS):
        rule = "is refused for this model, whose experts drop no tokens: use -1, or leave it out"
        yield Stop(setting="capacity_factor", value=factor, rule=rule, source=TYPES)


def _uneven_stages(layers: int, pp: int, num_layers: int) -> Stopped:
    """Returns the error for a number of layers per stage that, times the stages, does not divide
    the layers of the model. It names the numbers that do."""
    even = [count for count in divisors(num_layers) if num_layers % (count * pp) == 0]
    name = "num_layers_per_pipeline_stage"
    cure = f"{name}={in_words(even)}" if even else f"a number of stages that divides {num_layers}"
    rule = f"times {pp} stages must divide the {num_layers} layers of the model"
    return Stopped(name, layers, rule, cure)
