"""Joins the parts of a question that a launch configuration says with those that the request says
beside it.

A *part* is a member of the question: model, cluster, workload or stack. `reading` has those of the
launch, `parts` those of the request. A *stop* is a setting at which the framework refuses to start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from models.errors import Invalid
from models.layouts.rules import RULES_BY_NAME
from models.spec import catalogue
from models.spec.catalogue import as_tuples
from models.spec.stack import Stack
from models.spec.switches import changed, releases
from service.errors import Refused
from service.formats.launch.formats import TOOLS
from service.formats.launch.job import LaunchReading
from service.resolve.launch_assumptions import batch_assumptions, unwritten_values
from service.resolve.launch_cluster import LaunchCluster
from service.resolve.launch_errors import LaunchErrors
from service.resolve.model_values import model_values
from service.resolve.resolution import ModelForm, Resolver
from service.schemas.architecture import HuggingFaceConfig, ShapeFields, is_config
from service.schemas.cluster import ClusterFields, ClusterPreset
from service.schemas.launch_form import LaunchForm
from service.schemas.launch_request import QuestionParts
from service.schemas.layer_list import LayerListFields, is_layer_list
from service.schemas.layout import LayoutFields
from service.schemas.question import PinnedQuestion
from service.schemas.stack import StackFields
from service.schemas.workload import WorkloadFields

Part = TypeVar("Part")
_BATCH = RULES_BY_NAME["batch_divides"]
_OF_TRAINER = ("fsdp", "deepspeed")  # stacks that the Trainer of Transformers runs on


@dataclass(frozen=True, slots=True)
class Joining:
    """Joins a launch and its request, part by part."""

    resolver: Resolver
    parts: QuestionParts
    launch: LaunchForm
    reading: LaunchReading
    cluster: LaunchCluster
    errors: LaunchErrors

    def joined(self) -> tuple[PinnedQuestion, LayoutFields, list[str]]:
        """Returns the question, the layout, and sentences on what was assumed. Raises Refused with
        all errors of all parts, or Invalid if there is only one."""
        faults = list[Invalid]()
        cluster = _joined(self.cluster.form, faults)
        sized = None if cluster is None else _joined(lambda: self._sized_layout(cluster), faults)
        layout_fields, assumed = sized or (dict(self.reading.layout), list[str]())
        # A batch counted in micro-batches follows from the data-parallel degree. Where that degree
        # is not known, the batch would come out wrong and raise a misleading error.
        is_batch_open = sized is None and self.reading.num_micro_batches is not None
        members = {
            "model": _joined(self._model, faults),
            "cluster": cluster,
            "workload": (
                None if is_batch_open else _joined(lambda: self._workload(layout_fields), faults)
            ),
            "stack": _joined(self._stack, faults),
            "profile": self.parts.profile,
        }
        if len(faults) == 1:
            raise faults[0]
        if faults:
            raise Refused(faults)
        question = PinnedQuestion.model_validate(members)
        global_batch = question.workload.global_batch
        layout_fields |= self._micro_batch(layout_fields, global_batch)
        # The framework would stop before it has a layout.
        if any(stop.hides_layout for stop in self.errors.stops or ()):
            return question, LayoutFields(), []
        layout = self.errors.validated(
            "layout", LayoutFields, request_fields={}, launch_fields=layout_fields
        )
        ranks = _data_parallel(layout_fields)
        assumed += self.cluster.assumptions(question.cluster)
        assumed += unwritten_values(self.reading, self._request_fields())
        assumed += batch_assumptions(self.reading, layout.micro_batch, global_batch, ranks)
        return question, layout, assumed

    def _request_fields(self) -> dict[str, Mapping[str, Any]]:
        """Returns the fields of the model and the workload that the request itself sets."""
        model = self.parts.model
        return {"model": model if isinstance(model, dict) else {}, "workload": self.parts.workload}

    @contextmanager
    def blaming_launch(self) -> Iterator[None]:
        """Moves an Invalid raised in the block to the field of the launch, if it is about a part of
        the question that only the launch has."""
        try:
            yield
        except Invalid as fault:
            part = fault.field.partition(".")[0]
            launch_part = getattr(self.reading, part, None)
            if launch_part is not None and not getattr(self.parts, part, None):
                raise self.errors.launch_error(fault.field, fault.value, fault.rule) from None
            raise

    def _model(self) -> ModelForm:
        """Returns the model of the request, or of the launch, or both joined. A config.json beside
        the launch counts only if the request has no model. Raises Refused for values that
        contradict each other, and Invalid if neither describes a model."""
        request_model = self.parts.model
        launch_fields = self.reading.model or {}
        if is_config(launch_fields):
            if request_model is None:
                return HuggingFaceConfig(dict(launch_fields))
            launch_fields = {}  # the request's own model counts, not a file beside its launch
        # A launch that names a model of the catalogue has its name alone.
        name = launch_fields["name"] if launch_fields.keys() == {"name"} else None
        # Only the launch has a model.
        if request_model is None:
            if name is None and not launch_fields.keys() & {"num_layers", "hidden_size"}:
                raise self.errors.missing("model")
            if name is not None:
                return str(name)
            return self._model_form(request_fields={}, launch_fields=launch_fields)
        launch_values = (
            _flat_fields(launch_fields) if name is None else self._comparable_values(name)
        )
        # The request has some fields of a shape, which complete those of the launch.
        if isinstance(request_model, dict):
            # A vocabulary that the launch only has by default contradicts nothing.
            if "model.vocab_size" in self.reading.default_origins:
                launch_values = {**launch_values, "vocab_size": None}
            self.errors.require_same("model", launch_values, _flat_fields(request_model))
            return self._model_form(
                request_fields=request_model, launch_fields=launch_fields if name is None else {}
            )
        # The request has a whole model, which the launch may only repeat.
        self.errors.require_same("model", launch_values, self._comparable_values(request_model))
        return request_model

    def _model_form(
        self, *, request_fields: Mapping[str, Any], launch_fields: Mapping[str, Any]
    ) -> ShapeFields | LayerListFields:
        """Returns the fields of request and launch together, in the schema that they fit: a list of
        layers, or a shape that all layers share."""
        if is_layer_list({**launch_fields, **request_fields}):
            return self.errors.validated(
                "model", LayerListFields, request_fields=request_fields, launch_fields=launch_fields
            )
        return self.errors.validated(
            "model", ShapeFields, request_fields=request_fields, launch_fields=launch_fields
        )

    def _comparable_values(self, form: ModelForm) -> dict[str, object]:
        """Returns those values of a model that a launch may have too, by their names in
        requests."""
        model = self.resolver.architecture(form).value
        counts = {"vocab_size": model.vocab_size, "mtp_layers": model.mtp_layers}
        return {**model_values(model), **counts}

    def _workload(self, layout: Mapping[str, Any]) -> WorkloadFields:
        """Returns the workload of request and launch. If the launch has only a number of
        micro-batches, its global batch is computed from it. Raises Refused for values that
        contradict each other."""
        request_fields = self.parts.workload
        launch_fields = dict(self.reading.workload)
        count = self.reading.num_micro_batches
        if "global_batch" not in launch_fields and count and "micro_batch" in layout:
            launch_fields["global_batch"] = layout["micro_batch"] * count * _data_parallel(layout)
        # A request with a batch in tokens must not get that of the launch too. The workload has it
        # in sequences once it is validated, and is then compared with the launch.
        in_tokens = request_fields.get("global_batch_tokens") is not None
        given_otherwise = {"global_batch"} if in_tokens else set[str]()
        added = {name: launch_fields[name] for name in launch_fields if name not in given_otherwise}
        workload = self.errors.validated(
            "workload", WorkloadFields, request_fields=request_fields, launch_fields=added
        )
        requested = workload.model_dump(include={*request_fields} | given_otherwise)
        must_agree = {
            name: value
            for name, value in launch_fields.items()
            if not self._yields_to_request(name)
        }
        self.errors.require_same("workload", must_agree, requested)
        return workload

    def _yields_to_request(self, name: str) -> bool:
        """Returns whether the launch's value of a field of the workload gives way to the request's.
        It does if it is a default (`default_origins`), and a file that was not sent may override it
        (`is_open`)."""
        field = f"workload.{name}"
        origins = [field]
        # A batch that the launch does not write is computed from these.
        if self.errors.is_batch_by_count(field):
            origins += ["num_micro_batches", "layout.micro_batch"]
        return self.reading.is_open and any(
            origin in self.reading.default_origins for origin in origins
        )

    def _micro_batch(self, layout: Mapping[str, Any], global_batch: int) -> dict[str, int]:
        """Returns the field `micro_batch` of the layout, if the launch has only a number of
        micro-batches; else nothing. If the global batch is not divisible, the framework stops, or
        Invalid is raised."""
        count = self.reading.num_micro_batches
        if "micro_batch" in layout or count is None:
            return {}
        ranks = _data_parallel(layout)
        micro_batch, remainder = divmod(global_batch, count * ranks)
        if remainder or not micro_batch:
            rule = (
                f"has {count} micro-batches on each of {ranks} data-parallel ranks, of which the"
                f" global batch of {global_batch} must be a multiple"
            )
            error = Invalid(f"{self.errors.field}.arguments", count, rule)
            self.errors.stop_or_raise(
                error,
                self.reading.accumulation_setting,
                _BATCH,
                rule,
                cure=f"a global batch of {max(micro_batch, 1) * count * ranks}",
                hides_layout=True,  # the micro-batch that it would run is not known
            )
        return {"micro_batch": max(micro_batch, 1)}  # 1 stands in where the framework stops

    def _stack(self) -> str | StackFields:
        """Returns the stack of the request, or else of the launch's format, with the version or age
        that either gives. Switches of the launch are added where they differ from the stack's."""
        launch_fields = dict(self.reading.stack)
        launch_stack = catalogue.stack(launch_fields.pop("name"))  # that of the launch's format
        form = self.parts.stack
        base = launch_stack if form is None else self._stack_of(form, launch_stack.calibrated_as)
        request_changes = form.changes() if isinstance(form, StackFields) else {}
        age_fields = {
            name: request_changes[name]
            for name in ("version", "age_years")
            if name in request_changes
        }
        # A release dates the software only if the caller gave it and its date is known.
        is_dated = self.launch.version is not None and self.reading.version in releases(base.id)
        if is_dated and not age_fields:
            age_fields = {"version": self.reading.version}
        default_stack = StackFields.model_validate({"name": base.id, **age_fields}).build(base)
        # Setting a switch may change other fields of the stack along with it (`changed`). Where the
        # launch has another value for such a field, the field has to be given too.
        switches = _differing_fields(launch_fields, default_stack)
        switch_values = {name: as_tuples(value) for name, value in switches.items()}
        switches |= _differing_fields(launch_fields, changed(default_stack, switch_values))
        if not (age_fields or switches or request_changes):
            return base.id
        return self.errors.validated(
            "stack",
            StackFields,
            request_fields={"name": base.id, **request_changes},
            launch_fields=age_fields | switches,
        )

    def _sized_layout(
        self, cluster: ClusterPreset | ClusterFields
    ) -> tuple[dict[str, Any], list[str]]:
        """Returns the layout of the launch and sentences on what was assumed. A data-parallel
        degree that the launch leaves open is what the cluster's devices leave."""
        layout_fields = dict(self.reading.layout)
        num_devices = self.resolver.cluster(cluster).cluster.num_devices
        # A launcher computes the data-parallel degree from its number of devices. Where the request
        # overrules that number, the degree is dropped too, and computed again below. With ZeRO that
        # is the degree of shards, and with stage 0 that of replicas.
        if self.cluster.is_overruled(num_devices):
            layout_fields.pop(
                "dp_shard" if layout_fields.get("zero_stage") else "dp_replicate", None
            )
        knob = _open_degree(layout_fields)
        if knob is None:
            return layout_fields, []
        layout_fields[knob] = self._remaining_devices(layout_fields, num_devices)
        if layout_fields[knob] == 1:
            return layout_fields, []
        return layout_fields, [
            f"layout.{knob} is {layout_fields[knob]}: what {num_devices} devices leave"
        ]

    @staticmethod
    def _remaining_devices(layout_fields: Mapping[str, Any], num_devices: int) -> int:
        """Returns the degree that the other degrees leave of the devices, rounded down. If it does
        not divide evenly, a rule refuses the layout later (models.layouts.rules)."""
        # Experts are spread over the devices of these axes, so `ep` and `etp` divide none away.
        axes = ("pp", "cp", "tp", "dp_replicate", "dp_shard")
        used = math.prod(layout_fields.get(axis, 1) for axis in axes)
        return max(num_devices // max(used, 1), 1)

    def _stack_of(self, form: str | StackFields, framework: str) -> Stack:
        """Returns the stack that the request names. `framework` is the catalogue's stack for the
        launch's format. Raises Invalid if the named stack is not that one or a variant of it."""
        name = form if isinstance(form, str) else form.name
        base = self.resolver.stack(name).value
        if name.lower() in TOOLS and framework in _OF_TRAINER:
            # A tool such as "llama-factory" starts the Trainer of Transformers on FSDP or on
            # DeepSpeed, as its file tells, so the stack is that of the launch.
            return catalogue.stack(framework)
        if base.calibrated_as != framework:  # a variant is calibrated as the stack that it varies
            field = "stack" if isinstance(form, str) else "stack.name"
            rule = f"does not run {self.reading.framework}, of which the launch is: leave it out"
            raise Invalid(field, base.id, rule)
        return base


def _joined(join: Callable[[], Part], faults: list[Invalid]) -> Part | None:
    """Returns the result of `join`. If it raises Invalid or Refused, adds the errors to `faults`
    and returns None, so that one answer can tell the errors of all parts."""
    try:
        return join()
    except Invalid as fault:
        faults.append(fault)
    except Refused as refused:
        faults += refused.errors
    return None


def _differing_fields(launch_fields: Mapping[str, Any], stack: Stack) -> dict[str, Any]:
    """Returns the fields of the launch whose values differ from the stack's, which has tuples where
    the launch has lists."""
    return {
        name: value
        for name, value in launch_fields.items()
        if as_tuples(value) != getattr(stack, name)
    }


def _data_parallel(layout: Mapping[str, Any]) -> int:
    return int(layout.get("dp_shard", 1) * layout.get("dp_replicate", 1))


def _flat_fields(model: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a model with those of its MLA and its experts moved to the top. A model
    whose shape is complete but names no experts has num_experts = 0."""
    default = {"num_experts": 0} if model.keys() >= {"num_layers", "hidden_size"} else {}
    flat = {name: value for name, value in model.items() if name not in ("mla", "moe")}
    return {**default, **flat, **(model.get("mla") or {}), **(model.get("moe") or {})}


def _open_degree(launch_fields: Mapping[str, Any]) -> str | None:
    """Returns the data-parallel degree that the launch leaves open, `dp_shard` or `dp_replicate`;
    None if it states both. If it states neither, `dp_shard` is open, or `dp_replicate` with ZeRO
    stage 0, where every rank is a replica."""
    if "dp_shard" in launch_fields:
        return None if "dp_replicate" in launch_fields else "dp_replicate"
    is_replicated = launch_fields.get("zero_stage") == 0 and "dp_replicate" not in launch_fields
    return "dp_replicate" if is_replicated else "dp_shard"
