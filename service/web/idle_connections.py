"""Connections of clients, which end where no request comes on them: uvicorn waits for the head of
one forever."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """Closed unless the head of a request is there `head_wait_s` after it was opened, or after the
    first byte that follows an answer; how long it may then be idle uvicorn knows."""

    head_wait_s = 30.0
    _too_late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._wait_no_longer()
        elif self._too_late is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_longer()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._too_late = self.loop.call_later(self.head_wait_s, self.timeout_keep_alive_handler)

    def _wait_no_longer(self) -> None:
        if self._too_late is not None:
            self._too_late.cancel()
            self._too_late = None
