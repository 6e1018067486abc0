"""Server-sent events, line by line (WHATWG HTML, 9.2.6)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a stream."""

    name: str
    data: Any
    """The document that it carries; its text where it is none."""
    id: str | None


class EventReader:
    """Puts the lines of a stream together into events."""

    def __init__(self) -> None:
        self._name = "message"
        self._data: list[str] = []
        self.last_id: str | None = None
        """By which a stream that was cut off is taken up again."""

    def feed(self, line: str) -> Event | None:
        """Takes the next line of the stream. Returns the event that an empty line completes, and
        None for any other line."""
        if not line:
            return self._end()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._name = value
        elif name == "id":
            self.last_id = value
        return None

    def _end(self) -> Event | None:
        """Returns the event that the lines so far make up, and begins a new one; None without
        data."""
        name, text = self._name, "\n".join(self._data)
        self._name = "message"
        self._data = []
        return Event(name, _document(text), self.last_id) if text else None


def _document(text: str) -> Any:
    """Returns the data of an event as JSON, or as text where it is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text
