"""The memory of one database: values that are kept so that they are not read again."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, TypeVar

from cachetools import LRUCache
from sqlalchemy import Engine

from service.store.change_counter import ChangeCounter, StoredRow

T = TypeVar("T")

_AT_HAND_S = 30.0  # so long at most

_MAX_BYTES = 128 * 2**20  # a small share of the 2 GiB that a process is given
_BYTES = 2**15
"""Size that is assumed of a value unless it states its own."""


@dataclass(frozen=True, slots=True)
class _AtHand:
    """A value that may be returned without asking the database, for a limited time."""

    value: Any
    since: int | None
    """The count of changes when it was read; None for what never changes."""
    until: float
    row: StoredRow | None = None
    """The only row that it is made of, if it is made of one."""


class Memory:
    """Keeps values by keys, up to _MAX_BYTES; the least recently used are dropped first.

    Some values never change under their key, such as answers by their ids. The others are "at hand"
    until something is committed to the database; a value that is made of a single row stays until
    that row changes. Either is at hand for _AT_HAND_S seconds at most.
    """

    def __init__(self, engine: Engine) -> None:
        self.changes = ChangeCounter(engine)
        self._values = LRUCache[Hashable, tuple[Any, int]](
            _MAX_BYTES, getsizeof=lambda value: value[1]
        )
        self._lock = Lock()

    def get(self, key: Hashable) -> Any:
        """Returns the value under a key; None where there is none."""
        with self._lock:
            entry = self._values.get(key)
        return None if entry is None else entry[0]

    def keep(self, key: Hashable, value: object, size: int = _BYTES) -> None:
        """Keeps a value, counted with `size` bytes. A value larger than the whole memory is not
        kept."""
        if size <= _MAX_BYTES:
            with self._lock:
                self._values[key] = value, size

    def recall(self, key: Hashable, read: Callable[[], T]) -> T:
        """Returns the value under a key; calls `read` for it the first time."""
        known = self.get(key)
        if known is not None:
            remembered: T = known[0]
            return remembered
        value = read()
        self.keep(key, (value,))
        return value

    def at_hand(self, key: Hashable) -> Any:
        """Returns the value that was put at hand under a key. Returns None if a commit may have
        changed it since, or its time is over. Takes microseconds, because no query is sent to the
        database."""
        answer: _AtHand | None = self.get(key)
        if answer is None or time.monotonic() > answer.until:
            return None
        if answer.since is None:
            return answer.value
        count = self.changes.count()
        if count == answer.since:
            return answer.value
        row = answer.row
        if count is None or row is None or self.changes.row(row.query, *row.values) != row:
            return None
        self.keep(key, replace(answer, since=count))  # what is made of one row is small
        return answer.value

    def put_at_hand(
        self,
        key: Hashable,
        since: int | None,
        value: object,
        size: int = _BYTES,
        row: StoredRow | None = None,
    ) -> None:
        """Puts a value at hand. `since` is `changes.count()` from before the value was read. `row`
        is the single row that the value is made of, if it is. Nothing is kept where `since` is
        None, because changes would go unnoticed."""
        if since is not None:
            self.keep(key, _AtHand(value, since, time.monotonic() + _AT_HAND_S, row), size)

    def put_at_hand_unchanging(self, key: Hashable, value: object, size: int) -> None:
        """Puts a value at hand that never changes, but may be dropped."""
        self.keep(key, _AtHand(value, None, time.monotonic() + _AT_HAND_S), size)
