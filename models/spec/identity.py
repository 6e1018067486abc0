"""Caches by identity, for results that depend on objects that take long to hash, such as problems
and profiles."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


class _Identity:
    """An object as the key of a cache is equal only to itself. The key keeps the object alive, so
    that no other object can have its id."""

    __slots__ = ("wrapped",)

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped

    def __hash__(self) -> int:
        return id(self.wrapped)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.wrapped is other.wrapped


def cached_by_identity(size: int, objects: int = 1) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that caches the last `size` results of a function of frozen objects. A
    result is reused where the first `objects` arguments are the same objects, and the further ones
    are equal. The decorated function takes positional arguments only."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        # lru_cache hashes and compares its arguments, which is slow for large objects. So it gets
        # the first `objects` of them wrapped in keys that compare by identity.
        untyped: Callable[..., R] = function

        @lru_cache(maxsize=size)
        def call_with_keys(*keys: Any) -> R:
            return untyped(*(key.wrapped for key in keys[:objects]), *keys[objects:])

        @wraps(function)
        def call(*args: Any) -> R:
            return call_with_keys(*map(_Identity, args[:objects]), *args[objects:])

        return cast(Callable[P, R], call)

    return decorate
