"""Reads what a job asks its scheduler for: #SBATCH and #PBS lines, or the object that describes
it.

A heterogeneous job has several *components*, each with nodes of its own. A *chunk* is what PBS
calls a component: 4:ncpus=64:ngpus=8. A *grant* is what the scheduler gave, which its variables
say.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from service.formats.shell.faults import invalid_launch, shortened

SBATCH = "#SBATCH"
PBS = "#PBS"
_HETEROGENEOUS = "hetjob"
_SELECTED = re.compile(r"(?:select|nodes)=(\S{1,400})", re.ASCII)
_OF_CHUNK = {"ngpus": "gpus-per-node", "gpus": "gpus-per-node", "mpiprocs": "ntasks-per-node"}
"""The option of Slurm for what PBS asks for on a node."""
_CHIPS_OF_CHUNK = ("gpu_type", "gpu_model", "accelerator_model")
_GRANT_VARIABLES = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "gpus-per-node": ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"),
}
"""The variables in which Slurm says what it gave a job, by option."""
_MOST_NOTED = 3  # lines that answers repeat
_MOST_COMPONENTS = 128  # of a heterogeneous job: Slurm takes no more (MAX_HET_JOB_COMPS)
_SPAN = re.compile(r"(\d{1,3})(?:-(\d{1,3}))?", re.ASCII)
_OTHER_NAMES = {"nodes": ("N",), "gpus-per-node": ("gres",), "ntasks": ("n",), "gpus": ("G",)}
"""Options that ask for the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The options of a job, translated to Slurm's names without dashes, whatever its scheduler."""

    name: str = SBATCH
    options: Mapping[str, str] = field(default_factory=dict)
    as_written: Mapping[str, str] = field(default_factory=dict)
    """Options as the text writes them, where another scheduler than Slurm has other names."""
    others: tuple[Mapping[str, str], ...] = ()
    """The options of the further components of a heterogeneous job."""
    notes: tuple[str, ...] = ()
    """Sentences about values that were taken in the place of others."""

    def component(self, index: int) -> Header:
        """Returns the header of one component of a heterogeneous job; without options beyond the
        last one."""
        parts = (self.options, *self.others)
        options = parts[index] if index < len(parts) else {}
        return replace(self, options=options, others=())

    @property
    def num_components(self) -> int:
        return 1 + len(self.others)


def header_of(texts: Iterable[str], environment: Mapping[str, str]) -> Header:
    """Returns the options that batch scripts ask for: {"nodes": "4"} for #SBATCH --nodes=4.
    Variables in `environment` that the scheduler sets, such as SLURM_NNODES, override them.
    Raises Invalid for a quote that is not closed."""
    header = Header()
    for text in texts:
        header = _with_overrides(header, _header_of_text(text))
    return _with_grants(header, environment)


def as_batch_text(words: Iterable[str]) -> str:
    """Returns the words behind sbatch in front of its script, as a line of that script."""
    return f"{SBATCH} {shlex.join(words)}"


def options(words: Iterable[str]) -> dict[str, str]:
    """Returns options with their values, without dashes: {"nodes": "4", "N": "8"} for --nodes 4
    -N8. An option without a value has ""."""
    values: dict[str, str] = {}
    name: str | None = None  # whose value may be the next word
    for word in words:
        if not word.startswith("-"):
            if name is not None:
                values[name] = word
            name = None
            continue
        option, has_value, value = word.lstrip("-").partition("=")
        is_short = not word.startswith("--")
        if is_short and not has_value and re.fullmatch(r"[NnG]\S*\d", option):
            option, has_value, value = option[0], "=", option[1:]  # -N8 is -N with the value 8
        values[option] = value
        name = None if has_value else option
    return values


def _with_overrides(first: Header, second: Header) -> Header:
    """Returns the options of two texts as one header. Those of the second, a script that the first
    submits, override those of the first."""
    if not second.options and not second.others:  # the second text has no lines for a scheduler
        return first
    left = dict(first.options)
    for option, others in _OTHER_NAMES.items():
        if second.options.keys() & {option, *others}:
            for name in (option, *others):
                left.pop(name, None)
    return Header(
        name=second.name,
        options={**left, **second.options},
        as_written={**first.as_written, **second.as_written},
        others=(*first.others, *second.others),
        notes=(*first.notes, *second.notes),
    )


