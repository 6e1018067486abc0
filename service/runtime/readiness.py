"""The check of whether the database can be used, which a readiness *probe* asks for and which ends
in a bounded time."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor

from service.store import Store
from service.store.unavailability import SILENT

WAIT_S = 3.0
"""Seconds that a probe waits. A statement of the check itself may take a little less."""
STATEMENT_S = 2.0


class Readiness:
    """Asks a store for its state, in a thread of its own: those for requests may all be busy. All
    who ask meanwhile share one check. So a frozen database holds one thread, and probes cannot make
    the database write as often as they like."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, "check readiness")
        self._running: Future[str] | None = None

    async def state(self, within_s: float | None = None) -> str:
        """Returns "ok", or a sentence on why the database cannot be used. A database that does not
        answer within `within_s` seconds, by default WAIT_S, counts as silent."""
        if self._running is None or self._running.done():  # otherwise joins the check under way
            self._running = self._thread.submit(self._store.state)
        waited = asyncio.wrap_future(self._running)
        done, _ = await asyncio.wait({waited}, timeout=WAIT_S if within_s is None else within_s)
        return waited.result() if done else SILENT

    def close(self) -> None:
        self._thread.shutdown(wait=False)
        self._store.close()
