"""What is kept in memory of one database, so that it is not read again."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar

from cachetools import LRUCache
from sqlalchemy import Engine

from service.store.change_counter import ChangeCounter

T = TypeVar("T")
State = int | tuple[Any, ...]
"""The count of changes, or the row alone that a value is made of (service.store.change_counter)."""

_AT_HAND_S = 30.0  # so long at most

_MAX_BYTES = 128 * 2**20
_BYTES = 2**15
"""About what a value takes unless it says how much."""


@dataclass(frozen=True, slots=True)
class _AtHand:
    value: Any
    since: State | None
    """What was read before it; None for what never changes."""
    until: float


class Memory:
    """Values by keys. What was used least recently goes first.

    Some never change under their key: versions, and answers by their ids. The others are `at hand`
    until somebody commits something to the database, or changes the row that they are made of, and
    for half a minute at most.
    """

    def __init__(self, engine: Engine) -> None:
        self.changes = ChangeCounter(engine)
        self._values = LRUCache[Hashable, tuple[Any, int]](
            _MAX_BYTES, getsizeof=lambda value: value[1]
        )
        self._lock = Lock()

    def get(self, key: Hashable) -> Any:
        """The value under a key, or None."""
        with self._lock:
            found = self._values.get(key)
        return None if found is None else found[0]

    def keep(self, key: Hashable, value: object, size: int = _BYTES) -> None:
        """Keeps a value of so many bytes, unless it is too large."""
        if size <= _MAX_BYTES:
            with self._lock:
                self._values[key] = value, size

    def recall(self, key: Hashable, read: Callable[[], T]) -> T:
        """The value under a key, which `read` makes when it is asked for first."""
        known = self.get(key)
        if known is not None:
            found: T = known[0]
            return found
        value = read()
        self.keep(key, (value,))
        return value

    def at_hand(self, key: Hashable, row: State | None = None) -> Any:
        """The value that was put at hand under a key, or None if something was committed since, or
        too much time has passed. Of a value that was put with its row, `row` is that now. This asks
        the database nothing that could take time."""
        found: _AtHand | None = self.get(key)
        if found is None or time.monotonic() > found.until:
            return None
        is_as_it_was = found.since is None or found.since == (row or self.changes.count())
        return found.value if is_as_it_was else None

    def put_at_hand(
        self, key: Hashable, since: State | None, value: object, size: int = _BYTES
    ) -> None:
        """Puts a value at hand that was read after `changes.count()` was `since`, or after the row
        that it is made of was."""
        if since is not None:
            self.keep(key, _AtHand(value, since, time.monotonic() + _AT_HAND_S), size)

    def put_at_hand_unchanging(self, key: Hashable, value: object, size: int) -> None:
        """Puts a value at hand that never changes, but may be dropped."""
        self.keep(key, _AtHand(value, None, time.monotonic() + _AT_HAND_S), size)
