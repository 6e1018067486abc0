"""The command that starts a training program, found in what people paste: an argument list, a line
of a shell with torchrun, python or srun, a whole batch script, or a JSON list of words.

The *header* of a job is what it asks its scheduler for, such as #SBATCH lines. A *doubt* is an
assignment that may or may not have run, because it stands in a branch that the text does not
decide.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from models.errors import Invalid
from models.spec.identity import cached_by_identity
from service.formats.shell.faults import Undefined, invalid_launch, shortened
from service.formats.shell.files import NO_FILES, LaunchFiles
from service.formats.shell.headers import PBS, SBATCH, Header, header_of
from service.formats.shell.hostfile import hosts_of
from service.formats.shell.programs import (
    LAUNCHERS,
    REMOTE,
    assigned_variables,
    base_name,
    is_python,
    likelihood,
    program_at,
    without_node_words,
)
from service.formats.shell.ranks import Ranks, ranks_of, scheduler_variables
from service.formats.shell.reading import ARGUMENTS, read_script
from service.formats.shell.script import Script, Statement
from service.formats.shell.tpu_slices import Slices
from service.formats.shell.variables import Doubt

_OVERRIDE = re.compile(r"[+~]{0,2}[A-Za-z_][\w.]*=.*", re.ASCII | re.DOTALL)
_BEGINS_OVERRIDES = re.compile(
    r"(?:\s|#[^\n]*\n)*+(?:['\"]?[+~]{0,2}[A-Za-z_][\w.]*['\"]?=|\Z)", re.ASCII
)
_STARTS_ON_NODES = {*LAUNCHERS, *REMOTE, "ray"}
_MOST_NAMED = 5
"""Programs that an error names."""
_KEPT = 4
"""Texts whose commands are cached. To find which settings make a change, a launch is read some
twenty times with some settings changed, while the command in its text stays the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command that starts a training program."""

    words: tuple[str, ...]
    """The words behind the program: its arguments."""
    program: str | None
    """The script or module that is started; None where the text is arguments alone."""
    before: tuple[str, ...] = ()
    """The words in front of the program: launchers, containers and their options."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that are exported, or set in front of the command."""
    nnodes: int | None = None
    nproc_per_node: int | None = None
    """Ranks on a node."""
    num_ranks: int | None = None
    """All ranks, where their number is said or follows."""
    num_ranks_by_default: int | None = None
    """All ranks where nothing sets the variables in their number, and it is not said otherwise."""
    chip: str | None = None
    """The scheduler's name for the GPUs that are asked for, such as h100."""
    features: tuple[str, ...] = ()
    """The feature that the scheduler must find on every node, which may name a chip."""
    slices: Slices | None = None
    """The slices of TPUs that the job asks for."""
    slurm: Mapping[str, str] = field(default_factory=dict)
    """Options of #SBATCH lines, without dashes."""
    files: LaunchFiles = NO_FILES
    """The files that were sent beside the text, and those that its script writes."""
    notes: tuple[str, ...] = ()
    """Sentences about values that were taken in the place of others."""
    in_branches: tuple[str, ...] = ()
    """Assignments that may or may not have run, and that would make it another command."""
    replaced_in_branches: tuple[str, ...] = ()
    """Assignments in branches that would replace a value that the text gives otherwise."""
    defaults: tuple[str, ...] = ()
    """Variables that nothing sets, with the default that the text has for each: TP=4."""
    edits: Mapping[str, str] = field(default_factory=dict)
    """By name of a file, the command that changes it in place."""


