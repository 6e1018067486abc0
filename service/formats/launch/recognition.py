"""Recognises the format of a launch text by the program that it starts, or else by the names of its
settings, so that a request need not name it. A *format* is one framework's way of being told what
to run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from models.errors import Invalid
from models.spec import catalogue
from models.spec.switches import switches_of
from service.formats.launch.documents import read_settings, read_toml
from service.formats.launch.knob_settings import KNOB_SETTINGS
from service.formats.launch.maxtext.writer import TABLE as MAXTEXT_TABLE
from service.formats.launch.megatron_bridge.fields import table as bridge_table
from service.formats.launch.torchtitan.writer import TABLE as TORCHTITAN_TABLE
from service.formats.megatron.flags import flag_of_argument
from service.formats.megatron.flags import table as megatron_table
from service.formats.settings.field_table import field_table
from service.formats.shell.command import Command, split_command
from service.formats.shell.faults import shortened
from service.formats.shell.files import LaunchFiles
from service.formats.shell.programs import (
    LAUNCHERS,
    base_name,
    is_python,
    launchers,
    likelihood,
    program_at,
    shell_file_at,
)

_FLAG = re.compile(r"(?<![\w-])--([A-Za-z][\w.-]{0,99})", re.ASCII)
_PAIR = re.compile(r"(?<![\w.-])([A-Za-z_][\w.]{0,99})=(?!=)", re.ASCII)
_KEY = re.compile(
    r"(?:^|[{,])[ \t]{0,99}[\"']?([A-Za-z_][\w-]{0,99})[\"']?[ \t]?:", re.ASCII | re.M
)
_SECTION = re.compile(r"^(?:model|train):[ \t]{0,99}$", re.ASCII | re.M)
"""A section that configurations of Megatron-Bridge, and of NeMo, have in YAML."""
_DUMPED = re.compile(r"(?:^|\s)([A-Za-z_]\w{0,99}) \.{1,60} ", re.ASCII)
_ACCELERATE = re.compile(r"\baccelerate(?:-launch|[\w.]{0,40}launch|\s+launch)\b", re.ASCII)
_MAIN_KEYS = {
    "accelerate": (
        "distributed_type", "mixed_precision", "num_processes", "num_machines", "fsdp_version",
        "use_fsdp", "use_deepspeed", "bf16", "fp16", "finetuning_type",
    ),
    "deepspeed": ("train_batch_size", "gradient_accumulation_steps", "bf16", "fp16", "enabled"),
}  # fmt: skip
"""The keys by which a document is recognised, beside those of knobs, of switches and of settings
that change nothing."""
TRAINER_TABLES = (
    "transformers", "axolotl", "llama_factory", "llama_factory_v1", "ms_swift", "megatron_swift",
)  # fmt: skip
"""The tables of tools whose files the reader of accelerate takes."""
_TOOL = re.compile(
    r"\b(?:axolotl|llamafactory-cli|lmf|trl|swift|megatron)\s+(?:train|sft|pt|rlhf|dpo|grpo|kto)\b",
    re.ASCII,
)
"""A command of a tool around the Trainer."""
_MARKS_OF_TRAINER = {
    "model_name_or_path", "per_device_train_batch_size", "base_model", "finetuning_type",
    "tuner_type", "train_type", "deepspeed", "deepspeed_config",
}  # fmt: skip
"""Settings of which any one shows that a tool around the Trainer is started."""
_READ_BY_TRAINER = ("accelerate", "deepspeed")
"""The formats of tools around the Trainer. They have one reader, which tells them apart."""
_COMMENT = re.compile(r"(^|[ \t])#.*$", re.MULTILINE)
_PROGRAMS = tuple(
    (re.compile(pattern, re.IGNORECASE), format_)
    for pattern, format_ in (
        (r"torchtitan|run_train\.sh$", "torchtitan"),
        (r"maxtext", "maxtext"),
        (r"megatron[._]bridge|(?:run_recipe|setup_experiment)\.py$|nemo", "megatron-bridge"),
        (r"pretrain_(?:gpt|mamba|hybrid|t5|bert|vlm)\w*\.py$", "megatron"),
        (r"axolotl|llamafactory|^trl |^swift |^megatron ", "accelerate"),
    )
)
"""Programs that are only launched in one format."""
_UNREAD_FRAMEWORKS = (
    (re.compile(r"\btune run$"), "torchtune"),
    (re.compile(r"llmfoundry|\bcomposer "), "Composer"),
    (re.compile(r"\blitgpt\b"), "LitGPT"),
    (re.compile(r"\bbenchmark_runner\b"), "the benchmark runner of MaxText"),
    (re.compile(r"\bverl[./]"), "verl"),
    (re.compile(r"\bopenrlhf[./]"), "OpenRLHF"),
    (re.compile(r"\bnanotron\b"), "nanotron"),
    (re.compile(r"\blevanter\b"), "Levanter"),
)
"""Programs that train, and launchers, of frameworks of which no settings are read."""
_ASKS_SCHEDULER = re.compile(r"^[ \t]*#(?:SBATCH|PBS|BSUB|PJM|\$)[ \t]", re.MULTILINE)
_NOT_SENT = (
    "is a script whose text was not sent: send it in launch.files under that name, if it trains"
)
_TRAINS_NOTHING = (
    "does not look as if it trained: send the command that does, or the text of the script that"
    " starts it in launch.files"
)
_STARTS_NOTHING = "starts no program: send the command that trains"
_SHELL_FILES = (".sh", ".slurm", ".sbatch", ".pbs")
_FEWEST_NAMES = 2
"""A format is recognised by at least so many names of its settings; one may be a coincidence."""


def other_format(format_: str, text: str) -> str | None:
    """Returns the format that a text seems to have in place of the requested `format_`: more than
    twice as many names of settings in the text belong to it. Returns None where the text may be of
    `format_`, or is of no known format."""
    names = _setting_names_in(text)
    matches = _counts_by_format(names)
    # Tools around the Trainer may be sent under either of its formats: their reader knows them.
    if format_ in _READ_BY_TRAINER and (_TOOL.search(text) or names & _MARKS_OF_TRAINER):
        return None
    if _FLAG.search(text) and not _ACCELERATE.search(text):
        matches["accelerate"] = 0  # any script of transformers has the same flags
    likely = max(matches, key=lambda name: matches[name])
    if format_ in _READ_BY_TRAINER and likely in _READ_BY_TRAINER:
        return None  # one reader takes both
    # Formats share names of settings, so only a clear majority tells. A text with fewer names
    # than _FEWEST_NAMES must have all of them in the other format.
    is_other = matches[likely] > 2 * matches[format_] and matches[likely] >= min(
        _FEWEST_NAMES, len(names)
    )
    return likely if is_other else None


@dataclass(frozen=True, slots=True)
class Recognized:
    """The format of a launch."""

    format: str
    by: str
    """In words, by what it is recognized, such as "the launcher accelerate"; "" where the request
    names it."""


def recognized(text: str, files: LaunchFiles) -> Recognized | None:
    """Returns the format of a launch, by the program or the launcher that it starts, or else by
    the names of its settings; None where neither tells."""
    names = _setting_names_in(text)
    command = _command_in(text, files)
    if command is not None:
        program = command.program or ""
        # The folder of a shell script says nothing of what the script starts.
        name = base_name(program) if program.endswith(_SHELL_FILES) else program
        for pattern, format_ in _PROGRAMS:
            if pattern.search(name):
                return Recognized(format_, f"the program {program}")
        named = [*map(base_name, command.before)]
        for launcher in ("accelerate", "deepspeed"):  # each has the name of its format
            if launcher in named:
                return Recognized(launcher, f"the launcher {launcher}")
        names |= _setting_names_in(" ".join(command.words))  # of a script that was sent
    # The format with most of the names, if it has two and no other has as many.
    matches = _counts_by_format(names)
    likely = max(matches, key=lambda name: matches[name])
    has_tie = sorted(matches.values())[-2] == matches[likely]  # with the second most
    if matches[likely] < _FEWEST_NAMES or has_tie:
        return None
    return Recognized(likely, f"the names of its settings, of which {matches[likely]} are of it")


def program_without_training(text: str, files: LaunchFiles) -> tuple[str, str] | None:
    """Returns the program of a command that does not seem to train anything, such as `ls`, and the
    reason: such a text is refused, whatever format is requested. Returns None where it may be a
    launch. A shell script without arguments says nothing unless its text was sent."""
    command = _command_in(text, files)
    program = None if command is None else command.program
    if command is None or program is None:
        return None
    # A text with settings of a framework is read, whatever it starts.
    if len(_setting_names_in(text) & known_settings()) >= _FEWEST_NAMES:
        return None
    words = (*command.before, program)
    if program.endswith(_SHELL_FILES):
        says_nothing = not command.words and not command.environment
        is_known = recognized(text, files) is not None
        return (program, _NOT_SENT) if says_nothing or not is_known else None
    if program_at(words) is None:
        return None
    # `likelihood` is below 0 for names of other work, and above 1 for names of training.
    if likelihood(words) < 0:
        return program, _TRAINS_NOTHING
    has_settings = any(re.match(r"-|[\w.+]+=", word) for word in command.words)  # --a, b=1
    # srun and the like start any program; torchrun and the like start training.
    is_training = set(launchers(words)) - {"srun", "sbatch", "mpirun", "mpiexec"}
    may_train = has_settings or is_training or likelihood(words) > 1
    return None if may_train else (program, _TRAINS_NOTHING)


def job_without_training(text: str, files: LaunchFiles) -> tuple[str | None, str] | None:
    """Returns the command of a job script that starts no known training program, and the reason
    why it is not taken for a launch. The command is None where the script starts no program at all.
    This is asked where no format was recognised. Returns None where the script may be a launch, and
    for bare arguments, which name no program."""
    command = _command_in(text, files)
    if command is None:
        return None
    if not (command.before or command.program or command.words):
        return None, _STARTS_NOTHING
    words = (*command.before, command.program or "", *command.words)
    is_job = text.startswith("#!") or _ASKS_SCHEDULER.search(text) is not None
    is_started = base_name(words[0]) in ("srun", "mpirun", "mpiexec")
    if shell_file_at(words) is not None:
        return command.program or shortened(" ".join(words)), _NOT_SENT
    is_bare_arguments = command.program is None or not (is_job or is_started)
    if is_bare_arguments or program_at(words) is not None:
        return None
    if len(_setting_names_in(text) & known_settings()) >= _FEWEST_NAMES:
        return None
    return shortened(" ".join(words)), _TRAINS_NOTHING


def command_fault(text: str, files: LaunchFiles) -> Invalid | None:
    """Returns why the command of a text cannot be read. None where it can be, and for a text that
    names neither Python nor a launcher, and may be no command. This is asked where no format was
    recognised."""
    if not any(is_python(word) or base_name(word) in LAUNCHERS for word in text.split()):
        return None
    try:
        split_command(text, files)
    except Invalid as fault:
        return fault
    return None


def unread_framework(text: str, files: LaunchFiles) -> tuple[str, str] | None:
    """Returns the program of a command and the framework that it trains with, where settings of
    that framework are not supported; None otherwise."""
    command = _command_in(text, files)
    if command is None:
        return None
    program = command.program or ""
    started = " ".join((*command.before, program))
    framework = next((name for mark, name in _UNREAD_FRAMEWORKS if mark.search(started)), None)
    return None if framework is None else (program, framework)


def _counts_by_format(names: Set[str]) -> dict[str, int]:
    """Returns how many of these names are of settings of each format."""
    # KNOB_SETTINGS has an entry for each format.
    return {format_: len(names & _settings_of_format(format_)) for format_ in KNOB_SETTINGS}


def _command_in(text: str, files: LaunchFiles) -> Command | None:
    """Returns the command that a text starts; None where it cannot be read as one."""
    with suppress(Invalid):
        return split_command(text, files)
    return None


def _setting_names_in(text: str) -> set[str]:
    """Returns the names of settings in a text of any format, with underscores for dashes."""
    text = _COMMENT.sub(r"\1", text)
    # Only TOML needs its parser: a name is written in parts there, its section on another line.
    with suppress(Invalid):
        return {*read_toml(text)}
    matches = (pattern.findall(text) for pattern in (_FLAG, _PAIR, _KEY, _DUMPED))
    names = {name.replace("-", "_") for of_pattern in matches for name in of_pattern}
    dotted = _fields_of_bridge(text)
    return (names - {name.rpartition(".")[2] for name in dotted}) | dotted


def _fields_of_bridge(text: str) -> set[str]:
    """Returns the fields of Megatron-Bridge, which are dotted, in a YAML text with sections."""
    if _SECTION.search(text) is None:
        return set()
    with suppress(Invalid):
        return {*read_settings(text)} & _settings_of_format("megatron-bridge")
    return set()


@cache
def known_settings() -> frozenset[str]:
    """Returns the names of the settings of all formats together. The first call takes some 0.3
    s, to read their tables."""
    return frozenset().union(*map(_settings_of_format, KNOB_SETTINGS))


@cache
def _settings_of_format(format_: str) -> frozenset[str]:
    """Returns the names of the settings of one format."""
    if format_ == "megatron":
        flags = (flag.removeprefix("--").replace("-", "_") for flag in megatron_table().fields)
        return frozenset((*flags, *flag_of_argument()))
    if format_ == "megatron-bridge":
        return frozenset(bridge_table().fields)
    if format_ == "torchtitan":
        table = field_table(TORCHTITAN_TABLE)
        earlier = table.facts["earlier"]
        return frozenset((*table.fields, *earlier["renamed"], *earlier["read"]))
    if format_ == "maxtext":
        return frozenset(field_table(MAXTEXT_TABLE).fields)
    return frozenset(_keys_of_document(format_))


def _keys_of_document(format_: str) -> Iterable[str]:
    """Yields the keys, at every level, of the documents of accelerate or DeepSpeed: "bf16" and
    "enabled" for bf16.enabled. The keys of tools around accelerate, such as axolotl, are among
    its own."""
    # accelerate has no stack of its own: its documents launch the stack fsdp.
    stack = catalogue.stack("fsdp" if format_ == "accelerate" else format_)
    tables = (format_, *TRAINER_TABLES) if format_ == "accelerate" else (format_,)
    settings = [*KNOB_SETTINGS[format_].values(), *_MAIN_KEYS[format_]]
    for table in map(field_table, tables):
        settings += [*table.fields, *table.patterns]
    for switch in switches_of(stack):
        settings += switch.arguments
    for setting in settings:  # such as bf16.enabled
        yield from setting.split(".")
