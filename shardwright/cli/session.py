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
from shardwright.cli.refusals import Wording
from shardwright.client.errors import FieldError, Invalid, NotFound, Problem, ShardwrightError
from shardwright.client.settings import ClientSettings

if TYPE_CHECKING:
    from shardwright.client.client import Client

NOT_A_TRAINING_JOB = "not-a-training-job"


@contextmanager
def asking(
    context: typer.Context,
    output: Output,
    doing: str | None,
    *,
    local: bool = False,
    judges_script: bool = False,
) -> Iterator[Client]:
    """Yields a client for the block of a command. Shows `doing` as progress on a terminal. An error
    in the block ends the command with a sentence, in the words of its options, and an exit code.
    Where the command gives a verdict on a script (`judges_script`), an error about what the script
    says or leaves out ends it with "cannot tell", and not with "wrong question"."""
    status: AbstractContextManager[Any] = nullcontext()
    if doing is not None:
        status = output.status(doing)
    try:
        with status, _settings(local=local) as settings, connected(settings) as client:
            yield client
    except Problem as problem:
        sentence, details = Wording(context.command.params).sentences(problem)
        output.failure(sentence, details, document=problem.document)
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


def _code_of(problem: Problem, *, judges_script: bool) -> ExitCode:
    """Returns the exit code of a problem."""
    if problem.type == NOT_A_TRAINING_JOB:
        return ExitCode.NO_TRAINING_JOB
    if not isinstance(problem, (Invalid, NotFound)):
        return ExitCode.NO_ANSWER
    is_of_script = judges_script and problem.errors and all(map(_is_of_script, problem.errors))
    return ExitCode.CANNOT_TELL if is_of_script else ExitCode.WRONG_QUESTION


def _is_of_script(error: FieldError) -> bool:
    """Returns True for an error about what a script says, or leaves out. A value of another field
    was given by an option, and is no fault of the script."""
    if error.value is None:
        return error.field != "cluster"  # the chips are asked for by --on
    return error.field.startswith("launch.") and error.field != "launch.format"
