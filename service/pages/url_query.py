"""Queries of the API as forms and URLs of pages send them."""

from __future__ import annotations

from typing import Any, get_args, get_origin

from pydantic import BaseModel
from starlette.datastructures import QueryParams


def sent_query(schema: type[BaseModel], params: QueryParams) -> dict[str, Any]:
    """Returns those fields of a query that a URL has and that say something: an empty field of a
    form says nothing."""
    sent: dict[str, Any] = {}
    for name, field in schema.model_fields.items():
        values = [value.strip() for value in params.getlist(name) if value.strip()]
        if values:
            sent[name] = values if _is_list(field.annotation) else values[-1]
    return sent


def _is_list(annotation: Any) -> bool:
    return any(get_origin(candidate) is list for candidate in (annotation, *get_args(annotation)))