@cached_by_identity(_KEPT, objects=2)
def split_command(text: str, files: LaunchFiles = NO_FILES) -> Command:
    """Returns the training command of a text, with its words, program, environment and ranks.
    Raises Invalid where the text has several different ones, a quote that is not closed, or
    options that contradict each other on nodes, GPUs or ranks."""
    words = _json_words(text) or _overrides_only(text)
    if words:
        words = tuple(_with_kubernetes_variables(word, files.environment) for word in words)
        return Command(words=words, program=None, files=files, environment=files.environment)
    script, header = _script_and_header(text, files)
    training = _training_statement(script)
    before = training.words[: program_at(training.words) or 0]  # launchers and their options
    environment = {**training.environment, **assigned_variables(before)}
    sent = files.with_written(script.written)
    stated = _without_defaults(text, files, header, before)
    ranks = ranks_of(header, stated, environment)
    by_default: int | None = None
    if ranks.total is None and stated != before:
        with suppress(Invalid):  # defaults that contradict each other say nothing
            by_default = ranks_of(header, before, environment).total
    _require_all_nodes(script, header, training, ranks)
    hosts = hosts_of(before, sent)
    if hosts is not None:  # a hostfile of DeepSpeed, which overrides the scheduler's options
        ranks = replace(ranks, nnodes=hosts.count, per_node=None, total=hosts.num_ranks)
    index = len(before)
    has_program = index < len(training.words) and not training.words[index].startswith("-")
    program = _program_name(training.words, index) if has_program else None
    behind = training.words[index + has_program :]  # True counts as 1: without the program
    # torchx separates the program's arguments from its own by a "--".
    if "torchx" in map(base_name, before) and behind[:1] == ("--",):
        behind = behind[1:]
    return Command(
        words=tuple(behind),
        program=None if program == ARGUMENTS else program,  # stands for "no program"
        before=tuple(before),
        environment=environment,
        nnodes=ranks.nnodes,
        nproc_per_node=ranks.per_node,
        num_ranks=ranks.total,
        num_ranks_by_default=by_default,
        chip=ranks.chip,
        features=ranks.features,
        slices=ranks.slices,
        slurm=header.options,
        files=sent,
        notes=header.notes,
        in_branches=_assignments_in(training.doubts),
        replaced_in_branches=_assignments_in(doubt for doubt in training.doubts if doubt.replaces),
        defaults=training.defaults,
        edits=script.edits,
    )


def files_of(text: str, files: LaunchFiles = NO_FILES) -> LaunchFiles:
    """Returns the files that were sent, together with those that the script writes, such as the
    configuration of its training."""
    return files.with_written(read_script(text, variables={}, files=files).written)


def with_reason(fault: Undefined, text: str, files: LaunchFiles) -> Undefined:
    """Returns the error about an undefined variable with two things added: the line that uses the
    variable, and the reason why its value is not known."""
    name = fault.variable
    # $NAME, ${NAME…}, ${#NAME} and ${!NAME}; a name such as 1 or @ is sought as it is.
    uses = rf"\$\{{?[#!]?{re.escape(name)}\b" if name.isidentifier() else re.escape(name)
    lines = [number for number, line in enumerate(text.splitlines(), 1) if re.search(uses, line)]
    used = f"line {lines[-1]}" if lines else ""
    try:
        script, _ = _script_and_header(text, files)
    except Invalid:
        return fault
    value = script.values.get(name)
    reasons = [used, value.reason if value else ""]
    if value and value.reason and re.search(r"\$\{?[1-9]", text):  # it uses $1 or ${2:-8}
        reasons.append("the script has arguments: send the command that starts it, with them")
    if value is None and script.unsent_sources:
        source, line = script.unsent_sources[0]
        reasons.append(f"line {line} reads {source}, which was not sent in launch.files")
    why = "; ".join(filter(None, reasons))
    return fault.with_reason(why) if why else fault


def _script_and_header(text: str, files: LaunchFiles) -> tuple[Script, Header]:
    """Returns the commands of a text, and the options that its job asks the scheduler for. Scripts
    that the text submits may ask for more. The text is then read again, with the variables that the
    scheduler sets for these requests."""
    # The text may stand in an object such as a Kubernetes Job, whose own requests (files.header)
    # count in place of those of the text and of the scripts that the text submits.
    header = files.header or header_of([text], files.environment)
    script = read_script(text, scheduler_variables(header), files)
    if script.submits_others and files.header is None:
        header = header_of(script.batch_texts, files.environment)
        script = read_script(text, scheduler_variables(header), files)
    return script, header


def _without_defaults(
    text: str, files: LaunchFiles, header: Header, before: Sequence[str]
) -> Sequence[str]:
    """Returns the words in front of the program, with values that come only from defaults left
    unknown: in --nnodes=${NNODES:-8} the 8 holds only where nothing sets the variable, and says
    nothing certain of the job's nodes."""
    if "${" not in text and "-z" not in text:  # one of these begins every default
        return before
    script = read_script(text, scheduler_variables(header), files, takes_defaults=False)
    try:
        words = _training_statement(script).words
    except Invalid:  # a default decides which program is started
        return before
    return words[: program_at(words) or 0]


