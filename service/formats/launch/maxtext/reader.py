"""This module reads key=value settings, or a YAML file, of MaxText 0.2.5."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import partial
from typing import Any

from models.errors import Invalid
from models.layouts.factors import divisors
from models.spec.architecture import Architecture
from models.spec.switches import Condition
from models.spec.workload import MAX_CAPACITY
from service.formats.launch.job import NO_CHANGES, Changes, LaunchReading, in_words
from service.formats.launch.maxtext.mesh import EXPERT_RULE, placement_of
from service.formats.launch.maxtext.model import read_model, takes_muon
from service.formats.launch.maxtext.remat import LAYER_INPUT, POLICIES, TENSORS, read_remat
from service.formats.launch.maxtext.setting_sources import SettingSources
from service.formats.launch.maxtext.writer import DROPLESS, FRAMEWORK, NAME, RELEASE, TABLE
from service.formats.launch.switch_settings import switch_fields
from service.formats.settings.field import shown
from service.formats.settings.field_table import field_table
from service.formats.settings.release import known_release
from service.formats.settings.settings import Settings
from service.formats.settings.stop import Stop, Stopped, Stops
from service.formats.shell.faults import PATH
from service.formats.shell.files import NO_FILES, LaunchFiles

MUON = "maxtext 0.2.5: utils/muon_utils.py, get_muon_weight_dimension_numbers"
TYPES = "maxtext 0.2.5: configs/types.py, MaxTextConfig"
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
_DTYPES = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}
_OPTIMIZERS = {"adamw": "adamw", "adam_pax": "adamw", "muon": "muon"}
_AXES: Mapping[str, tuple[str, ...]] = {
    "pp": ("pipeline",),
    "cp": ("context", "context_usp_ulysses"),
    "tp": ("tensor", "tensor_sequence"),
    "fsdp": ("fsdp", "fsdp_transpose"),
    "expert": ("expert",),
    "data": ("data",),
}
"""The axes of the mesh by what they do. `fsdp_transpose` shards the other side of a matrix than
`fsdp`, and the batch as this does (configs/types.py, logical_axis_rules)."""
_NEAREST = ("context_usp_ulysses",)
"""Axes that are read as others, which they are not quite."""
_AXIS_NOT_DESCRIBED = (
    "what this axis of the mesh shards is not described, or read as the nearest axis",
    "use the axes data, fsdp, tensor, context, expert and pipeline",
)
_FOREIGN = ("diloco", "sequence", "context_autoregressive", "autoregressive")
_CONTEXTS = {"all_gather": "allgather", "ring": "ring", "ulysses": "ulysses"}


def read(
    text: str,
    version: str | None,
    num_devices: int | None = None,
    num_slices: int | None = None,
    *,
    changes: Changes = NO_CHANGES,
    files: LaunchFiles = NO_FILES,
) -> LaunchReading:
    """Returns the reading of a command line or YAML file of MaxText.

    MaxText finds out its devices and slices when it starts; `num_devices` and `num_slices` say
    how many there are, where the caller knows. Where nobody does, a degree of -1 is left out of
    the layout, and so is the global batch, which MaxText counts in sequences per device.
    """
    return _Reader(version, num_devices, num_slices).read(text, changes, files)


class _Reader:
    def __init__(
        self, version: str | None, num_devices: int | None, num_slices: int | None
    ) -> None:
        self.table = field_table(TABLE)
        self.version = version
        self.num_devices = num_devices
        self.num_slices = num_slices
        self.settings = Settings(self.table)
        self.settings.is_other_release = version not in (None, RELEASE)
        self.ignored: list[str] = []
        self.stops = Stops(TYPES)
        self.devices_setting: str | None = None

    @property
    def given(self) -> dict[str, Any]:
        return self.settings.given

    def read(self, text: str, changes: Changes, files: LaunchFiles) -> LaunchReading:
        """Reads the settings of a text, with `changes` made to them, and what they mean for a
        launch."""
        sources = SettingSources(self.settings)
        sources.read(text, changes, files)
        self.ignored += sources.ignored
        return self._reading({**self.table.defaults(), **sources.of_model, **self.given}, sources)

    # -- meaning

    def _reading(self, values: Mapping[str, Any], sources: SettingSources) -> LaunchReading:
        """Returns the reading of `values`, which has every setting: from the text, else from the
        file of the model, else by default."""
        release = known_release(NAME, self.version)
        no_model: tuple[dict[str, Any] | None, Architecture | None] = (None, None)
        model, architecture = self.stops.attempt(
            lambda: read_model(values, self.settings, sources.of_model), no_model
        )
        ones = dict.fromkeys(_AXES, 1)
        default_mesh = ({**ones, "fsdp": 0}, ones)
        ici, dcn = self.stops.attempt(lambda: self._degrees(values), default_mesh)
        layout = self._mesh(values, ici, dcn)
        if architecture is not None and not architecture.is_moe:
            layout["ep"] = 1  # the axis is one more of fsdp then
        batch, micro_batches = self._batch(values, layout)
        layout |= self._pipeline(values, layout["pp"], architecture)
        layout |= self._recompute(values, architecture)
        layout["offload_optimizer"] = values["optimizer_memory_host_offload"]
        workload = self._workload(values)
        stack = self._stack(values, layout, release)
        unread = self.settings.unread()
        return LaunchReading(
            format=NAME,
            framework=FRAMEWORK,
            version=release or RELEASE,
            model=model,
            workload={**workload, **({"global_batch": batch} if batch else {})},
            stack=stack,
            layout=layout,
            num_devices=self.num_devices,
            devices_setting=self.devices_setting,
            num_micro_batches=micro_batches,
            default_origins=self._default_origins(),
            stops=(
                *self.stops.found,
                *unread.stops,
                *_stops(values, ici["fsdp"] * dcn["fsdp"]),
            ),
            settings=self.settings.known,
            reservations=unread.reservations,
            warnings=unread.warnings,
            ignored=(*self.ignored, *unread.no_account),
        )

    def _default_origins(self) -> dict[str, str]:
        """Returns sentences that say which default a sequence length or a batch comes from, by
        the field of the request. Settings that the text gives have none."""
        fields = {
            "workload.seq_len": "max_target_length",
            "workload.global_batch": "per_device_batch_size",
            "layout.micro_batch": "per_device_batch_size",
        }
        return {
            field: f"the default of {name}, which is {self.table.fields[name].default:g} in"
            f" {FRAMEWORK} {RELEASE}"
            for field, name in fields.items()
            if name not in self.given
        }

    def _degrees(self, values: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
        """Returns the degrees within a slice and those across slices, by the keys of `_AXES`. A
        degree of -1 is filled in where the devices and slices are known, and is 0 otherwise."""
        ici = self._degrees_of_mesh(values, "ici")
        dcn = self._degrees_of_mesh(values, "dcn")
        self._fill(ici, dcn)
        return _by_kind_of_axis(ici), _by_kind_of_axis(dcn)

    def _degrees_of_mesh(self, values: Mapping[str, Any], kind: str) -> dict[str, int]:
        """Returns the degrees of all axes within a slice (kind "ici") or across slices ("dcn"),
        as their settings give them: {"fsdp": -1, "tensor": 4, …}. Records a reservation for axes
        that are not modelled. Raises Stopped for degrees that MaxText refuses."""
        degrees: dict[str, int] = {}
        for name in (*(axis for axes in _AXES.values() for axis in axes), *_FOREIGN):
            setting = f"{kind}_{name}_parallelism"
            degree = values[setting]
            if degree < 1 and degree != -1:
                raise Stopped(setting, degree, "must be at least 1, or -1", f"{setting}=1")
            if degree != 1 and name in (*_FOREIGN, *_NEAREST):
                self.settings.reserve(setting, *_AXIS_NOT_DESCRIBED)
            degrees[name] = degree
        free = [f"{kind}_{name}_parallelism" for name in degrees if degrees[name] == -1]
        if len(free) > 1:
            rule = f"goes with a number for {', '.join(free[1:])}: one axis may be -1"
            raise Stopped(free[0], -1, rule)
        return degrees

    def _fill(self, ici: dict[str, int], dcn: dict[str, int]) -> None:
        """Replaces degrees of -1 where the numbers of devices and slices determine them. Sets
        the number of devices where all degrees are known. Raises Stopped where degrees and
        devices contradict each other."""
        slices = self._known_slices()
        if slices is None and -1 not in dcn.values():
            slices = _product(dcn)
        devices = self.num_devices
        if slices is None and devices and -1 not in ici.values():
            slices = _quotient(devices, ici, "ici", "devices")
        if slices is not None:
            _put_in(dcn, slices, "dcn", "slices")
            if devices:
                of_slice = _quotient(devices, dcn, "dcn", "devices")
                _put_in(ici, of_slice, "ici", "devices of a slice")
        degrees = [*ici.values(), *dcn.values()]
        if -1 not in degrees:
            product = _product(ici) * _product(dcn)
            self.devices_setting = _setting_to_change(ici, "ici")
            if devices not in (None, product):
                rule = (
                    f"and the other degrees multiply to {product}, and the job has {devices}"
                    " devices"
                )
                raise Stopped(self.devices_setting, None, rule)
            self.num_devices = product

    def _known_slices(self) -> int | None:
        """Returns the number of slices that a setting or the caller gives; None where neither
        does."""
        for name in ("num_slices", "compile_topology_num_slices"):
            count = self.given.get(name)
            if count and count > 0:
                return int(count)
        return self.num_slices

    def _mesh(
        self, values: Mapping[str, Any], ici: Mapping[str, int], dcn: Mapping[str, int]
    ) -> dict[str, Any]:
        """Returns the degrees of the layout, its ZeRO stage and its placement, by the degrees
        within slices (`ici`) and across slices (`dcn`). Data-parallel degrees of 0 are not
        known, and left out. Raises Invalid where a model-parallel degree is not known."""
        total = {axis: ici[axis] * dcn[axis] for axis in _AXES}
        shards = total["fsdp"] != 1 or total["expert"] > 1 or total["cp"] > 1
        layout: dict[str, Any] = {
            "pp": total["pp"],
            "cp": total["cp"],
            "tp": total["tp"],
            "ep": total["expert"] * (total["cp"] if self._experts_over_context(values) else 1),
            "sequence_parallel": total["tp"] > 1,
        }
        for axis in ("pp", "cp", "tp"):
            if layout[axis] == 0:
                rule = "is -1: say the degree, or how many devices and slices the job has"
                raise Invalid(PATH, f"the axis of {axis}", rule)
        if shards:
            split = self._fully_sharded(layout, total, ici, dcn)
        else:
            split = self._replicated(values, layout, ici, dcn)
        for axis in ("pp", "cp", "tp"):
            split[axis] = (ici[axis], dcn[axis])
        for axis in ("dp_shard", "dp_replicate"):
            inside, outside = split[axis]
            if inside * outside:
                layout[axis] = inside * outside
        if all(inside * outside for inside, outside in split.values()):
            placement, is_exact = placement_of(split)
            layout["placement"] = placement
            if not is_exact:
                self.settings.reserve_text(
                    "degrees within slices and across them",
                    "several axes lie in both, and are read as one after the other",
                    "let one axis cross slices",
                )
        return layout

    def _experts_over_context(self, values: Mapping[str, Any]) -> bool:
        """Returns True where the mesh divides experts over context parallelism too. Records a
        reservation for any other custom mesh."""
        rule = values["custom_mesh_and_rule"]
        if rule not in ("", None, EXPERT_RULE):
            reason = "what this mesh shards is not described, and read as the default mesh"
            self.settings.reserve("custom_mesh_and_rule", reason, "leave it out")
        return bool(rule == EXPERT_RULE)

    def _fully_sharded(
        self,
        layout: dict[str, Any],
        total: Mapping[str, int],
        ici: Mapping[str, int],
        dcn: Mapping[str, int],
    ) -> dict[str, tuple[int, int]]:
        """Returns the data-parallel degrees within and across slices, {"dp_shard": (8, 2), …},
        of a mesh that shards weights over fsdp, expert and context. Sets the layout's ZeRO
        stage."""
        layout["zero_stage"] = 3
        if total["fsdp"] == total["expert"] == 1 and total["data"] != 1:
            layout["zero_stage"] = 0
            self.settings.reserve_text(
                "context parallelism beside data parallelism",
                "weights are sharded over context, and read as whole",
                "use ici_fsdp_parallelism in place of ici_data_parallelism",
            )
        return {
            "dp_shard": (ici["fsdp"] * ici["expert"], dcn["fsdp"] * dcn["expert"]),
            "dp_replicate": (ici["data"], dcn["data"]),
        }

    def _replicated(
        self,
        values: Mapping[str, Any],
        layout: dict[str, Any],
        ici: Mapping[str, int],
        dcn: Mapping[str, int],
    ) -> dict[str, tuple[int, int]]:
        """Returns the data-parallel degrees within and across slices, {"dp_replicate": (8, 2),
        …}, of a mesh whose ranks each hold all weights. Sets the layout's ZeRO stage: 1 where
        the optimizer is sharded."""
        data = (ici["data"], dcn["data"])
        if values["shard_optimizer_over_data"]:
            layout["zero_stage"] = 1
            return {"dp_shard": data, "dp_replicate": (1, 1)}
        # Of one replica nothing is left to shard, as with fully sharded weights.
        offloads_one_replica = data == (1, 1) and values["optimizer_memory_host_offload"]
        layout["zero_stage"] = 3 if offloads_one_replica else 0
        return {"dp_shard": (1, 1), "dp_replicate": data}

    def _batch(self, values: Mapping[str, Any], layout: dict[str, Any]) -> tuple[int | None, int]:
        """Returns the global batch, None without the number of devices, and the number of
        micro-batches of a data-parallel rank in a step. Sets the layout's micro-batch. Raises
        Invalid, or notes a stop that names a batch which works, where sequences do not divide
        evenly."""
        name = "per_device_batch_size"
        devices_of_rank = layout["pp"] * layout["cp"] * layout["tp"]
        # A decimal such as 0.333333 stands for the fraction nearby.
        per_device = Fraction(values[name]).limit_denominator(10**6)
        steps = values["gradient_accumulation_steps"]
        at_once = self._micro_batches_of_pipeline(values, layout["pp"])
        micro_batch = per_device * devices_of_rank / max(at_once, 1)
        if steps < 1 or at_once < 1 or micro_batch.denominator > 1 or micro_batch < 1:
            rule = (
                f"gives a data-parallel rank of {devices_of_rank} devices {float(micro_batch):g}"
                f" sequences in each of {at_once} micro-batches: both must be whole numbers"
            )
            if at_once <= 1 or steps < 1:
                raise Invalid(PATH, shown(name, values[name]), rule)
            least = float(Fraction(at_once * max(round(micro_batch), 1), devices_of_rank))
            cure = f"{name}={least:g}"
            self.stops.attempt(partial(_stop_at, name, values[name], rule, cure), None)
        layout["micro_batch"] = max(int(micro_batch), 1)
        batch = int(per_device * steps * self.num_devices) if self.num_devices else None
        return batch, steps * at_once

    def _micro_batches_of_pipeline(self, values: Mapping[str, Any], pp: int) -> int:
        """Returns the number of micro-batches that a pipeline works on at once; 1 without a
        pipeline."""
        if pp == 1:
            return 1
        if values["gradient_accumulation_steps"] > 1:
            reason = "the pipeline fills and drains as often, and is read as once"
            cure = "use num_pipeline_microbatches instead"
            self.settings.reserve("gradient_accumulation_steps", reason, cure)
        count: int = values["num_pipeline_microbatches"]
        if count != -1:
            return count
        return 2 * pp if values["pipeline_delay_activation_forwarding"] else pp

    def _pipeline(
        self, values: Mapping[str, Any], pp: int, architecture: Architecture | None
    ) -> dict[str, Any]:
        """Returns the schedule of a pipeline as fields of the layout; none without a pipeline.
        Records a reservation where stages take turns with several groups of layers (a circular
        pipeline). Notes a stop where stages do not divide the layers."""
        if pp == 1:
            return {}
        layers = values["num_layers_per_pipeline_stage"]
        repeats = values["num_pipeline_repeats"]
        pipeline_layers = values["pipeline_parallel_layers"]
        if layers < 1 or repeats < -1 or repeats == 0:
            name = "num_pipeline_repeats" if layers >= 1 else "num_layers_per_pipeline_stage"
            cure = f"{name}=1"
            self.stops.attempt(
                partial(_stop_at, name, values[name], "must be at least 1", cure), None
            )
            layers, repeats = max(layers, 1), repeats or -1
        if pipeline_layers != -1:
            reason = "only these layers are in the pipeline, and all are read as such"
            self.settings.reserve("pipeline_parallel_layers", reason, "leave it out")
        if architecture is not None and repeats == -1:
            repeats, remainder = divmod(architecture.num_layers, pp * layers)
            if remainder and pipeline_layers == -1:
                self.stops.attempt(partial(_stop_at_stages, layers, pp, architecture), None)
                repeats = max(repeats, 1)
        if repeats != 1:
            reason = "a circular pipeline is read as if each stage ran all of its layers at once"
            cure = "use num_layers_per_pipeline_stage so that there is one repeat"
            self.settings.reserve_text(shown("num_pipeline_repeats", repeats), reason, cure)
        gathers_once = values["pipeline_fsdp_ag_once"]
        return {"schedule": "afab", "virtual_stages": 1, "reshard": not gathers_once}

    def _recompute(
        self, values: Mapping[str, Any], architecture: Architecture | None
    ) -> dict[str, Any]:
        """Returns recompute and offload of activations as fields of the layout. Settings that
        name tensors count only with remat_policy=custom, and are ignored otherwise."""
        policy = values["remat_policy"]
        if policy is not None and policy not in POLICIES:
            rule = f"must be one of {', '.join(POLICIES)}"
            raise Invalid(PATH, shown("remat_policy", policy), rule)
        if policy != "custom":
            fields = (*TENSORS, LAYER_INPUT)
            idle = [shown(name, self.given[name]) for name in fields if name in self.given]
            self.ignored += [f"{setting} (without remat_policy=custom)" for setting in idle]
        knobs, reasons = read_remat(values, architecture)
        for reason in reasons:
            self.settings.reserve("remat_policy", reason, "use minimal_with_context, or full")
        return knobs

    def _workload(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fields of the workload, without its batch. Records reservations for
        optimizers and number formats that are not modelled."""
        seq_len = values["max_target_length"]
        if seq_len < 1:
            raise Invalid(PATH, shown("max_target_length", seq_len), "must be at least 1")
        workload: dict[str, Any] = {"seq_len": seq_len}
        workload["precision"] = self._precision(values)
        optimizer = values["opt_type"]
        workload["optimizer"] = _OPTIMIZERS.get(optimizer, "sgd_momentum")
        if optimizer not in _OPTIMIZERS:
            self.settings.reserve("opt_type", "its state is not described, read as one of momentum")
        moments = ("", None, values["weight_dtype"])
        if values["weight_dtype"] in ("bfloat16", "float16") and workload["precision"] != "fp32":
            workload["master_weights"] = False
        elif values["weight_dtype"] != "float32":
            reason = "parameters and moments of this type are read as float32"
            self.settings.reserve("weight_dtype", reason)
        if values["mu_dtype"] not in moments:
            reason = f"the first moment is read as {values['weight_dtype']}"
            self.settings.reserve("mu_dtype", reason)
        if values["use_random_routing"]:
            workload["routing"] = "balanced"
        workload |= _capacity(values)
        if values["routed_bias"]:
            workload["load_balancing"] = "bias"
        elif values["load_balance_loss_weight"] > 0:
            workload["load_balancing"] = "micro_batch_loss"
        return workload

    def _precision(self, values: Mapping[str, Any]) -> str:
        """Returns the number format of matrix products, which quantization decides, or else
        dtype."""
        quantization = values["quantization"] or ""
        if quantization in _PRECISIONS:
            return _PRECISIONS[quantization]
        if quantization:
            self.settings.reserve("quantization", "products of this type are read as of `dtype`")
        dtype = values["dtype"]
        if dtype not in _DTYPES:
            self.settings.reserve("dtype", "products of this type are read as bfloat16")
        return _DTYPES.get(dtype, "bf16")

    def _stack(
        self, values: Mapping[str, Any], layout: Mapping[str, Any], release: str | None
    ) -> dict[str, Any]:
        """Returns the fields of the stack, with each switch as the text sets it, or as the
        release does by default."""

        def may_hold(condition: Condition) -> bool:
            return condition != "ep" or layout["ep"] > 1

        if not values["sparse_matmul"] and values["capacity_factor"] <= 0:
            reason = "every expert computes every token, and is read as its own alone"
            self.settings.reserve("sparse_matmul", reason, "use true, or a capacity_factor")
        switches = {name: value for name, value in self.given.items() if name != "sparse_matmul"}
        if "megablox" in switches:
            switches["sparse_matmul"] = True
        stack = {"name": NAME, **switch_fields(NAME, switches, release, may_hold)}
        strategy = values["context_parallel_strategy"]
        if layout["cp"] > 1 and strategy != "all_gather":
            stack["context"] = _CONTEXTS.get(strategy, "allgather")
            if strategy not in _CONTEXTS:
                self.settings.reserve("context_parallel_strategy", "it is read as all_gather")
        if not layout.get("reshard", True):
            stack["reshard"] = [True, False]
        return stack


