"""`shardwright evidence`: published runs like a question."""

from __future__ import annotations

from typing import Any

from shardwright.cli import question
from shardwright.cli.output import Output
from shardwright.cli.session import asking


def evidence(
    model: question.Model = None,
    on: question.On = None,
    chips: question.Chips = None,
    stack: question.Stack = None,
    json: question.AsJson = None,
) -> None:
    """List the published runs that are most like a question, beside what is predicted of them."""
    output = Output(as_json=json)
    with asking(output, "looking for runs") as client:
        answer: Any = client.list_evidence(model=model, cluster=on, num_chips=chips, stack=stack)
    if output.as_json:
        output.document(answer)
        return
    rows = [
        [
            str(run.get(name, ""))
            for name in ("model", "chip", "num_chips", "stack", "step_time_s", "predicted_s")
        ]
        for run in answer["items"]
    ]
    output.table(["model", "chip", "chips", "stack", "measured s", "predicted s"], rows)
