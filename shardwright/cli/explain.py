"""`shardwright explain run.log`: why a run was slow, or died."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from shardwright.cli import question
from shardwright.cli.check import launch_request
from shardwright.cli.job_logs import log_of
from shardwright.cli.output import Output
from shardwright.cli.session import asking


def explain(
    context: typer.Context,
    log: Annotated[str, typer.Argument(help="The log of the run, or - for standard input.")],
    job: Annotated[str | None, typer.Option(help="The script that launched it.")] = None,
    recommendation: Annotated[str | None, typer.Option(help="The id that it came from.")] = None,
    prediction: Annotated[str | None, typer.Option(help="The id that it came from.")] = None,
    on: question.On = None,
    chips: question.Chips = None,
    model: question.Model = None,
    local: question.Local = False,
    json: question.AsJson = None,
) -> None:
    """Explain a run: where its time went, or what it died of, and what to try."""
    output = Output(as_json=json)
    with asking(context, output, "reading the log", local=local) as client:
        request: Any = question.without_empty(
            log=log_of(log),
            launch=None if job is None else launch_request(job, None)["launch"],
            recommendation_id=recommendation,
            prediction_id=prediction,
            model=question.model_part(model),
            cluster=question.cluster_part(on, None, None, chips),
        )
        answer: Any = client.explain(request)
    output.answer(answer, _show)


def _show(output: Output, answer: dict[str, Any]) -> None:
    """Prints an explanation for people: how the run ended, what to try first, and warnings."""
    output.headline("good", answer["outcome"], answer["first_fix"])
    for warning in answer["warnings"]:
        output.point("warning", warning["message"] if isinstance(warning, dict) else str(warning))
