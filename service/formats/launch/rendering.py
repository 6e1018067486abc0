"""A launch configuration as a text: a shell script, YAML or Python."""

from __future__ import annotations

import json
import pprint
import re
import shlex
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import yaml

from service.formats.launch.documents import nested
from service.formats.launch.formats import FORMATS, LaunchFormat
from service.formats.launch.job import LaunchConfiguration

_WIDTH = 100
_PORT = 29500
_TOKEN = re.compile(r":::(\w+):::", re.ASCII)
"""Where the value of a shell variable goes. No format quotes its characters."""
_BEGINS_ARGUMENT = re.compile(r"--|[A-Za-z_][\w.]*=", re.ASCII)
_FILES = {"deepspeed": "deepspeed.json", "accelerate": "accelerate.yaml"}
"""The files that documents are written to."""
_OF_THE_SHELL = {"PATH", "HOME", "USER", "SHELL", "PWD", "IFS", "LANG", "TMPDIR", "SCRIPT"}
_SCRIPT = {"SCRIPT": "the training script"}


def command_words(configuration: LaunchConfiguration) -> list[str]:
    """What stands behind the training program on its command line: all settings, or those that are
    no part of a document."""
    to_words = FORMATS[configuration.format].words
    if to_words is not None:
        return to_words(configuration.settings)
    return list(_flags(configuration.script_arguments))


def _flags(settings: Mapping[str, Any]) -> Iterator[str]:
    for name, value in settings.items():
        yield f"--{name}"
        yield str(value).lower() if isinstance(value, bool) else str(value)


# -- YAML


def as_yaml(configuration: LaunchConfiguration) -> str:
    """The settings as YAML, behind comments that say what else there is to know."""
    settings = yaml.safe_dump(
        dict(configuration.settings), sort_keys=False, allow_unicode=True, width=_WIDTH
    )
    return f"{_comments(configuration)}{settings}"


def _comments(configuration: LaunchConfiguration) -> str:
    """What a text that holds settings alone says of the rest, in comments."""
    lines = [f"{configuration.framework} {configuration.version}"]
    lines += [f"Environment: {name}={value}" for name, value in configuration.environment.items()]
    lines += [f"To fill in: {name}: {what}" for name, what in configuration.placeholders.items()]
    if configuration.script_arguments:
        lines.append(f"Arguments of the script: {shlex.join(command_words(configuration))}")
    lines += configuration.notes
    return "".join(f"{comment}\n" for line in lines for comment in _comment(line))


def _comment(line: str) -> list[str]:
    return textwrap.wrap(
        line,
        _WIDTH,
        initial_indent="# ",
        subsequent_indent="#   ",
        break_long_words=False,
        break_on_hyphens=False,
    )


# -- Python


def as_python(configuration: LaunchConfiguration) -> str:
    """A module with the settings as CONFIG, or as the words ARGUMENTS of a command line."""
    names: dict[str, Any] = {"ENVIRONMENT": dict(configuration.environment)}
    if FORMATS[configuration.format].words is None:
        names["CONFIG"] = dict(configuration.settings)
    names["ARGUMENTS"] = command_words(configuration)
    names["PLACEHOLDERS"] = dict(configuration.placeholders)
    text = _comments(configuration)
    for name, value in names.items():
        shown = pprint.pformat(value, width=_WIDTH, sort_dicts=False)
        text += f"\n{name} = {shown}\n"
    return text + _configure(configuration)


def _configure(configuration: LaunchConfiguration) -> str:
    """A function that assigns the settings, where they are attributes of a configuration."""
    owner = FORMATS[configuration.format].configures
    if owner is None:
        return ""
    lines = [f"    {owner}.{name} = {value!r}" for name, value in configuration.settings.items()]
    return "\n\n" + "\n".join([f"def configure({owner}):", *lines]) + "\n"


# -- the shell


def as_shell(configuration: LaunchConfiguration) -> str:
    """A script for sbatch, or for bash on one node, that starts the job.

    What is to be filled in are variables, whose absence stops the script with what to put there.
    """
    format_ = FORMATS[configuration.format]
    variables = _variables([*configuration.placeholders])
    wanted = {variables[name]: what for name, what in configuration.placeholders.items()}
    if not format_.program:
        wanted |= _SCRIPT
    parts = [
        "#!/bin/bash",
        *(f"#SBATCH --{name}={value}" for name, value in configuration.slurm.items()),
        *_shell_notes(configuration),
        "set -euo pipefail",
        *(_requirement(name, what) for name, what in wanted.items()),
        *(
            f"export {name}={shlex.quote(value)}"
            for name, value in configuration.environment.items()
        ),
        *_document(format_, configuration, variables),
        _command(format_, configuration, variables),
    ]
    return "\n".join(parts) + "\n"


def _variables(settings: Sequence[str]) -> dict[str, str]:
    """The shell variable for the value of each setting: LR of "--lr", and of "optimizer.lr" unless
    another setting ends so too."""
    short = {name: _variable(name.rpartition(".")[2]) for name in settings}
    times = Counter(short.values())
    return {name: _variable(name) if times[short[name]] > 1 else short[name] for name in settings}


