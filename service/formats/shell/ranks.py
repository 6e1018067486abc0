"""Counts the nodes, GPUs and ranks of a command, by the options of its launchers and of Slurm."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from models.errors import Invalid
from service.formats.shell.faults import PATH
from service.formats.shell.features import required_features
from service.formats.shell.headers import Header, options, used_components
from service.formats.shell.programs import AGENTS, LAUNCHERS
from service.formats.shell.tpu_slices import slices_of

_MPI = {"mpirun", "mpiexec"}
_SLURM = {"srun", "sbatch", "salloc"}
_NODES = ("nnodes", "num_nodes", "num_machines", "nodes", "N")
_RANKS = ("num_processes", "ntasks", "np", "n")
_OF_AGENT = ("nproc_per_node", "num_gpus")
_OF_MPI = ("N", "npernode", "ppn")
"""Options of launchers for the number of nodes, of ranks, and of ranks on a node."""
_WHOLE = re.compile(r"\d{1,7}", re.ASCII)
_GPUS = re.compile(r"(?:(?P<chip>[A-Za-z][\w.-]{0,60}):)?(?P<count>\d{1,7})", re.ASCII)
_GRES = re.compile(
    r"(?:gres[/:])?gpu(?::(?P<chip>[A-Za-z][\w.-]{0,60}))?(?:[:=](?P<count>\d{1,7}))?(?:\(.*\))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The ranks of a job, as far as the options say."""

    nnodes: int | None = None
    per_node: int | None = None
    total: int | None = None
    chip: str | None = None
    """Slurm's name for the GPUs that are asked for, such as h100."""
    features: tuple[str, ...] = ()
    """The feature that --constraint asks of every node, which may name a chip."""


@dataclass(frozen=True, slots=True)
class _Figure:
    count: int
    written: str
    """The option that says it."""


@dataclass(frozen=True, slots=True)
class _Launcher:
    """A launcher, or the #SBATCH lines."""

    name: str
    options: Mapping[str, str]
    """By name with underscores, without dashes in front."""
    is_header: bool = False
    """It is what the job asks its scheduler for."""
    as_written: Mapping[str, str] = field(default_factory=dict)
    """Options as the text says them, where that is in other words."""

    @property
    def asks_for_gpus(self) -> bool:
        return self.is_header or self.name in _SLURM

    def figures(self, names: Iterable[str]) -> Iterator[_Figure]:
        for name in names:
            count = _number(self.options.get(name))
            if count:
                yield _Figure(count, self.written(name))

    def written(self, name: str) -> str:
        if name in self.as_written:
            return self.as_written[name]
        dashes = "-" if len(name) == 1 or (self.name in _MPI and name in _RANKS) else "--"
        return f"{self.name} {dashes}{name.replace('_', '-')}={self.options[name]}".strip()


def ranks_of(header: Header, before: Sequence[str], environment: Mapping[str, str]) -> Ranks:
    """The ranks that the words in front of a program start, in a job that asks for `header`.

    Raises Invalid where two options say different numbers of nodes or of GPUs, or where there are
    more ranks than GPUs.
    """
    of_sets = _ranks_of_sets(before)
    if of_sets is not None:
        return of_sets
    slices = slices_of(_spelt(options(before)))
    if slices is not None:
        return Ranks(total=slices.num_chips, chip=slices.chip)
    used = used_components(header, before)
    parts = [_ranks_of_component(header.component(at), before, environment) for at in used]
    if len(parts) == 1:
        return parts[0]
    nodes = [part.nnodes for part in parts]
    totals = [part.total for part in parts]
    on_node = {part.per_node for part in parts}
    return Ranks(
        nnodes=None if None in nodes else sum(filter(None, nodes)),
        per_node=on_node.pop() if len(on_node) == 1 else None,
        total=None if None in totals else sum(filter(None, totals)),
        chip=next((part.chip for part in parts if part.chip), None),
        features=tuple(feature for part in parts for feature in part.features),
    )


def _ranks_of_sets(before: Sequence[str]) -> Ranks | None:
    """The ranks of a launcher that counts them by sets of equal size: the resource sets of jsrun,
    or the nodes of torchx as -j 4x8; None where another launcher starts them."""
    for launcher in _launchers(before):
        if launcher.name == "jsrun":
            sets = next(launcher.figures(("nrs", "n")), None)
            tasks = next(launcher.figures(("tasks_per_rs", "a")), None)
            if sets and tasks:
                return Ranks(total=sets.count * tasks.count)
        counts = re.fullmatch(r"(\d{1,6})x(\d{1,4})", launcher.options.get("j", ""), re.ASCII)
        if launcher.name == "torchx" and counts:
            nodes, ranks = int(counts[1]), int(counts[2])
            return Ranks(nnodes=nodes, per_node=ranks, total=nodes * ranks)
    return None


