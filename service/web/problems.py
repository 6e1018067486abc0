"""Errors as `application/problem+json` (RFC 9457). This is the one place where an exception becomes
an answer. A *violation* is a value of the request that breaks a rule; a *defect* is an exception
that the service does not raise on purpose."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from models.errors import DomainError, Infeasible, Invalid, Surest
from service.errors import (
    Forbidden,
    NotAcceptable,
    Refused,
    ServiceError,
    TooManyRequests,
    Unauthenticated,
)
from service.field_violations import (
    MAX_RULE_CHARACTERS,
    MAX_VALUE_CHARACTERS,
    FieldViolation,
    echoed_value,
    submitted_value,
    truncate,
    violation_of_pydantic,
)
from service.json_pointers import location_of
from service.schemas.layout import LayoutFields
from service.web.masking import without_keys
from service.web.problem_types import TYPES, problem_name

MEDIA_TYPE = "application/problem+json"
MAX_ERRORS = 100
"""Most violations that a problem lists; its `detail` says how many there are."""
_METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")
RETRY_AFTER_S = 5  # a start, a failover or a queue of searches takes some seconds


def install(app: FastAPI) -> None:
    """Makes the application answer exceptions with problem documents: its own, and those of
    FastAPI. Any other is a defect, which `Telemetry` answers."""
    for kind in (RequestValidationError, HTTPException, DomainError, ServiceError):
        app.add_exception_handler(kind, error_response)


def problem_response(
    scope: Scope, name: str, detail: str, headers: Mapping[str, str] | None = None, **members: Any
) -> JSONResponse:
    """Returns a problem document of the type `name`, with API keys removed from its texts.
    `members` are the fields beyond those of RFC 9457."""
    kind = TYPES[name]
    body = {
        "type": f"/problems/{name}",
        "title": kind.title,
        "status": kind.status,
        "detail": truncate(without_keys(detail), MAX_RULE_CHARACTERS),
        "instance": truncate(without_keys(scope["path"]), MAX_VALUE_CHARACTERS),
        "request_id": scope["state"].get("request_id"),
        **members,
    }
    return JSONResponse(body, kind.status, headers, MEDIA_TYPE)


def internal_error_response(scope: Scope) -> JSONResponse:
    """Returns the problem of a defect, which shows no internals."""
    return problem_response(
        scope, "internal", "The service failed; the log holds the reason under this request_id."
    )


def service_error_response(scope: Scope, error: ServiceError) -> JSONResponse:
    """Returns the problem that an error of the service becomes. Several broken rules become one
    problem with a list of errors."""
    name = problem_name(error)
    if isinstance(error, Refused):
        violations = [_violation(scope, violation) for violation in error.errors[:MAX_ERRORS]]
        return _violations_response(scope, name, violations, count=len(error.errors))
    return problem_response(scope, name, str(error), _error_headers(name, error))


def _error_headers(name: str, error: ServiceError) -> dict[str, str]:
    """Returns the headers of an error: when to try again, the challenge of RFC 6750 §3, or the
    header that the answer depends on."""
    if TYPES[name].status == 503 or name in ("still-running", "too-many-streams"):
        return {"Retry-After": str(RETRY_AFTER_S)}
    if isinstance(error, TooManyRequests):
        return {"Retry-After": str(math.ceil(error.wait_s))}
    if isinstance(error, Forbidden):
        return {"WWW-Authenticate": f'Bearer error="insufficient_scope", scope="{error.scope}"'}
    if isinstance(error, Unauthenticated):
        return {"WWW-Authenticate": "Bearer"}
    if isinstance(error, NotAcceptable):
        return {"Vary": "Accept"}
    return {}


async def error_response(request: Request, error: Exception) -> JSONResponse:
    """Returns the problem document that an exception becomes. Any exception that is not raised on
    purpose is a defect, and answered with 500."""
    if isinstance(error, RequestValidationError):
        return _validation_response(request, error)
    if isinstance(error, HTTPException):
        return _http_response(request, error)
    if isinstance(error, Infeasible):
        return _infeasible_response(request.scope, error)
    if isinstance(error, Invalid):
        violations = [_violation(request.scope, error)]
        return _violations_response(request.scope, problem_name(error), violations, count=1)
    if isinstance(error, ServiceError):
        return service_error_response(request.scope, error)
    return internal_error_response(request.scope)


def _validation_response(request: Request, error: RequestValidationError) -> JSONResponse:
    """Returns the problem of values that FastAPI refuses. A path parameter that breaks a rule names
    no resource, and is answered with 404."""
    items = error.errors()
    if any(item["loc"][0] == "path" for item in items):
        return problem_response(request.scope, "not-found", _nothing_at(request))
    violations = [_violation_of_pydantic(request.scope, item) for item in items[:MAX_ERRORS]]
    return _violations_response(request.scope, "invalid", violations, count=len(items))


def _http_response(request: Request, error: HTTPException) -> JSONResponse:
    """Returns the problem of an error that FastAPI or Starlette raises: an unknown path, a wrong
    method, or a request that cannot be read."""
    status = error.status_code
    headers = dict(error.headers or {})
    if status == 404:
        return problem_response(request.scope, "not-found", _nothing_at(request), headers)
    if status == 405:
        headers["Allow"] = ", ".join(_allowed_methods(request))
        detail = f"The methods of {_shown_path(request)} are {headers['Allow']}."
        return problem_response(request.scope, "method-not-allowed", detail, headers)
    if status >= 500:
        return internal_error_response(request.scope)
    return problem_response(request.scope, "bad-request", "The request cannot be read.", headers)


def _nothing_at(request: Request) -> str:
    return f"There is nothing at {_shown_path(request)}."


def _shown_path(request: Request) -> str:
    return truncate(request.url.path, MAX_VALUE_CHARACTERS)


def _allowed_methods(request: Request) -> list[str]:
    """Returns the methods of all routes at this address (RFC 9110 §10.2.1), sorted."""
    routes = request.app.routes
    allowed = [
        method
        for method in _METHODS
        if any(_has_method(route, request.scope, method) for route in routes)
    ]
    # Routes need not name HEAD: `HeadAsGet` answers it wherever there is a GET.
    return sorted([*allowed, "HEAD"] if "GET" in allowed else allowed)


def _has_method(route: BaseRoute, scope: Scope, method: str) -> bool:
    """Returns whether a route answers this method at the request's address."""
    return route.matches({**scope, "method": method})[0] is Match.FULL


