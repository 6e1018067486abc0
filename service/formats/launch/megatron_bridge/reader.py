"""This module reads launches of Megatron-Bridge and NeMo 2, as arguments of Megatron-LM, so that
the reading of these serves both.

Settings that a launch leaves out are those of its recipe. Where it names none they are those of the
base of all recipes (megatron/bridge/recipes/common.py), as far as these decide time or memory. A
*recipe* is a function that returns a whole configuration, which a launch overrides in part. A
*stop* is a setting with which the framework refuses to start, and a *reservation* a remark that a
setting could matter and is not, or not fully, taken into account.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.spec import catalogue
from models.spec.switches import switches_of
from service.formats.launch.job import NO_CHANGES, Changes, LaunchReading
from service.formats.launch.megatron.half_read import why_half_read
from service.formats.launch.megatron.question import SHAPE, launch_reading, without_refused
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
from service.formats.megatron.versions import GATED_ACTIVATIONS, in_todays_names
from service.formats.settings.release import known_release
from service.formats.settings.settings import UnreadSettings
from service.formats.settings.stop import Stops
from service.formats.shell.faults import invalid_launch
from service.formats.shell.files import NO_FILES, LaunchFiles
from service.nearest_names import suggestion

_FLAG_IN_RULE = re.compile(r"--[a-z][a-z0-9-]+", re.ASCII)
_OVERLAPS = ("overlap_grad_reduce", "overlap_param_gather")
_GRADIENTS_IN_FP32 = "ddp.grad_reduce_in_fp32"
_PARAM_GATHER = "mixed_precision.fp8_param_gather"
_PRECISION = "mixed_precision"
_FORMATS = ("bf16", "fp16", "fp8", "fp8_recipe", "fp4", "fp4_recipe")
_LAST_IN_BF16 = "num_layers_at_end_in_bf16"
_NEMO_1 = "model.activations_checkpoint_"
_MAKES_ADAPTERS = re.compile(r"peft|lora|finetune", re.IGNORECASE)
"""Parts of the names of recipes that train adapters, or do so unless they are told otherwise."""
_DECIDED_BY_RECIPES = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
    "micro_batch_size", "global_batch_size",
)  # fmt: skip
"""Arguments that each recipe sets, beside the model, its precision, and what it may switch on."""


def read(
    text: str,
    version: str | None = None,
    *,
    changes: Changes = NO_CHANGES,
    files: LaunchFiles = NO_FILES,
) -> LaunchReading:
    """Returns the reading of overrides of a recipe, such as model.tensor_model_parallel_size=4.
    Raises Invalid for a value that its field does not take."""
    release = known_release(NAME, version)
    overrides = read_overrides(text, files)
    overrides.change(changes)
    arguments = in_todays_names(filled_in(_arguments_of_overrides(overrides)))
    stops = Stops(SOURCE)
    # Messages about an argument are to call it by its field.
    fields = {argument: field_of_argument(argument) for argument in flag_of_argument()}
    args = without_refused(Arguments(arguments, fields), stops)
    reading = launch_reading(
        _without_part_of_model(args),
        stops,
        stack_id=NAME,
        framework=FRAMEWORK,
        release=release,
        environment=overrides.environment,
        switches=_switches(overrides),
        unread=_unread(args, overrides),
    )
    model = reading.model
    if model is None and overrides.model is not None:
        model = {"name": overrides.model}
    # The rules are written for flags of Megatron-LM, and the sender knows fields.
    reading = replace(
        reading,
        model=model,
        stops=tuple(
            replace(stop, rule=_in_fields(stop.rule), cure=_in_fields(stop.cure))
            for stop in reading.stops
        ),
        settings=dict(overrides.settings.given),
    )
    return _with_adapters(reading, overrides) if has_adapters(overrides.texts) else reading


def _with_adapters(reading: LaunchReading, overrides: Overrides) -> LaunchReading:
    """Returns the reading with the adapters that the overrides set up."""
    is_moe = "load_balancing" in reading.workload  # which only a model with experts has
    lora, reservations = read_adapters(overrides.texts, is_moe=is_moe)
    return replace(
        reading,
        workload={**reading.workload, "lora": lora},
        reservations=(*reading.reservations, *reservations),
    )


def _in_fields(rule: str) -> str:
    """Returns a sentence with the flags of Megatron-LM replaced by fields: "needs model.bf16" for
    "needs --bf16"."""

    def field_of_flag(match: re.Match[str]) -> str:
        flag = match.group()
        is_flag = flag in megatron_flags.table().fields
        return field_of_argument(megatron_flags.argument_of(flag)) if is_flag else flag

    return _FLAG_IN_RULE.sub(field_of_flag, rule)


# -- values by argument


def _arguments_of_overrides(overrides: Overrides) -> dict[str, str]:
    """Returns the overrides as arguments of Megatron-LM, with the texts that recipes, or
    Megatron itself, give the others."""
    argument_of = argument_of_field()
    fields = overrides.texts
    arguments = {argument_of[name]: text for name, text in fields.items() if name in argument_of}
    for sequence in ("dataset.seq_length", "model.seq_length"):  # the model's counts for more
        if sequence in fields:
            arguments["seq_length"] = fields[sequence]
    arguments |= _precision_arguments(overrides)
    if "model.activation" in fields:  # of NeMo 1
        arguments["swiglu"] = str(fields["model.activation"] in GATED_ACTIVATIONS)
    ties = fields.get("model.share_embeddings_and_output_weights")
    if ties is not None:
        arguments["untie_embeddings_and_output_weights"] = str(ties == "False")
    if arguments.get("num_query_groups", "None") != "None":
        arguments["group_query_attention"] = "True"
    if fields.get("dist.use_megatron_fsdp") == "True":
        arguments["use_megatron_fsdp"] = "True"
    # The layout has the number of chunks in it, and Megatron-LM takes only one of the two.
    if arguments.get("pipeline_model_parallel_layout", "None") != "None":
        arguments.pop("num_virtual_stages_per_pipeline_rank", None)
    if overrides.num_ranks:
        arguments["world_size"] = str(overrides.num_ranks)
    # Fields of NeMo 1 have names that other versions of Megatron had (formats.megatron.versions).
    old = {
        name.removeprefix("model."): text
        for name, text in fields.items()
        if name.startswith(_NEMO_1)
    }
    return {**megatron_flags.defaults(), **table().facts["base"], **old, **arguments}


def _precision_key(fields: Mapping[str, str]) -> str | None:
    """Returns the name of the mixed precision as the table has it, "bf16_mixed" for NeMo's bf16;
    None where no field names one."""
    name = fields.get(_PRECISION)
    if name is None:
        return None
    key = name.removesuffix("()").replace("-", "_")
    of_nemo: Mapping[str, str] = table().facts["precisions_of_nemo"]
    return of_nemo.get(key, key)


def _precision_arguments(overrides: Overrides) -> dict[str, str]:
    """Returns the arguments of the number formats that mixed_precision sets, by a name or field
    by field. Raises Invalid for an unknown name."""
    fields = overrides.texts
    values: dict[str, str] = {}
    key = _precision_key(fields)
    if key == "None":
        values = {"bf16": "False", "fp16": "False"}
    elif key is not None:
        formats = precisions().get(key)
        if formats is None:
            rule = f"must be one of {', '.join(precisions())}{suggestion(key, precisions())}"
            written = overrides.settings.written.get(
                _PRECISION, f"{_PRECISION}={fields[_PRECISION]}"
            )
            raise invalid_launch(written[:100], rule)
        values = {"bf16": "False", **formats}  # bf16 is on by default, `formats` may have fp16
    # One of the two formats excludes the other, and bf16 is on by default.
    if fields.get("mixed_precision.fp16") == "True":
        values["bf16"] = "False"
    for format_ in _FORMATS:
        value = fields.get(f"mixed_precision.{format_}")
        if value is not None:
            values[format_] = value
    return {name: text for name, text in values.items() if name in flag_of_argument()}


def _without_part_of_model(args: Arguments) -> Arguments:
    """Returns the arguments without those of the model, unless they describe all of it. A part
    only changes the model of the recipe, whose other sizes are not known."""
    if all(args.text(name) for name in SHAPE):
        return args
    # An argument "None" counts as absent. num_layers stays: the pipeline is split by it.
    shape = {name: "None" for name in SHAPE if name != "num_layers"}
    return args.replaced(**shape)


def _switches(overrides: Overrides) -> dict[str, Any]:
    """Returns the switches of the stack (choices of software, such as a kernel) that overrides or
    the recipe's defaults set, by field. Those of a mixed precision, and of comm_overlap, override
    other fields."""
    fields = overrides.texts
    stack_switches = switches_of(catalogue.stack(NAME))
    names = {name for switch in stack_switches for name in switch.arguments}
    # From the weakest to the strongest: defaults, fields, comm_overlap, mixed precision.
    switches = {**table().facts["base_switches"], **_named_precision(fields)}
    switches |= {name: fields[name] for name in names if name in fields}
    for name in _OVERLAPS:
        value = fields.get(f"comm_overlap.{name}", "None")
        if value != "None":
            switches[f"ddp.{name}"] = value
    if fields.get(_PRECISION, "None") != "None":
        switches |= _named_precision(fields)
    reduces_in_fp32 = fields.get("mixed_precision.grad_reduce_in_fp32")
    if reduces_in_fp32 is not None:
        switches[_GRADIENTS_IN_FP32] = reduces_in_fp32
    # Gathering parameters in fp4 and in fp8 is one switch.
    gathers = fields.get("mixed_precision.fp4_param_gather")
    if gathers is not None:
        switches[_PARAM_GATHER] = gathers
    return switches


def _named_precision(fields: Mapping[str, str]) -> dict[str, Any]:
    """Returns the switches that the mixed precision named in the fields sets, bf16_mixed by
    default."""
    formats = precisions().get(_precision_key(fields) or "bf16_mixed", {})
    # A named precision that leaves one of the two out has the default of MixedPrecisionConfig.
    return {
        _GRADIENTS_IN_FP32: formats.get("grad_reduce_in_fp32", "True"),
        _PARAM_GATHER: formats.get("fp8_param_gather", "False"),
    }


# -- what is not read


def _unread(args: Arguments, overrides: Overrides) -> UnreadSettings:
    """Returns the overrides that are not read, and adds reservations for the recipe itself
    and for overrides that are read in part. The one for the recipe is open (`is_open`): the recipe
    may set anything."""
    settings = overrides.settings
    if overrides.recipe is not None and not _is_recipe_overridden(args, overrides):
        reason = "what the recipe sets itself is not known"
        cure = "write as overrides what it sets of parallelism, precision and recompute"
        settings.add_text_reservation(overrides.recipe, reason, cure, is_open=True)
    if _LAST_IN_BF16 in precisions().get(_precision_key(overrides.texts) or "", ()):
        settings.add_reservation(_PRECISION, "some layers then have products of 16 bits")
    if args.text("micro_batch_size") is None:
        reason = "it is not said: the recipe has it"
        settings.add_text_reservation("train.micro_batch_size", reason, "write it as an override")
    for name in settings.known:
        argument = argument_of_field().get(name, "")
        if argument in SHAPE and not all(map(args.text, SHAPE)):
            reason = "the recipe has the rest of the model"
            cure = "describe the model beside the launch, as `model`"
            settings.add_reservation(name, reason, cure, answered_by="model")
        elif reason_and_cure := why_half_read(argument, args):
            settings.add_reservation(name, *map(_in_fields, reason_and_cure))
    return settings.unread()


def _is_recipe_overridden(args: Arguments, overrides: Overrides) -> bool:
    """Returns True where overrides replace all that a recipe decides of time and memory, as those
    that are written here do (megatron_bridge.writer). It then does not matter which recipe it is,
    nor whether its name is known: a script that was just written has $RECIPE there."""
    fields = overrides.texts
    decided = {*table().facts["off"], *map(field_of_argument, _DECIDED_BY_RECIPES)}
    says_precision = "mixed_precision" in fields or "mixed_precision.bf16" in fields
    makes_adapters = _MAKES_ADAPTERS.search(overrides.recipe or "") is not None
    return (
        decided <= fields.keys()
        and says_precision
        and all(map(args.text, SHAPE))
        and (has_adapters(fields) or not makes_adapters)
    )
