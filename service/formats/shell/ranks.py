"""Counts the nodes, GPUs and ranks of the command that starts a training, by the options of its
launchers and of Slurm. They say on which cluster the job runs.
Launchers stand in one another, as in `srun … torchrun …`: the innermost overrides those outside.
An *agent*, such as torchrun, runs once on a node and starts all of its ranks; under it the tasks of
Slurm are agents, and no ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from models.errors import Invalid
from service.formats.shell.faults import invalid_launch, undefined_variables
from service.formats.shell.features import required_features
from service.formats.shell.headers import Header, options, used_components
from service.formats.shell.programs import AGENTS, LAUNCHERS, NODE_OPTIONS
from service.formats.shell.tpu_slices import Slices, gpu_machines_of, slices_of

_MPI = {"mpirun", "mpiexec"}
_SLURM = {"srun", "sbatch", "salloc"}
_ALLOCATES = {"sbatch", "salloc"}
_TORCHRUN = {"torchrun", "torch.distributed.run", "torch.distributed.launch"}
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
    slices: Slices | None = None
    """The slices of TPUs that xpk is asked for."""


@dataclass(frozen=True, slots=True)
class _Figure:
    """A number of nodes, GPUs or ranks."""

    count: int
    option: str
    """The option that says it, such as "srun --nodes=4"."""


@dataclass(frozen=True, slots=True)
class _Launcher:
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
    def asks_scheduler(self) -> bool:
        """Returns True where options such as --gpus ask a scheduler for nodes and GPUs."""
        return self.is_header or self.name in _SLURM

    def figures(self, names: Iterable[str]) -> Iterator[_Figure]:
        """Yields the counts of the options with these names that are given as numbers, in this
        order."""
        for name in names:
            count = _positive_integer(self.options.get(name))
            if count:
                yield _Figure(count, self.shown(name))

    def shown(self, name: str) -> str:
        """Returns an option with its value as the text writes it, for messages: "torchrun
        --nnodes=2". MPI launchers write the option for ranks, -np, with one dash, as all do for
        names of one letter."""
        if name in self.as_written:
            return self.as_written[name]
        dashes = "-" if len(name) == 1 or (self.name in _MPI and name in _RANKS) else "--"
        return f"{self.name} {dashes}{name.replace('_', '-')}={self.options[name]}".strip()


def ranks_of(header: Header, before: Sequence[str], environment: Mapping[str, str]) -> Ranks:
    """Returns the ranks that a command starts, by the words in front of its program and by
    `header`, the options of its job.

    Raises Invalid where two options contradict each other on nodes or GPUs, or where there are
    more ranks than GPUs.
    """
    # jsrun, torchx and xpk count in units of their own, and need no other option.
    ranks_of_sets = _ranks_of_sets(before)
    if ranks_of_sets is not None:
        return ranks_of_sets
    asked = {name.lower(): value for name, value in _with_underscores(options(before)).items()}
    slices = slices_of(asked)
    if slices is not None:
        return Ranks(total=slices.num_chips, chip=slices.chip, slices=slices)
    machines = gpu_machines_of(asked)
    if machines is not None:
        nodes, gpus = machines.nodes, machines.gpus_per_node
        return Ranks(nnodes=nodes, per_node=gpus, total=nodes * gpus, chip=machines.chip)
    indices = used_components(header, before)
    if len(indices) == 1:
        return _ranks_of_component(header.component(indices[0]), before, environment)
    return _ranks_of_components(header, indices, before, environment)


def _ranks_of_components(
    header: Header, indices: Sequence[int], before: Sequence[str], environment: Mapping[str, str]
) -> Ranks:
    """Returns the ranks of a command that runs on several components of a heterogeneous job."""
    components = [
        _ranks_of_component(header.component(index), before, environment, is_part=True)
        for index in indices
    ]
    nodes = _sum_if_known([ranks.nnodes for ranks in components])
    total = _sum_if_known([ranks.total for ranks in components])
    launchers = [*_launchers(before)]
    if nodes is not None:
        asked = _Figure(nodes, f"{header.name} of {len(components)} components")
        agents = [launcher for launcher in launchers if launcher.name in AGENTS]
        in_agents = [*filter(None, (next(agent.figures(_NODES), None) for agent in agents))]
        default = _nodes_by_default(launchers, environment)
        _agreed_count([asked, *in_agents, *([default] if default else [])], "nodes")
    ranks = _innermost([launcher for launcher in launchers if launcher.name in _MPI], _RANKS)
    if ranks is not None and not any(launcher.name in AGENTS for launcher in launchers):
        if total is not None and ranks.count > total:
            raise _more_ranks_error(ranks, "all nodes", total, header.name)
        total = ranks.count
    # Where components differ in their ranks on a node, no number holds for the job.
    per_node = {ranks.per_node for ranks in components}
    return Ranks(
        nnodes=nodes,
        per_node=per_node.pop() if len(per_node) == 1 else None,
        total=total,
        chip=next((ranks.chip for ranks in components if ranks.chip), None),
        features=tuple(feature for ranks in components for feature in ranks.features),
    )


def _sum_if_known(counts: Sequence[int | None]) -> int | None:
    """Returns the sum of the counts; None where one of them is None."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _ranks_of_sets(before: Sequence[str]) -> Ranks | None:
    """Returns the ranks of a launcher that counts equal sets: resource sets of jsrun, or nodes
    of torchx as in -j 4x8. None for any other launcher, and where an agent inside of it counts the
    ranks."""
    launchers = [*_launchers(before)]
    has_agent = any(launcher.name in AGENTS for launcher in launchers)
    for launcher in launchers:
        if launcher.name == "jsrun" and not has_agent:
            sets = next(launcher.figures(("nrs", "n")), None)
            tasks = next(launcher.figures(("tasks_per_rs", "a")), None)
            if sets and tasks:
                return Ranks(total=sets.count * tasks.count)
        counts = re.fullmatch(r"(\d{1,6})x(\d{1,4})", launcher.options.get("j", ""), re.ASCII)
        if launcher.name == "torchx" and counts:
            nodes = int(counts[1])
            ranks = int(counts[2])
            return Ranks(nnodes=nodes, per_node=ranks, total=nodes * ranks)
    return None


