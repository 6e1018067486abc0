"""What Megatron-Bridge or NeMo 2 is told: overrides of a recipe (model.x=4), assignments of Python
(cfg.model.x = 4), options of their launch scripts (-tp 4), or YAML.

What is left out is as the recipe has it. Where no recipe is told, that is the base of all recipes
(megatron/bridge/recipes/common.py), as far as it says something of time or memory.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from models.errors import Invalid
from service.formats.launch.documents import flat, read_document
from service.formats.launch.job import NO_CHANGES, Changes, LaunchReading, with_changes
from service.formats.launch.megatron import fields as megatron_fields
from service.formats.launch.megatron.fields import flag_of_argument
from service.formats.launch.megatron.reader import (
    filled_in,
    half_read,
    reading,
    without_refused,
)
from service.formats.launch.megatron_bridge.adapters import HARMLESS as HARMLESS_OF_ADAPTERS
from service.formats.launch.megatron_bridge.adapters import READ as READ_OF_ADAPTERS
from service.formats.launch.megatron_bridge.adapters import (
    fields_of_scheme,
    has_adapters,
    read_adapters,
)
from service.formats.launch.megatron_bridge.fields import (
    PRECISIONS,
    argument_of_field,
    field_of_argument,
    is_field,
    sections,
)
from service.formats.launch.megatron_bridge.writer import FRAMEWORK, NAME
from service.formats.launch.shell_script import PATH
from service.formats.launch.shell_words import (
    require_arguments_defined,
    require_defined,
    split_command,
)
from service.formats.megatron.values import Arguments
from service.formats.megatron.versions import in_todays_names
from service.formats.settings.field import shown
from service.formats.settings.release import known_release
from service.formats.settings.reservation import GIVE_FIELDS, Reservation
from service.formats.settings.settings import SortedSettings
from service.formats.settings.spelling import nearest
from service.formats.settings.stop import Stops

_ASSIGNMENT = re.compile(r"\s*([A-Za-z_]\w*(?:\.\w+)+)\s+=\s+(\S.*?)\s*(?:#.*)?", re.ASCII)
_YAML_LINE = re.compile(r"\s*(-\s.*|[A-Za-z_][\w.-]*\s*:(\s.*)?)", re.ASCII)
_OVERRIDE = re.compile(r"[+~]{0,2}([A-Za-z_]\w*(?:\.\w+)*)=(.*)", re.ASCII | re.DOTALL)
_FLAG_IN_RULE = re.compile(r"--[a-z][a-z0-9-]+", re.ASCII)
_MODEL = ("num_layers", "hidden_size", "num_attention_heads")

_OPTIONS = {
    "tp": "model.tensor_model_parallel_size",
    "pp": "model.pipeline_model_parallel_size",
    "cp": "model.context_parallel_size",
    "vp": "model.virtual_pipeline_model_parallel_size",
    "ep": "model.expert_model_parallel_size",
    "et": "model.expert_tensor_parallel_size",
    "mb": "train.micro_batch_size",
    "gb": "train.global_batch_size",
    "sl": "dataset.seq_length",
    "seq_length": "dataset.seq_length",
    "ng": "num_gpus",
    "gn": "gpus_per_node",
    "c": "compute_dtype",
    "use_megatron_fsdp": "ddp.use_megatron_fsdp",
    "use_tp_pp_dp_mapping": "dist.use_tp_pp_dp_mapping",
}
"""The options of launch scripts that are not called like their field."""
_OPTIONS_OF_RUNS = ("num_gpus", "gpus_per_node", "compute_dtype", "recipe", "model_name")
_HARMLESS_OPTIONS = (
    "g", "gpu", "a", "account", "p", "partition", "t", "time_limit", "l", "log_dir", "i",
    "container_image", "ms", "max_steps", "hf", "hf_token", "d", "dryrun", "en", "enable_nsys",
    "task", "domain", "nh", "nemo_home", "wdk", "wandb_key", "experiment_name",
)  # fmt: skip
_RECIPES = (
    "recipe",
    "model_name",
    "model_family_name",
    "model_recipe_name",
    "m",
    "s",
    "model_size",
)
_SCHEMES = ("peft_scheme", "peft", "peft._target_")
"""Options, and a key of YAML, that name what makes adapters."""
_DTYPES = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp8": "bf16_with_fp8_current_scaling_mixed",
    "fp8_cs": "bf16_with_fp8_current_scaling_mixed",
    "fp8_ds": "bf16_with_fp8_delayed_scaling_mixed",
    "fp8_sc": "bf16_with_fp8_subchannel_scaling_mixed",
    "fp8_mx": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
"""What scripts call a mixed precision (--compute_dtype)."""
_MOVED = (
    ("trainer.strategy.ddp.", "ddp."),
    ("trainer.strategy.use_tp_pp_dp_mapping", "dist.use_tp_pp_dp_mapping"),
    ("trainer.strategy.", "model."),
    ("trainer.plugins.", "mixed_precision."),
    ("trainer.plugins", "mixed_precision"),
    ("trainer.precision", "mixed_precision"),
    ("model.config.", "model."),
    ("model.data.", "data."),
    ("data.micro_batch_size", "train.micro_batch_size"),
    ("data.global_batch_size", "train.global_batch_size"),
    ("data.seq_length", "dataset.seq_length"),
    ("model.micro_batch_size", "train.micro_batch_size"),
    ("model.global_batch_size", "train.global_batch_size"),
    ("model.encoder_seq_length", "dataset.seq_length"),
    ("optim.config.", "optimizer."),
)
"""Where NeMo has fields that Megatron-Bridge has elsewhere."""
_HARMLESS = (
    "logger", "profiling", "tokenizer", "scheduler", "rng", "validation", "ft", "straggler",
    "nvrx_straggler", "tensor_inspect", "inprocess_restart", "rerun_state_machine", "checkpoint",
    "dataset", "data", "log", "exp_manager", "resume", "optim", "trainer",
)  # fmt: skip
"""Sections that change neither time nor memory, but for the fields that are read."""
_BASE = {
    "use_distributed_optimizer": "True",
    "bf16": "True",
    "moe_grouped_gemm": "True",
    "moe_router_score_function": "sigmoid",
    "ckpt_format": "fsdp_dtensor",
    "micro_batch_size": "None",
    "gradient_accumulation_fusion": "False",
    "sequence_parallel": "True",  # with tensor parallelism
}
"""What recipes set, or what it takes for Megatron-Core to accept what is overridden."""
_BASE_SWITCHES: Mapping[str, Any] = {
    "ddp.overlap_grad_reduce": True,
    "ddp.overlap_param_gather": True,
    "model.cross_entropy_loss_fusion": True,
    "model.moe_grouped_gemm": True,
}
_PACKING = "dataset.enable_offline_packing"
_ENCODERS = ("model.freeze_vision", "model.freeze_audio")
_OVERLAPS = ("overlap_grad_reduce", "overlap_param_gather")
_IN_FP32 = "ddp.grad_reduce_in_fp32"


@dataclass(slots=True)
class _Overrides:
    """What a text sets, by dotted field."""

    fields: dict[str, str] = field(default_factory=dict)
    reservations: list[Reservation] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    num_ranks: int | None = None
    recipe: str | None = None
    """The recipe that is overridden, as it was written."""


def read(text: str, version: str | None = None, *, changes: Changes = NO_CHANGES) -> LaunchReading:
    """What overrides say. Raises Invalid for values that are none of their fields'."""
    release = known_release(NAME, version)
    found = _overrides(text)
    texts = {
        name: None if value is None else _text(name, str(value)) for name, value in changes.items()
    }
    found.fields = with_changes(found.fields, texts)
    values = _values(found)
    stops = Stops()
    given = without_refused(Arguments(in_todays_names(filled_in(values)), _names()), stops)
    read_as_flags = reading(
        _without_part_of_model(given),
        stops,
        stack_id=NAME,
        framework=FRAMEWORK,
        release=release,
        environment=found.environment,
        switches=_switches(found),
        sorted_out=_sorted_out(given, found),
    )
    in_fields = [
        replace(stop, rule=_in_fields(stop.rule), cure=_in_fields(stop.cure))
        for stop in read_as_flags.stops
    ]
    typed = {name: _plain(text) for name, text in found.fields.items()}
    told = replace(read_as_flags, stops=tuple(in_fields), settings=typed)
    return _with_adapters(told, found) if has_adapters(found.fields) else told


