"""Files that a launch names, by their names."""

from __future__ import annotations

from typing import Protocol


class Files(Protocol):
    """The texts of files that belong to a launch."""

    def find(self, name: str) -> str | None:
        """Returns the text of a file; None where it was not sent."""


class NoFiles:
    """No file was sent."""

    def find(self, name: str) -> str | None:
        return None


NO_FILES = NoFiles()
