"""The name by which a job tells what it was launched from, so that a report of its run is held
against that without anybody's doing.

A launch script, or a hook, sets SHARDWRIGHT_ID in the job's environment: the kind of what the job
comes from and its id, such as "check-0199c2f4". It is made of characters that a comment of Slurm
and a label of Kubernetes take.
"""

from __future__ import annotations

from collections.abc import Mapping

VARIABLE = "SHARDWRIGHT_ID"
KINDS = ("recommendation", "prediction", "check")
_BESIDE = {"choice": "SHARDWRIGHT_CHOICE", "rank": "SHARDWRIGHT_RANK"}
"""Variables in which scripts of answers say which layout of the answer they launch."""


def run_id(kind: str, id_: str) -> str:
    """Returns the value of SHARDWRIGHT_ID, such as "check-0199c2f4", for a job launched from an
    answer of this kind."""
    return f"{kind}-{id_}"


def report_members(environment: Mapping[str, str]) -> dict[str, str | int]:
    """Returns the fields of a report that name the answer which the job was launched from; empty
    where the environment does not say. Raises ValueError for a malformed value. "check-0199c2f4"
    gives {"check_id": "0199c2f4"}."""
    value = environment.get(VARIABLE)
    if not value:
        return {}
    kind, _, id_ = value.partition("-")
    if kind not in KINDS or not id_:
        raise ValueError(f"{VARIABLE} is {value!r}: it names a kind and an id, as check-0199c2f4")
    members: dict[str, str | int] = {f"{kind}_id": id_}
    if choice := environment.get(_BESIDE["choice"]):
        members["choice"] = choice
    if rank := environment.get(_BESIDE["rank"]):
        members["rank"] = int(rank)
    return members
