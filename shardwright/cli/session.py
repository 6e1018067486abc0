"""A command's way to the service: its client, its progress, and its errors as exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from shardwright.cli.exit_codes import ExitCode
from shardwright.cli.job_files import UnreadableFile
from shardwright.cli.output import Output
from shardwright.client.client import Client
from shardwright.client.errors import Invalid, NotFound, Problem, ShardwrightError
from shardwright.client.settings import ClientSettings

NOT_A_TRAINING_JOB = "not-a-training-job"


@contextmanager
def asking(output: Output, doing: str) -> Iterator[Client]:
    """A client for the block, with a line of progress on a terminal. What goes wrong in it ends the
    command with a sentence and an exit code."""
    try:
        settings = ClientSettings.from_environment()
        with Client(settings) as client, output.errors.status(doing):
            yield client
    except Problem as problem:
        output.failure(problem.detail, [str(each) for each in problem.errors[1:]])
        raise typer.Exit(_code_of(problem)) from None
    except ShardwrightError as error:
        output.failure(str(error))
        raise typer.Exit(ExitCode.NO_ANSWER) from None
    except (UnreadableFile, OSError, ValueError) as error:
        output.failure(str(error))
        raise typer.Exit(ExitCode.WRONG_QUESTION) from None


def _code_of(problem: Problem) -> ExitCode:
    if problem.type == NOT_A_TRAINING_JOB:
        return ExitCode.NO_TRAINING_JOB
    is_of_caller = isinstance(problem, (Invalid, NotFound))
    return ExitCode.WRONG_QUESTION if is_of_caller else ExitCode.NO_ANSWER