def _capacity(values: Mapping[str, Any]) -> dict[str, float]:
    """Returns the capacity factor of experts as a field of the workload; none without one, and
    with sparse matrix products, which have no capacity (layers/moe.py)."""
    factor = values["capacity_factor"]
    if values["sparse_matmul"] or factor <= 0:
        return {}
    if factor > MAX_CAPACITY:
        rule = f"must be at most {MAX_CAPACITY:g} times the even share of an expert"
        raise Invalid(PATH, shown("capacity_factor", factor), rule)
    return {"capacity_factor": factor}


def _stops(values: Mapping[str, Any], fsdp: int) -> Iterator[Stop]:
    """Yields a stop for each setting that MaxText refuses when it starts (configs/types.py).
    Rules of layouts are checked elsewhere. `fsdp` is the degree of that axis, 0 where it is not
    known."""
    if values["shard_optimizer_over_data"] and fsdp != 1:
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


def _stop_at(setting: str, value: object, rule: str, cure: str = "") -> None:
    """Raises Stopped, as a function for `attempt`."""
    raise Stopped(setting, value, rule, cure)


def _stop_at_stages(layers: int, pp: int, architecture: Architecture) -> None:
    """Raises Stopped for layers per stage that, times the stages, do not divide the layers of
    the model. The error names the numbers that do."""
    num_layers = architecture.num_layers
    even = [count for count in divisors(num_layers) if num_layers % (count * pp) == 0]
    name = "num_layers_per_pipeline_stage"
    cure = f"{name}={in_words(even)}" if even else f"a number of stages that divides {num_layers}"
    rule = f"times {pp} stages must divide the {num_layers} layers of the model"
    raise Stopped(name, layers, rule, cure)


