"""Reads what a text launches: the tool, its settings, and those of the launcher around it.

A *dialect* is the tool whose names the settings have, such as axolotl; that of plain scripts is
"transformers". A *document* is a text in YAML or JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from models.errors import Invalid
from service.formats.launch.accelerate.launcher import launcher_settings, stops_of
from service.formats.launch.documents import read_settings, sent_settings
from service.formats.launch.trainer.arguments import documents_in, flags_of, settings_of
from service.formats.launch.trainer.command import Started, started_program
from service.formats.launch.trainer.objectives import objective_in_name
from service.formats.settings.field_table import field_table
from service.formats.settings.reservation import Reservation
from service.formats.settings.stop import Stop
from service.formats.shell.command import files_of, split_command
from service.formats.shell.faults import invalid_launch
from service.formats.shell.files import LaunchFiles
from service.formats.shell.launchers import positive_integer
from service.formats.shell.programs import base_name, option_name
from service.formats.shell.ranks import VISIBLE, visible_devices

_DEEPSPEED_MARKS = ("zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu")
_TRAINER_MARKS = ("model_name_or_path", "per_device_train_batch_size", "learning_rate")
_SWIFT = re.compile(r"swift[./]cli[./](?:sft|pt|rlhf)", re.ASCII)
_FACTORY = re.compile(r"llamafactory[./]\S{0,99}(?:launcher|cli)\b", re.ASCII)
_TRL = re.compile(
    r"\btrl[./]scripts[./]|(?:^|/)examples/scripts/(?:sft|dpo|kto|orpo|cpo)\.py$", re.ASCII
)
_FACTORY_MARKS = ("finetuning_type", "stage", "cutoff_len", "quantization_bit", "lora_target")
_OF_TRAINER = ("transformers", "trl")
_DIALECTS_OF_TOOLS = {
    "axolotl": "axolotl",
    "llamafactory-cli": "llama_factory",
    "lmf": "llama_factory",
    "trl": "trl",
    "swift": "ms_swift",
    "megatron": "megatron_swift",
}
_OF_AXOLOTL = ("launcher", "cloud", "sweep", "shard", "prompter", "debug_text_only",
    "debug_num_examples")  # fmt: skip
"""Flags of axolotl's command line that are no settings of its document."""
_YAML = re.compile(r"(?:\s|#[^\n]*\n)*+[A-Za-z_][\w.-]*:\s", re.ASCII)
"""A text that begins with a key."""
_PYTHON = re.compile(r"^(?:from [\w.]+ import |import \w)", re.ASCII | re.MULTILINE)


@dataclass(slots=True, kw_only=True)
class Launched:
    """A training that a text starts, or the document that it takes."""

    launcher_name: str | None = None
    """accelerate, deepspeed or torchrun, where a command says it."""
    dialect: str
    """The tool whose names the settings have: axolotl, llama_factory, llama_factory_v1, ms_swift,
    megatron_swift, trl, transformers, or deepspeed for a document alone."""
    settings: dict[str, Any]
    """By dotted names, as they were written."""
    launcher: dict[str, Any] = field(default_factory=dict)
    """The settings of `accelerate launch`, in the names of its document."""
    launcher_document: dict[str, Any] = field(default_factory=dict)
    """The settings of accelerate's document that no flag of `accelerate launch` replaces."""
    files: LaunchFiles
    is_command: bool = False
    """A command was sent, not only a document."""
    num_devices: int | None = None
    """Ranks that the command starts; None where it does not say."""
    objective: str | None = None
    """The objective of training, where a command names it: the method that the tool was told to
    run, such as dpo, or the one in the name of the program."""
    program: str = ""
    """The command as it was typed, without arguments."""
    reservations: list[Reservation] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    """The reasons at which the launcher stops."""


def launched_in(text: str, sent: LaunchFiles, default_dialect: str = "transformers") -> Launched:
    """Returns the training that a text starts, such as "accelerate launch train.py --bf16", or
    that a document sets up. A document of no known tool counts as one of `default_dialect`. Raises
    Invalid where the text is neither a document nor a command."""
    document = _settings_of_document(text)
    if document is not None:
        return Launched(
            dialect=_dialect_of(document, default_dialect), settings=document, files=sent
        )
    command = started_program(text, sent)
    if command is not None:
        return _launched_by(command, command.command.files)
    files = files_of(text, sent)
    # The text starts no training: the one file that it writes, or that was sent, may set one up.
    only = files.only_text()
    if only is not None:
        settings = read_settings(only)
        return Launched(
            dialect=_dialect_of(settings, default_dialect), settings=settings, files=files
        )
    if _YAML.match(text):
        read_settings(text)  # raises Invalid, saying what is wrong with the document
    rule = "is neither a document nor a command that trains: send the file or the line that does"
    if _PYTHON.search(text):
        rule = (
            "is a program in Python, which is not run here: give its arguments as flags of a"
            " command (--per_device_train_batch_size 4), as YAML, or as fields of the request"
        )
    raise invalid_launch(text[:80], rule)


