"""`shardwright evidence`: published runs like a question."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from shardwright.cli import question
from shardwright.cli.output import Output, rounded, step_interval
from shardwright.cli.session import asking


def evidence(
    context: typer.Context,
    model: Annotated[str | None, typer.Option(help="A model of the catalogue.")] = None,
    on: question.On = None,
    chips: question.Chips = None,
    stack: question.Stack = None,
    local: question.Local = False,
    json: question.AsJson = None,
) -> None:
    """List the published runs that are most like a question, beside what is predicted of them."""
    output = Output(as_json=json)
    with asking(context, output, "looking for runs", local=local) as client:
        cluster: dict[str, Any] = {"num_chips": chips}  # of any cluster
        if on is not None:
            cluster = question.cluster_part(on, None, None, chips) or {}
        answer: Any = client.list_evidence(
            model=model,
            cluster=cluster.get("preset"),
            num_chips=cluster.get("num_chips"),
            stack=stack,
        )
    output.answer(answer, _show)


def _show(output: Output, answer: dict[str, Any]) -> None:
    """Prints published runs for people, as a table."""
    rows = [_row(run) for run in answer["items"]]
    columns = ["model", "chips", "batch x sequence", "stack", "measured", "predicted", "source"]
    output.table(columns, rows)


def _row(run: dict[str, Any]) -> list[str]:
    """Returns a published run as a row of the table, with the interval of its prediction."""
    cluster, workload = run["cluster"], run["workload"]
    measured, predicted = run["measured"] or {}, run["predicted"] or {}
    seconds = measured.get("step_time_s")
    precision = workload.get("precision", "bf16")  # what a request leaves out is bf16
    return [
        _name(run["model"]),
        f"{cluster.get('num_chips', '')} {_name(cluster.get('chip', cluster.get('preset', '')))}",
        f"{workload['global_batch']} x {workload['seq_len']} {precision}",
        _name(run["stack"]),
        "" if seconds is None else f"{rounded(seconds)} s",
        step_interval(predicted) if predicted.get("step_time_low_s") is not None else "",
        run["source"]["title"],
    ]


def _name(part: Any) -> str:
    """Returns the name of a part of a question: its field `name` or `id`, or the part where it is a
    text."""
    return str(part.get("name", part.get("id", ""))) if isinstance(part, dict) else str(part)