def _ranks_of_component(
    header: Header,
    before: Sequence[str],
    environment: Mapping[str, str],
    *,
    is_part: bool = False,
) -> Ranks:
    """Returns the ranks of a job, or with `is_part` of one component of a heterogeneous job, as far
    as its options tell."""
    started = [*_launchers(before)]
    by_default = _nodes_by_default(started, environment)
    if is_part:  # agents and MPI launchers count nodes and ranks over all components
        started = [*map(_without_totals, started)]
        by_default = None
    launchers = [_header_as_launcher(header), *started]
    has_agent = any(launcher.name in AGENTS for launcher in launchers)
    nodes = _number_of_nodes(launchers, by_default, has_agent=has_agent)
    tasks = _innermost(launchers, ("ntasks_per_node",))
    # Under an agent --ntasks counts agents, and no ranks.
    all_ranks = None if has_agent else _innermost(launchers, _RANKS)
    gpus = _gpus_on_node(launchers, nodes, tasks, all_ranks)
    if has_agent:
        per_node = _innermost(launchers, _OF_AGENT)  # such as --nproc_per_node of torchrun
        gpus = gpus or _visible_gpus(environment)
    else:
        per_node = _ranks_on_node(launchers, tasks, gpus)
    if per_node is None and not all_ranks:
        per_node = gpus  # by default each GPU has a rank
    _require_gpus_for(per_node, all_ranks, nodes, gpus)
    num_nodes = nodes.count if nodes else None
    num_per_node = per_node.count if per_node else None
    total = all_ranks.count if all_ranks else None
    if total is None and not has_agent:
        total = _positive_integer(environment.get("WORLD_SIZE"))
    if total is None and num_nodes and num_per_node:
        total = num_nodes * num_per_node
    elif total is None:
        total = _total_gpus(launchers)  # by default each GPU has a rank
    if num_per_node is None and total and num_nodes and total % num_nodes == 0:
        num_per_node = total // num_nodes
    chips = [chip for launcher in launchers if (chip := _requested_chip(launcher))]
    return Ranks(
        nnodes=num_nodes,
        per_node=num_per_node,
        total=total,
        chip=chips[-1] if chips else None,  # the innermost launcher's
        features=_required_features(launchers, num_nodes),
    )


