"""The check of a job that is about to be submitted, by the filter of sbatch or the wrapper."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from shardwright.hooks.checking import check_job
from shardwright.hooks.finding import Finding
from shardwright.hooks.policy import HookPolicy
from shardwright.hooks.slurm.job import BatchJob


def filtered_job(options: str) -> BatchJob:
    """Returns the job of the options that cli_filter gives as JSON. They have those of the script
    and the command line together."""
    document = json.loads(options)
    argv = document.pop("argv", [])
    return BatchJob({name: str(value) for name, value in document.items()}, argv)


def check(job: BatchJob, policy: HookPolicy) -> Finding:
    """Returns what the check of a job finds; an empty finding where its script comes through a
    pipe."""
    script = job.script()
    if script is None:
        return Finding()
    folder = Path(job.argv[0]).parent if job.argv else Path.cwd()
    return check_job(policy, job.check_request(script, folder, policy, os.environ))


def answer_lines(job: BatchJob, finding: Finding) -> Sequence[str]:
    """Returns the lines that the filter and the wrapper read: "comment" with the mark to set, and
    "refused" if the job is. The mark is empty where the job's owner has set a comment."""
    mark = "" if "comment" in job.options else finding.mark or ""
    return (f"comment {mark}".rstrip(), *(["refused"] if finding.is_refused else []))
