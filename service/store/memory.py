"""An in-process cache of what was read from one database."""

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

_LONGEST_S = 30.0  # so that a value that was deleted from the database is not shown for long

_MAX_BYTES = 128 * 2**20  # a small share of the 2 GiB that a process is given
_BYTES = 2**15
"""Size that is assumed of a value unless it states its own."""


@dataclass(frozen=True, slots=True)
class _Cached:
    """A value that may be returned without asking the database, for a limited time."""

    value: Any
    commits: int | None
    """The number of commits when the value was read; None for a value that never changes."""
    until: float
    """Time, by the monotonic clock."""
    row: StoredRow | None = None
    """The only row that the value is made of, if it is made of one."""


class Memory:
    """Keeps values by keys, up to _MAX_BYTES; the least recently used are dropped first.

    `keep` is for values that never change under their key. `keep_until_change` is for all others: a
    commit to the database makes them stale, or, for a value that is made of a single row, a change
    of that row.
    """

    def __init__(self, engine: Engine) -> None:
        self.changes = ChangeCounter(engine)
        # By key: the value and its size, by which the cache is limited.
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
        known = self.get(key)  # a tuple with the value, which may be None itself
        if known is not None:
            remembered: T = known[0]
            return remembered
        value = read()
        self.keep(key, (value,))
        return value

    def unchanged(self, key: Hashable) -> Any:
        """Returns the value that `keep_until_change` or `keep_unchanging` has kept. Returns None if
        a commit may have changed it since, or _LONGEST_S have passed. Takes microseconds, because
        no query is sent to the database."""
        cached: _Cached | None = self.get(key)
        if cached is None or time.monotonic() > cached.until:
            return None
        if cached.commits is None:
            return cached.value
        commits = self.changes.count()
        if commits == cached.commits:
            return cached.value
        row = cached.row
        if commits is None or row is None or self.changes.row(row.query, *row.values) != row:
            return None
        # Other rows have changed, and this one has not. A value of one row is small: the size that
        # `keep` assumes will do.
        self.keep(key, replace(cached, commits=commits))
        return cached.value

    def keep_until_change(
        self,
        key: Hashable,
        commits: int | None,
        value: object,
        size: int = _BYTES,
        row: StoredRow | None = None,
    ) -> None:
        """Keeps a value that a commit may change. `commits` is `changes.count()` from before the
        value was read, and `row` the single row that it is made of, if it is. Nothing is kept where
        `commits` is None, because changes would go unnoticed."""
        if commits is not None:
            self.keep(key, _Cached(value, commits, time.monotonic() + _LONGEST_S, row), size)

    def keep_unchanging(self, key: Hashable, value: object, size: int) -> None:
        """Keeps a value that never changes. It may be deleted from the database, so `unchanged`
        returns it only for _LONGEST_S."""
        self.keep(key, _Cached(value, None, time.monotonic() + _LONGEST_S), size)