def _gpus_on_node(
    launchers: Sequence[_Launcher],
    nodes: _Figure | None,
    tasks: _Figure | None,
    ranks: _Figure | None,
) -> _Figure | None:
    """Returns the number of GPUs of a node; None where no option gives it. Raises Invalid where
    two options differ."""
    figures: list[_Figure] = []
    for launcher in launchers:
        figures += _gpus_of_node_by_option(launcher, nodes, tasks, ranks)
    return _agreed_count(figures, "GPUs on a node")


def _visible_gpus(environment: Mapping[str, str]) -> _Figure | None:
    """Returns the number of GPUs that the environment leaves visible; None where it leaves all."""
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    if not re.fullmatch(r"\d{1,3}(?:,\d{1,3})*", visible, re.ASCII):
        return None
    return _Figure(len(visible.split(",")), f"CUDA_VISIBLE_DEVICES={visible}")


def _require_gpus_for(
    per_node: _Figure | None, ranks: _Figure | None, nodes: _Figure | None, gpus: _Figure | None
) -> None:
    """Raises Invalid where more ranks than GPUs are asked for, on one node or on all together."""
    if gpus is None:
        return
    if per_node is not None and per_node.count > gpus.count:
        raise _more_ranks_error(per_node, "a node", gpus.count, gpus.option)
    if ranks is not None and nodes is not None and ranks.count > nodes.count * gpus.count:
        options_of_all = f"{nodes.option} and {gpus.option}"
        raise _more_ranks_error(ranks, "all nodes", nodes.count * gpus.count, options_of_all)


def scheduler_variables(header: Header) -> dict[str, str]:
    """Returns the environment variables that Slurm or PBS sets for a job with these options:
    {"SLURM_NNODES": "4"} for #SBATCH --nodes=4. Scripts hand them to their launchers."""
    job = _header_as_launcher(header)
    nodes = _innermost([job], _NODES)
    tasks = _innermost([job], ("ntasks_per_node",))
    gpus = next(_gpus_of_node_by_option(job, nodes, tasks, ranks=None), None)
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
        counts["PBS_NP"] = nodes.count * (tasks.count if tasks else 1)  # MPI ranks: one by default
    if nodes and tasks:
        counts["SLURM_NTASKS"] = nodes.count * tasks.count
    is_slurm = header.name != "#PBS"
    # Each scheduler sets its own variables alone.
    others = "PBS_" if is_slurm else "SLURM_"
    return {name: str(count) for name, count in counts.items() if not name.startswith(others)}


def _header_as_launcher(header: Header) -> _Launcher:
    """Returns the #SBATCH or #PBS options of a job as those of a launcher, so that both are
    counted by the same rules."""
    return _Launcher(
        header.name,
        _with_underscores(header.options),
        is_header=True,
        as_written=_with_underscores(header.as_written),
    )


def _with_underscores(options: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("-", "_"): value for name, value in options.items()}


def _launchers(words: Sequence[str]) -> Iterator[_Launcher]:
    """Yields the launchers among some words, each with the options up to the next one. Options
    in front of the first launcher belong to one without a name."""
    name = ""
    behind: list[str] = []
    for word in words:
        base = word.rpartition("/")[2]
        if base in LAUNCHERS:
            yield _launcher(name, behind)
            name = base
            behind = []
        else:
            behind.append(word)
    yield _launcher(name, behind)


def _launcher(name: str, words: Sequence[str]) -> _Launcher:
    """Returns the launcher `name` with its options among the words behind it."""
    # A variable behind an option is its value; any other may hold options.
    is_unknown = any(
        undefined_variables(word) and word[0] in "$`" and (before[:1] != "-" or "=" in before)
        for before, word in zip(["", *words], words, strict=False)
    )
    return _Launcher(name, _with_underscores(options(words)), has_unknown_words=is_unknown)


def _innermost(launchers: Sequence[_Launcher], names: Iterable[str]) -> _Figure | None:
    """Returns the count that the innermost launcher gives by one of these options, since it
    overrides those outside; None where none gives one."""
    names = tuple(names)
    figures = [next(launcher.figures(names), None) for launcher in launchers]
    return next((figure for figure in reversed(figures) if figure), None)


