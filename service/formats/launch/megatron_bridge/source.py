"""The forms that settings of Megatron-Bridge and NeMo 2 are sent in: overrides of a recipe
(model.x=4), assignments of Python (cfg.model.x = 4), options of launch scripts (-tp 4), or YAML.

A *recipe* is a function that returns a whole configuration, which a launch overrides in part. A
*reservation* is a remark that a setting could matter and is not taken into account.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from service.formats.launch.documents import read_settings
from service.formats.launch.job import Changes
from service.formats.launch.megatron_bridge.adapters import fields_of_scheme
from service.formats.launch.megatron_bridge.fields import field_of_argument, table
from service.formats.launch.trainer.models import named_model
from service.formats.megatron import flags as megatron_flags
from service.formats.settings.reservation import Reservation
from service.formats.settings.settings import Settings
from service.formats.shell.command import split_command
from service.formats.shell.faults import invalid_launch, require_arguments_defined, require_defined
from service.formats.shell.files import LaunchFiles
from service.formats.shell.launchers import positive_integer

_ASSIGNMENT = re.compile(r"\s*([A-Za-z_]\w*(?:\.\w+)+)\s+=\s+(\S.*?)\s*(?:#.*)?", re.ASCII)
_YAML_LINE = re.compile(r"\s*(-\s.*|[A-Za-z_][\w.-]*\s*:(\s.*)?)", re.ASCII)
_OVERRIDE = re.compile(r"[+~]{0,2}([A-Za-z_]\w*(?:\.\w+)*)=(.*)", re.ASCII | re.DOTALL)
_NUMBER = re.compile(r"-?\d{1,15}", re.ASCII)
_FRACTION = re.compile(r"-?\d{0,15}\.?\d{1,15}(e-?\d{1,2})?", re.ASCII)
_PYTHON_CONSTANTS = {"True": True, "False": False, "None": None}
_NEMO = "nemo llm"
_OPTIONS_OF_RUNS = ("num_gpus", "gpus_per_node", "compute_dtype")
_RECIPE_OPTIONS = (
    "recipe", "model_name", "model_family_name", "model_recipe_name", "m", "s", "model_size",
    "factory", "f", "config_name",
)  # fmt: skip
_RECIPE = re.compile(
    r"(?P<model>\w{1,99}?)(?:_(?:pretrain|finetune|sft|peft|lora)\w{0,99})?(?:\(.{0,999}\))?",
    re.ASCII,
)
"""The name of a recipe, which begins with that of its model, and may be called like a function."""
_COUNT_OF_RECIPE = re.compile(r"\b(num_nodes|num_gpus_per_node)=(\d{1,6})\b", re.ASCII)
"""The arguments by which a recipe of NeMo 2 gets its ranks, where it is called."""
_JOINED_VERSION = re.compile(r"^(llama|qwen)(\d)(\d)(?=_)", re.ASCII)
_PEFT_OPTIONS = ("peft_scheme", "peft", "peft._target_")
"""Options, and a key of YAML, that name what makes adapters."""


@dataclass(slots=True)
class Overrides:
    """The settings of a launch of Megatron-Bridge or NeMo, with what is said beside them."""

    settings: Settings
    """By dotted field."""
    environment: dict[str, str] = field(default_factory=dict)
    num_ranks: int | None = None
    """The ranks that the launch script's options or NeMo's trainer give, else the command."""
    recipe: str | None = None
    """The recipe that is overridden, as it was written."""

    @property
    def model(self) -> str | None:
        """Returns the catalogue's name for the model of the recipe: "llama-3-8b" for "recipe
        llama3_8b_pretrain_config". None where the catalogue has no such model."""
        words = (self.recipe or "").split()
        values = dict(zip(words[::2], words[1::2], strict=False))
        # The name of a recipe has that of its family in it.
        name = values.get("model_recipe_name")
        # The values alone, each of which stands behind its option: "m llama3 s 8b" -> "llama3_8b".
        match = _RECIPE.fullmatch("_".join(values.values()) if name is None else name)
        if match is None:
            return None
        # The catalogue has a period in versions: "llama31_8b" -> "llama3.1_8b".
        return named_model("recipe", _JOINED_VERSION.sub(r"\1\2.\3", match["model"])).id

    @property
    def texts(self) -> dict[str, str]:
        """Returns the settings with values as Megatron prints them: "True", "None", "4"."""
        return {name: str(value) for name, value in self.settings.given.items()}

    def change(self, changes: Changes) -> None:
        """Replaces the values of some settings; None removes one."""
        values = {
            name: None if value is None else _typed_value(name, str(value))
            for name, value in changes.items()
        }
        self.settings.change(values)


