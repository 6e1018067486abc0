"""How many computations run at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from service.errors import Overloaded


class HeavySlots:
    """At most `concurrency` computations at once and `queue` waiting; the next one is refused at once."""

    def __init__(self, concurrency: int, queue: int, wait_s: float) -> None:
        self._admitted = threading.BoundedSemaphore(concurrency + queue)
        self._running = threading.BoundedSemaphore(concurrency)
        self._wait_s = wait_s

    @contextmanager
    def one(self) -> Iterator[None]:
        if not self._admitted.acquire(blocking=False):
            raise Overloaded
        try:
            if not self._running.acquire(timeout=self._wait_s):
                raise Overloaded
            try:
                yield
            finally:
                self._running.release()
        finally:
            self._admitted.release()