def _infeasible_response(scope: Scope, error: Infeasible) -> JSONResponse:
    """Returns the problem of a question that no layout answers, with the failing constraint in
    figures and the layout that is surest to fit."""
    members: dict[str, Any] = {
        "constraint": error.constraint,
        "needed": echoed_value(error.needed),
        "available": echoed_value(error.available),
        "unit": error.unit or None,
        "enough_chips": error.enough_chips,
        "surest": error.surest and _surest_layout_members(error.surest),
        "min_fit_probability": error.surest and error.surest.min_fit_probability,
    }
    if error.blamed:  # values of the request, each of which alone makes it infeasible
        members["errors"] = [_violation(scope, violation).entry() for violation in error.blamed]
    return problem_response(scope, problem_name(error), error.detail, **members)


def _surest_layout_members(surest: Surest) -> dict[str, Any]:
    """Returns the layout that most surely fits, as a problem document has it."""
    layout = LayoutFields.shown(surest.layout, on_torus=surest.on_torus)
    return {"layout": layout.model_dump(mode="json"), "fit_probability": surest.fit_probability}


def _violations_response(
    scope: Scope, name: str, violations: Sequence[FieldViolation], count: int
) -> JSONResponse:
    """Returns the problem of `count` violations in all, of which `violations` are shown."""
    detail = violations[0].sentence() if count == 1 else f"{count} values break a rule."
    entries = [violation.entry() for violation in violations]
    return problem_response(scope, name, detail, errors=entries)


def _violation(scope: Scope, error: Invalid) -> FieldViolation:
    """Returns the violation in an Invalid, with the value as the caller sent it."""
    location = location_of(error.field)
    value = _submitted_value(scope, location, error.value)
    # A GET has its values in the query, to which a JSON Pointer cannot point.
    return FieldViolation(location, value, error.rule, in_body=scope["method"] != "GET")


def _violation_of_pydantic(scope: Scope, item: Mapping[str, Any]) -> FieldViolation:
    """Returns the violation in an error of FastAPI. The first step of its location is "body",
    "query" or the like."""
    place, *location = item["loc"]
    body = getattr(scope.get("route"), "body_field", None)
    # The type of the body has the known fields, which the message about an unknown one names.
    body_type = None if body is None else body.field_info.annotation
    return violation_of_pydantic(item, body_type, location, in_body=place == "body")


def _submitted_value(scope: Scope, location: Sequence[str | int], otherwise: object) -> object:
    """Returns the value at a location in the request's query or body; `otherwise` where there is
    none."""
    if scope["method"] == "GET":
        return submitted_value(dict(QueryParams(scope["query_string"])), location, otherwise)
    body = scope["state"].get("body")
    return otherwise if body is None else submitted_value(body, location, otherwise)
