"""`shardwright report train.log`: what was measured, beside what was predicted."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from shardwright.cli import question
from shardwright.cli.check import launch_request
from shardwright.cli.job_logs import log_of
from shardwright.cli.output import Output, rounded
from shardwright.cli.run_history import RunHistory, csv_history, mlflow_history
from shardwright.cli.session import asking
from shardwright.run_id import report_members

_UNNAMED = (
    "say what ran: --job JOB.SH --on CHIP, or the id of its --check, --recommendation or"
    " --prediction. Within a job that was launched by a script of an answer, or checked by a hook,"
    " SHARDWRIGHT_ID says it"
)


def report(
    context: typer.Context,
    log: Annotated[
        str | None, typer.Argument(help="The log of the run, or - for standard input.")
    ] = None,
    mlflow: Annotated[str | None, typer.Option(help="A run of MLflow, in place of a log.")] = None,
    csv: Annotated[
        Path | None, typer.Option(help="An exported history, as W&B's, in place of a log.")
    ] = None,
    recommendation: Annotated[str | None, typer.Option(help="The id that it came from.")] = None,
    prediction: Annotated[str | None, typer.Option(help="The id that it came from.")] = None,
    check: Annotated[str | None, typer.Option(help="The id that it was checked under.")] = None,
    job: Annotated[str | None, typer.Option(help="The script that launched it.")] = None,
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
        kinds = {"recommendation": recommendation, "prediction": prediction, "check": check}
        ids: dict[str, Any] = {f"{kind}_id": id_ for kind, id_ in kinds.items() if id_}
        launch = None if job is None else launch_request(job, None)["launch"]
        if not (launch or ids):
            ids = report_members(os.environ)
        history = _history(log, mlflow, csv)
        if history is not None and history.parameters and not (launch or ids):
            launch = {"arguments": history.launch_text()}
        if not (launch or model or ids):
            raise ValueError(_UNNAMED)
        request: Any = question.without_empty(
            log=None if log is None else log_of(log),
            framework=framework,
            source=source,
            launch=launch,
            model=question.model_part(model),
            cluster=question.cluster_part(on, None, None, chips),
            labels=dict(map(_label, label or [])),
            **ids,
        )
        answer: Any
        if history is None:
            answer = client.create_report_from_log(request)
        else:
            request |= history.report_members()
            answer = client.create_report(request)
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


def _history(log: str | None, mlflow: str | None, csv: Path | None) -> RunHistory | None:
    """Returns the history of a run from MLflow or a CSV file; None where a log is given. Raises
    ValueError unless exactly one of the three is given."""
    if sum(source is not None for source in (log, mlflow, csv)) != 1:
        raise ValueError("say what to report: a LOG, --mlflow RUN or --csv FILE")
    if mlflow is not None:
        return mlflow_history(mlflow)
    return None if csv is None else csv_history(csv)


def _label(text: str) -> tuple[str, str]:
    """Returns the name and the value of a label such as "user=ada". Raises ValueError for any other
    text."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"--label {text}: say a name and a value, as user=ada")
    return name, value
