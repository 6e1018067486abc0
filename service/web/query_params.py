"""Query strings, read strictly: a parameter that is unknown, or comes twice and is no list, is
refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_origin

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel


def parameters_of(dependant: Dependant) -> dict[str, bool]:
    """Returns the query parameters of an endpoint, each with whether it is a list. They are the
    fields of its query model, and items of a list come as repeated parameters."""
    # FastAPI gives all parameters as one, whose type is the endpoint's query model.
    types = [parameter.field_info.annotation for parameter in dependant.query_params]
    models = [kind for kind in types if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return {
        name: get_origin(field.annotation) is list
        for model in models
        for name, field in model.model_fields.items()
    }


def require_known(request: Request, known: Mapping[str, bool]) -> None:
    """Raises RequestValidationError for query parameters that are unknown, or repeated without
    being lists. `known` maps each name to whether it is a list."""
    if not request.scope["query_string"]:
        return
    query = request.query_params
    results = [_error(name, query.getlist(name), known) for name in query]
    if errors := [error for error in results if error is not None]:
        raise RequestValidationError(errors)


def _error(name: str, values: list[str], known: Mapping[str, bool]) -> dict[str, object] | None:
    """Returns the error of a query parameter in pydantic's form; None where the parameter is
    allowed. `known` maps each name to whether it is a list."""
    if name not in known:
        rule = f"unknown query parameter; known: {', '.join(known) or 'none'}"
        return {"type": "unknown", "loc": ("query", name), "msg": rule, "input": values[0]}
    if len(values) > 1 and not known[name]:
        return {
            "type": "repeated",
            "loc": ("query", name),
            "msg": "may be given once only",
            "input": values,
        }
    return None
