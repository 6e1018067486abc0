"""The event loop of a process that serves: it accepts a few connections at a time, and the
limit of connections counts them before file descriptors run out."""

from __future__ import annotations

import asyncio
from typing import Any

_AT_ONCE = 16
"""Connections that are accepted in one turn of the loop. asyncio accepts as many as the backlog is
long, 2,048, before the first of them is counted against the limit of connections, and would so run
out of descriptors. Once it has, Python 3.11 also tries as often in vain, and logs each try."""


class EventLoop(asyncio.SelectorEventLoop):
    def _accept_connection(
        self,
        protocol_factory: Any,
        sock: Any,
        sslcontext: Any = None,
        server: Any = None,
        backlog: int = _AT_ONCE,
        *timeouts: Any,
    ) -> None:
        """Accepts at most _AT_ONCE waiting connections, where asyncio would accept `backlog`, and
        then lets the loop serve others. The kernel's queue of connections keeps its length."""
        accept = super()._accept_connection  # type: ignore[misc]
        accept(protocol_factory, sock, sslcontext, server, min(backlog, _AT_ONCE), *timeouts)
