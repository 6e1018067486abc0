"""The text of an answer: JSON as it is sent, plain and compressed. The *stamp* of an answer is its
id and time, in which texts of equal answers differ."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, NamedTuple

_LEVEL = 6  # zlib's own default: level 9 takes twice as long for 1% less


_ITEMS_AT_A_TIME = 500  # in one call the encoder would hold other threads up for the whole document


def encoded(document: Mapping[str, Any]) -> bytes:
    """Returns a document as compact JSON in UTF-8. Long lists are encoded some items at a time,
    because the encoder holds the GIL during each call."""
    members = [
        f"{_dumps(name)}:{_encoded_list(value) if isinstance(value, list) else _dumps(value)}"
        for name, value in document.items()
    ]
    return f"{{{','.join(members)}}}".encode()


def _encoded_list(items: list[Any]) -> str:
    """Returns a list as JSON. It is encoded in parts, between which other threads can run, because
    the encoder holds the GIL. The parts are joined without their brackets."""
    starts = range(0, len(items), _ITEMS_AT_A_TIME)
    parts = [_dumps(items[start : start + _ITEMS_AT_A_TIME])[1:-1] for start in starts]
    return f"[{','.join(parts)}]"


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


class Stamp(NamedTuple):
    """The id and the time of an answer, which its text names."""

    id: str
    created_at: datetime


class AnswerText:
    """An answer as JSON text, plain and compressed by gzip. Either form is made from the other when
    it is first asked for."""

    def __init__(self, *, plain: bytes | None = None, compressed: bytes | None = None) -> None:
        self._plain = plain
        self._compressed = compressed

    @classmethod
    def of(cls, plain: bytes) -> AnswerText:
        """Returns the text in both forms."""
        return cls(plain=plain, compressed=_compress(plain))

    @cached_property
    def plain(self) -> bytes:
        if self._plain is not None:
            return self._plain
        # An answer has one of the two forms; `or b""` is for the type checker.
        return gzip.decompress(self._compressed or b"")

    @cached_property
    def compressed(self) -> bytes:
        """Returns the text compressed by gzip."""
        if self._compressed is not None:
            return self._compressed
        return _compress(self.plain)

    @property
    def size(self) -> int:
        """Returns the number of bytes of both forms together, the size for a cache."""
        return len(self.plain) + len(self.compressed)

    @property
    def document(self) -> dict[str, Any]:
        """Returns the answer as a new value that the caller may change."""
        document: dict[str, Any] = json.loads(self.plain)
        return document

    def restamped(self, first: Stamp, own: Stamp) -> AnswerText:
        """Returns the text with the stamp `own` in place of `first`, which is the stamp of the
        answer that it was made for."""
        if own == first:
            return self
        renamed = self.plain.replace(first.id.encode(), own.id.encode())
        own_time = _created_at(own.created_at)
        # Only the first `created_at` is the answer's: parts of it may have some too.
        return AnswerText(plain=renamed.replace(_created_at(first.created_at), own_time, 1))


def _created_at(at: datetime) -> bytes:
    """Returns the JSON member "created_at" with this time, as pydantic writes it."""
    shown = at.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return f'"created_at":"{shown}"'.encode()


def _compress(plain: bytes) -> bytes:
    """Compresses the text. The header carries no time: equal texts give equal bytes."""
    return gzip.compress(plain, _LEVEL, mtime=0)