def _settings_of_document(text: str) -> dict[str, Any] | None:
    """Returns the settings of a JSON or YAML text by dotted name; None for a script. Raises
    Invalid for a text that is neither."""
    try:
        settings = read_settings(text)
        # A command with JSON in it, such as --x '{"a": 1}', passes for YAML: a name is then what
        # stands in front of the colon.
        has_words = any(" " in name for name in settings)
        return None if has_words and _is_script(text) else settings
    except Invalid:
        # A text that begins with a brace is faulty JSON, and no script.
        if text.lstrip()[:1] in ("{", "") or not _is_script(text):
            raise
        return None


def _is_script(text: str) -> bool:
    """Returns True for a shell script, and False for a document: a script starts a program or
    writes a file, or has a fault in its shell syntax."""
    if "<<" in text:
        return True
    try:
        return split_command(text).program is not None
    except Invalid:  # the caller then raises it, as it says what is wrong with the script
        return True


def _dialect_of(settings: Mapping[str, Any], default_dialect: str = "transformers") -> str:
    """Returns the tool that a document is for, by settings that only this tool has;
    `default_dialect` where none tell."""
    names = settings.keys()
    roots = {name.partition(".")[0] for name in names}  # "fsdp_config" of fsdp_config.x
    if "base_model" in names:
        return "axolotl"
    if "model" in names and roots & {"dist_config", "model_class", "peft_config", "kernel_config"}:
        return "llama_factory_v1"
    if any(name in names for name in _FACTORY_MARKS):
        return "llama_factory"
    if {"micro_batch_size", "sequence_len"} & names:
        return "axolotl"
    if "model" in names and {"tuner_type", "train_type", "dataset"} & names:
        return "ms_swift"
    if roots & {"distributed_type", "fsdp_config", "mixed_precision", *_TRAINER_MARKS}:
        return "transformers"
    return "deepspeed" if roots & {*_DEEPSPEED_MARKS} else default_dialect


def _launched_by(command: Started, files: LaunchFiles) -> Launched:
    """Returns the training that a command starts, with the settings in the files that it names."""
    dialect = _dialect_of_program(command)
    arguments = command.arguments
    program = command.program
    method = objective_in_name(program) if dialect in _OF_TRAINER else None
    if base_name(program) in _DIALECTS_OF_TOOLS:  # `trl dpo …`, `axolotl train …`
        method, arguments = arguments[0], arguments[1:]
        program = f"{program} {method}"
    launched = Launched(
        dialect=dialect,
        settings={},
        files=files,
        objective=method,
        program=program,
        launcher_name=command.launcher,
        is_command=True,
    )
    launcher_arguments: tuple[str, ...] = ()
    if command.launcher is None:
        arguments, launcher_arguments = _split_at_launcher(arguments, dialect)
    launched.settings = _settings_of_arguments(arguments, launched)
    launched.settings.pop("launcher", None)  # read below, and no setting of the training
    # axolotl starts the launcher that --launcher names, with the arguments behind `--`.
    launcher_of_tool = settings_of(arguments).get("launcher", "accelerate")
    if dialect == "transformers":
        # A plain script that takes settings of DeepSpeed as arguments remains a plain script.
        dialect_of_settings = _dialect_of(launched.settings)
        launched.dialect = dialect if dialect_of_settings == "deepspeed" else dialect_of_settings
    if command.launcher == "accelerate":
        _put_settings_of_launcher(command, launched)
    if launcher_arguments and launcher_of_tool == "accelerate":
        launched.launcher |= launcher_settings(launcher_arguments)
    launched.num_devices = _num_devices(command, launcher_arguments)
    if dialect == "ms_swift" and command.launcher is None:
        _note_one_process(command, launched)
    launched.reservations += map(Reservation.of_branch, command.command.in_branches)
    return launched


def _settings_of_arguments(arguments: Sequence[str], launched: Launched) -> dict[str, Any]:
    """Returns the settings of arguments and of the files that they name; flags override files."""
    settings: dict[str, Any] = {}
    flags = settings_of(arguments)
    documents = {name: name for name in documents_in(arguments)}
    for flag in ("config", "config_file"):
        file = flags.get(flag)
        # For axolotl --config names no file of settings: its file stands in front of all flags.
        if isinstance(file, str) and launched.dialect != "axolotl":
            documents[file] = f"--{flag} {flags.pop(flag)}"
    for file, setting in documents.items():
        settings |= sent_settings(file, setting, launched.files, launched.reservations)
    return settings | flags


