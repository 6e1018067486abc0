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
from shardwright.client.errors import (
    FieldError,
    Invalid,
    NotFound,
    Problem,
    ShardwrightError,
    Unauthorized,
)
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
def asking(
    output: Output, doing: str | None, *, local: bool = False, judges_script: bool = False
) -> Iterator[Client]:
    """Yields a client for the block. Shows `doing` as progress on a terminal. An error in the block
    ends the command with a sentence and an exit code. Where the command gives a verdict on a script
    (`judges_script`), what the script says or leaves out is no fault of the question."""
    status: AbstractContextManager[Any] = nullcontext()
    if doing is not None:
        status = output.status(doing)
    try:
        with status, _settings(local=local) as settings, connected(settings) as client:
            yield client
    except Problem as problem:
        output.failure(problem.detail, _details(problem))
        raise typer.Exit(_code_of(problem, judges_script=judges_script)) from None
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


def _details(problem: Problem) -> list[str]:
    """Returns the lines to print below a problem's first sentence: further errors, and what to
    do."""
    if isinstance(problem, Unauthorized):
        return ["give the key in SHARDWRIGHT_KEY, or in the file that SHARDWRIGHT_KEY_FILE names"]
    cures = dict.fromkeys(_CURES[error.field] for error in problem.errors if error.field in _CURES)
    return [*(str(error) for error in problem.errors[1:]), *cures]


def _code_of(problem: Problem, *, judges_script: bool) -> ExitCode:
    """Returns the exit code of a problem."""
    if problem.type == NOT_A_TRAINING_JOB:
        return ExitCode.NO_TRAINING_JOB
    if not isinstance(problem, (Invalid, NotFound)):
        return ExitCode.NO_ANSWER
    is_of_script = judges_script and problem.errors and all(map(_is_of_script, problem.errors))
    return ExitCode.CANNOT_TELL if is_of_script else ExitCode.WRONG_QUESTION


def _is_of_script(error: FieldError) -> bool:
    """Returns True for an error about what a script says, or leaves out. Options of the command
    line can say the same, and a value that one of them gives is not of the script."""
    if error.value is None:
        return error.field != "cluster"  # which is asked for by --on
    return error.field.startswith("launch.") and error.field != "launch.format"
