"""What was worked out lately, for whoever asks the same again."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """At most `most` values, those that were asked for last; for several threads."""

    def __init__(self, most: int) -> None:
        self._most, self._values, self._lock = most, dict[K, V](), threading.Lock()

    def among(self, keys: Iterable[K]) -> dict[K, V]:
        """Those that are known."""
        with self._lock:
            found = {key: self._values.pop(key) for key in keys if key in self._values}
            self._values |= found
        return found

    def add(self, found: Mapping[K, V]) -> None:
        with self._lock:
            self._values |= found
            for key in [*self._values][: max(len(self._values) - self._most, 0)]:
                del self._values[key]
