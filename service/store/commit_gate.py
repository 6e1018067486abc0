"""The gate that every commit passes, until the process is about to end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from service.errors import Stopping


class CommitGate:
    """A gate that commits pass until it is closed for good, when the process stops. Clients are
    then told that nothing was stored, so threads that still compute for them must not commit."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._committing = 0
        self._closed = False

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Lets a commit run in the block; `close` waits for it. Raises Stopping if the gate is
        closed."""
        with self._condition:
            if self._closed:
                raise Stopping
            self._committing += 1
        try:
            yield
        finally:
            with self._condition:
                self._committing -= 1
                self._condition.notify_all()

    def close(self, within_s: float) -> None:
        """Closes the gate for good. Returns once no commit is running, or after `within_s`
        seconds."""
        with self._condition:
            self._closed = True
            self._condition.wait_for(lambda: not self._committing, within_s)
