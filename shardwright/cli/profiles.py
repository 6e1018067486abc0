"""`shardwright profiles`: the profiles that predictions come from."""

from __future__ import annotations

from typing import Any

from shardwright.cli import question
from shardwright.cli.output import Output
from shardwright.cli.session import asking


def profiles(json: question.AsJson = None) -> None:
    """List the profiles and their active versions."""
    output = Output(as_json=json)
    with asking(output, "looking at profiles") as client:
        answer: Any = client.list_profiles()
    if output.as_json:
        output.document(answer)
        return
    listed = answer["items"] if isinstance(answer, dict) else [*answer]
    rows = [[each["id"], str(each["active_version"])] for each in listed]
    output.table(["profile", "active version"], rows)
