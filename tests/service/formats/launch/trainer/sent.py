"""Files that are sent beside a launch."""

from __future__ import annotations


class Sent(dict[str, str]):
    """Texts by name, found by the last step of it."""

    def find(self, name: str) -> str | None:
        return self.get(name, self.get(name.rpartition("/")[2]))
