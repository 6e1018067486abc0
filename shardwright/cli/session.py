"""A command's way to the service: its client, its progress, and its errors as exit codes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import typer

from shardwright.cli.exit_codes import ExitCode
from shardwright.cli.job_files import UnreadableFile
from shardwright.cli.local import NoServer, local_service
from shardwright.cli.output import Output
from shardwright.cli.refusals import wording_of
from shardwright.client.errors import Invalid, NotFound, Problem, ShardwrightError
from shardwright.client.settings import ClientSettings

if TYPE_CHECKING:
    from shardwright.client.client import Client

NOT_A_TRAINING_JOB = "not-a-training-job"


@contextmanager
def asking(
    context: typer.Context, output: Output, doing: str | None, *, local: bool = False
) -> Iterator[Client]:
    """Yields a client for the block of a command. Shows `doing` as progress on a terminal. An error
    in the block ends the command with a sentence, in the words of its options, and an exit code."""
    status: AbstractContextManager[Any] = nullcontext()
    if doing is not None:
        status = output.status(doing)
    try:
        with status, _settings(local=local) as settings, connected(settings) as client:
            yield client
    except Problem as problem:
        sentence, details = wording_of(context.command.params).sentences(problem)
        output.failure(sentence, details, document=problem.document)
        raise typer.Exit(_code_of(problem)) from None
    except (ShardwrightError, NoServer) as error:
        output.failure(str(error))
        raise typer.Exit(ExitCode.NO_ANSWER) from None
    except (UnreadableFile, OSError, ValueError) as error:
        output.failure(str(error))
        raise typer.Exit(ExitCode.WRONG_QUESTION) from None


def connected(settings: ClientSettings) -> Client:
    """Returns a client. httpx is imported here because that takes long, and help and completion do
    not need it. The import of its command line, which brings in rich, is suppressed."""
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    from shardwright.client.client import Client

    return Client(settings)


@contextmanager
def _settings(*, local: bool) -> Iterator[ClientSettings]:
    """Yields the settings of the client: those of the environment, or of a service that runs in
    this process while the block runs."""
    if local:
        with local_service() as settings:
            yield settings
    else:
        yield ClientSettings.from_environment()


def _code_of(problem: Problem) -> ExitCode:
    """Returns the exit code of a problem."""
    if problem.type == NOT_A_TRAINING_JOB:
        return ExitCode.NO_TRAINING_JOB
    is_of_caller = isinstance(problem, (Invalid, NotFound))
    return ExitCode.WRONG_QUESTION if is_of_caller else ExitCode.NO_ANSWER
