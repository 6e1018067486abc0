"""The commands."""

from __future__ import annotations

from typing import Annotated

import typer

from shardwright.cli.ask import ask
from shardwright.cli.check import check
from shardwright.cli.compare import compare
from shardwright.cli.evidence import evidence
from shardwright.cli.explain import explain
from shardwright.cli.frontier import frontier
from shardwright.cli.mcp import mcp
from shardwright.cli.predict import predict
from shardwright.cli.profiles import profiles
from shardwright.cli.report import report
from shardwright.cli.serve import serve
from shardwright.cli.serve_hooks import serve_hooks
from shardwright.cli.sweep import sweep
from shardwright.version import VERSION

app = typer.Typer(
    name="shardwright",
    help="Say how to launch the training of a large model, check a job, and report its run.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # which takes the brackets of shardwright[server] for a style
    epilog="SHARDWRIGHT_URL says where the service is, SHARDWRIGHT_KEY or SHARDWRIGHT_KEY_FILE"
    " which key it takes. Exit codes of a check: 0 go, 1 no answer, 2 wrong question, 3 will not"
    " fit, 4 illegal, 5 cannot tell, 6 no training job, 7 warnings under --strict.",
)
_COMMANDS = (
    check,
    ask,
    predict,
    compare,
    explain,
    report,
    frontier,
    sweep,
    evidence,
    profiles,
    serve,
    mcp,
)
for command in _COMMANDS:
    app.command()(command)
app.command("serve-hooks")(serve_hooks)


@app.callback(invoke_without_command=True)
def main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(VERSION)
        raise typer.Exit


if __name__ == "__main__":
    app()
