"""The command that starts a training program, found in what people paste: an argument list, a line
of a shell with torchrun, python or srun, a whole sbatch script, or a JSON list of words."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from models.errors import Invalid
from service.formats.launch.ranks import LAUNCHERS, options, ranks_of, slurm_variables
from service.formats.launch.shell_script import (
    PATH,
    Script,
    Statement,
    read_script,
    sbatch_words,
)

_UNDEFINED = re.compile(r"\$(?:\{[#!]?)?(\w+|[@*#?])|\$\(|`", re.ASCII)
_OVERRIDE = re.compile(r"[+~]{0,2}[A-Za-z_][\w.]*=.*", re.ASCII | re.DOTALL)
_BEGINS_OVERRIDES = re.compile(
    r"(?:\s|#[^\n]*\n)*+(?:['\"]?[+~]{0,2}[A-Za-z_][\w.]*['\"]?=|\Z)", re.ASCII
)
_PROGRAM = re.compile(r"[^-\s]\S*\.(?:py|pyc|sh)|[^-\s]\.(?:py|sh)")
_NAMED_PROGRAM = re.compile(r"\$\w*(?:SCRIPT|PROGRAM)\w*", re.ASCII | re.IGNORECASE)
"""A variable that the text does not define, and whose name says that it is the program."""
_PYTHON = re.compile(r"python[\d.]*", re.ASCII)
_SHELLS = {"sh", "bash", "zsh"}
_STARTS_ANYTHING = {"mpirun", "mpiexec", "srun", "sbatch", "salloc", "flux"}
"""Launchers that start any program; the others start Python."""
_LAUNCHER_MODULES = ("torch.distributed.", "accelerate.commands.", "deepspeed.launcher.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command that starts a training program."""

    words: tuple[str, ...]
    """The words behind the program: its arguments."""
    program: str | None
    """The script or module that is started; None where the text is arguments alone."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What is exported, or set in front of the command."""
    nnodes: int | None = None
    nproc_per_node: int | None = None
    """Ranks on a node."""
    num_ranks: int | None = None
    """All ranks, where their number is said or follows."""
    chip: str | None = None
    """What Slurm calls the GPUs that are asked for, such as h100."""
    slurm: Mapping[str, str] = field(default_factory=dict)
    """Options of #SBATCH lines, without dashes."""
    in_branches: tuple[str, ...] = ()
    """Assignments of an `if` or a loop, which may or may not have run."""
    replaced_in_branches: tuple[str, ...] = ()
    """Those of them that would take the place of a value from before the branch."""


def split_command(text: str) -> Command:
    """The command in a text. Raises Invalid where the text has several that differ, or a quote that
    is not closed."""
    words = _json_words(text) or _overrides(text)
    if words:
        return Command(words=words, program=None)
    slurm = options(sbatch_words(text))
    # Arguments of the script itself are not in its text.
    variables = {**slurm_variables(slurm), "@": list[str](), "*": list[str]()}
    script = read_script(text, variables)
    found, before = _found(script)
    said_before = before
    if "${" in text:
        # A number of nodes that is taken only where nobody sets a variable is not one that is said.
        _, said_before = _found(read_script(text, variables, takes_defaults=False))
    found.environment.update(_assignments(before))
    ranks = ranks_of(slurm, said_before, found.environment)
    at = len(before)
    has_program = at < len(found.words) and not found.words[at].startswith("-")
    return Command(
        words=tuple(found.words[at + has_program :]),
        program=found.words[at] if has_program else None,
        environment=found.environment,
        nnodes=ranks.nnodes,
        nproc_per_node=ranks.per_node,
        num_ranks=ranks.total,
        chip=ranks.chip,
        slurm=slurm,
        in_branches=tuple(script.in_branches),
        replaced_in_branches=tuple(script.replaced_in_branches),
    )


def undefined_variables(word: str) -> list[str]:
    """The variables in a word, or `$(` for a command, whose value the text does not say."""
    return [match.group(1) or "(…)" for match in _UNDEFINED.finditer(word)]


def require_defined(name: str, word: str) -> None:
    """Raises Invalid where a value is, or has in it, a variable that the text does not define."""
    undefined = undefined_variables(word)
    if undefined:
        rule = (
            f"${undefined[0]} is not defined in the text that was sent: write its value in its"
            " place, or add the line that sets it"
        )
        raise Invalid(PATH, f"{name} {word[:80]}", rule)


