"""`shardwright profiles`: the profiles that predictions come from."""

from __future__ import annotations

from shardwright.cli import question
from shardwright.cli.output import Output
from shardwright.cli.session import asking


def profiles(json: question.AsJson = None) -> None:
    """List the profiles and their active versions."""
    output = Output(as_json=json)
    with asking(output, "looking at profiles") as client:
        listed = [*client.list_profiles()]
    if output.as_json:
        output.document(listed)
        return
    rows = [[profile["id"], str(profile["active_version"])] for profile in listed]
    output.table(["profile", "active version"], rows)
