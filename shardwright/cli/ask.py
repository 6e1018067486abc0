"""`shardwright ask`: which layout to launch."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from shardwright.cli import question
from shardwright.cli.output import Output, layout_words
from shardwright.cli.session import asking


def ask(
    context: typer.Context,
    model: question.ModelArgument,
    on: question.RequiredOn,
    seq_len: question.RequiredSeqLen,
    batch: question.RequiredBatch,
    stack: question.RequiredStack,
    nodes: question.Nodes = None,
    gpus_per_node: question.GpusPerNode = None,
    chips: question.Chips = None,
    script: Annotated[bool, typer.Option(help="Print the script that launches it.")] = False,
    local: question.Local = False,
    json: question.AsJson = None,
) -> None:
    """Ask for the configuration to launch."""
    output = Output(as_json=False if script else json)  # a script is no place for a problem
    with asking(context, output, "searching all layouts", local=local) as client:
        parts = question.question_parts(model, on, nodes, gpus_per_node, chips, seq_len, batch)
        request: Any = {**parts, "stack": stack}
        answer: Any = client.create_recommendation(request)
        if script:
            typer.echo(client.get_recommendation_launch_script(answer["id"], _format(answer)))
            return
    output.answer(answer, _show)


def _format(answer: dict[str, Any]) -> str:
    """Returns the name of the launch format for the recommended layout, by default that of the
    stack."""
    launch = answer.get("launch") or {}
    return str(launch.get("format", answer["request"].get("stack")))


def _show(output: Output, answer: dict[str, Any]) -> None:
    """Prints a recommendation for people: the layout to launch, then the reasons."""
    recommended = answer["layouts"][answer["recommended"]]["prediction"]
    output.predicted_layout(layout_words(recommended["layout"]), recommended)
    mfu = recommended["mfu"]["causal"]
    output.bar("MFU", mfu, f"{mfu:.0%} of peak")
    for reason in answer["reasons"]:
        output.point("plain", reason)
    output.more(f"recommendation {answer['id']}: give this id with a report of the run")