def _require_all_nodes(script: Script, header: Header, training: Statement, ranks: Ranks) -> None:
    """Raises Invalid where a batch script itself starts the training, which then runs on the first
    node of several. Programs such as ray may have started something on the others."""
    program = program_at(training.words) or 0
    python, *options = training.words[:program] or ("",)
    is_bare = is_python(python) and all(word.startswith("-") for word in options)
    is_batch = header.name in (SBATCH, PBS) and "WORLD_SIZE" not in training.environment
    started = {base_name(statement.words[0]) for statement in script.statements}
    if is_bare and is_batch and (ranks.nnodes or 1) > 1 and not started & _STARTS_ON_NODES:
        rule = (
            f"starts on the first of the {ranks.nnodes} nodes that {header.name} asks for: write"
            " srun or mpirun in front of it"
        )
        raise invalid_launch(shortened(" ".join(training.words[: program + 1])), rule)


def _program_name(words: Sequence[str], index: int) -> str:
    """Returns the program at `index` of the words, "train.py"; with its subcommand for a tool
    that has some, "axolotl train"."""
    program = words[index]
    if index == 0 or words[index - 1] in ("-m", "--module"):
        return program
    # Files and modules have a dot in their names. What a variable holds is not known.
    is_subcommand = "." not in program and not program.startswith("$")
    return f"{base_name(words[index - 1])} {program}" if is_subcommand else program


def _json_words(text: str) -> tuple[str, ...] | None:
    """Returns the words of a JSON list, such as ["torchrun", "train.py"]; None for any other
    text."""
    if not text.lstrip().startswith("["):
        return None
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(listed, list) or not all(isinstance(word, (str, int)) for word in listed):
        return None
    return tuple(map(str, listed))


def _overrides_only(text: str) -> tuple[str, ...] | None:
    """Returns the words of a text that has only key=value pairs, such as "model.tp=2 pp=4", which
    a shell would take for variables; None for any other text."""
    if not _BEGINS_OVERRIDES.match(text):
        return None
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        return None
    return tuple(words) if all(map(_OVERRIDE.fullmatch, words)) else None


def _training_statement(script: Script) -> Statement:
    """Returns the statement that starts the training. A text that starts no program is a list of
    arguments, and becomes one statement."""
    statements = script.statements
    starting = [statement for statement in statements if program_at(statement.words) is not None]
    if starting:
        return _most_likely(starting)
    # Arguments may stand on several lines, which were read as commands.
    flags = [statement for statement in statements if statement.words[0].startswith("-")]
    joined = Statement(())
    for statement in flags or statements:
        joined = Statement(
            words=(*joined.words, *statement.words),
            environment={**joined.environment, **statement.environment},
            doubts=tuple(dict.fromkeys((*joined.doubts, *statement.doubts))),
            defaults=tuple(dict.fromkeys((*joined.defaults, *statement.defaults))),
        )
    return joined


def _most_likely(statements: list[Statement]) -> Statement:
    """Returns the statement that most likely trains, or the last one where none seems to. Raises
    Invalid where different statements are equally likely."""
    most = max(likelihood(statement.words) for statement in statements)
    likely = [statement for statement in statements if likelihood(statement.words) == most]
    # A script may start the same command once for each node.
    distinct = {without_node_words(statement.words): statement for statement in likely}
    if len(distinct) > 1 and most >= 0:  # below 0 all are named for something else than training
        programs = {
            statement.words[program_at(statement.words) or 0] for statement in distinct.values()
        }
        rule = (
            f"starts {len(distinct)} commands ({', '.join(sorted(programs)[:_MOST_NAMED])}): send"
            " the one that trains"
        )
        raise invalid_launch(None, rule)
    return likely[-1]


def _with_kubernetes_variables(word: str, environment: Mapping[str, str]) -> str:
    """Returns a word with references as Kubernetes writes them, $(TP), replaced by the request's
    variables."""
    return re.sub(r"\$\((\w+)\)", lambda match: environment.get(match[1], match[0]), word)


def _assignments_in(doubts: Iterable[Doubt]) -> tuple[str, ...]:
    """Returns the assignments of these doubts as they are written, each once."""
    return tuple(dict.fromkeys(doubt.written for doubt in doubts))