def require_arguments_defined(word: str) -> None:
    """Raises Invalid where a word in the place of a flag is a variable that the text does not
    define: it may hold any flags."""
    undefined = undefined_variables(word)
    if undefined and word[0] in "$`" and undefined[0] not in "@*":
        rule = (
            "is not defined in the text that was sent, and may hold any arguments: write these in"
            " its place, or add the line that sets it; leave it out where it holds none"
        )
        raise Invalid(PATH, word[:80], rule)


def _json_words(text: str) -> tuple[str, ...] | None:
    """The words of a JSON list."""
    if not text.lstrip().startswith("["):
        return None
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(listed, list) or not all(isinstance(word, (str, int)) for word in listed):
        return None
    return tuple(map(str, listed))


def _overrides(text: str) -> tuple[str, ...] | None:
    """The words of a text that is a list of key=value, which to a shell would be variables."""
    if not _BEGINS_OVERRIDES.match(text):
        return None
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        return None
    return tuple(words) if all(map(_OVERRIDE.fullmatch, words)) else None


def _found(script: Script) -> tuple[Statement, list[str]]:
    """The statement that starts the program, with what is exported in its environment, and its
    words in front of the program. Of a list of arguments, all of it."""
    statements = unwrapped(script)
    starting = [each for each in statements if _program_at(each.words) is not None]
    if starting:
        found = _only(starting)
        words = found.words
        environment = found.environment
    else:
        # An argument list may stand on several lines.
        listed = [each for each in statements if each.words[:1] and each.words[0][:1] == "-"]
        listed = listed or statements
        words = [word for each in listed for word in each.words]
        environment = {key: value for each in listed for key, value in each.environment.items()}
    before = list(words[: _program_at(words) or 0])
    return Statement(words, {**script.exported, **environment}, in_branch=False), before


def unwrapped(script: Script) -> list[Statement]:
    """The statements, with the text behind `sh -c` read in its place."""
    found = []
    for statement in script.statements:
        inner = _shell_text(statement.words[: _program_at(statement.words)])
        if inner is None:
            found.append(statement)
            continue
        at = statement.words.index(inner)
        arguments = {"@": statement.words[at + 2 :]}
        for each in read_script(inner, {**script.variables, **arguments}).statements:
            environment = {**statement.environment, **each.environment}
            words = [*statement.words[: at - 2], *each.words]
            found.append(Statement(words, environment, statement.in_branch or each.in_branch))
    return found


def _shell_text(words: Sequence[str]) -> str | None:
    """What stands behind `sh -c`."""
    for shell, option, text in zip(words, words[1:], words[2:], strict=False):
        if _base_name(shell) in _SHELLS and re.fullmatch(r"-\w*c", option):
            return text
    return None


def _base_name(path: str) -> str:
    return path.rpartition("/")[2]


def _program_at(words: Sequence[str]) -> int | None:
    """The place of the program that a command starts: a file of Python, what follows `-m`, a script
    of the shell, or a variable that stands for one behind what starts it."""
    starts_module = False
    is_started = False
    for at, word in enumerate(words):
        name = _base_name(word)
        if _PYTHON.fullmatch(name) or name in LAUNCHERS:
            starts_module = name not in _STARTS_ANYTHING
            is_started = True
        elif word == "-m" and starts_module and at + 1 < len(words):
            if not words[at + 1].startswith(_LAUNCHER_MODULES):
                return at + 1
        elif _PROGRAM.fullmatch(word) or (is_started and _NAMED_PROGRAM.fullmatch(word)):
            return at
    return None


def _only(statements: list[Statement]) -> Statement:
    """The statement that starts the training: the only one, or the only one under a launcher."""
    launched = [each for each in statements if _launchers(each.words)] or statements
    distinct = {tuple(each.words): each for each in launched}
    if len(distinct) > 1:
        programs = {each.words[_program_at(each.words) or 0] for each in distinct.values()}
        rule = (
            f"starts {len(distinct)} commands ({', '.join(sorted(programs)[:5])}): send the one"
            " that trains"
        )
        raise Invalid(PATH, None, rule)
    return launched[-1]


def _launchers(words: Sequence[str]) -> list[str]:
    names = [_base_name(word) for word in words[: _program_at(words)]]
    return [name for name in names if name in LAUNCHERS]


def _assignments(words: Sequence[str]) -> dict[str, str]:
    """Variables that are set among some words, as behind `env`."""
    pairs = (word.partition("=") for word in words if re.match(r"[A-Za-z_]\w*=", word, re.ASCII))
    return {name: value for name, _, value in pairs}
