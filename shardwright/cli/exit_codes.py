"""The exit codes of the command line, which scripts and CI jobs rely on: they do not change.

0  go, or go with warnings; for other commands, an answer, also where a job does not fit
1  no answer: the service is not there, too slow, or broken
2  the question is wrong: an option that is wrong, or --on where it is missing; a file that cannot
   be read; a field of the request
3  will not fit
4  illegal: the framework refuses to start the job
5  cannot tell: something that matters is not in the script, or was not understood, such as a
   trainer that is not known
6  no training job: the script starts nothing that trains
7  go with warnings, under --strict
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    OK = 0
    NO_ANSWER = 1
    WRONG_QUESTION = 2
    WILL_NOT_FIT = 3
    ILLEGAL = 4
    CANNOT_TELL = 5
    NO_TRAINING_JOB = 6
    WARNINGS = 7


def of_verdict(verdict: str, *, strict: bool) -> ExitCode:
    """Returns the exit code of a check's verdict. A verdict that this client does not know counts
    as "cannot tell"."""
    codes = {
        "go": ExitCode.OK,
        "go_with_warnings": ExitCode.WARNINGS if strict else ExitCode.OK,
        "will_not_fit": ExitCode.WILL_NOT_FIT,
        "illegal": ExitCode.ILLEGAL,
    }
    return codes.get(verdict, ExitCode.CANNOT_TELL)
