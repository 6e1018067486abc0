"""`shardwright predict job.sh`: how long a step takes and what it needs in memory."""

from __future__ import annotations

from typing import Any

import typer

from shardwright.cli import question
from shardwright.cli.check import launch_request
from shardwright.cli.output import Output, layout_words, rounded
from shardwright.cli.session import asking


def predict(
    context: typer.Context,
    script: question.Script,
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
    """Predict a job as it is written, and keep the prediction for a report."""
    output = Output(as_json=json)
    with asking(context, output, "predicting the job", local=local) as client:
        request: Any = launch_request(script, format_)
        request |= question.question_parts(model, on, nodes, gpus_per_node, chips, seq_len, batch)
        answer: Any = client.create_prediction(request)
    output.answer(answer, _show)


def _show(output: Output, answer: dict[str, Any]) -> None:
    """Prints a prediction for people: the memory and the step time of each layout, and the
    terms that the step is made of."""
    for prediction in answer["layouts"]:
        output.predicted_layout(layout_words(prediction["layout"]), prediction)
        for name, seconds in prediction["time"].items():
            if seconds > 0:
                share = seconds / prediction["step_time_s"]
                output.bar(name.removesuffix("_s"), share, f"{rounded(seconds)} s")
    if answer.get("learned"):
        output.point("plain", answer["learned"]["sentence"])
    for warning in answer.get("warnings", []):
        output.point("warning", str(warning))
    output.more(f"prediction {answer['id']}: give this id with a report of the run")