def _ranks_of_component(
    header: Header, before: Sequence[str], environment: Mapping[str, str]
) -> Ranks:
    launchers = [_of_header(header), *_launchers(before)]
    has_agent = any(launcher.name in AGENTS for launcher in launchers)
    nodes = _nodes(launchers, has_agent=has_agent)
    tasks = _last(launchers, ("ntasks_per_node",))
    ranks = None if has_agent else _last(launchers, _RANKS)
    asked = [
        asked_by_launcher
        for launcher in launchers
        for asked_by_launcher in _gpus(launcher, nodes, tasks, ranks)
    ]
    gpus = _agreed(asked, "GPUs on a node")
    per_node = _last(launchers, _OF_AGENT) if has_agent else _ranks_on_node(launchers, tasks, gpus)
    per_node = per_node or (None if ranks else gpus)
    if gpus is not None and per_node is not None and per_node.count > gpus.count:
        raise _more_ranks(per_node, "a node", gpus.count, gpus.written)
    if gpus is not None and ranks is not None and nodes is not None:
        of_all = f"{nodes.written} and {gpus.written}"
        if ranks.count > nodes.count * gpus.count:
            raise _more_ranks(ranks, "all nodes", nodes.count * gpus.count, of_all)
    total = ranks.count if ranks else None
    if total is None and not has_agent:
        total = _number(environment.get("WORLD_SIZE"))
    if total is None:
        total = nodes.count * per_node.count if nodes and per_node else _all_gpus(launchers)
    on_node = per_node.count if per_node else None
    if on_node is None and total and nodes and total % nodes.count == 0:
        on_node = total // nodes.count
    chips = [chip for launcher in launchers if (chip := _chip(launcher))]
    return Ranks(
        nnodes=nodes.count if nodes else None,
        per_node=on_node,
        total=total,
        chip=chips[-1] if chips else None,
        features=_features(launchers, nodes.count if nodes else None),
    )


def scheduler_variables(header: Header) -> dict[str, str]:
    """The variables that Slurm or PBS sets in a job from what its script asks for."""
    script = _of_header(header)
    nodes = _last([script], _NODES)
    tasks = _last([script], ("ntasks_per_node",))
    gpus = next(_gpus(script, nodes, tasks, None), None)
    known = {
        "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_NTASKS_PER_NODE": tasks,
        "SLURM_GPUS_ON_NODE": gpus,
        "SLURM_GPUS_PER_NODE": gpus,
        "PBS_NUM_NODES": nodes,
        "PBS_NGPUS": gpus,
    }
    counts = {name: figure.count for name, figure in known.items() if figure}
    if nodes:
        counts["PBS_NP"] = nodes.count * (tasks.count if tasks else 1)
    if nodes and tasks:
        counts["SLURM_NTASKS"] = nodes.count * tasks.count
    is_slurm = header.name != "#PBS"
    others = "PBS_" if is_slurm else "SLURM_"
    return {name: str(count) for name, count in counts.items() if not name.startswith(others)}


def _of_header(header: Header) -> _Launcher:
    return _Launcher(
        header.name,
        _spelt(header.options),
        is_header=True,
        as_written=_spelt(header.as_written),
    )


def _spelt(written: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("-", "_"): value for name, value in written.items()}


def _launchers(words: Sequence[str]) -> Iterator[_Launcher]:
    """The launchers among some words, each with the options up to the next."""
    name = ""
    own: list[str] = []
    for word in words:
        base = word.rpartition("/")[2]
        if base in LAUNCHERS:
            yield _Launcher(name, _spelt(options(own)))
            name = base
            own = []
        else:
            own.append(word)
    yield _Launcher(name, _spelt(options(own)))


def _last(launchers: Sequence[_Launcher], names: Iterable[str]) -> _Figure | None:
    """The figure of the innermost launcher that has one: it overrides those outside."""
    names = tuple(names)
    figures = [next(launcher.figures(names), None) for launcher in launchers]
    return next((figure for figure in reversed(figures) if figure), None)