def read_overrides(text: str, files: LaunchFiles) -> Overrides:
    """Returns the settings of a text, which is Python assignments (cfg.model.x = 4), YAML or a
    command line."""
    lines = [line for line in text.splitlines() if line.strip() and line.lstrip()[0] != "#"]
    if lines and all(map(_ASSIGNMENT.fullmatch, lines)):
        pairs = (match.groups() for line in lines if (match := _ASSIGNMENT.fullmatch(line)))
        return _overrides_of((_without_object(name), value) for name, value in pairs)
    if lines and all(map(_YAML_LINE.fullmatch, lines)):
        return _overrides_of((name, str(value)) for name, value in read_settings(text).items())
    command = split_command(text, files)
    starts_nemo = command.program == _NEMO  # its first argument is a verb, such as pretrain
    overrides = _overrides_of(_pairs_in(command.words[1:] if starts_nemo else command.words))
    overrides.environment.update(command.environment)
    for assignment in command.in_branches:  # of a script, which may or may not have run
        overrides.settings.note(Reservation.of_branch(assignment))
    overrides.num_ranks = overrides.num_ranks or command.num_ranks
    return overrides


def _without_object(name: str) -> str:
    """Returns the name of an assigned attribute without the configuration's variable: "model.x"
    for "cfg.model.x"."""
    variable, _, attribute = name.partition(".")
    sections = {field.partition(".")[0] for field in table().fields}
    sections |= {"trainer", "data", "optim", "env_vars"}  # of NeMo 2
    has_variable = variable not in sections and attribute.partition(".")[0] in sections
    return attribute if has_variable else name


