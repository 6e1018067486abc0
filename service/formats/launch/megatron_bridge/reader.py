"""This module reads what Megatron-Bridge or NeMo 2 is told, as arguments of Megatron-LM.

What is left out is as the recipe has it. Where no recipe is told, that is the base of all recipes
(megatron/bridge/recipes/common.py), as far as it says something of time or memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.errors import Invalid
from models.spec import catalogue
from models.spec.switches import switches_of
from service.formats.launch.job import NO_CHANGES, Changes, LaunchReading
from service.formats.launch.megatron.half_read import half_read
from service.formats.launch.megatron.question import SHAPE, reading, without_refused
from service.formats.launch.megatron.refusals import SOURCE
from service.formats.launch.megatron_bridge.adapters import has_adapters, read_adapters
from service.formats.launch.megatron_bridge.fields import (
    argument_of_field,
    field_of_argument,
    precisions,
    table,
)
from service.formats.launch.megatron_bridge.source import Overrides, read_overrides
from service.formats.launch.megatron_bridge.writer import FRAMEWORK, NAME
from service.formats.megatron import flags as megatron_flags
from service.formats.megatron.derived import filled_in
from service.formats.megatron.flags import flag_of_argument
from service.formats.megatron.values import Arguments
from service.formats.megatron.versions import in_todays_names
from service.formats.settings.release import known_release
from service.formats.settings.settings import UnreadSettings
from service.formats.settings.stop import Stops
from service.formats.shell.faults import PATH
from service.formats.shell.files import NO_FILES, LaunchFiles
from service.nearest_names import suggestion

_FLAG_IN_RULE = re.compile(r"--[a-z][a-z0-9-]+", re.ASCII)
_OVERLAPS = ("overlap_grad_reduce", "overlap_param_gather")
_IN_FP32 = "ddp.grad_reduce_in_fp32"
_GATHERS = "mixed_precision.fp8_param_gather"
_FORMATS = ("bf16", "fp16", "fp8", "fp8_recipe", "fp4", "fp4_recipe")
_OLD = "model.activations_checkpoint_"


def read(
    text: str,
    version: str | None = None,
    *,
    changes: Changes = NO_CHANGES,
    files: LaunchFiles = NO_FILES,
) -> LaunchReading:
    """Returns what overrides say. Raises Invalid for values that are none of their fields'."""
    release = known_release(NAME, version)
    overrides = read_overrides(text, files)
    overrides.change(changes)
    values = _values(overrides)
    stops = Stops(SOURCE)
    given = without_refused(Arguments(in_todays_names(filled_in(values)), _names()), stops)
    read_as_flags = reading(
        _without_part_of_model(given),
        stops,
        stack_id=NAME,
        framework=FRAMEWORK,
        release=release,
        environment=overrides.environment,
        switches=_switches(overrides),
        unread=_unread(given, overrides),
    )
    in_fields = [
        replace(stop, rule=_in_fields(stop.rule), cure=_in_fields(stop.cure))
        for stop in read_as_flags.stops
    ]
    model = read_as_flags.model
    if model is None and overrides.model is not None:
        model = {"name": overrides.model}
    told = replace(
        read_as_flags, model=model, stops=tuple(in_fields), settings=dict(overrides.settings.given)
    )
    return _with_adapters(told, overrides) if has_adapters(overrides.texts) else told


def _with_adapters(told: LaunchReading, overrides: Overrides) -> LaunchReading:
    is_moe = "load_balancing" in told.workload
    lora, unsure = read_adapters(overrides.texts, is_moe=is_moe)
    reservations = (*told.reservations, *unsure)
    return replace(told, workload={**told.workload, "lora": lora}, reservations=reservations)


def _names() -> Mapping[str, str]:
    """The field of each argument."""
    return {argument: field_of_argument(argument) for argument in flag_of_argument()}


def _in_fields(rule: str) -> str:
    """A rule about flags of Megatron-LM, in the fields of the same."""

    def named(match: re.Match[str]) -> str:
        flag = match.group()
        is_flag = flag in megatron_flags.table().fields
        return field_of_argument(megatron_flags.argument_of(flag)) if is_flag else flag

    return _FLAG_IN_RULE.sub(named, rule)


# -- values by argument


