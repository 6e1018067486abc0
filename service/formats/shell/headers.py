"""Reads what a job asks its scheduler for: #SBATCH and #PBS lines, or the object that describes
it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from models.errors import Invalid
from service.formats.shell.faults import PATH, shortened

SBATCH = "#SBATCH"
_PBS = "#PBS"
_HETEROGENEOUS = "hetjob"
_SELECTED = re.compile(r"(?:select|nodes)=(\S{1,400})", re.ASCII)
_OF_CHUNK = {"ngpus": "gpus-per-node", "gpus": "gpus-per-node", "mpiprocs": "ntasks-per-node"}
"""The option of Slurm for what PBS asks for on a node."""
_CHIPS_OF_CHUNK = ("gpu_type", "gpu_model", "accelerator_model")
_SAID_BY_SCHEDULER = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "gpus-per-node": ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"),
}
"""Variables in which Slurm says what a job was really given."""
_SHORT_NAMES = {"nodes": "N"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The options of a job in Slurm's words, without dashes in front, whoever the scheduler is."""

    name: str = SBATCH
    options: Mapping[str, str] = field(default_factory=dict)
    as_written: Mapping[str, str] = field(default_factory=dict)
    """Options as the text says them, where that is in other words than Slurm's."""
    others: tuple[Mapping[str, str], ...] = ()
    """The options of the further components of a heterogeneous job."""
    notes: tuple[str, ...] = ()
    """Sentences about values that were taken in the place of others."""

    def component(self, index: int) -> Header:
        parts = (self.options, *self.others)
        options = parts[index] if index < len(parts) else {}
        return replace(self, options=options, others=())

    @property
    def num_components(self) -> int:
        return 1 + len(self.others)


def header_of(texts: Iterable[str], environment: Mapping[str, str]) -> Header:
    """Returns what the batch scripts among some texts ask for. What the scheduler says in the
    environment of the request goes before what a script asked it for."""
    header = Header()
    for text in texts:
        header = _joined(header, _of_text(text))
    return _as_given(header, environment)


def options(words: Iterable[str]) -> dict[str, str]:
    """Returns options with their values, by name without dashes in front, such as
    `ntasks-per-node`."""
    values: dict[str, str] = {}
    waiting: str | None = None
    for word in words:
        if word.startswith("-"):
            name, has_value, value = word.lstrip("-").partition("=")
            if not word.startswith("--") and not has_value and re.fullmatch(r"[NnG]\S*\d", name):
                value = name[1:]
                name = name[0]
                has_value = "="
            waiting = None if has_value else name
            values[name] = value
        elif waiting is not None:
            values[waiting] = word
            waiting = None
    return values


def _joined(first: Header, second: Header) -> Header:
    if not second.options and not second.others:
        return first
    name = second.name
    return Header(
        name=name,
        options={**first.options, **second.options},
        as_written={**first.as_written, **second.as_written},
        others=(*first.others, *second.others),
    )


def _of_text(text: str) -> Header:
    components = [options(words) for words in _components(text)]
    if any(components):
        return Header(options=components[0], others=tuple(components[1:]))
    for line in text.splitlines():
        pbs = _of_pbs(line) if line.lstrip().startswith(_PBS) else None
        if pbs is not None:
            return pbs
    return Header()


def _components(text: str) -> Iterator[list[str]]:
    words: list[str] = []
    for line in text.splitlines():
        if not line.lstrip().startswith(SBATCH):
            continue
        try:
            on_line = shlex.split(line.lstrip()[len(SBATCH) :], comments=True)
        except ValueError:
            rule = "has a quote that is not closed: quote it, or close it"
            raise Invalid(PATH, shortened(line), rule) from None
        if on_line == [_HETEROGENEOUS]:
            yield words
            words = []
        else:
            words += on_line
    yield words


def _of_pbs(line: str) -> Header | None:
    """Returns what `-l select=4:ncpus=64:ngpus=8` asks for; chunks that differ are components."""
    selected = _SELECTED.search(line)
    if selected is None or "-l" not in line:
        return None
    chunks = [_chunk(chunk) for chunk in selected[1].partition(",")[0].split("+")]
    written = f"{_PBS} -l {selected[0]}"
    return Header(
        name=_PBS,
        options=chunks[0],
        as_written=dict.fromkeys(chunks[0], written),
        others=tuple(chunks[1:]),
    )


def _chunk(text: str) -> dict[str, str]:
    count, *parts = text.split(":")
    pairs = dict(part.partition("=")[::2] for part in parts)
    if not count.isdecimal():
        return {}
    values = {"nodes": count}
    if "ppn" in pairs and "mpiprocs" not in pairs and "gpus" in pairs:
        pairs.pop("ppn")  # which counts cores there
    for name, option in _OF_CHUNK.items():
        if pairs.get(name, "").isdecimal():
            values[option] = pairs[name]
    chip = next((pairs[name] for name in _CHIPS_OF_CHUNK if name in pairs), None)
    if chip and "gpus-per-node" in values:
        values["gpus-per-node"] = f"{chip}:{values['gpus-per-node']}"
    return values


def _as_given(header: Header, environment: Mapping[str, str]) -> Header:
    """Returns the header with what the scheduler says that it gave in the place of what it was
    asked for, as `sbatch -N 8 job.sh` goes before #SBATCH -N 16."""
    changed = dict(header.options)
    written = dict(header.as_written)
    notes = []
    for option, variables in _SAID_BY_SCHEDULER.items():
        variable = next((name for name in variables if environment.get(name, "").isdecimal()), None)
        if variable is None:
            continue
        given = environment[variable]
        short = _SHORT_NAMES.get(option, option)
        asked = changed.pop(short, None) if short != option else None
        asked = changed.get(option, asked)
        if option == "gpus-per-node" and asked is None:
            asked = changed.pop("gres", None)
        if asked is not None and asked.rpartition(":")[2] != given:
            notes.append(
                f"{option} is {given}, as {variable} of launch.environment says:"
                f" {header.name} asks for {asked}"
            )
        changed[option] = given
        written[option] = f"{variable}={given}"
    return replace(header, options=changed, as_written=written, notes=tuple(notes))


def used_components(header: Header, before: Sequence[str]) -> list[int]:
    """Returns which components of a heterogeneous job a command runs on: those that srun names,
    else the first; all of them under mpirun."""
    everything = [*range(header.num_components)]
    named = options(before).get("het-group")
    if named is None:
        return everything if {"mpirun", "mpiexec"} & {*before} else [0]
    chosen: set[int] = set()
    for part in named.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            chosen |= {
                component
                for component in everything
                if int(first) <= component <= int(last or first)
            }
    return sorted(chosen) or [0]
