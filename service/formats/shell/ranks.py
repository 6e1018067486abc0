"""Counts the nodes, GPUs and ranks of the command that starts a training, by the options of its
launchers and of Slurm. They say on which cluster the job runs.
Launchers stand in one another, as in `srun … torchrun …`: the innermost overrides those outside.
An *agent*, such as torchrun, runs once on a node and starts all of its ranks; under it the tasks of
Slurm are agents, and no ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from models.errors import Invalid
from service.formats.shell.faults import invalid_launch
from service.formats.shell.features import required_features
from service.formats.shell.headers import PBS, Header, options, used_components
from service.formats.shell.launchers import (
    NODES,
    OF_MPI,
    RANKS,
    Figure,
    Launcher,
    agreed_count,
    has_agent,
    header_as_launcher,
    innermost,
    launchers_of,
    positive_integer,
    with_underscores,
)
from service.formats.shell.programs import NODE_OPTIONS
from service.formats.shell.tpu_slices import Slices, gpu_machines_of, slices_of

VISIBLE = "CUDA_VISIBLE_DEVICES"
_DEVICE = re.compile(r"\d{1,3}|(?:GPU|MIG)-[\w/-]{1,80}", re.ASCII)
"""A GPU in this variable: its index, or its UUID."""
_ALLOCATES = {"sbatch", "salloc"}
_TORCHRUN = {"torchrun", "torch.distributed.run", "torch.distributed.launch"}
_OF_AGENT = ("nproc_per_node", "num_gpus")
"""Options of agents for the number of ranks on a node."""
_TASKS = ("ntasks_per_node",)


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


def ranks_of(header: Header, before: Sequence[str], environment: Mapping[str, str]) -> Ranks:
    """Returns the ranks that a command starts, by the words in front of its program and by
    `header`, the options of its job.

    Raises Invalid where two options contradict each other on nodes or GPUs, or where there are
    more ranks than GPUs.
    """
    launchers = launchers_of(before)
    # jsrun, torchx and xpk count in units of their own, and need no other option.
    ranks_of_sets = _ranks_of_sets(launchers)
    if ranks_of_sets is not None:
        return ranks_of_sets
    asked = {name.lower(): value for name, value in with_underscores(options(before)).items()}
    slices = slices_of(asked)
    if slices is not None:
        return Ranks(total=slices.num_chips, chip=slices.chip, slices=slices)
    machines = gpu_machines_of(asked)
    if machines is not None:
        nodes, gpus = machines.nodes, machines.gpus_per_node
        return Ranks(nnodes=nodes, per_node=gpus, total=nodes * gpus, chip=machines.chip)
    components = [header.component(index) for index in used_components(header, before)]
    by_default = _nodes_by_default(launchers, environment)
    if len(components) == 1:
        return _ranks_of_component(components[0], launchers, by_default, environment)
    return _ranks_of_components(components, launchers, by_default, environment)


def _ranks_of_components(
    headers: Sequence[Header],
    launchers: Sequence[Launcher],
    by_default: Figure | None,
    environment: Mapping[str, str],
) -> Ranks:
    """Returns the ranks of a command that runs on several components of a heterogeneous job, whose
    options are `headers`. `by_default` is the number of nodes that the command has by itself."""
    # Agents and MPI launchers count nodes and ranks over all components.
    of_part = [launcher.without_totals() for launcher in launchers]
    components = [_ranks_of_component(header, of_part, None, environment) for header in headers]
    nodes = _sum_if_known([ranks.nnodes for ranks in components])
    total = _sum_if_known([ranks.total for ranks in components])
    name = headers[0].name
    if nodes is not None:
        asked = Figure(nodes, f"{name} of {len(components)} components")
        agents = [launcher for launcher in launchers if launcher.is_agent]
        of_agents = [next(agent.figures(NODES), None) for agent in agents]
        agreed_count([asked, *of_agents, by_default], "nodes")
    ranks = innermost([launcher for launcher in launchers if launcher.is_mpi], RANKS)
    if ranks is not None and not has_agent(launchers):
        if total is not None and ranks.count > total:
            raise _more_ranks_error(ranks, "all nodes", total, name)
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


def _ranks_of_sets(launchers: Sequence[Launcher]) -> Ranks | None:
    """Returns the ranks of a launcher that counts equal sets: resource sets of jsrun, or nodes
    of torchx as in -j 4x8. None for any other launcher, and where an agent inside of it counts the
    ranks."""
    for launcher in launchers:
        if launcher.name == "jsrun" and not has_agent(launchers):
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
    started: Sequence[Launcher],
    by_default: Figure | None,
    environment: Mapping[str, str],
) -> Ranks:
    """Returns the ranks of a job, or of one component of a heterogeneous job, as far as the options
    of its header and of the launchers `started` tell. `by_default` is the number of nodes that the
    command has by itself."""
    launchers = [header_as_launcher(header), *started]
    is_by_agent = has_agent(launchers)
    nodes = _number_of_nodes(launchers, by_default)
    tasks = innermost(launchers, _TASKS)
    # Under an agent --ntasks counts agents, and no ranks.
    all_ranks = None if is_by_agent else innermost(launchers, RANKS)
    gpus = _gpus_on_node(launchers, nodes, tasks, all_ranks)
    if is_by_agent:
        per_node = innermost(launchers, _OF_AGENT)  # such as --nproc_per_node of torchrun
        visible = visible_devices(environment)
        if gpus is None and visible:
            gpus = Figure(visible, f"{VISIBLE}={environment[VISIBLE]}")
    else:
        per_node = _ranks_on_node(launchers, tasks, gpus)
    if per_node is None and not all_ranks:
        per_node = gpus  # by default each GPU has a rank
    _require_gpus_for(per_node, all_ranks, nodes, gpus)
    num_nodes = nodes.count if nodes else None
    num_per_node = per_node.count if per_node else None
    total = all_ranks.count if all_ranks else None
    if total is None and not is_by_agent:
        total = positive_integer(environment.get("WORLD_SIZE"))
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
    launchers: Sequence[Launcher],
    nodes: Figure | None,
    tasks: Figure | None,
    ranks: Figure | None,
) -> Figure | None:
    """Returns the number of GPUs of a node; None where no option gives it. Raises Invalid where
    two options differ."""
    figures: list[Figure] = []
    for launcher in launchers:
        figures += _gpus_of_node_by_option(launcher, nodes, tasks, ranks)
    return agreed_count(figures, "GPUs on a node")


def visible_devices(environment: Mapping[str, str]) -> int | None:
    """Returns the number of GPUs that the environment leaves visible; None where it leaves all."""
    names = environment.get(VISIBLE, "").split(",")
    return len(names) if all(map(_DEVICE.fullmatch, names)) else None


def _require_gpus_for(
    per_node: Figure | None, ranks: Figure | None, nodes: Figure | None, gpus: Figure | None
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
    job = header_as_launcher(header)
    nodes = innermost([job], NODES)
    tasks = innermost([job], _TASKS)
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
    is_slurm = header.name != PBS
    # Each scheduler sets its own variables alone.
    others = "PBS_" if is_slurm else "SLURM_"
    return {name: str(count) for name, count in counts.items() if not name.startswith(others)}


def _more_ranks_error(ranks: Figure, place: str, gpus: int, options: str) -> Invalid:
    """Returns the error for more ranks than GPUs; `options` are those that ask for the GPUs."""
    rule = (
        f"starts {ranks.count} ranks on {place}, and {options} asks for {gpus} GPUs there: write as"
        " many ranks as GPUs"
    )
    return invalid_launch(ranks.option, rule)


def _nodes_by_default(
    launchers: Sequence[Launcher], environment: Mapping[str, str]
) -> Figure | None:
    """Returns the number of nodes on which torchrun runs without an option for it: one, unless its
    variable PET_NNODES says another. None for other commands (torch 2.14.1, distributed/run.py,
    get_args_parser)."""
    for launcher in launchers:
        if launcher.name not in _TORCHRUN or launcher.has_unknown_words:
            continue
        if "standalone" in launcher.options:
            return Figure(1, f"{launcher.name} --standalone")
        if "nnodes" not in launcher.options:
            count = environment.get("PET_NNODES", "1")
            known = positive_integer(count)
            return Figure(known, f"{launcher.name} without --nnodes") if known else None
    return None


def _number_of_nodes(launchers: Sequence[Launcher], by_default: Figure | None) -> Figure | None:
    """Returns the number of nodes; None where it is not known. Without an option for nodes it is
    one, if an agent such as torchrun starts the ranks, or a Slurm script asks for no total of
    GPUs or tasks. `by_default` is what the command makes of them by itself."""
    figures: list[Figure] = []
    says_nodes = False
    for launcher in launchers:
        names = NODES[:-1] if launcher.is_mpi else NODES  # mpirun counts ranks by -N
        says_nodes |= any(name in launcher.options for name in names)
        figures = _with_nodes_of(launcher, [*launcher.figures(names)], figures, launchers)
    if says_nodes:  # a number that is still a variable is not known
        return agreed_count([*figures, by_default], "nodes") if figures else None
    if any(
        launcher.asks_scheduler and {"gpus", "G"} & launcher.options.keys()
        for launcher in launchers
    ):
        return None  # Slurm spreads that many GPUs over nodes as it likes
    # Both torchrun and sbatch default to one node, unless hosts or tasks are listed.
    script = launchers[0].options  # the #SBATCH lines
    has_hosts = any({"hostfile", "H"} & launcher.options.keys() for launcher in launchers)
    is_one = has_agent(launchers) and not has_hosts
    is_one |= bool(script) and not script.keys() & {"ntasks", "n"}
    return Figure(1, "one node") if is_one else None


def _with_nodes_of(
    launcher: Launcher, own: list[Figure], outside: list[Figure], launchers: Sequence[Launcher]
) -> list[Figure]:
    """Returns the numbers of nodes that have to agree, once a launcher has `own` ones inside of
    launchers with those of `outside`."""
    if not own:
        return outside
    if launcher.name in _ALLOCATES:  # sbatch -N goes before #SBATCH -N
        return own
    if launcher.name != "srun":
        return [*outside, *own]
    # One step of several that start a job node by node: the agent has the number of all nodes.
    agents = [inner for inner in launchers if inner.is_agent and "nnodes" in inner.options]
    has_place = any(inner.options.keys() & {*NODE_OPTIONS} for inner in (launcher, *agents))
    if own[0].count == 1 and agents and has_place:
        return outside
    # A step may run on fewer nodes than its job has.
    is_part = all(figure.count >= own[0].count for figure in outside)
    return own if is_part else [*outside, *own]


def _ranks_on_node(
    launchers: Sequence[Launcher], tasks: Figure | None, gpus: Figure | None
) -> Figure | None:
    """Returns the ranks that Slurm or MPI starts on a node. A single task with several GPUs
    counts as starting one rank for each, as a program does that spawns its own processes."""
    if tasks is not None:
        return gpus if gpus and tasks.count == 1 else tasks
    return innermost([launcher for launcher in launchers if launcher.is_mpi], OF_MPI)


def _gpus_of_node_by_option(
    launcher: Launcher, nodes: Figure | None, tasks: Figure | None, ranks: Figure | None
) -> Iterator[Figure]:
    """Yields the number of GPUs of a node by each option of Slurm that gives it. Options that
    count GPUs by job or by task are divided by `nodes`, or multiplied by `tasks`, the tasks on a
    node, for which `ranks` / `nodes` stands in."""
    if not launcher.asks_scheduler:
        return
    nodes = next(launcher.figures(NODES), nodes)
    tasks_on_node = tasks.count if tasks else 0
    if not tasks and ranks and nodes and ranks.count % nodes.count == 0:
        tasks_on_node = ranks.count // nodes.count
    for name, match in launcher.gpu_requests():
        count = int(match["count"] or 1)  # --gres=gpu asks for one
        # Options count GPUs by task, by job or by node; 0 stands for an unknown number.
        if name == "gpus_per_task":
            count *= tasks_on_node
        elif name in ("gpus", "G"):
            count = count // nodes.count if nodes and count % nodes.count == 0 else 0
        if count:
            yield Figure(count, launcher.shown(name))


def _total_gpus(launchers: Sequence[Launcher]) -> int | None:
    """Returns the total of GPUs that --gpus asks for, which Slurm spreads over nodes as it
    likes; None without it."""
    counts = [
        int(match["count"])
        for launcher in launchers
        for name, match in launcher.gpu_requests()
        if name in ("gpus", "G")
    ]
    return counts[-1] if counts else None  # the innermost launcher's


def _requested_chip(launcher: Launcher) -> str | None:
    """Returns the name of the chip that a launcher asks for, such as "h100"; None where it names
    none."""
    return next((match["chip"] for _, match in launcher.gpu_requests() if match["chip"]), None)


def _required_features(launchers: Sequence[Launcher], num_nodes: int | None) -> tuple[str, ...]:
    """Returns the features that the innermost --constraint requires of every node. They may name
    the chip."""
    constraints: list[str] = []
    for launcher in launchers:
        if launcher.asks_scheduler:
            names = [name for name in ("constraint", "C") if name in launcher.options]
            constraints += [launcher.options[name] for name in names]
    return required_features(constraints[-1], num_nodes) if constraints else ()
