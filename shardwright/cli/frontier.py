"""`shardwright frontier`: where a pipeline is needed."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from shardwright.cli import question
from shardwright.cli.output import Output, rounded
from shardwright.cli.session import asking

_WHOLE = ("domain", "num_chips")
"""The axes whose values are numbers of chips; the others are factors."""


def frontier(
    context: typer.Context,
    model: question.ModelArgument,
    on: question.RequiredOn,
    seq_len: question.RequiredSeqLen,
    batch: question.RequiredBatch,
    stack: question.RequiredStack,
    vary: Annotated[
        list[str],
        typer.Option(help="An axis and its values, such as scale_out=0.5,1,2 or domain=8,72."),
    ],
    nodes: question.Nodes = None,
    gpus_per_node: question.GpusPerNode = None,
    chips: question.Chips = None,
    local: question.Local = False,
    json: question.AsJson = None,
) -> None:
    """Say over a grid of clusters and models where a pipeline is worth its trouble."""
    output = Output(as_json=json)
    with asking(context, output, "searching every point", local=local) as client:
        parts = question.question_parts(model, on, nodes, gpus_per_node, chips, seq_len, batch)
        request: Any = {**parts, "stack": stack, "grid": dict(map(_axis, vary))}
        answer: Any = client.draw_frontier(request)
    output.answer(answer, _show)


def _show(output: Output, answer: dict[str, Any]) -> None:
    """Prints a frontier for people: a row for each point of the grid, then the reasons."""
    axes = [*answer["points"][0]["at"]]
    rows = [_row(point, axes) for point in answer["points"]]
    output.table([*axes, "without", "with", "worth", "needed"], rows)
    for reason in answer["reasons"]:
        output.point("plain", reason)


def _axis(text: str) -> tuple[str, list[float]]:
    """Returns the name and the values of an axis: "domain=8,72" gives ("domain", [8, 72]). Raises
    ValueError for any other text."""
    name, _, values = text.partition("=")
    number = int if name in _WHOLE else float
    try:
        return name, [number(value) for value in values.split(",")]
    except ValueError:
        raise ValueError(f"--vary {text}: say an axis and numbers, as scale_out=0.5,1,2") from None


def _row(point: dict[str, Any], axes: list[str]) -> list[str]:
    """Returns a point as a row of the table: its value on each axis, the step time without and with
    a pipeline, the gain of a pipeline, and whether one is needed."""
    values = [f"{point['at'][axis]:g}" for axis in axes]
    seconds = [
        "" if time_s is None else f"{rounded(time_s)} s"
        for time_s in (point["without_s"], point["with_s"])
    ]
    gain = point["gap"]
    worth = "" if gain is None else _percent(gain, point["gap_low"], point["gap_high"])
    return [*values, *seconds, worth, point["pipeline_needed"]]


def _percent(middle: float, low: float, high: float) -> str:
    """Returns a share in percent with its interval, such as "+2.1% (+0.3% to +4.0%)"."""
    return f"{middle:+.1%} ({low:+.1%} to {high:+.1%})"
