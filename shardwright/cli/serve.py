"""`shardwright serve`: a service on this machine."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Annotated

import typer

from shardwright.cli.exit_codes import ExitCode
from shardwright.cli.output import Output


def serve(
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[
        int | None, typer.Option(help="The port to listen on, 0 for a free one.")
    ] = None,
) -> None:
    """Serve on this machine. It needs shardwright[server]."""
    if importlib.util.find_spec("service") is None:
        output = Output(as_json=False)
        output.failure("the server is not installed: pip install 'shardwright[server]'")
        raise typer.Exit(ExitCode.NO_ANSWER)
    given = {"--host": host, "--port": port}
    options = [f"{name}={value}" for name, value in given.items() if value is not None]
    raise typer.Exit(subprocess.call([sys.executable, "-m", "service", *options]))