def _agreed_count(figures: Sequence[_Figure], what: str) -> _Figure | None:
    """Returns the count on which all options agree; None where there are none. Raises Invalid
    where two differ. `what` names what they count, for the error: "nodes"."""
    for figure in figures:
        if figure.count != figures[0].count:
            rule = (
                f"makes {figure.count} {what}, and {figures[0].option} makes"
                f" {figures[0].count}: write what the job has in both"
            )
            raise invalid_launch(figure.option, rule)
    return figures[0] if figures else None


def _more_ranks_error(ranks: _Figure, place: str, gpus: int, options: str) -> Invalid:
    """Returns the error for more ranks than GPUs; `options` are those that ask for the GPUs."""
    rule = (
        f"starts {ranks.count} ranks on {place}, and {options} asks for {gpus} GPUs there: write as"
        " many ranks as GPUs"
    )
    return invalid_launch(ranks.option, rule)


def _without_totals(launcher: _Launcher) -> _Launcher:
    """Returns a launcher without its options for all nodes and all ranks of a job. The options of
    srun count those of one component, and stay."""
    if launcher.name not in (*AGENTS, *_MPI):
        return launcher
    names = {*_NODES, *_RANKS} - {*_OF_MPI}
    options_left = {name: launcher.options[name] for name in launcher.options if name not in names}
    return replace(launcher, options=options_left)


def _nodes_by_default(
    launchers: Sequence[_Launcher], environment: Mapping[str, str]
) -> _Figure | None:
    """Returns the number of nodes on which torchrun runs without an option for it: one, unless its
    variable PET_NNODES says another. None for other commands (torch 2.14.1, distributed/run.py,
    get_args_parser)."""
    for launcher in launchers:
        if launcher.name not in _TORCHRUN or launcher.has_unknown_words:
            continue
        if "standalone" in launcher.options:
            return _Figure(1, f"{launcher.name} --standalone")
        if "nnodes" not in launcher.options:
            count = environment.get("PET_NNODES", "1")
            known = _positive_integer(count)
            return _Figure(known, f"{launcher.name} without --nnodes") if known else None
    return None


def _number_of_nodes(
    launchers: Sequence[_Launcher], by_default: _Figure | None, *, has_agent: bool
) -> _Figure | None:
    """Returns the number of nodes; None where it is not known. Without an option for nodes it is
    one, if an agent such as torchrun starts the ranks, or a Slurm script asks for no total of
    GPUs or tasks. `by_default` is what the command makes of them by itself."""
    figures: list[_Figure] = []
    says_nodes = False
    for launcher in launchers:
        names = _NODES[:-1] if launcher.name in _MPI else _NODES  # mpirun counts ranks by -N
        says_nodes |= any(name in launcher.options for name in names)
        figures = _with_nodes_of(launcher, [*launcher.figures(names)], figures, launchers)
    if figures or says_nodes:  # a number that is still a variable is not known
        return _agreed_count([*figures, *([by_default] if by_default and figures else [])], "nodes")
    if any(
        launcher.asks_scheduler and {"gpus", "G"} & launcher.options.keys()
        for launcher in launchers
    ):
        return None  # Slurm spreads that many GPUs over nodes as it likes
    # Both torchrun and sbatch default to one node, unless hosts or tasks are listed.
    script = launchers[0].options  # the #SBATCH lines
    has_hosts = any({"hostfile", "H"} & launcher.options.keys() for launcher in launchers)
    is_one = has_agent and not has_hosts
    is_one |= bool(script) and not script.keys() & {"ntasks", "n"}
    return _Figure(1, "one node") if is_one else None


def _with_nodes_of(
    launcher: _Launcher,
    own: list[_Figure],
    outside: list[_Figure],
    launchers: Sequence[_Launcher],
) -> list[_Figure]:
    """Returns the numbers of nodes that have to agree, once a launcher has `own` ones inside of
    launchers with those of `outside`."""
    if not own:
        return outside
    if launcher.name in _ALLOCATES:  # sbatch -N goes before #SBATCH -N
        return own
    if launcher.name != "srun":
        return [*outside, *own]
    # One step of several that start a job node by node: the agent has the number of all nodes.
    agents = [inner for inner in launchers if inner.name in AGENTS and "nnodes" in inner.options]
    has_place = any(inner.options.keys() & {*NODE_OPTIONS} for inner in (launcher, *agents))
    if own[0].count == 1 and agents and has_place:
        return outside
    # A step may run on fewer nodes than its job has.
    is_part = all(figure.count >= own[0].count for figure in outside)
    return own if is_part else [*outside, *own]


