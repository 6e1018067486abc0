"""`shardwright compare a.sh b.sh`: which of two jobs is faster, and why."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from shardwright.cli import question
from shardwright.cli.check import launch_request
from shardwright.cli.output import Output, interval, layout_words
from shardwright.cli.session import asking


def compare(
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
    local: question.Local = False,
    json: question.AsJson = None,
) -> None:
    """Hold two jobs side by side, or one against the best layout on the same chips."""
    output = Output(as_json=json)
    with asking(output, "comparing", local=local) as client:
        request: Any = {"first": launch_request(first, None)}
        if second is not None:
            request["second"] = launch_request(second, None)
        request |= question.question_parts(model, on, nodes, gpus_per_node, chips, seq_len, batch)
        answer: Any = client.compare(request)
    if output.as_json:
        output.document(answer)
        return
    sides = {first: answer["first"], second or "the best layout": answer["second"]}
    for name, side in sides.items():
        predicted = side["prediction"]
        low, high = predicted["step_time_low_s"], predicted["step_time_high_s"]
        step = interval(predicted["step_time_s"], low, high, "s")
        output.headline("good", name, f"a step takes {step}: {layout_words(predicted['layout'])}")
    rows = [[term.removesuffix("_s"), f"{more:+.3g} s"] for term, more in _terms(answer)]
    output.table(["term", "the first takes"], rows)
    for reason in answer["reasons"]:
        output.point("plain", reason)


def _terms(answer: dict[str, Any]) -> list[tuple[str, float]]:
    """Returns the terms of a step in which two layouts differ, in seconds, the largest difference
    first."""
    differing = [(term, more) for term, more in answer["time"].items() if more]
    return sorted(differing, key=lambda term: -abs(term[1]))
