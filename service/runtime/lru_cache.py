"""A cache that keeps the values asked for most recently and may be used by several threads."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """Keeps at most `max_size` values. What was used least recently goes first."""

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._values = dict[K, V]()
        """The least recently used first: a value moves to the end when it is looked up."""
        self._lock = threading.Lock()

    def get_many(self, keys: Iterable[K]) -> dict[K, V]:
        """The values of those keys that are in the cache."""
        with self._lock:
            found = {key: self._values.pop(key) for key in keys if key in self._values}
            self._values |= found
        return found

    def put_many(self, values: Mapping[K, V]) -> None:
        with self._lock:
            self._values |= values
            excess = max(len(self._values) - self._max_size, 0)
            for key in [*self._values][:excess]:
                del self._values[key]
