"""Query strings, read strictly: a parameter that is unknown or comes twice is refused by name."""

from __future__ import annotations

from collections.abc import Collection

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel


def names_of(dependant: Dependant) -> list[str]:
    """The names of an endpoint's query parameters, which are the fields of its query model."""
    kinds = [parameter.field_info.annotation for parameter in dependant.query_params]
    models = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return [name for model in models for name in model.model_fields]


def require_known(request: Request, known: Collection[str]) -> None:
    """Raises RequestValidationError for parameters that are unknown or repeated."""
    if not request.scope["query_string"]:
        return
    query = request.query_params
    results = [_error(name, query.getlist(name), known) for name in query]
    if errors := [error for error in results if error is not None]:
        raise RequestValidationError(errors)


def _error(name: str, values: list[str], known: Collection[str]) -> dict[str, object] | None:
    if name not in known:
        rule = f"unknown query parameter; known: {', '.join(known) or 'none'}"
        return {"type": "unknown", "loc": ("query", name), "msg": rule, "input": values[0]}
    if len(values) > 1:
        return {
            "type": "repeated",
            "loc": ("query", name),
            "msg": "may be given once only",
            "input": values,
        }
    return None
