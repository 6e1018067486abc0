"""The deadline until which a request may compute."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from math import inf
from time import monotonic


def no_client() -> None:
    """Does nothing: the checkpoint of a computation for which no client waits."""


_SEARCHED = 0.75  # of the time that a caller waits: the rest is for what is said of the result


@dataclass(frozen=True, slots=True)
class Wait:
    """The time that a caller waits for an answer, from when its request came."""

    began: float
    """Time at which the request began, by the monotonic clock."""
    seconds: float

    @property
    def left_s(self) -> float:
        return max(self.began + self.seconds - monotonic(), 0.0)


@dataclass(frozen=True, slots=True)
class Until:
    """The checkpoint of a caller who waits until a set time. That time passes also while others
    compute."""

    checkpoint: Callable[[], None]
    ends: float
    """Time at which the deadline ends, by the monotonic clock."""

    @classmethod
    def within(cls, checkpoint: Callable[[], None], wait: Wait) -> Until:
        """Returns the checkpoint of a caller who waits this long. A part of the time is kept for
        answering."""
        return cls(checkpoint, wait.began + _SEARCHED * wait.seconds)

    def __call__(self) -> None:
        self.checkpoint()


class _Clock:
    """Seconds of computing: it stands still while a computation is set aside at a checkpoint, as
    it does while a request is queued."""

    def __init__(self, checkpoint: Callable[[], None]) -> None:
        self._checkpoint = checkpoint
        self._set_aside_s = 0.0
        self.ran_out = False

    def now(self) -> float:
        """Returns the seconds of computing, from an arbitrary start."""
        return monotonic() - self._set_aside_s

    def come_by(self) -> None:
        """Calls the checkpoint, and stops the clock for the time that the call takes."""
        began = monotonic()
        self._checkpoint()
        self._set_aside_s += monotonic() - began


class Deadline:
    """Asked now and then by what computes. Calling it says whether time is left, and raises what
    `require_client` raises once the client has disconnected. What passes within `require_client`
    is not counted."""

    def __init__(self, seconds: float, require_client: Callable[[], None] = no_client) -> None:
        self._clock = _Clock(require_client)
        self._ends = self._clock.now() + seconds
        self._last = require_client.ends if isinstance(require_client, Until) else inf

    def __call__(self) -> bool:
        """Calls the checkpoint, and returns whether time is left."""
        self._clock.come_by()
        has_time = self._left_s > 0
        self._clock.ran_out |= not has_time
        return has_time

    @property
    def _left_s(self) -> float:
        """Returns the seconds left, by the time computed and by the time that the caller waits,
        whichever ends first."""
        return min(self._ends - self._clock.now(), self._last - monotonic())

    @property
    def ran_out(self) -> bool:
        """Returns whether a computation was told that no time is left, by this deadline or one
        derived from it."""
        return self._clock.ran_out

    def three_quarters(self) -> Deadline:
        """Returns the deadline of a step that may take three quarters of the time that is left, so
        that the last quarter remains for answering with its result."""
        return self.at_most(0.75 * max(self._left_s, 0.0))

    def share(self, parts: int) -> Deadline:
        """Returns the deadline of a step that may take one of `parts` equal parts of the time
        left."""
        return self.at_most(max(self._ends - self._clock.now(), 0.0) / parts)

    def at_most(self, seconds: float) -> Deadline:
        """Returns a deadline `seconds` from now, or at this deadline where that is earlier."""
        earlier = copy(self)
        earlier._ends = min(self._ends, self._clock.now() + seconds)
        return earlier