def _pairs_in(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields the overrides and options of a command line with their values: ("model.tp", "2")
    and ("num_gpus", "8") for model.tp=2 --num-gpus 8. An option without a value has "True". A
    word that belongs to no option has the name ""."""
    option: str | None = None  # whose value may be the next word
    for word in words:
        override = _OVERRIDE.fullmatch(word)
        if option is not None and (override or word.startswith("-")):
            yield option, "True"
            option = None
        if override:
            yield override.group(1), override.group(2)
        elif word.startswith("-"):
            name, has_value, value = word.lstrip("-").partition("=")
            name = name.replace("-", "_")
            option = None if has_value else name
            if has_value:
                yield name, value
        elif option is not None:
            yield option, word
            option = None
        else:
            require_arguments_defined(word)
            yield "", word
    if option is not None:
        yield option, "True"


def _overrides_of(pairs: Iterable[tuple[str, str]]) -> Overrides:
    """Returns the overrides that options and fields make: ("tp", "4") sets
    model.tensor_model_parallel_size. Adds reservations for names that are neither."""
    overrides = Overrides(Settings(table()))
    run_options: dict[str, str] = {}
    for option, text in pairs:
        name = _field_of_option(option)
        if name.startswith("env_vars."):
            overrides.environment[name.removeprefix("env_vars.")] = text
        elif name in _PEFT_OPTIONS:
            for field_name, value in fields_of_scheme(text).items():
                overrides.settings.put(field_name, _typed_value(field_name, value))
        elif name in _RECIPE_OPTIONS:
            # Several options may name it together: "m llama3 s 8b".
            call = text.replace(" ", "")  # llama3_8b(num_nodes=4, num_gpus_per_node=8)
            overrides.recipe = f"{overrides.recipe or ''} {name} {call}".strip()
        elif "." in name or name == "mixed_precision":
            overrides.settings.put(name, _typed_value(name, text))
            if "." in option and option != name:  # NeMo's name for it
                overrides.settings.written[name] = f"{option}={text}"
        elif name in _OPTIONS_OF_RUNS:
            run_options[name] = text
        elif not _is_of_no_account(name):
            reason = "it is no option of the launch scripts, and no field"
            cure = "leave it out if it changes nothing, or write the field that it sets"
            overrides.settings.add_text_reservation(f"{name} {text}".strip(), reason, cure)
    _apply_run_options(overrides, run_options)
    return overrides


def _is_of_no_account(option: str) -> bool:
    """Returns True for an option that changes neither time nor memory, such as one for logging."""
    is_flag = megatron_flags.table().is_of_no_account(f"--{option.replace('_', '-')}")
    return is_flag or option in table().facts["options_of_no_account"]


def _field_of_option(name: str) -> str:
    """Returns the dotted field that an option of a launch script, or a field of NeMo, stands for:
    "model.tensor_model_parallel_size" for "tp". Returns the name itself where it is unknown, as
    the caller then adds a reservation."""
    # "trainer.strategy." has become "model."; its new name may have moved again.
    for old_name, new_name in table().facts["moved"]:
        if name == old_name or (old_name.endswith(".") and name.startswith(old_name)):
            return _field_of_option(new_name + name.removeprefix(old_name))
    if "." in name:
        return name
    field_name: str = table().facts["options"].get(name) or field_of_argument(name)
    is_known = field_name in table().fields or field_name in _OPTIONS_OF_RUNS
    return field_name if is_known else name


def _typed_value(name: str, text: str) -> Any:
    """Returns the value of a field by type: 4 for "4", None for "null". Raises Invalid for a
    shell variable without a value, unless the field changes neither time nor memory."""
    text = _megatron_text(name, text)
    if text in _PYTHON_CONSTANTS and not _takes_the_word_none(name):
        return _PYTHON_CONSTANTS[text]
    if _NUMBER.fullmatch(text):
        return int(text)
    return float(text) if _FRACTION.fullmatch(text) else text


def _takes_the_word_none(name: str) -> bool:
    """Returns True for a field in which "none" is a word of its own, and does not mean None."""
    return name == "model.moe_router_load_balancing_type" or name.endswith("_impl")


def _megatron_text(name: str, text: str) -> str:
    """Returns a value as Megatron prints it: "True" for true, "['mlp', 'moe']" for [mlp, moe].
    Raises Invalid for an undefined shell variable, unless the field changes neither time nor
    memory."""
    if not table().is_of_no_account(name):
        require_defined(name, text)
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    if _takes_the_word_none(name):  # "none" is one of its values, and does not mean None
        return text
    plain = {"null": "None", "none": "None", "true": "True", "false": "False"}
    if text.lower() in plain:
        return plain[text.lower()]
    if re.fullmatch(r"[\[(]\s*[A-Za-z_][\w\s,'\"]*[\])]", text, re.ASCII):
        return str(re.findall(r"\w+", text, re.ASCII))
    return text


def _apply_run_options(overrides: Overrides, options: Mapping[str, str]) -> None:
    """Sets the number of ranks, and the mixed precision, by the launch script's options or
    NeMo's trainer. Raises Invalid for an unknown compute_dtype."""
    overrides.num_ranks = positive_integer(options.get("num_gpus")) or overrides.num_ranks
    counts = dict(_COUNT_OF_RECIPE.findall(overrides.recipe or ""))
    if len(counts) == 2:
        overrides.num_ranks = math.prod(map(int, counts.values()))
    # Fields of NeMo's trainer. They are read here, and must not be listed as settings that are not.
    nodes = overrides.settings.given.pop("trainer.num_nodes", None)
    devices = overrides.settings.given.pop("trainer.devices", None)
    if isinstance(nodes, int) and isinstance(devices, int):
        overrides.num_ranks = nodes * devices
    dtype = options.get("compute_dtype")
    if dtype is None:
        return
    precision_of = table().facts["dtypes"]
    if dtype.lower() not in precision_of:
        rule = f"must be one of {', '.join(precision_of)}"
        raise invalid_launch(f"compute_dtype {dtype[:80]}", rule)
    overrides.settings.put("mixed_precision", precision_of[dtype.lower()])
