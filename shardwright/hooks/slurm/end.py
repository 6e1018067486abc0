"""The report of a job that has ended: its state and its log."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwright.cli.job_logs import log_of
from shardwright.client.errors import Invalid
from shardwright.hooks.asking import post
from shardwright.hooks.policy import HookPolicy
from shardwright.hooks.slurm.outcomes import outcome_of
from shardwright.run_id import VARIABLE, report_members

_MARK = re.compile(r"\bshardwright:\w+:(?P<id>[\w-]+)", re.ASCII)
_LABELS = {"job": "SLURM_JOB_ID", "user": "SLURM_JOB_USER", "partition": "SLURM_JOB_PARTITION"}
"""The labels of a report, by which reports are listed, and where they come from."""
_STATE = re.compile(r"\bJobState=(\w+)")
_LOG = re.compile(r"\bStdOut=(.*?)(?= \w+=|$)", re.MULTILINE)
"""The path of the log; SLURM_JOB_STDOUT has its pattern, such as job-%j.log."""
_TIMEOUT_S = 60.0  # nobody waits for it; a log of some megabytes is read in a few seconds


class NothingToReport(Exception):
    """The job is none that was checked, or left nothing to report."""


def report(environment: Mapping[str, str], policy: HookPolicy) -> str:
    """Reports the job that the environment of EpilogSlurmctld names, and returns the report's id.
    Raises NothingToReport for a job that was not checked or has no log here, and OSError or
    ShardwrightError."""
    mark = _MARK.search(environment.get("SLURM_JOB_COMMENT", ""))
    if mark is None:
        raise NothingToReport("no check stands in its comment")
    job_line = _scontrol_line(environment["SLURM_JOB_ID"])
    path = _LOG.search(job_line)
    log = Path(path[1] if path else "")
    if not log.is_file():
        raise NothingToReport(f"its log {log} is not to be seen from here")
    state = _STATE.search(job_line)
    body = {
        "log": log_of(str(log)),
        "source": environment.get("SLURM_CLUSTER_NAME"),
        "outcome": outcome_of(state[1] if state else ""),
        "labels": {
            label: environment[name] for label, name in _LABELS.items() if environment.get(name)
        },
        **report_members({VARIABLE: mark["id"]}),
    }
    # A job that is requeued ends more than once, and each time has a log of its own.
    run = (environment["SLURM_JOB_ID"], environment.get("SLURM_JOB_RESTART_COUNT", "0"))
    key = "-".join(("slurm", environment.get("SLURM_CLUSTER_NAME", ""), *run))
    return str(_send(policy, body, key)["report"]["id"])


def _send(policy: HookPolicy, body: Mapping[str, Any], key: str) -> Any:
    """Sends a report, and returns the answer. If the log contradicts the outcome that Slurm gives,
    such as with an end out of memory, sends the report again without that outcome."""
    report = {name: value for name, value in body.items() if value is not None}
    path = "/v1/reports/logs"
    headers = {"Idempotency-Key": key}
    try:
        return post(policy.service, path, report, timeout_s=_TIMEOUT_S, headers=headers)
    except Invalid as problem:
        if all(error.field != "outcome" for error in problem.errors):
            raise
    del report["outcome"]
    headers = {"Idempotency-Key": f"{key}-log"}
    return post(policy.service, path, report, timeout_s=_TIMEOUT_S, headers=headers)


def _scontrol_line(job_id: str) -> str:
    """Returns the description of a job by `scontrol show job`, in one line."""
    return subprocess.run(
        ["scontrol", "show", "job", "-o", job_id],
        capture_output=True,
        text=True,
        check=True,
        timeout=_TIMEOUT_S,
    ).stdout
