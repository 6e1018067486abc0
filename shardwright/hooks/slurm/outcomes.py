"""The states of Slurm's jobs as outcomes of reports."""

from __future__ import annotations

OUTCOMES = {
    "COMPLETED": "ok",
    "CANCELLED": "aborted",
    "PREEMPTED": "aborted",
    "SUSPENDED": "aborted",
    "TIMEOUT": "aborted",
    "DEADLINE": "aborted",
    "FAILED": "crashed",
    "NODE_FAIL": "crashed",
    "BOOT_FAIL": "crashed",
    "OUT_OF_MEMORY": "crashed",
}
"""Outcomes by the state of a job. OUT_OF_MEMORY is about the memory of the host: that of a chip is
read from the log, which goes before this."""


def outcome_of(state: str) -> str | None:
    """Returns the outcome of a report for a state such as "CANCELLED by 1000" or "CANCELLED+"; None
    for a job that has not ended."""
    first_word = state.split(" ")[0]
    return OUTCOMES.get(first_word.split("+")[0])
