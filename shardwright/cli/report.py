"""`shardwright report train.log`: what was measured, beside what was predicted."""

from __future__ import annotations

import math
from typing import Annotated, Any

import typer

from shardwright.cli import question, run_request
from shardwright.cli.output import Output, rounded
from shardwright.cli.session import asking


def report(
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
    label: Annotated[
        list[str] | None, typer.Option(help="A name and a value, such as user=ada; again too.")
    ] = None,
    framework: Annotated[str | None, typer.Option(help="Who wrote the log.")] = None,
    source: Annotated[str | None, typer.Option(help="A name for where it ran.")] = None,
    json: question.AsJson = None,
) -> None:
    """Report a run by its log. Within the job that a script of an answer started, no id is
    needed: the job's environment has it."""
    output = Output(as_json=json)
    with asking(context, output, "reading the log") as client:
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
        request |= question.without_empty(
            framework=framework, source=source, labels=dict(map(_label, label or []))
        )
        is_log = "log" in request
        answer: Any = (client.create_report_from_log if is_log else client.create_report)(request)
    output.answer(answer, _show)


def _show(output: Output, answer: dict[str, Any]) -> None:
    """Prints a stored report for people: its id, and the measured beside the predicted step
    time."""
    stored = answer.get("report", answer)  # the answer to a log has more than the report
    residual = stored.get("residual")
    seconds = (stored.get("measured") or {}).get("step_time_s")
    sentence = "" if seconds is None else f"a step took {rounded(seconds)} s"
    if residual is not None:
        is_within = "within" if stored["within_interval"] else "outside of"
        excess = math.expm1(residual)  # a residual is the logarithm of measured over predicted
        difference = f"{abs(excess):.1%} {'more' if excess > 0 else 'less'} than predicted"
        sentence += f", {difference}, {is_within} the interval"
    output.headline("good", f"stored as {stored['id']}", sentence)


def _label(text: str) -> tuple[str, str]:
    """Returns the name and the value of a label such as "user=ada". Raises ValueError for any other
    text."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"--label {text}: say a name and a value, as user=ada")
    return name, value
