"""A launch configuration as a text: a shell script, YAML or Python.

A *placeholder* is a setting that the caller must fill in, such as the data path. In a script it is
a shell variable. A *token*, :::LR:::, stands for the variable LR while a text is quoted for the
shell. `LaunchFormat.words` is None for formats whose settings are a document, which the script
writes into a file, and not arguments.
"""

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
"""A token marks where a shell variable goes. No format quotes or escapes its characters."""
_BEGINS_ARGUMENT = re.compile(r"--|[A-Za-z_][\w.]*=", re.ASCII)
_DOCUMENT_FILES = {"deepspeed": "deepspeed.json", "accelerate": "accelerate.yaml"}
"""The files that documents are written to."""
_CONFIG_PATH = "${CONFIG}"
"""The variable in a script that holds the name of the file, which has the number of the job in
it."""
_SHELL_VARIABLES = {"PATH", "HOME", "USER", "SHELL", "PWD", "IFS", "LANG", "TMPDIR", "SCRIPT"}
_TOKEN_OF = ":::{}:::"
_NOTE_ON_SITE = (
    "Time, account and partition are the site's: give them to sbatch, or add lines #SBATCH."
)
_NOTE_ON_PART_OF_NODES = (
    "The job takes a part of each node: give sbatch --cpus-per-task too, or all processes of a"
    " node may share one core."
)
_NOTE_ON_EMPTY = "A variable that is set and empty leaves its argument out."
_NOTE_FURTHER = "What follows the name of this script goes to the program as further arguments."


def command_words(configuration: LaunchConfiguration) -> list[str]:
    """Returns the words that follow the training program on its command line: all settings, or
    the script's own arguments where the settings are in a document."""
    to_words = FORMATS[configuration.format].words
    if to_words is not None:
        return to_words(configuration.settings)
    return list(_flag_words(configuration.script_arguments))


