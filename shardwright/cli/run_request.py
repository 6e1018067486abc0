"""The run that `report` and `explain` are about, as a request has it: what was measured of it, and
what ran."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from shardwright.cli import question
from shardwright.cli.check import launch_request
from shardwright.cli.job_logs import log_of
from shardwright.cli.run_history import RunHistory, csv_history, mlflow_history
from shardwright.run_id import report_members

_UNNAMED = (
    "say what ran: --job JOB.SH --on CHIP, or the id of its --check, --recommendation or"
    " --prediction. Within a job that was launched by a script of an answer, or checked by a hook,"
    " SHARDWRIGHT_ID says it"
)

Log = Annotated[str | None, typer.Argument(help="The log of the run, or - for standard input.")]
MlflowRun = Annotated[str | None, typer.Option(help="A run of MLflow, in place of a log.")]
Csv = Annotated[Path | None, typer.Option(help="An exported history, as W&B's, in place of a log.")]
Recommendation = Annotated[str | None, typer.Option(help="The id that it came from.")]
Prediction = Annotated[str | None, typer.Option(help="The id that it came from.")]
Check = Annotated[str | None, typer.Option(help="The id that it was checked under.")]
Job = Annotated[str | None, typer.Option(help="The script that launched it.")]


def run_request(
    *,
    log: str | None,
    mlflow: str | None,
    csv: Path | None,
    recommendation: str | None,
    prediction: str | None,
    check: str | None,
    job: str | None,
    format_: str | None,
    on: str | None,
    chips: int | None,
    model: str | None,
) -> dict[str, Any]:
    """Returns the log or the measurements of a run, and what ran: the answer that it was launched
    from, or else its script, model and cluster. Where no option says what ran, SHARDWRIGHT_ID does,
    and else the parameters that a history has. Raises ValueError where nothing says what ran, and
    where there is not exactly one of a log and a history."""
    history = _history(log, mlflow, csv)
    kinds = {"recommendation": recommendation, "prediction": prediction, "check": check}
    # SHARDWRIGHT_ID and comments of schedulers have the kind before the id, as check-0199c2f4.
    subject: dict[str, Any] = {
        f"{kind}_id": id_.removeprefix(f"{kind}-") for kind, id_ in kinds.items() if id_
    }
    if job is not None:
        subject["launch"] = launch_request(job, format_)["launch"]
    described = question.question_parts(model, on, None, None, chips, None, None)
    if not (subject or described):
        subject = {**report_members(os.environ)}
    if not subject and history is not None and history.parameters:
        subject["launch"] = {"arguments": history.launch_text()}
    subject |= described
    if not subject:
        raise ValueError(_UNNAMED)
    measured = {"log": log_of(str(log))} if history is None else history.report_members()
    return {**measured, **subject}


def _history(log: str | None, mlflow: str | None, csv: Path | None) -> RunHistory | None:
    """Returns the history of a run from MLflow or a CSV file; None where a log is given. Raises
    ValueError unless exactly one of the three is given."""
    if sum(source is not None for source in (log, mlflow, csv)) != 1:
        raise ValueError("say where the run was recorded: a LOG, --mlflow RUN or --csv FILE")
    if mlflow is not None:
        return mlflow_history(mlflow)
    return None if csv is None else csv_history(csv)
