"""Until when a request may compute."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic


def no_client() -> None:
    """Stands for a client that never disconnects, where nobody waits for the answer."""


class Deadline:
    """Asked now and then by what computes. Calling it says whether time is left, and raises what
    `require_client` raises once the client has disconnected."""

    def __init__(self, seconds: float, require_client: Callable[[], None] = no_client) -> None:
        self._ends = monotonic() + seconds
        self._require_client = require_client

    def __call__(self) -> bool:
        self._require_client()
        return monotonic() < self._ends

    def three_quarters(self) -> Deadline:
        """The deadline of a step that may take three quarters of the time that is left, so that
        the last quarter remains for answering with its result."""
        return self.at_most(0.75 * max(self._ends - monotonic(), 0.0))

    def at_most(self, seconds: float) -> Deadline:
        """This deadline or so many seconds from now, whichever comes first."""
        return Deadline(min(self._ends - monotonic(), seconds), self._require_client)