def _header_of_text(text: str) -> Header:
    """Returns the options of the #SBATCH lines of a text, or else of its first #PBS line that
    asks for nodes."""
    lines = [line.lstrip() for line in text.splitlines()]
    # sbatch and qsub read a script up to its first command.
    commands = (number for number, line in enumerate(lines) if line and line[0] != "#")
    end = next(commands, len(lines))
    components = [options(words) for words in _words_of_components(lines[:end])]
    if any(components):
        ignored = [line for line in lines[end:] if line.startswith(SBATCH)]
        notes = [
            f"{shortened(line)} stands behind the first command of the script: sbatch ignores it"
            for line in ignored[:_MOST_NOTED]
        ]
        return Header(options=components[0], others=tuple(components[1:]), notes=tuple(notes))
    for line in lines[:end]:
        pbs = _header_of_pbs_line(line) if line.startswith(PBS) else None
        if pbs is not None:
            return pbs
    return Header()


def _words_of_components(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yields the words of the #SBATCH lines of each component of a job; a line `hetjob` begins
    the next one."""
    words: list[str] = []
    for line in lines:
        if not line.startswith(SBATCH):
            continue
        try:
            on_line = shlex.split(line[len(SBATCH) :], comments=True)
        except ValueError:
            rule = "has a quote that is not closed: quote it, or close it"
            raise invalid_launch(shortened(line), rule) from None
        if on_line == [_HETEROGENEOUS]:
            yield words
            words = []
        else:
            words += on_line
    yield words


def _header_of_pbs_line(line: str) -> Header | None:
    """Returns the options of a line such as `#PBS -l select=4:ncpus=64:ngpus=8`; None where it
    selects no nodes. Several chunks are components of the job."""
    selected = _SELECTED.search(line)
    if selected is None or "-l" not in line:
        return None
    # select=4:ngpus=8+2:ngpus=4,walltime=1:00:00 has two chunks, in front of the comma.
    chunks = [_chunk_options(chunk) for chunk in selected[1].partition(",")[0].split("+")]
    written = f"{PBS} -l {selected[0]}"
    return Header(
        name=PBS,
        options=chunks[0],
        as_written=dict.fromkeys(chunks[0], written),
        others=tuple(chunks[1:]),
    )


def _chunk_options(text: str) -> dict[str, str]:
    """Returns the options of one chunk of PBS under Slurm's names: {"nodes": "4",
    "gpus-per-node": "8"} for 4:ncpus=64:ngpus=8."""
    count, *parts = text.split(":")
    pairs = dict(part.partition("=")[::2] for part in parts)  # {"ncpus": "64", "ngpus": "8"}
    if not count.isdecimal():
        return {}
    values = {"nodes": count}
    for name, option in _OF_CHUNK.items():
        if pairs.get(name, "").isdecimal():
            values[option] = pairs[name]
    chip = next((pairs[name] for name in _CHIPS_OF_CHUNK if name in pairs), None)
    if chip and "gpus-per-node" in values:
        values["gpus-per-node"] = f"{chip}:{values['gpus-per-node']}"  # "a100:8", as Slurm has it
    return values


def _with_grants(header: Header, environment: Mapping[str, str]) -> Header:
    """Returns the header with what the scheduler has granted in place of what the script asks
    for: `sbatch -N 8 job.sh` overrides #SBATCH -N 16. Notes each difference."""
    options = dict(header.options)
    as_written = dict(header.as_written)
    notes = [*header.notes]
    for option, variables in _GRANT_VARIABLES.items():
        variable = next((name for name in variables if environment.get(name, "").isdecimal()), None)
        if variable is None:
            continue
        granted = environment[variable]
        # The script may ask by another name of the option, which must not count beside the grant.
        requests = [options.pop(name, None) for name in _OTHER_NAMES[option]]
        requested = options.get(option) or next(filter(None, requests), None)
        # A request may name the chip in front of its count, as in h100:8.
        if requested is not None and requested.rpartition(":")[2] != granted:
            notes.append(
                f"{option} is {granted}, as {variable} of launch.environment says:"
                f" {header.name} asks for {requested}"
            )
        options[option] = granted
        as_written[option] = f"{variable}={granted}"
    return replace(header, options=options, as_written=as_written, notes=tuple(notes))


def used_components(header: Header, before: Sequence[str]) -> list[int]:
    """Returns the indices of the components of a heterogeneous job that a command runs on: [0,
    2] for srun --het-group=0,2. Without that option srun runs on the first, and mpirun on all."""
    everything = [*range(min(header.num_components, _MOST_COMPONENTS))]
    named = options(before).get("het-group")
    if named is None:
        return everything if {"mpirun", "mpiexec"} & {*before} else [0]
    chosen: set[int] = set()
    for part in named.split(","):
        span = _SPAN.fullmatch(part)
        if span is not None:
            last = int(span[2] or span[1])
            chosen.update(everything[int(span[1]) : last + 1])
    return sorted(chosen) or [0]  # what names no component counts as not given
