"""Until when a request may compute."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic


def nobody() -> None:
    """No client to look after."""


class Deadline:
    """Called now and then by what computes: says whether to go on, and raises what `require_client`
    raises once nobody waits for the answer any more."""

    def __init__(self, seconds: float, require_client: Callable[[], None] = nobody) -> None:
        self._ends, self._require_client = monotonic() + seconds, require_client

    def __call__(self) -> bool:
        self._require_client()
        return monotonic() < self._ends

    def most(self) -> Deadline:
        """Three quarters of the time: what is chosen in it is answered in the rest."""
        return self.within(0.75 * max(self._ends - monotonic(), 0.0))

    def within(self, seconds: float) -> Deadline:
        """The same, or so many seconds from now, whichever comes first."""
        return Deadline(min(self._ends - monotonic(), seconds), self._require_client)
