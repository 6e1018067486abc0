"""`shardwright-slurm`, which the hooks of Slurm call.

    shardwright-slurm filter OPTIONS   OPTIONS are those of cli_filter, as JSON
    shardwright-slurm sbatch WORDS     WORDS are those of the command line of sbatch
    shardwright-slurm report           in the environment of EpilogSlurmctld

The first two print what is to be done to standard output, and the line for people to standard
error. They always end with 0.
"""

from __future__ import annotations

import os
import sys

from shardwright.hooks.policy import HookPolicy
from shardwright.hooks.slurm.job import BatchJob


def main() -> None:
    """Runs the command that the first word names. Any error is told on standard error, and the job
    goes on."""
    command, *words = sys.argv[1:] or ["help"]
    try:
        if command == "filter":
            _check_options(words[0])
        elif command == "sbatch":
            _check(BatchJob.of_command(words))
        elif command == "report":
            _report()
        else:
            sys.stderr.write(f"{__doc__}\n")
    except Exception as error:  # noqa: BLE001 - whatever it is, the job goes on
        consequence = "not reported" if command == "report" else "not checked, goes on unchanged"
        sys.stderr.write(f"shardwright: {consequence}: {error}\n")


def _check_options(options: str) -> None:
    """Checks a job by the options that cli_filter gives, as JSON."""
    from shardwright.hooks.slurm.submission import filtered_job

    _check(filtered_job(options))


def _check(job: BatchJob) -> None:
    """Checks a job. Prints to standard output what the hook has to do, and to standard error the
    line for people."""
    from shardwright.hooks.slurm.submission import answer_lines, check

    finding = check(job, HookPolicy.read())
    script = job.argv[0] if job.argv else "SCRIPT"
    line = finding.line(f"shardwright check {script}")
    if line:
        sys.stderr.write(f"{line}\n")
    sys.stdout.write("".join(f"{answer_line}\n" for answer_line in answer_lines(job, finding)))


def _report() -> None:
    """Reports the job that the environment of EpilogSlurmctld names."""
    from shardwright.hooks.slurm.end import report  # which a check has no use for

    stored = report(os.environ, HookPolicy.read())
    sys.stderr.write(f"shardwright: job {os.environ['SLURM_JOB_ID']} is reported as {stored}\n")


if __name__ == "__main__":
    main()