def _flag_words(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yields settings as words: "--bf16", "true"."""
    for name, value in settings.items():
        yield f"--{name}"
        yield str(value).lower() if isinstance(value, bool) else str(value)


# -- YAML


def as_yaml(configuration: LaunchConfiguration) -> str:
    """Returns the settings as YAML, below comments with the rest of the launch."""
    settings = yaml.safe_dump(
        dict(configuration.settings), sort_keys=False, allow_unicode=True, width=_WIDTH
    )
    return f"{_comment_block(configuration)}{settings}"


def _comment_block(configuration: LaunchConfiguration) -> str:
    """Returns comment lines with what the settings alone do not say: release, environment,
    placeholders, arguments of the script and notes."""
    lines = [f"{configuration.framework} {configuration.version}"]
    lines += [f"Environment: {name}={value}" for name, value in configuration.environment.items()]
    lines += [f"To fill in: {name}: {hint}" for name, hint in configuration.placeholders.items()]
    if configuration.script_arguments:
        lines.append(f"Arguments of the script: {shlex.join(command_words(configuration))}")
    lines += configuration.notes
    return "".join(f"{comment}\n" for line in lines for comment in _comment_lines(line))


def _comment_lines(line: str) -> list[str]:
    """Returns a text as comment lines, wrapped."""
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
    """Returns a Python module with the parts of the launch as constants: ENVIRONMENT, CONFIG for
    settings of a document, ARGUMENTS and PLACEHOLDERS."""
    names: dict[str, Any] = {"ENVIRONMENT": dict(configuration.environment)}
    if FORMATS[configuration.format].words is None:
        names["CONFIG"] = dict(configuration.settings)
    names["ARGUMENTS"] = command_words(configuration)
    names["PLACEHOLDERS"] = dict(configuration.placeholders)
    text = _comment_block(configuration)
    for name, value in names.items():
        shown = pprint.pformat(value, width=_WIDTH, sort_dicts=False)
        text += f"\n{name} = {shown}\n"
    return text + _configure_function(configuration)


def _configure_function(configuration: LaunchConfiguration) -> str:
    """Returns the source of a function that assigns the settings to a configuration object; ""
    for formats without one."""
    owner = FORMATS[configuration.format].configures
    if owner is None:
        return ""
    lines = [f"    {owner}.{name} = {value!r}" for name, value in configuration.settings.items()]
    return "\n\n" + "\n".join([f"def configure({owner}):", *lines]) + "\n"


# -- the shell


def as_shell(configuration: LaunchConfiguration) -> str:
    """Returns a script for sbatch, or for bash on one node, that starts the job.

    Settings that the caller must fill in are shell variables. Without one the script stops, and
    prints what to put there.
    """
    format_ = FORMATS[configuration.format]
    variables = _variables_of_settings([*configuration.placeholders])
    parts = [
        "#!/bin/bash",
        *(
            f"#SBATCH --{name}" if value is True else f"#SBATCH --{name}={value}"
            for name, value in configuration.slurm.items()
        ),
        *_shell_notes(format_, configuration),
        "set -euo pipefail",
        *_unset_checks(format_, configuration, variables),
        *(
            f"export {name}={shlex.quote(value)}"
            for name, value in configuration.environment.items()
        ),
        *_document_lines(format_, configuration, variables),
        *_rendezvous(format_, configuration.slurm),
        _start_command(format_, configuration, variables),
    ]
    return "\n".join(parts) + "\n"


def _variables_of_settings(settings: Sequence[str]) -> dict[str, str]:
    """Returns the shell variable for each setting: LR for "--lr" and "optimizer.lr", or
    OPTIMIZER_LR where two settings end alike."""
    short = {name: _variable(name.rpartition(".")[2]) for name in settings}
    times = Counter(short.values())
    return {name: _variable(name) if times[short[name]] > 1 else short[name] for name in settings}


def _variable(name: str) -> str:
    """Returns a name as a shell variable in upper case, with VALUE_ in front where the shell
    uses that name itself."""
    variable = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_").upper()
    is_taken = variable in _SHELL_VARIABLES or not variable[:1].isalpha()
    return f"VALUE_{variable}" if is_taken else variable


def _shell_notes(format_: LaunchFormat, configuration: LaunchConfiguration) -> Iterator[str]:
    """Yields the comment lines at the head of a script."""
    yield from _comment_lines(f"{configuration.framework} {configuration.version}")
    if configuration.slurm:
        yield from _comment_lines(_NOTE_ON_SITE)
        if "exclusive" not in configuration.slurm:
            yield from _comment_lines(_NOTE_ON_PART_OF_NODES)
    if format_.words is not None:
        yield from _comment_lines(_NOTE_ON_EMPTY)
    yield from _comment_lines(_NOTE_FURTHER)
    for note in configuration.notes:
        yield from _comment_lines(note)


def _unset_checks(
    format_: LaunchFormat, configuration: LaunchConfiguration, variables: Mapping[str, str]
) -> Iterator[str]:
    """Yields the lines that stop the script where a variable is not set. An empty variable leaves
    an argument out, but stops a script that writes its value into a document."""
    unset = ":?" if format_.words is None else "?"
    defaults = configuration.placeholder_defaults
    for name, hint in configuration.placeholders.items():
        if name in defaults:
            continue
        yield _unset_check(variables[name], unset, hint)
    for name, other in defaults.items():  # an unset variable takes the value of another one
        yield f': "${{{variables[name]}=${variables[other]}}}"'
    if _is_script_named(format_, configuration):
        yield _unset_check("SCRIPT", ":?", configuration.script or "the training script")


def _unset_check(variable: str, unset: str, hint: str) -> str:
    """Returns a line of the shell that stops the script where the variable is not set, and
    prints a hint on what to set it to. `unset` is "?", or ":?" where an empty variable counts as
    unset."""
    # Inside of ${...} the shell would expand these characters, or end at them.
    plain = re.sub(r"[\\\"$`{}!]", "", hint.replace("'", "’"))
    return f': "${{{variable}{unset}{plain}}}"'


def _document_lines(
    format_: LaunchFormat, configuration: LaunchConfiguration, variables: Mapping[str, str]
) -> list[str]:
    """Returns the lines that write the settings into a file; none for formats that pass them as
    arguments."""
    if format_.words is not None:
        return []
    document = _merged(configuration.settings, nested(_tokens_of_settings(variables)))
    file = _DOCUMENT_FILES[format_.name]
    # Tokens lose their quotes, so that a variable may hold a number, or any other value.
    if file.endswith(".json"):
        text = re.sub(r'"(:::\w+:::)"', r"\1", json.dumps(document, indent=2))
    else:
        text = yaml.safe_dump(document, sort_keys=False, width=_WIDTH).rstrip("\n")
        text = re.sub(r"'(:::\w+:::)'", r"\1", text)
    # The shell puts variables in, and must leave everything else as it is.
    escaped = re.sub(r"([\\$`])", r"\\\1", text)
    base, _, ending = file.rpartition(".")
    return [
        f'export CONFIG="{base}-${{SLURM_JOB_ID:-$$}}.{ending}"  # another job has another file',
        'cat > "${CONFIG}" <<END',
        _TOKEN.sub(r"${\1}", escaped),
        "END",
    ]


def _tokens_of_settings(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns, for each setting, the token that stands for its shell variable while words are
    quoted."""
    return {name: _TOKEN_OF.format(variable) for name, variable in variables.items()}


def _merged(document: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a document with the values of another put in, object by object."""
    merged = dict(document)
    for name, value in more.items():
        if isinstance(value, Mapping) and isinstance(merged.get(name), Mapping):
            merged[name] = _merged(merged[name], value)
        else:
            merged[name] = value
    return merged


def _start_command(
    format_: LaunchFormat, configuration: LaunchConfiguration, variables: Mapping[str, str]
) -> str:
    """Returns the command that starts the job, one argument on each line."""
    lines = [
        " ".join(_launcher_words(format_, configuration)),
        " ".join(_program_words(format_, configuration)),
    ]
    settings = dict(configuration.settings)
    # torchtitan reads nothing but options of its subcommand behind that subcommand.
    behind = {name: settings.pop(name) for name in [format_.last] if name in settings}
    if format_.words is None:
        lines += _one_argument_a_line(command_words(configuration))
        if format_.starter != "accelerate":
            lines.append(f'--deepspeed_config "{_CONFIG_PATH}"')
    else:
        lines += _placeholder_arguments(format_, configuration, variables, are_options=True)
        lines += _one_argument_a_line(format_.words(settings))
        lines += _placeholder_arguments(format_, configuration, variables, are_options=False)
    lines.append('"$@"')  # the arguments of the script itself, for the program
    if format_.words is not None:
        lines += _one_argument_a_line(format_.words(behind))
    return " \\\n  ".join(lines)


def _placeholder_arguments(
    format_: LaunchFormat,
    configuration: LaunchConfiguration,
    variables: Mapping[str, str],
    *,
    are_options: bool,
) -> Iterator[str]:
    """Yields the arguments that the caller fills in, as shell words; an empty variable leaves its
    argument out. With `are_options` they are options of the program itself, otherwise settings."""
    for name, variable in variables.items():
        # Options stand in front of the settings, and a document has its placeholders in itself.
        if (name in format_.options) != are_options or format_.words is None:
            continue
        token = {name: _TOKEN_OF.format(variable)}
        words = [*_flag_words(token)] if are_options else format_.words(token)
        is_list = name in configuration.list_placeholders
        quoted = " ".join(_with_variable(word, is_list=is_list) for word in words)
        yield f"${{{variable}:+{quoted}}}"  # the words, unless the variable is empty


def _with_variable(word: str, *, is_list: bool) -> str:
    """Returns a word with the token in it replaced by its shell variable. With `is_list` the
    variable is not quoted, so that the shell splits it. The variable has no braces, since the
    caller puts the word inside of ${...}."""
    return _TOKEN.sub(r"$\1" if is_list else r'"$\1"', word)


def _one_argument_a_line(words: Sequence[str]) -> Iterator[str]:
    """Yields the words quoted for the shell, each flag joined with its values. An argument
    begins with a word such as --lr or lr=3e-4."""
    group: list[str] = []
    for word in words:
        if group and _BEGINS_ARGUMENT.match(word):
            yield shlex.join(group)
            group = []
        group.append(word)
    if group:
        yield shlex.join(group)


def _program_words(format_: LaunchFormat, configuration: LaunchConfiguration) -> list[str]:
    """Returns the words that name the training program."""
    if _is_script_named(format_, configuration):
        return ['"${SCRIPT}"']
    return [*format_.program]


def _is_script_named(format_: LaunchFormat, configuration: LaunchConfiguration) -> bool:
    """Returns True where the caller names the training program: the job needs a script of its own,
    or the format has no program."""
    return bool(configuration.script) or not format_.program


def _rendezvous(format_: LaunchFormat, slurm: Mapping[str, bool | int | str]) -> Iterator[str]:
    """Yields the lines that set the address at which the ranks of several nodes meet. Where
    nodes are named, they also make Slurm number its tasks in that order."""
    if int(slurm.get("nodes", 1)) == 1:
        return
    if "nodelist" in slurm:
        names = str(slurm["nodelist"]).split(",")
        yield f"export MASTER_ADDR={names[0]}"
        yield 'SLURM_HOSTFILE="$(mktemp)"'
        yield "export SLURM_HOSTFILE"
        yield f"printf '%s\\n' {' '.join(names)} > \"${{SLURM_HOSTFILE}}\""
    else:
        yield 'MASTER_ADDR="$(scontrol show hostnames "${SLURM_JOB_NODELIST}" | sed -n 1p)"'
        yield "export MASTER_ADDR"
    if format_.starter == "python":  # maxtext/utils/max_utils.py, initialize_jax_for_gpu
        yield 'export JAX_COORDINATOR_IP="${MASTER_ADDR}"'
        yield f"export JAX_COORDINATOR_PORT={_PORT}"
        yield f"export NNODES={slurm['nodes']}"


def _launcher_words(format_: LaunchFormat, configuration: LaunchConfiguration) -> list[str]:
    """Returns the words in front of the program, which start its ranks. On several nodes srun
    starts a shell on each, because the rank of a node is known only there."""
    nodes = int(configuration.slurm.get("nodes", 1))
    devices = configuration.slurm.get("gpus-per-node", 1)
    config = f'--config_file "{_CONFIG_PATH}"' if format_.starter == "accelerate" else ""
    if nodes == 1:
        on_one_node = {
            "python": "python3",
            "accelerate": f"accelerate launch {config}",
            "torchrun": f"torchrun --standalone --nproc-per-node={devices}",
        }
        return [on_one_node[format_.starter]]
    rank = '"${SLURM_PROCID}"'
    address = '"${MASTER_ADDR}"'
    on_each_node = {
        "python": f"NODE_RANK={rank} exec python3",
        "accelerate": (
            f"exec accelerate launch {config} --machine_rank {rank}"
            f" --main_process_ip {address} --main_process_port {_PORT}"
        ),
        "torchrun": (
            f"exec torchrun --nnodes={nodes} --nproc-per-node={devices} --node-rank={rank}"
            f" --master-addr={address} --master-port={_PORT}"
        ),
    }
    # Ranks on named nodes follow the order of the file in SLURM_HOSTFILE.
    ordered = [f"--ntasks={nodes}", "--distribution=arbitrary"]
    options = ["--cpu-bind=none", *(ordered if "nodelist" in configuration.slurm else [])]
    inner = f'{on_each_node[format_.starter]} "$@"'
    # The word behind the text of bash -c is its $0; the program and its arguments are its "$@".
    return ["srun", *options, f"bash -c '{inner}'", format_.starter]


RENDERINGS: Mapping[str, Callable[[LaunchConfiguration], str]] = {
    "text/x-shellscript": as_shell,
    "application/yaml": as_yaml,
    "text/x-python": as_python,
}
"""Texts of a launch configuration, by media type."""