def _agreed(figures: Sequence[_Figure], what: str) -> _Figure | None:
    """The figure that all say. Raises Invalid where they differ."""
    for figure in figures:
        if figure.count != figures[0].count:
            rule = (
                f"makes {figure.count} {what}, and {figures[0].written} makes"
                f" {figures[0].count}: write what the job has in both"
            )
            raise Invalid(PATH, figure.written, rule)
    return figures[0] if figures else None


def _more_ranks(ranks: _Figure, place: str, gpus: int, written: str) -> Invalid:
    rule = (
        f"starts {ranks.count} ranks on {place}, and {written} asks for {gpus} GPUs there: write as"
        " many ranks as GPUs"
    )
    return Invalid(PATH, ranks.written, rule)


def _nodes(launchers: Sequence[_Launcher], *, has_agent: bool) -> _Figure | None:
    """The number of nodes. It is one where neither nodes nor all GPUs or tasks of the job are said,
    and an agent or a script of Slurm is there."""
    names = {
        launcher.name: _NODES[:-1] if launcher.name in _MPI else _NODES for launcher in launchers
    }
    said = [figure for launcher in launchers for figure in launcher.figures(names[launcher.name])]
    if said:
        return _agreed(said, "nodes")
    script = launchers[0].options
    has_hosts = any({"hostfile", "H"} & launcher.options.keys() for launcher in launchers)
    is_one = (has_agent and not has_hosts) or (script and not script.keys() & {"ntasks", "n"})
    if any(
        {"gpus", "G"} & launcher.options.keys() for launcher in launchers if launcher.asks_for_gpus
    ):
        is_one = False
    says_some = any(
        name in launcher.options for launcher in launchers for name in names[launcher.name]
    )
    return _Figure(1, "one node") if is_one and not says_some else None


def _ranks_on_node(
    launchers: Sequence[_Launcher], tasks: _Figure | None, gpus: _Figure | None
) -> _Figure | None:
    """The ranks on a node that no agent starts. One task with several GPUs starts them itself."""
    if tasks is not None:
        return gpus if gpus and tasks.count == 1 else tasks
    return _last([launcher for launcher in launchers if launcher.name in _MPI], _OF_MPI)


def _gpus(
    launcher: _Launcher, nodes: _Figure | None, tasks: _Figure | None, ranks: _Figure | None
) -> Iterator[_Figure]:
    """The GPUs of a node, as each option of Slurm asks for them."""
    if not launcher.asks_for_gpus:
        return
    on_node = tasks.count if tasks else None
    if on_node is None and ranks and nodes and ranks.count % nodes.count == 0:
        on_node = ranks.count // nodes.count
    for name, match in _requests(launcher):
        count = int(match["count"] or 1)
        if name == "gpus_per_task":
            count *= on_node or 0
        elif name in ("gpus", "G"):
            count = count // nodes.count if nodes and count % nodes.count == 0 else 0
        if count:
            yield _Figure(count, launcher.written(name))


def _all_gpus(launchers: Sequence[_Launcher]) -> int | None:
    """All GPUs of a job, where Slurm chooses their nodes."""
    asked = [
        int(match["count"])
        for launcher in launchers
        for name, match in _requests(launcher)
        if name in ("gpus", "G")
    ]
    return asked[-1] if asked else None


def _chip(launcher: _Launcher) -> str | None:
    return next((match["chip"] for _, match in _requests(launcher) if match["chip"]), None)


def _features(launchers: Sequence[_Launcher], num_nodes: int | None) -> tuple[str, ...]:
    """Returns the feature that the innermost constraint asks of every node."""
    said = [
        launcher.options[name]
        for launcher in launchers
        if launcher.asks_for_gpus
        for name in ("constraint", "C")
        if name in launcher.options
    ]
    return required_features(said[-1], num_nodes) if said else ()


def _requests(launcher: _Launcher) -> Iterator[tuple[str, re.Match[str]]]:
    """The options of Slurm that ask for GPUs, and what they ask for."""
    if not launcher.asks_for_gpus:
        return
    for name in ("gpus_per_node", "gpus", "G", "gpus_per_task"):
        match = _GPUS.fullmatch(launcher.options.get(name, ""))
        if match:
            yield name, match
    for request in launcher.options.get("gres", "").split(","):
        match = _GRES.fullmatch(request)
        if match:
            yield "gres", match


def _number(text: str | None) -> int | None:
    """A number; of a range such as 2-2 or 4:4, where both ends are the same."""
    ends = set(re.split(r"[:-]", text or ""))
    end = ends.pop() if len(ends) == 1 else ""
    return int(end) or None if _WHOLE.fullmatch(end) else None
