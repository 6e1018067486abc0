"""The one way in which stored documents are read.

Processes of two releases share a database while one replaces the other, and the newer one may have
added fields to what both read. A reader ignores what it does not know, at every level, where a
request with such a field is refused: there it is a slip of who asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter

Form = TypeVar("Form", bound=BaseModel)
Value = TypeVar("Value")


def read_stored(form: type[Form], document: Any) -> Form:
    """Returns a stored document, or a part of one, as an instance of this class. Unknown fields are
    ignored. Raises ValidationError."""
    return form.model_validate(document, extra="ignore")


def read_stored_as(adapter: TypeAdapter[Value], document: Mapping[str, Any]) -> Value:
    """Returns a stored document as a type that is no class of its own, such as a union. Unknown
    fields are ignored. Raises ValidationError."""
    return adapter.validate_python(document, extra="ignore")
