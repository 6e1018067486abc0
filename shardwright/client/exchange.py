"""A call as the steps that it takes: requests to send and pauses to make, until there is an answer.

The steps come out of a generator, which knows no socket and no clock but the one that it is given.
A synchronous client and an asynchronous one both drive it, in ten lines each, so that retries,
time-outs and errors exist once.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import httpx

from shardwright.client.call import Call
from shardwright.client.errors import Problem, TimedOut, Unreachable, UnreadableAnswer, problem_of
from shardwright.client.settings import ClientSettings

_AGAIN = (408, 429, 502, 503, 504)  # errors of proxies or of high load, which pass
_FIRST_PAUSE_S = 0.5  # a queue of searches is shorter by some after it
_LONGEST_PAUSE_S = 8.0  # a service that starts is noticed within this time
STREAM_PAUSE_S = 1.0  # what cuts a stream off, such as a restart, lasts about as long
_MOST_SHOWN = 200  # characters of an answer that is none of the service


@dataclass(frozen=True, slots=True)
class Pause:
    """A time to wait before the next step."""

    seconds: float


Steps = Generator[httpx.Request | Pause, httpx.Response | httpx.TransportError | None, Any]


def exchange(
    call: Call[Any],
    settings: ClientSettings,
    build: Callable[..., httpx.Request],
    clock: Callable[[], float] = time.monotonic,
) -> Steps:
    """Yields requests and pauses, receives the outcome of each through `send`, and returns the
    answer.

    `build` makes a request, as `httpx.Client.build_request` does. Raises Problem where the service
    refuses, and Unreachable, TimedOut or UnreadableAnswer where it does not answer.
    """
    deadline = clock() + settings.timeout_s
    headers = {"Accept": call.accept, **call.given_headers()}
    if call.takes_key:
        headers.setdefault("Idempotency-Key", str(uuid.uuid4()))
    attempts = 0
    last_response: httpx.Response | None = None
    while True:
        left_s = deadline - clock()
        request = build(
            call.method,
            call.path,
            params=call.given_query(),
            headers=headers,
            json=call.body,
            timeout=max(left_s, 0.001),  # httpx takes 0 for no limit at all
        )
        outcome = yield request
        if isinstance(outcome, httpx.Response) and not _may_pass(outcome):
            return _answer(call, outcome)
        last_response = outcome if isinstance(outcome, httpx.Response) else last_response
        pause_s = _pause_s(outcome, attempts)
        attempts += 1
        if attempts > settings.retries or clock() + pause_s >= deadline:
            raise _failure(outcome, last_response, settings)
        yield Pause(pause_s)


def _may_pass(response: httpx.Response) -> bool:
    """Returns whether the request may succeed when it is sent again."""
    is_still_running = response.status_code == 409 and "Retry-After" in response.headers
    return response.status_code in _AGAIN or is_still_running


def _pause_s(outcome: object, attempts: int) -> float:
    """Returns the seconds to wait before the next try: those that Retry-After names, or else a time
    that grows with the number of `attempts`. It is partly random, so that callers that were refused
    together do not come back together."""
    requested_s = retry_after_s(outcome) if isinstance(outcome, httpx.Response) else None
    if requested_s is not None:
        return requested_s
    longest = min(_FIRST_PAUSE_S * 2**attempts, _LONGEST_PAUSE_S)
    return float(longest * random.uniform(0.5, 1))


def retry_after_s(response: httpx.Response) -> float | None:
    """Returns the seconds that the Retry-After header names; None where there is no such header, or
    it holds a date."""
    try:
        return float(response.headers["Retry-After"])
    except (KeyError, ValueError):
        return None


def _failure(
    outcome: object, last_response: httpx.Response | None, settings: ClientSettings
) -> Exception:
    """Returns the error to raise after the last try. Where the service answered before and only the
    last try was too slow, the earlier refusal says more, and is returned."""
    if last_response is not None and isinstance(outcome, (httpx.Response, httpx.ReadTimeout)):
        return refusal(last_response)
    if isinstance(outcome, httpx.ConnectTimeout) or not isinstance(outcome, httpx.TimeoutException):
        reason = str(outcome) or type(outcome).__name__
        return Unreachable(
            f"no Shardwright answers at {settings.url} ({reason}): start one with `shardwright"
            " serve`, or set SHARDWRIGHT_URL to where it is"
        )
    return TimedOut(
        f"{settings.url} gave no answer within {settings.timeout_s:g} s: ask for less, or set"
        " SHARDWRIGHT_TIMEOUT_S"
    )


def refusal(response: httpx.Response) -> Problem | UnreadableAnswer:
    """Returns the error for an unsuccessful response."""
    try:
        document = response.json()
    except ValueError:
        document = None
    if not isinstance(document, dict) or "title" not in document:
        return _unreadable(response)
    return problem_of(document, response.status_code, retry_after_s(response))


def _answer(call: Call[Any], response: httpx.Response) -> Any:
    """Returns the content of a successful response: JSON, text, or None where it is empty. Raises
    Problem or UnreadableAnswer."""
    if not response.is_success:
        raise refusal(response)
    if not response.content:
        return None
    if not call.accept.startswith("application/json"):
        return response.text
    try:
        return response.json()
    except ValueError:
        raise _unreadable(response) from None


def _unreadable(response: httpx.Response) -> UnreadableAnswer:
    """Returns the error for a response that does not come from Shardwright."""
    shown = response.text[:_MOST_SHOWN]
    return UnreadableAnswer(
        f"{response.url} answered {response.status_code} with what is no answer of Shardwright:"
        f" {shown!r}. Check SHARDWRIGHT_URL, and proxies in between"
    )
