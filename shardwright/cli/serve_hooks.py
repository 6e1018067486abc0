"""`shardwright serve-hooks`: the policy server that schedulers ask."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path
from typing import Annotated

import typer

from shardwright.cli.exit_codes import ExitCode
from shardwright.cli.output import Output
from shardwright.hooks.policy import HookPolicy


def serve_hooks(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on.")] = 8010,
    certificate: Annotated[Path | None, typer.Option(help="Its certificate, for HTTPS.")] = None,
    key: Annotated[Path | None, typer.Option(help="The key of the certificate.")] = None,
) -> None:
    """Serve the hooks of Kubernetes, SkyPilot and dstack. It needs shardwright[hooks]."""
    output = Output(as_json=False)
    if importlib.util.find_spec("uvicorn") is None:
        output.failure("the policy server is not installed: pip install 'shardwright[hooks]'")
        raise typer.Exit(ExitCode.NO_ANSWER)
    try:
        policy = HookPolicy.read()
    except (OSError, ValueError) as error:
        output.failure(str(error))
        raise typer.Exit(ExitCode.WRONG_QUESTION) from None
    from shardwright.hooks.serving import serve

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    serve(policy, host=host, port=port, certificate=certificate, key=key)