def _ranks_on_node(
    launchers: Sequence[_Launcher], tasks: _Figure | None, gpus: _Figure | None
) -> _Figure | None:
    """Returns the ranks that Slurm or MPI starts on a node. A single task with several GPUs
    counts as starting one rank for each, as a program does that spawns its own processes."""
    if tasks is not None:
        return gpus if gpus and tasks.count == 1 else tasks
    return _innermost([launcher for launcher in launchers if launcher.name in _MPI], _OF_MPI)


def _gpus_of_node_by_option(
    launcher: _Launcher, nodes: _Figure | None, tasks: _Figure | None, ranks: _Figure | None
) -> Iterator[_Figure]:
    """Yields the number of GPUs of a node by each option of Slurm that gives it. Options that
    count GPUs by job or by task are divided by `nodes`, or multiplied by `tasks`, the tasks on a
    node, for which `ranks` / `nodes` stands in."""
    if not launcher.asks_scheduler:
        return
    nodes = next(launcher.figures(_NODES), nodes)
    tasks_on_node = tasks.count if tasks else 0
    if not tasks and ranks and nodes and ranks.count % nodes.count == 0:
        tasks_on_node = ranks.count // nodes.count
    for name, match in _gpu_requests(launcher):
        count = int(match["count"] or 1)  # --gres=gpu asks for one
        # Options count GPUs by task, by job or by node; 0 stands for an unknown number.
        if name == "gpus_per_task":
            count *= tasks_on_node
        elif name in ("gpus", "G"):
            count = count // nodes.count if nodes and count % nodes.count == 0 else 0
        if count:
            yield _Figure(count, launcher.shown(name))


def _total_gpus(launchers: Sequence[_Launcher]) -> int | None:
    """Returns the total of GPUs that --gpus asks for, which Slurm spreads over nodes as it
    likes; None without it."""
    counts = [
        int(match["count"])
        for launcher in launchers
        for name, match in _gpu_requests(launcher)
        if name in ("gpus", "G")
    ]
    return counts[-1] if counts else None  # the innermost launcher's


def _requested_chip(launcher: _Launcher) -> str | None:
    """Returns the name of the chip that a launcher asks for, such as "h100"; None where it names
    none."""
    return next((match["chip"] for _, match in _gpu_requests(launcher) if match["chip"]), None)


def _required_features(launchers: Sequence[_Launcher], num_nodes: int | None) -> tuple[str, ...]:
    """Returns the features that the innermost --constraint requires of every node. They may name
    the chip."""
    constraints: list[str] = []
    for launcher in launchers:
        if launcher.asks_scheduler:
            names = [name for name in ("constraint", "C") if name in launcher.options]
            constraints += [launcher.options[name] for name in names]
    return required_features(constraints[-1], num_nodes) if constraints else ()


def _gpu_requests(launcher: _Launcher) -> Iterator[tuple[str, re.Match[str]]]:
    """Yields Slurm's options that ask for GPUs: the name of each, and the match of its value,
    with groups `chip` and `count` as in h100:8."""
    if not launcher.asks_scheduler:
        return
    for name in ("gpus_per_node", "gpus", "G", "gpus_per_task"):
        match = _GPUS.fullmatch(launcher.options.get(name, ""))
        if match:
            yield name, match
    for request in launcher.options.get("gres", "").split(","):
        match = _GRES.fullmatch(request)
        if match:
            yield "gres", match


def _positive_integer(text: str | None) -> int | None:
    """Returns a whole number from 1 up. A range with equal ends, such as 2-2 of Slurm or 4:4 of
    torchrun, counts as one number. None for any other text, and for 0."""
    ends = set(re.split(r"[:-]", text or ""))
    number = ends.pop() if len(ends) == 1 else ""
    if not _WHOLE.fullmatch(number):
        return None
    return int(number) or None