def _variable(name: str) -> str:
    variable = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_").upper()
    is_taken = variable in _OF_THE_SHELL or not variable[:1].isalpha()
    return f"VALUE_{variable}" if is_taken else variable


def _shell_notes(configuration: LaunchConfiguration) -> Iterator[str]:
    yield from _comment(f"{configuration.framework} {configuration.version}")
    for note in configuration.notes:
        yield from _comment(note)


def _requirement(variable: str, what: str) -> str:
    """A line that stops the script where a variable is not set."""
    plain = re.sub(r"[\\\"$`{}!]", "", what.replace("'", "’"))
    return f': "${{{variable}:?{plain}}}"'


def _document(
    format_: LaunchFormat, configuration: LaunchConfiguration, variables: Mapping[str, str]
) -> list[str]:
    """The lines that write the document into a file, where the settings are one."""
    if format_.words is not None:
        return []
    document = _merged(configuration.settings, nested(_tokens(variables)))
    file = _FILES[format_.name]
    if file.endswith(".json"):
        text = re.sub(r'"(:::\w+:::)"', r"\1", json.dumps(document, indent=2))
    else:
        text = yaml.safe_dump(document, sort_keys=False, width=_WIDTH).rstrip("\n")
        text = re.sub(r"'(:::\w+:::)'", r"\1", text)
    # The shell puts variables in, and must leave everything else as it is.
    escaped = re.sub(r"([\\$`])", r"\\\1", text)
    return [f"cat > {file} <<END", _TOKEN.sub(r"${\1}", escaped), "END"]


def _tokens(variables: Mapping[str, str]) -> dict[str, str]:
    """By setting, what stands for the value of its variable until words are quoted."""
    return {name: f":::{variable}:::" for name, variable in variables.items()}


def _merged(document: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """A document with further values put in, object by object."""
    merged = dict(document)
    for name, value in more.items():
        if isinstance(value, Mapping) and isinstance(merged.get(name), Mapping):
            merged[name] = _merged(merged[name], value)
        else:
            merged[name] = value
    return merged


def _command(
    format_: LaunchFormat, configuration: LaunchConfiguration, variables: Mapping[str, str]
) -> str:
    """The command that starts the job, an argument a line."""
    words = [*_started(format_, configuration), *_program(format_)]
    if format_.words is None:
        arguments = command_words(configuration)
        if format_.starter != "accelerate":
            arguments += ["--deepspeed_config", _FILES[format_.name]]
    else:
        tokens = _tokens(variables)
        options = {name: tokens.pop(name) for name in format_.options if name in tokens}
        arguments = [*_flags(options), *format_.words({**configuration.settings, **tokens})]
    return " ".join(words) + "".join(
        f" \\\n  {group}" for group in _grouped([*map(_quoted, arguments)])
    )


def _quoted(word: str) -> str:
    """A word for the shell, in which a token is the value of its variable."""
    quoted = [
        f'"${{{piece}}}"' if index % 2 else shlex.quote(piece) if piece else ""
        for index, piece in enumerate(_TOKEN.split(word))
    ]
    return "".join(quoted) or "''"


def _grouped(arguments: list[str]) -> Iterator[str]:
    """Each flag with its values, and each pair."""
    group: list[str] = []
    for word in arguments:
        if group and _BEGINS_ARGUMENT.match(word):
            yield " ".join(group)
            group = []
        group.append(word)
    if group:
        yield " ".join(group)


def _program(format_: LaunchFormat) -> list[str]:
    return [*format_.program] or ['"${SCRIPT}"']


def _started(format_: LaunchFormat, configuration: LaunchConfiguration) -> list[str]:
    """The words in front of the program."""
    nodes = int(configuration.slurm.get("nodes", 1))
    devices = configuration.slurm.get("gpus-per-node", 1)
    srun = ["srun"] if nodes > 1 else []
    if format_.starter == "python":
        return [*srun, "python3"]
    head = '"$(scontrol show hostnames "${SLURM_JOB_NODELIST}" | head -n 1)'
    if format_.starter == "accelerate":
        meeting = ["--rdzv_backend", "c10d", "--main_process_ip", f'{head}"']
        meeting += ["--main_process_port", str(_PORT)]
        file = ["--config_file", _FILES[format_.name]]
        return [*srun, "accelerate", "launch", *file, *(meeting if nodes > 1 else [])]
    if nodes == 1:
        return ["torchrun", "--standalone", f"--nproc-per-node={devices}"]
    return [
        *srun,
        "torchrun",
        f"--nnodes={nodes}",
        f"--nproc-per-node={devices}",
        "--rdzv-backend=c10d",
        '--rdzv-id="${SLURM_JOB_ID}"',
        f'--rdzv-endpoint={head}:{_PORT}"',
    ]


RENDERINGS: Mapping[str, Callable[[LaunchConfiguration], str]] = {
    "text/x-shellscript": as_shell,
    "application/yaml": as_yaml,
    "text/x-python": as_python,
}
"""Texts of a launch configuration, by media type."""