def _with_adapters(told: LaunchReading, found: _Overrides) -> LaunchReading:
    is_moe = "load_balancing" in told.workload
    lora, unsure = read_adapters(found.fields, is_moe=is_moe)
    reservations = (*told.reservations, *unsure)
    return replace(told, workload={**told.workload, "lora": lora}, reservations=reservations)


def _plain(text: str) -> bool | int | str | None:
    """The value that a text stands for."""
    plain = {"True": True, "False": False, "None": None}
    return plain[text] if text in plain else int(text) if text.isdecimal() else text


def _names() -> Mapping[str, str]:
    """The field of each argument."""
    return {argument: field_of_argument(argument) for argument in flag_of_argument()}


def _in_fields(rule: str) -> str:
    """A rule about flags of Megatron-LM, in the fields of the same."""

    def named(match: re.Match[str]) -> str:
        flag = megatron_fields.flags().get(match.group())
        return field_of_argument(flag.argument) if flag else match.group()

    return _FLAG_IN_RULE.sub(named, rule)


# -- the forms of a text


def _overrides(text: str) -> _Overrides:
    lines = [line for line in text.splitlines() if line.strip() and line.lstrip()[0] != "#"]
    if lines and all(map(_ASSIGNMENT.fullmatch, lines)):
        pairs = (match.groups() for line in lines if (match := _ASSIGNMENT.fullmatch(line)))
        return _joined((_without_object(name), value) for name, value in pairs)
    if lines and all(map(_YAML_LINE.fullmatch, lines)):
        return _joined((name, str(value)) for name, value in flat(read_document(text)))
    command = split_command(text)
    found = _joined(_pairs(command.words))
    found.environment.update(command.environment)
    found.reservations += map(Reservation.of_branch, command.in_branches)
    found.num_ranks = found.num_ranks or command.num_ranks
    return found


