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
from shardwright.client.errors import Invalid, NotFound, Problem, ShardwrightError, Unauthorized
from shardwright.client.settings import ClientSettings

if TYPE_CHECKING:
    from shardwright.client.client import Client

NOT_A_TRAINING_JOB = "not-a-training-job"
_CURES = {
    "model": "on the command line: --model with a name, or with the path of a config.json",
    "model.vocab_size": "on the command line: --model with a name or the path of a config.json says"
    " it, or the flag in the script",
    "cluster": "on the command line: --on with a chip or machine, such as --on h100",
}
"""The option to type, by the field of the request that a problem is about."""


@contextmanager
def asking(output: Output, doing: str | None, *, local: bool = False) -> Iterator[Client]:
    """A client for the block, with a line of progress on a terminal where it is said what is done.
    What goes wrong in it ends the command with a sentence and an exit code."""
    status: AbstractContextManager[Any] = nullcontext()
    if doing is not None:
        status = output.status(doing)
    try:
        with status, _settings(local=local) as settings, connected(settings) as client:
            yield client
    except Problem as problem:
        output.failure(problem.detail, _details(problem))
        raise typer.Exit(_code_of(problem)) from None
    except (ShardwrightError, NoServer) as error:
        output.failure(str(error))
        raise typer.Exit(ExitCode.NO_ANSWER) from None
    except (UnreadableFile, OSError, ValueError) as error:
        output.failure(str(error))
        raise typer.Exit(ExitCode.WRONG_QUESTION) from None


def connected(settings: ClientSettings) -> Client:
    """Returns a client. httpx takes longer to import than all else, and help and completion need
    none. Its own command line, which brings in rich, it does without where that cannot be
    imported."""
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    from shardwright.client.client import Client

    return Client(settings)


@contextmanager
def _settings(*, local: bool) -> Iterator[ClientSettings]:
    if local:
        with local_service() as settings:
            yield settings
    else:
        yield ClientSettings.from_environment()


def _details(problem: Problem) -> list[str]:
    """Returns the lines below what a problem says first."""
    if isinstance(problem, Unauthorized):
        return ["give the key in SHARDWRIGHT_KEY, or in the file that SHARDWRIGHT_KEY_FILE names"]
    cures = dict.fromkeys(_CURES[error.field] for error in problem.errors if error.field in _CURES)
    return [*(str(error) for error in problem.errors[1:]), *cures]


def _code_of(problem: Problem) -> ExitCode:
    if problem.type == NOT_A_TRAINING_JOB:
        return ExitCode.NO_TRAINING_JOB
    is_of_caller = isinstance(problem, (Invalid, NotFound))
    return ExitCode.WRONG_QUESTION if is_of_caller else ExitCode.NO_ANSWER
