"""One call of a route, before it is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar
from urllib.parse import quote

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[Answer]):
    """A request that a method makes, with the type of its answer.

    Every route may be asked again: those that create something take an idempotency key, with which
    the service answers a second time what it answered the first, and the others create nothing.
    """

    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    takes_key: bool = False
    """True where the call creates something, and takes an idempotency key."""
    accept: str = "application/json"

    def given_query(self) -> dict[str, Any]:
        """Returns the query parameters that are not None."""
        return _given(self.query)

    def given_headers(self) -> dict[str, str]:
        """Returns the headers that are not None, as texts."""
        return {name: str(value) for name, value in _given(self.headers).items()}

    def next_page(self, cursor: str) -> Call[Answer]:
        """Returns the call for the page of a list that begins at a cursor."""
        return replace(self, query={**self.query, "cursor": cursor})

    def stream_headers(self, last_id: str | None) -> dict[str, str]:
        """Returns the headers of a request for a stream, which continues after the event with this
        id, or begins where that is None."""
        resumed = {} if last_id is None else {"Last-Event-ID": last_id}
        return {**self.given_headers(), "Accept": self.accept, **resumed}


def quoted(value: object) -> str:
    """Returns a value, such as an id, quoted for one segment of a URL's path."""
    return quote(str(value), safe="")


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