def _without_object(name: str) -> str:
    """An assigned attribute without the variable of the configuration: cfg.model.x is model.x."""
    first, _, rest = name.partition(".")
    known = {*sections(), "trainer", "data", "optim", "model", "env_vars", "peft"}
    return rest if first not in known and rest.partition(".")[0] in known else name


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Overrides and options of a command line. An option without a value is true."""
    waiting: str | None = None
    for word in words:
        override = _OVERRIDE.fullmatch(word)
        if waiting is not None and (override or word.startswith("-")):
            yield waiting, "True"
            waiting = None
        if override:
            yield override.group(1), override.group(2)
        elif word.startswith("-"):
            name, has_value, value = word.lstrip("-").partition("=")
            name = name.replace("-", "_")
            waiting = None if has_value else name
            if has_value:
                yield name, value
        elif waiting is not None:
            yield waiting, word
            waiting = None
        else:
            require_arguments_defined(word)
            yield "", word
    if waiting is not None:
        yield waiting, "True"


def _joined(pairs: Iterable[tuple[str, str]]) -> _Overrides:
    found = _Overrides()
    others: dict[str, str] = {}
    for written, value in pairs:
        name = _field_of_option(written)
        if name.startswith("env_vars."):
            found.environment[name.removeprefix("env_vars.")] = value
        elif name in _SCHEMES:
            made = fields_of_scheme(value).items()
            found.fields |= {field: _text(field, text) for field, text in made}
        elif name in _RECIPES:
            found.recipe = f"{found.recipe or ''} {name} {value}".strip()
        elif "." in name or name == "mixed_precision":
            found.fields[name] = _text(name, value)
        elif name in _OPTIONS_OF_RUNS:
            others[name] = value
        elif not _is_harmless_option(name):
            found.reservations.append(_unknown_option(name, value))
    _take_run(found, others)
    return found


def _is_harmless_option(name: str) -> bool:
    return name in _HARMLESS_OPTIONS or megatron_fields.is_harmless(f"--{name.replace('_', '-')}")


def _field_of_option(name: str) -> str:
    """The dotted field that an option or a field of NeMo sets; the name itself where there is
    none."""
    for before, after in _MOVED:
        if name == before or (before.endswith(".") and name.startswith(before)):
            return _field_of_option(after + name.removeprefix(before))
    if "." in name:
        return name
    if name in _OPTIONS:
        return _OPTIONS[name]
    argument = field_of_argument(name)
    return argument if is_field(argument) else name


def _text(name: str, value: str) -> str:
    """A value as Megatron dumps it. Where it changes nothing it may be a variable that the text
    does not define."""
    if not _is_harmless(name, argument_of_field().get(name, ""), value):
        require_defined(name, value)
    text = value.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    plain = {"null": "None", "none": "None", "true": "True", "false": "False"}
    if name == "model.moe_router_load_balancing_type" or name.endswith("_impl"):
        return text
    if text.lower() in plain:
        return plain[text.lower()]
    if re.fullmatch(r"[\[(]\s*[A-Za-z_][\w\s,'\"]*[\])]", text, re.ASCII):
        return str(re.findall(r"\w+", text, re.ASCII))
    return text


def _take_run(found: _Overrides, options: Mapping[str, str]) -> None:
    """What options, and a trainer of NeMo, say of the number of ranks and the precision."""
    if options.get("num_gpus", "").isdecimal():
        found.num_ranks = int(options["num_gpus"])
    nodes = found.fields.pop("trainer.num_nodes", "")
    devices = found.fields.pop("trainer.devices", "")
    if nodes.isdecimal() and devices.isdecimal():
        found.num_ranks = int(nodes) * int(devices)
    dtype = options.get("compute_dtype")
    if dtype is None:
        return
    if dtype.lower() not in _DTYPES:
        raise Invalid(PATH, f"compute_dtype {dtype[:80]}", f"must be one of {', '.join(_DTYPES)}")
    found.fields["mixed_precision"] = _DTYPES[dtype.lower()]


# -- values by argument


def _values(found: _Overrides) -> dict[str, str]:
    """The overrides as arguments of Megatron-LM, with what recipes set for all that is left out."""
    arguments = argument_of_field()
    given = {arguments[name]: value for name, value in found.fields.items() if name in arguments}
    for sequence in ("dataset.seq_length", "model.seq_length"):
        if sequence in found.fields:
            given["seq_length"] = found.fields[sequence]
    given |= _precision(found)
    ties = found.fields.get("model.share_embeddings_and_output_weights")
    if ties is not None:
        given["untie_embeddings_and_output_weights"] = str(ties == "False")
    if given.get("num_query_groups", "None") != "None":
        given["group_query_attention"] = "True"
    if found.fields.get("dist.use_megatron_fsdp") == "True":
        given["use_megatron_fsdp"] = "True"
    if given.get("pipeline_model_parallel_layout", "None") != "None":
        given.pop("num_virtual_stages_per_pipeline_rank", None)
    if found.num_ranks:
        given["world_size"] = str(found.num_ranks)
    return {**megatron_fields.defaults(), **_BASE, **_old_names(found), **given}


def _old_names(found: _Overrides) -> dict[str, str]:
    """Fields of NeMo 1 whose names other versions of Megatron had (formats.megatron.versions)."""
    names = {name: name.removeprefix("model.") for name in found.fields if not is_field(name)}
    return {
        old: found.fields[name]
        for name, old in names.items()
        if old.startswith("activations_checkpoint_")
    }


def _precision(found: _Overrides) -> dict[str, str]:
    """The number formats that a mixed precision sets, by its name or field by field."""
    name = found.fields.get("mixed_precision")
    values: dict[str, str] = {}
    if name == "None":
        values = {"bf16": "False", "fp16": "False"}
    elif name is not None:
        key = name.removesuffix("()").replace("-", "_")
        named = PRECISIONS.get({"16_mixed": "fp16_mixed"}.get(key, key))
        if named is None:
            rule = f"must be one of {', '.join(PRECISIONS)}"
            near = difflib.get_close_matches(key, PRECISIONS, n=1)
            rule += f"; did you mean {near[0]}?" if near else ""
            raise Invalid(PATH, f"mixed_precision={name[:80]}", rule)
        values = {"bf16": "False", **named}
    if found.fields.get("mixed_precision.fp16") == "True":
        values["bf16"] = "False"
    for field_name in ("bf16", "fp16", "fp8", "fp8_recipe", "fp4", "fp4_recipe"):
        stated = found.fields.get(f"mixed_precision.{field_name}")
        if stated is not None:
            values[field_name] = stated
    return {name: value for name, value in values.items() if name in megatron_fields.defaults()}


def _without_part_of_model(given: Arguments) -> Arguments:
    """The arguments without a shape that is said in part: the recipe has the rest of it."""
    if all(given.word(name) for name in _MODEL):
        return given
    shape = {name: "None" for name in _MODEL if name != "num_layers"}
    return Arguments({**given.values, **shape}, given.flags)


def _switches(found: _Overrides) -> dict[str, Any]:
    """The switches that are set, by their fields. A mixed precision and the configuration of
    overlaps go before what is said elsewhere."""
    names = megatron_fields.switch_names(NAME)
    switches = {**_BASE_SWITCHES, **_named_precision(found)}
    switches |= {name: found.fields[name] for name in names if name in found.fields}
    for name in _OVERLAPS:
        stated = found.fields.get(f"comm_overlap.{name}", "None")
        if stated != "None":
            switches[f"ddp.{name}"] = stated
    if found.fields.get("mixed_precision", "None") != "None":
        switches |= _named_precision(found)
    in_fp32 = found.fields.get("mixed_precision.grad_reduce_in_fp32")
    if in_fp32 is not None:
        switches[_IN_FP32] = in_fp32
    gathers = found.fields.get("mixed_precision.fp4_param_gather")
    if gathers is not None:
        switches["mixed_precision.fp8_param_gather"] = gathers
    return switches


def _named_precision(found: _Overrides) -> dict[str, Any]:
    """What the mixed precision that is named sets of switches."""
    key = found.fields.get("mixed_precision", "bf16_mixed").replace("-", "_").removesuffix("()")
    named = PRECISIONS.get(key, {})
    return {
        _IN_FP32: named.get("grad_reduce_in_fp32", "True"),
        "mixed_precision.fp8_param_gather": named.get("fp8_param_gather", "False"),
    }


# -- what is not read


def _unknown_option(name: str, value: str) -> Reservation:
    return Reservation(
        setting=f"{name} {value}".strip(),
        reason="it is no option of the launch scripts, and no field",
        cure="leave it out if it changes nothing, or write the field that it sets",
    )


def _sorted_out(given: Arguments, found: _Overrides) -> SortedSettings:
    """What was given, by what it means for an answer."""
    reservations = [*found.reservations]
    if found.recipe is not None:
        reservations.append(
            Reservation(
                setting=found.recipe,
                reason="what the recipe sets itself is not known",
                cure="write as overrides what it sets of parallelism, precision and recompute",
                is_open=True,
            )
        )
    if given.word("micro_batch_size") is None:
        reservations.append(
            Reservation(
                setting="train.micro_batch_size",
                reason="it is not said: the recipe has it",
                cure="write it as an override",
            )
        )
    no_account = []
    for name, value in found.fields.items():
        reservation = _reservation(name, value, given)
        if reservation is not None:
            reservations.append(reservation)
        elif not _is_read(name, argument_of_field().get(name, "")):
            no_account.append(shown(name, value))
    return SortedSettings(
        reservations=tuple(reservations), warnings=(), stops=(), no_account=tuple(no_account)
    )


def _reservation(name: str, value: str, given: Arguments) -> Reservation | None:
    """Why a field that is set is not taken into account; None where it is, or changes nothing."""
    argument = argument_of_field().get(name, "")
    written = shown(name, value)
    if name in megatron_fields.switch_names(NAME) or _is_read(name, argument):
        if argument in _MODEL and not all(map(given.word, _MODEL)):
            reason = "the recipe has the rest of the model"
            cure = "describe the model beside the launch, as `model`"
            return Reservation(setting=written, reason=reason, cure=cure, answered_by="model")
        words = half_read(argument, given)
        if words is None:
            return None
        reason, cure = map(_in_fields, words)
        return Reservation(setting=written, reason=reason, cure=cure)
    if _is_harmless(name, argument, value):
        return None
    if name.startswith(_ENCODERS):
        return Reservation(
            setting=written,
            reason="it is of an encoder, which is not read",
            cure="describe it beside the launch, as model.encoder",
            answered_by="model",
        )
    if name == _PACKING:
        reason = "attention then does not cross documents, whose lengths are not known"
        return Reservation(setting=written, reason=reason, cure="leave it out")
    known = megatron_fields.table().field(flag_of_argument().get(argument, ""))
    if is_field(name) and known is not None:
        return Reservation(
            setting=written, reason=known.reason, cure=known.cure, answered_by=known.answered_by
        )
    near = None if is_field(name) else nearest(name, _field_names())
    cure = f"did you mean {near}?" if near else GIVE_FIELDS
    is_known = "it is not described here" if is_field(name) else f"{FRAMEWORK} has no such field"
    return Reservation(setting=written, reason=is_known, cure=cure)


@cache
def _field_names() -> tuple[str, ...]:
    return tuple(f"{section}.{name}" for section, names in sections().items() for name in names)


def _is_read(name: str, argument: str) -> bool:
    others = {
        "mixed_precision", "dataset.seq_length", "model.seq_length", "dist.use_megatron_fsdp",
        "model.share_embeddings_and_output_weights", "model.cpu_offloading",
        "mixed_precision.grad_reduce_in_fp32", "mixed_precision.fp4_param_gather",
        "optimizer.use_distributed_optimizer", "optimizer.bf16", "optimizer.fp16",
        "model.bf16", "model.fp16",
        "mixed_precision.reuse_grad_buf_for_mxfp8_param_ag",
        *(f"comm_overlap.{overlap}" for overlap in _OVERLAPS), *READ_OF_ADAPTERS,
    }  # fmt: skip
    formats = name.removeprefix("mixed_precision.") in ("bf16", "fp16", "fp8", "fp8_recipe", "fp4")
    is_old = name.startswith("model.activations_checkpoint_")
    return name in others or is_old or formats or megatron_fields.is_read(argument)


def _is_harmless(name: str, argument: str, value: str) -> bool:
    section, _, rest = name.partition(".")
    if name.startswith(_ENCODERS):
        return False
    if name == _PACKING:
        return value == "False"  # documents that attention does not cross
    if section in _HARMLESS or name in HARMLESS_OF_ADAPTERS:
        return True
    if section == "peft" and value == "None":
        return True
    default = sections().get(section, {}).get(rest)
    if is_field(name) and str(default) == value:
        return True
    flag = flag_of_argument().get(argument or rest, "")
    if not flag:
        return False
    return megatron_fields.is_harmless(flag) or megatron_fields.is_as_predicted(flag, value)
