"""The parts of a question that options say: the model, the cluster, the workload."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from shardwright.cli.job_files import read_text

_CHIPS_OF_NODE = 8  # of most machines that are trained on; --gpus-per-node says otherwise

_MODEL = "A model of the catalogue, or the path of a config.json or of its folder."
_ON = typer.Option(
    "--on", help="A chip or cluster of the catalogue, such as h100, or h100:64 for 64 chips."
)
_SEQ_LEN = typer.Option(min=1, help="Tokens of a sequence.")
_BATCH = typer.Option(min=1, help="Sequences of a step, over all chips.")
_STACK = typer.Option(help="The training framework, such as torchtitan.")
Script = Annotated[str, typer.Argument(help="The script of the job, or - for standard input.")]
Model = Annotated[str | None, typer.Option(help=_MODEL)]
ModelArgument = Annotated[str, typer.Argument(help=_MODEL)]
On = Annotated[str | None, _ON]
RequiredOn = Annotated[str, _ON]
Nodes = Annotated[int | None, typer.Option(min=1, help="How many nodes the job has.")]
GpusPerNode = Annotated[int | None, typer.Option(min=1, help="How many GPUs a node has.")]
Chips = Annotated[int | None, typer.Option(min=1, help="How many chips the job has in all.")]
SeqLen = Annotated[int | None, _SEQ_LEN]
RequiredSeqLen = Annotated[int, _SEQ_LEN]
Batch = Annotated[int | None, _BATCH]
RequiredBatch = Annotated[int, _BATCH]
Stack = Annotated[str | None, _STACK]
RequiredStack = Annotated[str, _STACK]
Format = Annotated[
    str | None,
    typer.Option(
        "--format", help="The launcher of the script, such as axolotl; else it is found out."
    ),
]
Local = Annotated[
    bool,
    typer.Option(
        "--local", help="Answer in this process, without a service; it needs shardwright[server]."
    ),
]
AsJson = Annotated[
    bool | None,
    typer.Option("--json/--no-json", help="JSON; in a pipe that is so anyway.", show_default=False),
]


def model_part(model: str | None) -> Any:
    """Returns the model as a request has it: its name, or the content of the config.json at that
    path or in that folder."""
    if model is None:
        return None
    for path in (Path(model), Path(model, "config.json")):
        if path.is_file():
            return json.loads(read_text(str(path)))
    return model


def cluster_part(
    on: str | None, nodes: int | None, gpus_per_node: int | None, chips: int | None
) -> dict[str, Any] | None:
    """Returns the cluster as a request has it; None where no option gives it. `on` is the name of a
    chip or cluster, perhaps with a number of chips, such as "h100:64". Raises ValueError where
    there are nodes or chips without a name, or two numbers of them."""
    if on is not None and ":" in on:
        on, chips = _counted(on, nodes, chips)
    if nodes is not None and chips is None:
        chips = nodes * (gpus_per_node or _CHIPS_OF_NODE)
    if on is None:
        if chips is not None:
            raise ValueError("how many nodes or chips there are says nothing without --on CHIP")
        return None
    return {"preset": on} if chips is None else {"preset": on, "num_chips": chips}


def _counted(on: str, nodes: int | None, chips: int | None) -> tuple[str, int]:
    """Returns the name and the number of chips in a text such as "h100:64". Raises ValueError where
    it has no number, or an option gives one too."""
    name, _, number = on.partition(":")
    if not number.isdecimal() or int(number) == 0:
        raise ValueError(f"--on {on}: say the number of chips behind the colon, as {name}:64")
    if nodes is not None or chips is not None:
        raise ValueError(f"--on {on} says the number of chips: leave out --nodes and --chips")
    return name, int(number)


def workload_part(seq_len: int | None, batch: int | None) -> dict[str, Any]:
    return without_empty(seq_len=seq_len, global_batch=batch)


def question_parts(
    model: str | None,
    on: str | None,
    nodes: int | None,
    gpus_per_node: int | None,
    chips: int | None,
    seq_len: int | None,
    batch: int | None,
) -> dict[str, Any]:
    """Returns the model, the cluster and the workload as a request has them. Parts that no option
    gives are left out."""
    return without_empty(
        model=model_part(model),
        cluster=cluster_part(on, nodes, gpus_per_node, chips),
        workload=workload_part(seq_len, batch),
    )


def without_empty(**parts: Any) -> dict[str, Any]:
    """Returns the arguments that are neither None nor an empty object, by name."""
    return {name: value for name, value in parts.items() if value not in (None, {})}