def _split_at_launcher(
    arguments: tuple[str, ...], dialect: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the arguments of the tool, and those of its launcher. axolotl hands on what stands
    behind `--`, and flags that it does not have itself (0.19.0 cli/main.py, train). Other tools
    hand on nothing."""
    if dialect != "axolotl":
        return arguments, ()
    end = arguments.index("--") if "--" in arguments else len(arguments)
    own: list[str] = []
    handed_on: list[str] = []
    words = own
    for word in arguments[:end]:
        if word.startswith("--"):
            name = option_name(word)
            is_own = name in _OF_AXOLOTL or field_table("axolotl").field(name) is not None
            words = own if is_own else handed_on
        words.append(word)
    return tuple(own), (*handed_on, *arguments[end + 1 :])


def _dialect_of_program(command: Started) -> str:
    """Returns the tool whose settings the arguments of a program are: "axolotl", "trl", …;
    "transformers" for any other script."""
    name = base_name(command.program)
    if name in _DIALECTS_OF_TOOLS:
        return _DIALECTS_OF_TOOLS[name]
    if command.program.startswith("axolotl."):
        return "axolotl"
    if _SWIFT.search(command.program):
        return "ms_swift"
    if _FACTORY.search(command.program):
        return "llama_factory"
    return "trl" if _TRL.search(command.program) else "transformers"


def _put_settings_of_launcher(command: Started, launched: Launched) -> None:
    """Sets the settings of `accelerate launch`: those of its flags, and else of its document."""
    flags = launcher_settings(command.launcher_words)
    launched.stops += stops_of(command.launcher_words)
    file = flags.pop("config_file", None)
    if file is not None:
        setting = f"--config_file {file}"
        document = sent_settings(str(file), setting, launched.files, launched.reservations)
        launched.launcher_document = {
            name: value for name, value in document.items() if name not in flags
        }
    launched.launcher = {**launched.launcher_document, **flags}


def _num_devices(command: Started, launcher_arguments: Sequence[str]) -> int | None:
    """Returns the number of ranks that the launcher starts; None where the ranks of a node, or
    the hosts of a hostfile, are not known. `launcher_arguments` are those that axolotl hands to
    its launcher. A launch without a number of nodes has one, as torchrun and deepspeed start it."""
    shell = command.command
    if shell.num_ranks is not None:
        return shell.num_ranks
    environment = shell.environment
    of_torchrun = flags_of(launcher_arguments)
    per_node = positive_integer(of_torchrun.get("nproc_per_node")) or shell.nproc_per_node
    per_node = per_node or positive_integer(environment.get("NPROC_PER_NODE"))
    # Without a number, ranks are started on the devices that the environment makes visible.
    per_node = per_node or visible_devices(environment)
    nodes = shell.nnodes or positive_integer(of_torchrun.get("nnodes"))
    nodes = nodes or positive_integer(environment.get("NNODES"))
    has_hosts = any(word.startswith(("--hostfile", "-H")) for word in command.launcher_words)
    if per_node is None or (nodes is None and has_hosts):
        return None
    return per_node * (nodes or 1)


def _note_one_process(command: Started, launched: Launched) -> None:
    """Adds a reservation for several devices that ms-swift gives to one process, or a stop where
    that is to use DeepSpeed. It does so unless a variable tells it to start a process on each
    (cli/main.py, use_torchrun; arguments/sft_args.py, _init_deepspeed)."""
    environment = command.command.environment
    devices = visible_devices(environment) or 1
    starts_more = environment.keys() & {"NPROC_PER_NODE", "NNODES"}
    if devices == 1 or starts_more or command.command.num_ranks is not None:
        return
    reason = (
        "one process spreads the layers over these devices, one at work at a time, as"
        " NPROC_PER_NODE is not set"
    )
    cure = f"write NPROC_PER_NODE={devices} in front, for a process on each"
    if launched.settings.get("deepspeed") is None:
        setting = f"{VISIBLE} = {environment[VISIBLE]}"
        launched.reservations.append(Reservation(setting=setting, reason=reason, cure=cure))
        return
    launched.stops.append(
        Stop(
            setting=VISIBLE,
            value=environment[VISIBLE],
            rule=f"{reason}, which does not go with DeepSpeed: {cure}",
            source="ms-swift 4.6.0: arguments/sft_args.py, _init_deepspeed",
            cure=f"NPROC_PER_NODE={devices}",
            hides_layout=True,
        )
    )
