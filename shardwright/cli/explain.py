"""`shardwright explain run.log`: why a run was slow, or died."""

from __future__ import annotations

from typing import Any

import typer

from shardwright.cli import question, run_request
from shardwright.cli.output import Output
from shardwright.cli.session import asking


def explain(
    context: typer.Context,
    log: run_request.Log = None,
    mlflow: run_request.MlflowRun = None,
    csv: run_request.Csv = None,
    recommendation: run_request.Recommendation = None,
    prediction: run_request.Prediction = None,
    check: run_request.Check = None,
    job: run_request.Job = None,
    format_: question.Format = None,
    on: question.On = None,
    chips: question.Chips = None,
    model: question.Model = None,
    local: question.Local = False,
    json: question.AsJson = None,
) -> None:
    """Explain a run: where its time went, or what it died of, and what to try."""
    output = Output(as_json=json)
    with asking(context, output, "reading the log", local=local) as client:
        request: Any = run_request.run_request(
            log=log,
            mlflow=mlflow,
            csv=csv,
            recommendation=recommendation,
            prediction=prediction,
            check=check,
            job=job,
            format_=format_,
            on=on,
            chips=chips,
            model=model,
        )
        answer: Any = client.explain(request)
    output.answer(answer, _show)


def _show(output: Output, answer: dict[str, Any]) -> None:
    """Prints an explanation for people: how the run went, what to try first, and warnings."""
    output.headline(*_verdict(answer), answer["first_fix"])
    speed = answer["speed"]
    if speed is not None and speed["slower_by"] is not None:
        output.point("plain", speed["summary"])
    for warning in answer["warnings"]:
        output.point("warning", warning["message"])


def _verdict(answer: dict[str, Any]) -> tuple[str, str]:
    """Returns the kind and the title of the headline: how a run ended, or how fast it was beside
    what was predicted where it ended well."""
    if answer["outcome"] != "ok":
        return "bad", answer["outcome"].replace("_", " ").upper()
    if answer["failure"] is not None:
        return "bad", "CAME TO NO STEP"
    speed = answer["speed"]
    if speed is None or speed["slower_by"] is None:
        return "open", "NOTHING PREDICTED"
    if speed["within_interval"]:
        return "good", "AS PREDICTED"
    if speed["slower_by"] > 0:
        return "warning", "SLOWER THAN PREDICTED"
    return "good", "FASTER THAN PREDICTED"
