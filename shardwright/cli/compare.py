"""`shardwright compare a.sh b.sh`: which of two jobs is faster, and why."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from shardwright.cli import question
from shardwright.cli.check import launch_request
from shardwright.cli.output import Output, layout_words
from shardwright.cli.session import asking


def compare(
    context: typer.Context,
    first: Annotated[str, typer.Argument(help="The script of a job, or - for standard input.")],
    second: Annotated[
        str | None, typer.Argument(help="That of another; else the best layout.")
    ] = None,
    on: question.On = None,
    nodes: question.Nodes = None,
    gpus_per_node: question.GpusPerNode = None,
    chips: question.Chips = None,
    model: question.Model = None,
    seq_len: question.SeqLen = None,
    batch: question.Batch = None,
    format_: question.Format = None,
    local: question.Local = False,
    json: question.AsJson = None,
) -> None:
    """Hold two jobs side by side, or one against the best layout on the same chips."""
    output = Output(as_json=json)
    with asking(context, output, "comparing", local=local) as client:
        request: Any = {"first": launch_request(first, format_)}
        if second is not None:
            request["second"] = launch_request(second, format_)
        request |= question.question_parts(model, on, nodes, gpus_per_node, chips, seq_len, batch)
        answer: Any = client.compare(request)
    names = {"first": first, "second": second or "the best layout"}
    output.answer(answer, partial(_show, names=names))


def _show(output: Output, answer: dict[str, Any], names: dict[str, str]) -> None:
    """Prints a comparison for people. `names` has the name of each side, which is a script or the
    best layout."""
    for side, name in names.items():
        predicted = answer[side]["prediction"]
        output.predicted_layout(f"{name}: {layout_words(predicted['layout'])}", predicted)
    differences = [(term, more_s) for term, more_s in answer["time"].items() if more_s]
    differences.sort(key=lambda difference: -abs(difference[1]))  # the largest first
    rows = [[term.removesuffix("_s"), f"{more_s:+.3g} s"] for term, more_s in differences]
    output.table(["term", "the first takes"], rows)
    for reason in answer["reasons"]:
        output.point("plain", reason)
