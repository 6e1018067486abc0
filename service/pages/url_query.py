"""Reads the query in a page's URL as a query of the API. Forms also send empty fields, which the
API would refuse."""

from __future__ import annotations

from typing import Any, get_args, get_origin

from pydantic import BaseModel
from starlette.datastructures import QueryParams


def sent_query(schema: type[BaseModel], params: QueryParams) -> dict[str, Any]:
    """Returns the fields of a schema that a URL gives. Empty values are left out, because browsers
    send a form's empty fields. A field that is not a list takes its last value."""
    sent: dict[str, Any] = {}
    for name, field in schema.model_fields.items():
        values = [value.strip() for value in params.getlist(name) if value.strip()]
        if values:
            sent[name] = values if _is_list(field.annotation) else values[-1]
    return sent


def _is_list(annotation: Any) -> bool:
    """Returns whether a field's type is a list, or a union with one."""
    return any(get_origin(candidate) is list for candidate in (annotation, *get_args(annotation)))
