"""`shardwright mcp`: the service as tools of agents."""

from __future__ import annotations

import importlib.util
from typing import Annotated

import typer

from shardwright.cli.exit_codes import ExitCode
from shardwright.cli.output import Output


def mcp(
    http: Annotated[bool, typer.Option(help="Over HTTP, at /mcp, in place of stdio.")] = False,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on.")] = 8011,
) -> None:
    """Serve the tools of agents (Model Context Protocol). It needs shardwright[mcp]."""
    if importlib.util.find_spec("mcp") is None:
        Output(as_json=False).failure("the tools are not installed: pip install 'shardwright[mcp]'")
        raise typer.Exit(ExitCode.NO_ANSWER)
    from shardwright.mcp import server

    if http:
        server.serve_http(host, port)
    else:
        server.serve_stdio()