def _values(overrides: Overrides) -> dict[str, str]:
    """The overrides as arguments of Megatron-LM, with what recipes set for all that is left out."""
    arguments = argument_of_field()
    fields = overrides.texts
    given = {arguments[name]: text for name, text in fields.items() if name in arguments}
    for sequence in ("dataset.seq_length", "model.seq_length"):
        if sequence in fields:
            given["seq_length"] = fields[sequence]
    given |= _precision(fields)
    ties = fields.get("model.share_embeddings_and_output_weights")
    if ties is not None:
        given["untie_embeddings_and_output_weights"] = str(ties == "False")
    if given.get("num_query_groups", "None") != "None":
        given["group_query_attention"] = "True"
    if fields.get("dist.use_megatron_fsdp") == "True":
        given["use_megatron_fsdp"] = "True"
    if given.get("pipeline_model_parallel_layout", "None") != "None":
        given.pop("num_virtual_stages_per_pipeline_rank", None)
    if overrides.num_ranks:
        given["world_size"] = str(overrides.num_ranks)
    # Fields of NeMo 1 have names that other versions of Megatron had (formats.megatron.versions).
    old = {
        name.removeprefix("model."): text for name, text in fields.items() if name.startswith(_OLD)
    }
    return {**megatron_flags.defaults(), **table().facts["base"], **old, **given}


def _precision(fields: Mapping[str, str]) -> dict[str, str]:
    """The number formats that a mixed precision sets, by its name or field by field."""
    name = fields.get("mixed_precision")
    values: dict[str, str] = {}
    if name == "None":
        values = {"bf16": "False", "fp16": "False"}
    elif name is not None:
        key = name.removesuffix("()").replace("-", "_")
        named = precisions().get({"16_mixed": "fp16_mixed"}.get(key, key))
        if named is None:
            rule = f"must be one of {', '.join(precisions())}{suggestion(key, precisions())}"
            raise Invalid(PATH, f"mixed_precision={name[:80]}", rule)
        values = {"bf16": "False", **named}
    if fields.get("mixed_precision.fp16") == "True":
        values["bf16"] = "False"
    for format_ in _FORMATS:
        stated = fields.get(f"mixed_precision.{format_}")
        if stated is not None:
            values[format_] = stated
    return {name: text for name, text in values.items() if name in flag_of_argument()}


def _without_part_of_model(given: Arguments) -> Arguments:
    """The arguments without a shape that is said in part: the recipe has the rest of it."""
    if all(given.text(name) for name in SHAPE):
        return given
    shape = {name: "None" for name in SHAPE if name != "num_layers"}
    return given.replaced(**shape)


def _switches(overrides: Overrides) -> dict[str, Any]:
    """The switches that are set, by their fields. A mixed precision and the configuration of
    overlaps go before what is said elsewhere."""
    fields = overrides.texts
    stack_switches = switches_of(catalogue.stack(NAME))
    names = {name for switch in stack_switches for name in switch.arguments}
    switches = {**table().facts["base_switches"], **_named_precision(fields)}
    switches |= {name: fields[name] for name in names if name in fields}
    for name in _OVERLAPS:
        stated = fields.get(f"comm_overlap.{name}", "None")
        if stated != "None":
            switches[f"ddp.{name}"] = stated
    if fields.get("mixed_precision", "None") != "None":
        switches |= _named_precision(fields)
    in_fp32 = fields.get("mixed_precision.grad_reduce_in_fp32")
    if in_fp32 is not None:
        switches[_IN_FP32] = in_fp32
    gathers = fields.get("mixed_precision.fp4_param_gather")
    if gathers is not None:
        switches[_GATHERS] = gathers
    return switches


def _named_precision(fields: Mapping[str, str]) -> dict[str, Any]:
    """Returns what the mixed precision that is named sets of switches."""
    key = fields.get("mixed_precision", "bf16_mixed").replace("-", "_").removesuffix("()")
    named = precisions().get(key, {})
    return {
        _IN_FP32: named.get("grad_reduce_in_fp32", "True"),
        _GATHERS: named.get("fp8_param_gather", "False"),
    }


# -- what is not read


def _unread(given: Arguments, overrides: Overrides) -> UnreadSettings:
    """Returns what was given, by what it means for an answer."""
    settings = overrides.settings
    if overrides.recipe is not None:
        reason = "what the recipe sets itself is not known"
        cure = "write as overrides what it sets of parallelism, precision and recompute"
        settings.reserve_text(overrides.recipe, reason, cure, is_open=True)
    if given.text("micro_batch_size") is None:
        reason = "it is not said: the recipe has it"
        settings.reserve_text("train.micro_batch_size", reason, "write it as an override")
    for name in settings.known:
        argument = argument_of_field().get(name, "")
        if argument in SHAPE and not all(map(given.text, SHAPE)):
            reason = "the recipe has the rest of the model"
            cure = "describe the model beside the launch, as `model`"
            settings.reserve(name, reason, cure, answered_by="model")
        elif words := half_read(argument, given):
            settings.reserve(name, *map(_in_fields, words))
    return settings.unread()
