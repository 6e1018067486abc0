"""Closes connections whose clients do nothing: on which no request arrives, or whose answer is not
read, and the longest idle ones once there are too many.

uvicorn's `timeout_keep_alive` starts only after an answer: for the first request of a connection,
and for the rest of a head that has begun, it waits forever, as it does for a client that takes
nothing of its answer, and no option of uvicorn changes that. A client could so hold as many
connections as it likes. Slow bodies are the business of `service.web.limits`.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from service.metrics import CONNECTIONS_CLOSED

log = logging.getLogger(__name__)

_MOST_CONNECTIONS = 1024
"""Each connection takes some 40 KiB of memory. Among more, it would take longer than a millisecond
to find the one that has been idle for longest."""
_PATIENCE = 10.0
"""A client may be idle this many times longer in the midst of a request than before one, when room
is made. A flood of silent connections thus closes itself rather than an upload that has stalled for
a moment, and uploads that trickle do not keep all others out."""


def default_connection_limit() -> int:
    """Returns half of the file descriptors that the process may open. The other half is for the
    database, worker processes and files, and connections that are being accepted or closed."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = descriptors == resource.RLIM_INFINITY
    return _MOST_CONNECTIONS if unlimited else min(descriptors // 2, _MOST_CONNECTIONS)


class Connection(H11Protocol):
    """A connection that is closed unless the head of a request is complete within `head_wait_s`
    seconds: after the connection was opened, or after the first byte that follows an answer. How
    long it may be idle between an answer and that byte is uvicorn's `timeout_keep_alive`. It is
    closed too where nothing of an answer is read for `read_wait_s` seconds while more of it waits
    than asyncio buffers, which is 64 KiB.

    `limit_concurrency` of uvicorn's configuration is how many connections there may be. Beyond
    them the one is closed whose client has been idle for longest, and the newest where all clients
    wait for the service. (uvicorn itself would answer 503 to all, probes too.)
    """

    head_wait_s = 30.0
    read_wait_s = 30.0
    _head_timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._limit = self.limit_concurrency
        self.limit_concurrency = None  # or uvicorn would answer 503 beyond it
        self._idle_since = self.loop.time()

    def connection_made(self, transport: Any) -> None:
        """Starts to wait for a request. Closes an idle connection where there are now too many."""
        super().connection_made(transport)
        # A head and a body are sent in two pieces, and without this the second waits until the
        # client has acknowledged the first, 40 ms later. asyncio sets it only on connections of
        # listeners that it has made itself.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._start_timer()
        if self._limit is not None and len(self.connections) > self._limit:
            self._make_room(self._limit)

    def data_received(self, data: bytes) -> None:
        """Reads what the client sends. A timer runs from the first byte of a request until its head
        is complete."""
        self._idle_since = self.loop.time()
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:  # the head is complete
            self._stop_timer()
        elif self._head_timer is None:
            self._start_timer()

    def on_response_complete(self) -> None:
        """Notes when the answer was sent, from which time on the client is idle."""
        self._idle_since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Starts to wait for the client to read, because the send buffer is full."""
        super().pause_writing()
        self._idle_since = self.loop.time()
        self._read_timer = self.loop.call_later(self.read_wait_s, self._drop, "unread")

    def resume_writing(self) -> None:
        """Ends the wait for the client, which has read enough of the answer."""
        super().resume_writing()
        self._idle_since = self.loop.time()
        self._stop_read_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops both timers of the connection, which has been closed."""
        self._stop_timer()
        self._stop_read_timer()
        super().connection_lost(exc)

    def _make_room(self, limit: int) -> None:
        """Closes the connection that has been idle for longest, or this new one where none is
        idle."""
        now = self.loop.time()
        idle_s = {
            connection: connection._idle_s(now)
            for connection in [*self.connections]
            if isinstance(connection, Connection) and connection is not self
        }
        longest = max(idle_s, key=lambda connection: idle_s[connection], default=self)
        log.warning(
            "too many connections: those that are idle for longest are closed",
            extra={"connections": limit},
        )
        # Where every other client waits for the service, the newest connection has to go.
        to_drop = longest if idle_s.get(longest, 0.0) > 0 else self
        to_drop._drop("full")

    def _idle_s(self, now: float) -> float:
        """Returns for how many seconds the service has waited for the client; 0 where the client
        waits for the service. In the midst of a request the seconds count less, by the factor
        _PATIENCE, because an upload may stall for a moment."""
        if self.transport.is_closing():
            return 0.0
        # Both are idle between requests, and until the head of the next one is complete.
        if self.conn.their_state is h11.IDLE and self.conn.our_state is h11.IDLE:
            return now - self._idle_since
        # The client is to send a body that is read, or to read an answer whose buffer is full.
        owes_body = self.conn.their_state is h11.SEND_BODY and not self.flow.read_paused
        if owes_body or self.flow.write_paused:
            return (now - self._idle_since) / _PATIENCE
        return 0.0

    def _drop(self, reason: str) -> None:
        """Counts and closes the connection at once. `reason` is its label in the metrics: "unread",
        or "full", for which `_make_room` writes the log."""
        CONNECTIONS_CLOSED.labels(reason).inc()
        if reason == "unread":
            log.warning(
                "a client reads nothing of its answer and is dropped",
                extra={"client": self.client and self.client[0], "seconds": self.read_wait_s},
            )
        self.transport.abort()

    def _start_timer(self) -> None:
        self._head_timer = self.loop.call_later(self.head_wait_s, self._give_up_head)

    def _give_up_head(self) -> None:
        """Closes the connection as uvicorn closes an idle one: no head of a request has come."""
        CONNECTIONS_CLOSED.labels("silent").inc()
        self.timeout_keep_alive_handler()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None
