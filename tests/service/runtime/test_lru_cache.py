from __future__ import annotations

from service.runtime.lru_cache import LruCache


def test_the_least_recently_used_goes_first() -> None:
    values = LruCache[int, str](2)
    values.put_many({1: "one", 2: "two"})
    assert values.get_many([1]) == {1: "one"}
    values.put_many({3: "three"})
    assert values.get_many([1, 2, 3]) == {1: "one", 3: "three"}
