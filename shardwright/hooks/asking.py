"""Requests of hooks, which end when their time is up, whatever they wait for.

They go through the standard library, while all else goes through httpx: a hook of Slurm is a new
process for each job, and httpx takes half of the 300 ms that it may take to import. There is
nothing to try again within two seconds either, which is most of what the client does.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from shardwright.client.errors import (
    Problem,
    ShardwrightError,
    TimedOut,
    Unreachable,
    UnreadableAnswer,
    problem_of,
)
from shardwright.client.settings import ClientSettings
from shardwright.version import VERSION

Result = TypeVar("Result")


def within(budget_s: float, work: Callable[[], Result]) -> Result:
    """Returns the result of `work`, or raises its error. Raises TimedOut after `budget_s` seconds.

    The work then goes on in a thread that nobody waits for. A socket's timeout would not suffice:
    it does not cover the look-up of a host's name, nor a service that sends a byte a second.
    """
    results: SimpleQueue[tuple[Result | None, BaseException | None]] = SimpleQueue()

    def run() -> None:
        """Puts the result or the error of the work into the queue."""
        try:
            results.put((work(), None))
        except BaseException as error:  # noqa: BLE001 - raised again, in the thread that waits
            results.put((None, error))

    Thread(target=run, daemon=True).start()
    try:
        result, error = results.get(timeout=budget_s)
    except Empty:
        raise TimedOut(f"no answer within {budget_s:g} s") from None
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # it is there where there is no error


def post(
    service: ClientSettings,
    path: str,
    body: Mapping[str, Any],
    *,
    timeout_s: float,
    headers: Mapping[str, str] | None = None,
) -> Any:
    """Returns the answer to one POST. `timeout_s` limits each wait for the connection, and not the
    whole request. Raises Problem where the service refuses, and another ShardwrightError where it
    does not answer."""
    request = urllib.request.Request(
        f"{service.url.rstrip('/')}{path}",
        data=json.dumps(body).encode(),
        headers={
            "User-Agent": f"shardwright-hook/{VERSION}",
            **_headers(service),
            **(headers or {}),
        },
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        raise _refusal(error) from None
    except TimeoutError:
        raise TimedOut(f"no answer within {timeout_s:g} s") from None
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise Unreachable(f"no Shardwright answers at {service.url} ({reason})") from None
    except (ValueError, HTTPException):
        raise UnreadableAnswer(f"{service.url} is no Shardwright") from None


def _headers(service: ClientSettings) -> dict[str, str]:
    key = {} if service.key is None else {"Authorization": f"Bearer {service.key}"}
    return {"Content-Type": "application/json", "Accept": "application/json", **key}


def _refusal(error: urllib.error.HTTPError) -> ShardwrightError:
    """Returns the error for an unsuccessful response."""
    try:
        document = json.load(error)
    except ValueError:
        document = None
    if not isinstance(document, dict) or "title" not in document:
        return UnreadableAnswer(f"{error.url} answered {error.code} with what is no answer of ours")
    problem: Problem = problem_of(document, error.code, None)
    return problem
