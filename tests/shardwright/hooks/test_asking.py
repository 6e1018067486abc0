"""Requests of hooks to what is no service, or none that answers."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from shardwright.client.errors import Invalid, ShardwrightError, TimedOut, Unreachable
from shardwright.client.errors import UnreadableAnswer as Unreadable
from shardwright.client.settings import ClientSettings
from shardwright.hooks.asking import post, within

_BUDGET_S = 0.4
_NEVER_S = 30.0
_SOON_S = 10.0  # after the budget, on a busy machine, and well before _NEVER_S


@contextmanager
def _listening(answer: Callable[[socket.socket], None]) -> Iterator[ClientSettings]:
    """Something that takes one connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(2**16)
                answer(connection)

        threading.Thread(target=serve, daemon=True).start()
        yield ClientSettings(url=f"http://127.0.0.1:{server.getsockname()[1]}")


def _ask(service: ClientSettings) -> object:
    return within(_BUDGET_S, lambda: post(service, "/v1/checks", {}, timeout_s=_BUDGET_S))


def _answer(status: str, body: str) -> Callable[[socket.socket], None]:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n"
    return lambda connection: connection.sendall((head + body).encode())


def _drip(connection: socket.socket) -> None:
    """A byte now and then: each comes in time, and the answer never does."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    for _ in range(int(_NEVER_S / 0.1)):
        time.sleep(0.1)
        try:
            connection.sendall(b" ")
        except OSError:
            return


@pytest.mark.parametrize("never", [lambda _: time.sleep(_NEVER_S), _drip])
def test_a_service_that_does_not_answer_costs_no_more_than_the_budget(
    never: Callable[[socket.socket], None],
) -> None:
    start = time.monotonic()
    with _listening(never) as service, pytest.raises(TimedOut):
        _ask(service)
    assert time.monotonic() - start < _BUDGET_S + _SOON_S


def test_a_host_whose_name_is_looked_up_for_ever_costs_no_more_than_the_budget() -> None:
    start = time.monotonic()
    with pytest.raises(TimedOut):
        within(_BUDGET_S, lambda: time.sleep(_NEVER_S))
    assert time.monotonic() - start < _BUDGET_S + _SOON_S


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (_answer("422 Unprocessable", '{"title": "no", "detail": "no"}'), Invalid),
        (_answer("502 Bad Gateway", "<html>"), Unreadable),
        (_answer("200 OK", "<html>"), Unreadable),
        (_answer("500 Oops", "[]"), Unreadable),
        (lambda connection: connection.close(), ShardwrightError),
        (lambda connection: connection.sendall(b"SSH-2.0\r\n"), ShardwrightError),
    ],
)
def test_what_answers_otherwise_is_an_error_of_the_client(
    answer: Callable[[socket.socket], None], error: type[Exception]
) -> None:
    with _listening(answer) as service, pytest.raises(error):
        _ask(service)


def test_nobody_there_is_told_at_once() -> None:
    with pytest.raises(Unreachable, match="no Shardwright answers at"):
        _ask(ClientSettings(url="http://127.0.0.1:9"))
