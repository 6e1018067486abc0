"""Documents that are encoded before their transaction begins, because others wait for its end."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class EncodedDocument:
    """An object as JSON, for a column of documents."""

    text: str

    @classmethod
    def of(cls, document: dict[str, Any]) -> EncodedDocument:
        return cls(json.dumps(document))

    def with_members(self, members: dict[str, Any]) -> EncodedDocument:
        """Returns the document with more members, which it must not have yet. It is not parsed
        again: '{"a": 1}' with {"b": 2} is '{"a": 1' + ', ' + '"b": 2}'."""
        return EncodedDocument(f"{self.text[:-1]}, {json.dumps(members)[1:]}")


def serialized(value: Any) -> str:
    """Returns the text that a database is sent for a value of a column of JSON."""
    return value.text if isinstance(value, EncodedDocument) else json.dumps(value)
