"""Documents that remember what of them has been read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


class Watched(dict[str, Any]):
    """A document that remembers which of its keys have been asked for."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        super().__init__(
            {
                name: Watched(value) if isinstance(value, Mapping) else value
                for name, value in document.items()
            }
        )
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return super().get(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        self.asked.add(name)
        return super().pop(name, *default)

    def items(self) -> Any:
        self.asked.update(self)
        return super().items()

    def __copy__(self) -> Watched:
        return self

    def unread(self, prefix: str = "") -> list[str]:
        """The keys that nobody has asked for, with dots between those of inner objects. An inner
        object none of whose keys has been asked for was passed on as a whole, to a class that
        refuses keys that it does not know."""
        return list(self._unread(prefix))

    def _unread(self, prefix: str) -> Iterator[str]:
        for name, value in super().items():
            if name not in self.asked:
                yield f"{prefix}{name}"
            elif isinstance(value, Watched) and value.asked:
                yield from value._unread(f"{prefix}{name}.")
