"""The check of a job that is about to be submitted, by the filter of sbatch or the wrapper."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from shardwright.hooks.checking import find
from shardwright.hooks.finding import Finding
from shardwright.hooks.policy import HookPolicy
from shardwright.hooks.slurm.job import BatchJob


def filtered_job(options: str) -> BatchJob:
    """Returns the job of the options that cli_filter gives as JSON, script and command line put
    together."""
    document = json.loads(options)
    argv = document.pop("argv", [])
    return BatchJob({name: str(value) for name, value in document.items()}, argv)


def check(job: BatchJob, policy: HookPolicy) -> Finding:
    """Returns what is found of a job; nothing where its script comes through a pipe."""
    script = job.script()
    if script is None:
        return Finding()
    folder = Path(job.argv[0]).parent if job.argv else Path.cwd()
    return find(policy, job.question(script, folder, policy, os.environ))


def answer_lines(job: BatchJob, finding: Finding) -> Sequence[str]:
    """Returns what the filter and the wrapper read: the comment of the job, which is its owner's
    where there is one, and whether it is refused."""
    mark = "" if "comment" in job.options else finding.mark or ""
    return (f"comment {mark}".rstrip(), *(["refused"] if finding.is_refused else []))
