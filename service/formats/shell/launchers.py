"""The launchers in front of a training program, each with its options, and the counts that these
give. The #SBATCH or #PBS lines of a job count as a launcher outside of all others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from service.formats.shell.faults import invalid_launch, undefined_variables
from service.formats.shell.headers import Header, options
from service.formats.shell.programs import AGENTS, LAUNCHERS, base_name

_MPI = {"mpirun", "mpiexec"}
_SLURM = {"srun", "sbatch", "salloc"}
NODES = ("nnodes", "num_nodes", "num_machines", "nodes", "N")
RANKS = ("num_processes", "ntasks", "np", "n")
OF_MPI = ("N", "npernode", "ppn")
"""Options of launchers for the number of nodes, of ranks, and with MPI of ranks on a node."""
_MOST_LAUNCHERS = 32  # real commands have three or four in one another
_WHOLE = re.compile(r"\d{1,7}", re.ASCII)
_GPUS = re.compile(r"(?:(?P<chip>[A-Za-z][\w.-]{0,60}):)?(?P<count>\d{1,7})", re.ASCII)
_GRES = re.compile(
    r"(?:gres[/:])?gpu(?::(?P<chip>[A-Za-z][\w.-]{0,60}))?(?:[:=](?P<count>\d{1,7}))?(?:\(.*\))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Figure:
    """A number of nodes, GPUs or ranks."""

    count: int
    option: str
    """The option that says it, such as "srun --nodes=4"."""


@dataclass(frozen=True, slots=True)
class Launcher:
    """A launcher, or the #SBATCH lines."""

    name: str
    options: Mapping[str, str]
    """By name with underscores, without dashes in front."""
    is_header: bool = False
    """It is what the job asks its scheduler for."""
    has_unknown_words: bool = False
    """A variable that may hold any options stands among its own."""
    as_written: Mapping[str, str] = field(default_factory=dict)
    """Options as the text writes them, where another scheduler than Slurm has other names."""

    @property
    def is_agent(self) -> bool:
        """Returns True for a launcher that runs once on a node and starts all of its ranks."""
        return self.name in AGENTS

    @property
    def is_mpi(self) -> bool:
        return self.name in _MPI

    @property
    def asks_scheduler(self) -> bool:
        """Returns True where options such as --gpus ask a scheduler for nodes and GPUs."""
        return self.is_header or self.name in _SLURM

    def figures(self, names: Iterable[str]) -> Iterator[Figure]:
        """Yields the counts of the options with these names that are given as numbers, in this
        order."""
        for name in names:
            count = positive_integer(self.options.get(name))
            if count:
                yield Figure(count, self.shown(name))

    def shown(self, name: str) -> str:
        """Returns an option with its value as the text writes it, for messages: "torchrun
        --nnodes=2". MPI launchers write the option for ranks, -np, with one dash, as all do for
        names of one letter."""
        if name in self.as_written:
            return self.as_written[name]
        dashes = "-" if len(name) == 1 or (self.is_mpi and name in RANKS) else "--"
        return f"{self.name} {dashes}{name.replace('_', '-')}={self.options[name]}".strip()

    def gpu_requests(self) -> Iterator[tuple[str, re.Match[str]]]:
        """Yields Slurm's options that ask for GPUs: the name of each, and the match of its value,
        with groups `chip` and `count` as in h100:8."""
        if not self.asks_scheduler:
            return
        for name in ("gpus_per_node", "gpus", "G", "gpus_per_task"):
            match = _GPUS.fullmatch(self.options.get(name, ""))
            if match:
                yield name, match
        for request in self.options.get("gres", "").split(","):
            match = _GRES.fullmatch(request)
            if match:
                yield "gres", match

    def without_totals(self) -> Launcher:
        """Returns an agent or an MPI launcher without its options for all nodes and all ranks of a
        job. The options of srun count those of one component, and stay."""
        if not (self.is_agent or self.is_mpi):
            return self
        totals = {*NODES, *RANKS} - {*OF_MPI}
        left = {name: value for name, value in self.options.items() if name not in totals}
        return replace(self, options=left)


def launchers_of(words: Sequence[str]) -> list[Launcher]:
    """Returns the launchers among some words, each with the options up to the next one. Options
    in front of the first launcher belong to one without a name. Of very many launchers only the
    innermost are returned."""
    launchers: list[Launcher] = []
    name = ""
    behind: list[str] = []
    for word in words:
        if base_name(word) in LAUNCHERS:
            launchers.append(_launcher(name, behind))
            name = base_name(word)
            behind = []
        else:
            behind.append(word)
    return [*launchers, _launcher(name, behind)][-_MOST_LAUNCHERS:]


def _launcher(name: str, words: Sequence[str]) -> Launcher:
    """Returns the launcher `name` with its options among the words behind it."""
    # A variable behind an option is its value; any other may hold options.
    is_unknown = any(
        undefined_variables(word) and word[0] in "$`" and (before[:1] != "-" or "=" in before)
        for before, word in zip(["", *words], words, strict=False)
    )
    return Launcher(name, with_underscores(options(words)), has_unknown_words=is_unknown)


def header_as_launcher(header: Header) -> Launcher:
    """Returns the #SBATCH or #PBS options of a job as those of a launcher, so that both are
    counted by the same rules."""
    return Launcher(
        header.name,
        with_underscores(header.options),
        is_header=True,
        as_written=with_underscores(header.as_written),
    )


def has_agent(launchers: Iterable[Launcher]) -> bool:
    return any(launcher.is_agent for launcher in launchers)


def innermost(launchers: Sequence[Launcher], names: Sequence[str]) -> Figure | None:
    """Returns the count that the innermost launcher gives by one of these options, since it
    overrides those outside; None where none gives one."""
    figures = (next(launcher.figures(names), None) for launcher in reversed(launchers))
    return next(filter(None, figures), None)


def agreed_count(figures: Iterable[Figure | None], what: str) -> Figure | None:
    """Returns the count on which all options agree; None where there are none. Raises Invalid
    where two differ. `what` names what they count, for the error: "nodes"."""
    first: Figure | None = None
    for figure in filter(None, figures):
        first = first or figure
        if figure.count != first.count:
            rule = (
                f"makes {figure.count} {what}, and {first.option} makes"
                f" {first.count}: write what the job has in both"
            )
            raise invalid_launch(figure.option, rule)
    return first


def with_underscores(options: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("-", "_"): value for name, value in options.items()}


def positive_integer(text: str | None) -> int | None:
    """Returns a whole number from 1 up. A range with equal ends, such as 2-2 of Slurm or 4:4 of
    torchrun, counts as one number. None for any other text, and for 0."""
    ends = set(re.split(r"[:-]", text or ""))
    number = ends.pop() if len(ends) == 1 else ""
    if not _WHOLE.fullmatch(number):
        return None
    return int(number) or None
