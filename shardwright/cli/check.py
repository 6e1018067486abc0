"""`shardwright check job.sh`: will it run, will it fit, and what to change first."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from shardwright.cli import question
from shardwright.cli.exit_codes import of_verdict
from shardwright.cli.job_files import files_beside, script_of
from shardwright.cli.output import Output, rounded, step_interval
from shardwright.cli.session import asking
from shardwright.run_id import run_id

_VERDICTS = {
    "go": ("good", "GO"),
    "go_with_warnings": ("warning", "GO, WITH WARNINGS"),
    "will_not_fit": ("bad", "WILL NOT FIT"),
    "illegal": ("bad", "ILLEGAL"),
    "cannot_tell": ("open", "CANNOT TELL"),
}


def check(
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
    store: Annotated[
        bool, typer.Option("--store", help="Keep the answer, for a report of the run.")
    ] = False,
    strict: Annotated[bool, typer.Option(help="End with 7 where there are warnings.")] = False,
    local: question.Local = False,
    json: question.AsJson = None,
) -> None:
    """Check a job before it is submitted."""
    output = Output(as_json=json)
    with asking(context, output, "checking the job", local=local, judges_script=True) as client:
        request: Any = launch_request(script, format_)
        request |= question.question_parts(model, on, nodes, gpus_per_node, chips, seq_len, batch)
        if store:
            request["store"] = True
        answer: Any = client.check(request)
    output.answer(answer, _show)
    raise typer.Exit(of_verdict(answer["verdict"], strict=strict))


def launch_request(script: str, format_: str | None) -> dict[str, Any]:
    """Returns a request with the launch of a script and the files beside it that it names. `script`
    is a path, or "-" for standard input."""
    text = script_of(script)
    folder = Path.cwd() if script == "-" else Path(script).parent
    files = files_beside(text, folder)
    return {"launch": question.without_empty(arguments=text, files=files, format=format_)}


def _show(output: Output, answer: dict[str, Any]) -> None:
    """Prints a check for people, the verdict first."""
    kind, title = _VERDICTS.get(answer["verdict"], ("open", answer["verdict"].upper()))
    output.headline(kind, title, answer["summary"])
    if prediction := answer.get("prediction"):
        mfu = prediction["mfu"]["causal"]
        output.bar("MFU", mfu, f"{mfu:.0%} of peak, a step takes {step_interval(prediction)}")
    if fits := answer.get("fits"):
        output.memory_bar(fits, fits["probability"])
    _show_problems(output, answer)
    if change := answer.get("first_change"):
        _show_change(output, change)
    if answer.get("id"):
        output.more(f"check {answer['id']}: export SHARDWRIGHT_ID={run_id('check', answer['id'])}")


def _show_problems(output: Output, answer: dict[str, Any]) -> None:
    """Prints the rules that a job breaks, the settings that were not understood, and warnings."""
    for rule in answer.get("broken_rules", []):
        output.point("bad", f"{rule['setting'] or rule['field']}: {rule['rule']}")
        output.more(f"instead: {rule['cure']}")
        output.more(f"source: {rule['source']}")
    for reservation in answer.get("reservations", []):
        output.point("open", f"{reservation['setting']}: {reservation['reason']}")
        output.more(reservation["cure"])
        if "launch.files" in reservation["cure"]:
            output.more("a file that lies beside the script under this name is sent with it")
    for warning in answer.get("warnings", []):
        output.point("warning", warning["message"])


def _show_change(output: Output, change: dict[str, Any]) -> None:
    """Prints the change to make first, with each setting before and after it."""
    worth = f"a step then takes {rounded(change['step_time_s'])} s"
    output.point("good", f"change first: {change['words']}; {worth}")
    for setting in change["settings"]:
        before, after = _value_words(setting["from"]), _value_words(setting["to"])
        output.more(f"{setting['name']}: {before} -> {after}")


def _value_words(value: Any) -> str:
    """Returns the value of a setting in words: "set" or "not set" for a flag without a value."""
    if value is None or value is False:
        return "not set"
    return "set" if value is True else str(value)