def _by_kind_of_axis(degrees: Mapping[str, int]) -> dict[str, int]:
    """Returns degrees by the keys of `_AXES`, several axes of the mesh multiplied; 0 where one
    is -1."""
    return {
        kind: math.prod(max(degrees[name], 0) for name in names) for kind, names in _AXES.items()
    }


def _setting_to_change(degrees: Mapping[str, int], kind: str) -> str:
    """Returns the setting of the axis whose degree is -1, or else the largest, as the one to
    change in an error message: "ici_fsdp_parallelism". `kind` is "ici" or "dcn"."""
    axis = min(degrees, key=lambda name: (degrees[name] != -1, -degrees[name]))
    return f"{kind}_{axis}_parallelism"


def _product(degrees: Mapping[str, int]) -> int:
    """Returns the product of the degrees other than -1."""
    return math.prod(degree for degree in degrees.values() if degree != -1)


def _quotient(number: int, degrees: Mapping[str, int], kind: str, what: str) -> int:
    """Returns a number of devices or slices divided by the known degrees. Raises Stopped where
    that is no whole number. `kind` ("ici" or "dcn") and `what` ("devices") word the message."""
    product = _product(degrees)
    if number % product:
        name = _setting_to_change(degrees, kind)
        axis = name.removeprefix(f"{kind}_").removesuffix("_parallelism")
        rule = f"and the other {kind} degrees multiply to {product}, of which {number} {what} must"
        raise Stopped(name, degrees[axis], f"{rule} be a multiple")
    return number // product


def _put_in(degrees: dict[str, int], number: int, kind: str, what: str) -> None:
    """Replaces the degree of -1 by what the other degrees leave of `number` devices or slices.
    `kind` and `what` word the error where that is no whole number."""
    remaining = _quotient(number, degrees, kind, what)
    for axis, degree in degrees.items():
        if degree == -1:
            degrees[axis] = remaining
