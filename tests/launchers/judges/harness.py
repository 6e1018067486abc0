"""What the judges share: configurations come in, one JSON object a line, and answers go out.

A judge runs under the interpreter that has the real frameworks and imports nothing of this
project. It is given `arguments` (a list of words) or a `document`, with `environment` and
`devices`, and answers either with `knobs`, what the framework understood, or with `refused`, why it
would not start.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from judges.shims import SHIMS


class Refused(Exception):
    """A configuration that the framework's parser accepts, and its training would not."""


def require(holds: bool, why: str) -> None:
    if not holds:
        raise Refused(why)


def main(judge: Callable[[dict[str, Any]], Mapping[str, Any]], *shims: str) -> None:
    """Judge every line of standard input, with these of SHIMS in place. Answers go into the file
    that is named, since frameworks print to standard output."""
    argparse.ArgumentParser.error = _refuse_arguments
    for name in shims:
        SHIMS[name].apply()
    given = dict(os.environ)
    with open(sys.argv[1], "w") as answers:
        for line in sys.stdin:
            configuration = json.loads(line)
            os.environ.update(configuration["environment"])
            os.environ["JUDGED_GENERATION"] = configuration["generation"]
            try:
                answer: dict[str, Any] = {"knobs": judge(configuration)}
            except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a framework raises
                answer = {"refused": _reason(error)}
            os.environ.clear()
            os.environ.update(given)
            print(json.dumps(answer), file=answers, flush=True)


def _refuse_arguments(_: argparse.ArgumentParser, message: str) -> NoReturn:
    """In place of ending the process."""
    raise Refused(message)


def _reason(error: BaseException) -> str:
    """The error, and the line of the framework that raised it."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({place.filename}:{place.lineno})"
