"""The deadline until which a request may compute.

A *checkpoint* is a function that a computation calls now and then. It raises an error once the
client has hung up, and blocks while the computation is *set aside* for those of other tenants.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from math import inf
from time import monotonic


def no_client() -> None:
    """Does nothing: the checkpoint of a computation for which no client waits."""


_SEARCH_SHARE = 0.75  # of the time that a caller waits: the rest is for reasons and the answer


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
class TimedCheckpoint:
    """The checkpoint of a caller who waits until a set time, `ends`. A call does not test that
    time: Deadline reads and tests it. The time also passes while the computation is set aside for
    others."""

    checkpoint: Callable[[], None]
    ends: float
    """Time at which the computation has to end, by the monotonic clock."""

    @classmethod
    def within(cls, checkpoint: Callable[[], None], wait: Wait) -> TimedCheckpoint:
        """Returns the checkpoint of a caller who waits this long. A quarter of the time is kept for
        making the answer out of the result."""
        return cls(checkpoint, wait.began + _SEARCH_SHARE * wait.seconds)

    def __call__(self) -> None:
        self.checkpoint()


class _Clock:
    """A clock of the seconds of computing. It stands still while a computation waits in its
    checkpoint, because its slot is lent to others."""

    def __init__(self, checkpoint: Callable[[], None]) -> None:
        self._checkpoint = checkpoint
        self._set_aside_s = 0.0
        self.ran_out = False  # whether a computation was told that no time is left

    def now(self) -> float:
        """Returns the seconds of computing, from an arbitrary start."""
        return monotonic() - self._set_aside_s

    def call_checkpoint(self) -> None:
        """Calls the checkpoint, and stops the clock for the time that the call takes."""
        began = monotonic()
        self._checkpoint()
        self._set_aside_s += monotonic() - began


class Deadline:
    """The time limit of a computation, which calls it now and then. The call says whether time is
    left, and raises what `require_client` raises once the client has disconnected. Time that passes
    within `require_client` does not count."""

    def __init__(self, seconds: float, require_client: Callable[[], None] = no_client) -> None:
        self._clock = _Clock(require_client)
        self._ends = self._clock.now() + seconds
        self._caller_ends = inf  # a caller without a TimedCheckpoint waits as long as it takes
        if isinstance(require_client, TimedCheckpoint):
            self._caller_ends = require_client.ends

    def __call__(self) -> bool:
        """Calls the checkpoint, and returns whether time is left."""
        self._clock.call_checkpoint()
        has_time = self._left_s > 0
        self._clock.ran_out |= not has_time  # also for deadlines that share the clock
        return has_time

    @property
    def _left_s(self) -> float:
        """Returns the seconds left, by the time computed and by the time that the caller waits,
        whichever ends first."""
        return min(self._ends - self._clock.now(), self._caller_ends - monotonic())

    @property
    def ran_out(self) -> bool:
        """Returns whether a computation was told that no time is left, by this deadline or one
        derived from it."""
        return self._clock.ran_out

    def three_quarters(self) -> Deadline:
        """Returns the deadline of a step that may take three quarters of the time that is left. The
        last quarter is for what follows with its result."""
        return self.at_most(0.75 * max(self._left_s, 0.0))

    def share(self, parts: int) -> Deadline:
        """Returns the deadline of a step that may take one of `parts` equal parts of the time
        left."""
        return self.at_most(max(self._ends - self._clock.now(), 0.0) / parts)

    def at_most(self, seconds: float) -> Deadline:
        """Returns a deadline `seconds` from now, or at this deadline where that is earlier."""
        # The copy shares the clock: if it runs out, `ran_out` of this deadline is true as well.
        earlier = copy(self)
        earlier._ends = min(self._ends, self._clock.now() + seconds)
        return earlier
