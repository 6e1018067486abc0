"""Closes connections on which no request arrives.

uvicorn's `timeout_keep_alive` starts only after an answer: for the first request of a connection,
and for the rest of a head that has begun, it waits forever, and no option of uvicorn changes that.
A client could so hold as many connections as it likes. Slow bodies are the business of
`service.web.limits`.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """A connection that is closed unless the head of a request is complete within `head_wait_s`
    seconds: after the connection was opened, or after the first byte that follows an answer. How
    long it may be idle between an answer and that byte is uvicorn's `timeout_keep_alive`."""

    head_wait_s = 30.0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        # A head and a body are sent in two pieces, and without this the second waits until the
        # client has acknowledged the first, 40 ms later. asyncio sets it only on connections of
        # listeners that it has made itself.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_timer()
        elif self._head_timer is None:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _start_timer(self) -> None:
        self._head_timer = self.loop.call_later(self.head_wait_s, self.timeout_keep_alive_handler)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
