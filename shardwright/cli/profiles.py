"""`shardwright profiles`: the profiles that predictions come from."""

from __future__ import annotations

from typing import Any

import typer

from shardwright.cli import question
from shardwright.cli.output import Output
from shardwright.cli.session import asking


def profiles(context: typer.Context, json: question.AsJson = None) -> None:
    """List the profiles and their active versions."""
    output = Output(as_json=json)
    with asking(context, output, "looking at profiles") as client:
        listed = [*client.list_profiles()]
    output.answer(listed, _show)


def _show(output: Output, listed: list[Any]) -> None:
    """Prints the profiles for people, as a table."""
    rows = [[profile["id"], str(profile["active_version"])] for profile in listed]
    output.table(["profile", "active version"], rows)
