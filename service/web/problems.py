"""Errors as `application/problem+json` (RFC 9457). This is the one place where an exception becomes
an answer."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from models.errors import (
    DomainError,
    Infeasible,
    Invalid,
    OutOfTime,
    Surest,
    UnknownName,
    Unsupported,
)
from service import errors
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

MEDIA_TYPE = "application/problem+json"
MAX_ERRORS = 100
"""Most violations that a problem lists; its `detail` says how many there are."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProblemType:
    title: str
    status: int
    meaning: str


TYPES: dict[str, ProblemType] = {
    "invalid": ProblemType(
        "A value breaks a rule",
        422,
        "`errors` names every field, where it is, its value and the rule it breaks.",
    ),
    "unknown-name": ProblemType(
        "A name is in no catalogue",
        422,
        "The rule in `errors` names the nearest known names. See /v1/catalog.",
    ),
    "unsupported": ProblemType(
        "Not described by the cost model",
        422,
        "The value is real, but the model cannot predict it; the rule says what is missing.",
    ),
    "not-a-training-job": ProblemType(
        "The launch trains nothing that is known here",
        422,
        "The command starts another program, or a script whose text was not sent: a hook lets such"
        " a job pass. The rule in `errors` names the program, and the file to send in"
        " `launch.files` if it trains.",
    ),
    "infeasible": ProblemType(
        "No layout satisfies every constraint",
        422,
        "The question is well formed and has no answer. `constraint` is the nearest failing one,"
        " `errors` all that are in the way together; `needed` and `available` are in `unit`;"
        " `enough_chips`: the first of twice, four times, … as many chips that has a layout that"
        " fits, or some of those where none uses all, which recommendations look for. Where memory"
        " is short, `surest` has the layout that is surest to fit with its `fit_probability`, and"
        " `min_fit_probability` is what to send as `constraints.min_fit_probability` to be answered"
        " all the same; null where not even the predicted memory of any layout is there.",
    ),
    "out-of-time": ProblemType(
        "No layout was found in the time given",
        422,
        "Whether there is one is not known: raise `time_limit_s`, or constrain some degrees.",
    ),
    "malformed-body": ProblemType(
        "The body cannot be read", 400, "The body must be one UTF-8 JSON text."
    ),
    "bad-header": ProblemType(
        "A header cannot be read", 400, "`detail` names the header and the rule."
    ),
    "bad-request": ProblemType("The request cannot be read", 400, "`detail` says why."),
    "unauthenticated": ProblemType(
        "A key is required",
        401,
        "Send `Authorization: Bearer` with a key; `detail` says what is wrong with it.",
    ),
    "forbidden": ProblemType(
        "The key is not for this", 403, "`detail` names the scope that this needs."
    ),
    "foreign-form": ProblemType(
        "The form came from elsewhere",
        403,
        "A form of the pages was sent without the token that they put into it. Open the page again,"
        " and send the form from there.",
    ),
    "not-found": ProblemType("Not found", 404, "There is nothing at this address."),
    "method-not-allowed": ProblemType(
        "Method not allowed", 405, "The header `Allow` lists the methods of this address."
    ),
    "not-acceptable": ProblemType(
        "Not in that media type", 406, "`detail` lists the media types that the answer has."
    ),
    "conflict": ProblemType(
        "Conflict", 409, "Another request got there first; look and try again."
    ),
    "name-reserved": ProblemType(
        "The name is taken by a shipped entry", 409, "Register the entry under another name."
    ),
    "still-running": ProblemType(
        "The first request with this key still runs",
        409,
        "Try again later with the same Idempotency-Key. If the process that ran it was killed, the"
        " key is free again after SHARDWRIGHT_IDEMPOTENCY_LEASE_S, 10 seconds unless set.",
    ),
    "storage-full": ProblemType(
        "The tenant may store no more",
        409,
        "`detail` says how much is used, the limit, and what you and the operator can do. Nothing"
        " was stored.",
    ),
    "nothing-to-learn": ProblemType(
        "Nothing to learn",
        422,
        "No report or benchmark is left that can teach: `detail` says what there is.",
    ),
    "key-reused": ProblemType(
        "Idempotency-Key of another request",
        422,
        "A key belongs to one request: same method, address and body.",
    ),
    "precondition-failed": ProblemType(
        "The resource has changed", 412, "Read it again and repeat with its new ETag."
    ),
    "precondition-required": ProblemType(
        "If-Match is required", 428, "Send the ETag of what you saw as If-Match."
    ),
    "body-too-slow": ProblemType(
        "The body does not come", 408, "`detail` says for how long the service waited."
    ),
    "body-too-large": ProblemType(
        "The body is too large", 413, "`detail` names the limit in bytes."
    ),
    "too-many-requests": ProblemType(
        "Too many requests",
        429,
        "`detail` says how many a key may send a minute, `Retry-After` when it may send the next.",
    ),
    "too-many-streams": ProblemType(
        "Too many event streams",
        429,
        "As many are open as a tenant, or a process of the service, may have: `detail` names the"
        " limit. Close some of yours, and try again after `Retry-After`.",
    ),
    "unsupported-media-type": ProblemType(
        "The body is not JSON in UTF-8", 415, "Send `Content-Type: application/json`."
    ),
    "overloaded": ProblemType(
        "Too busy",
        503,
        "`detail` says whether the queue is full, a turn did not come in time, too many large"
        " bodies came at once, the process that computed was killed, or the service has just"
        " started and still compiles the cost model. See `Retry-After`.",
    ),
    "client-gone": ProblemType(
        "The client is gone",
        499,
        "The connection closed while the request waited for its turn. Only logs show this.",
    ),
    "unavailable": ProblemType(
        "No database",
        503,
        "`detail` says whether the database does not answer, or why it can store nothing."
        " `Retry-After` says when to try again.",
    ),
    "stopping": ProblemType(
        "The service stops",
        503,
        "It was told to stop before this was done, and has stored nothing of it. Try again after"
        " `Retry-After`, when it may be back or another may answer.",
    ),
    "internal": ProblemType(
        "The service failed",
        500,
        "This is a defect. The log holds the reason under the `request_id` of the answer.",
    ),
}

_NAME_OF_EXCEPTION: dict[type[Exception], str] = {
    Invalid: "invalid",
    UnknownName: "unknown-name",
    Unsupported: "unsupported",
    Infeasible: "infeasible",
    OutOfTime: "out-of-time",
    errors.NotFound: "not-found",
    errors.Unauthenticated: "unauthenticated",
    errors.Forbidden: "forbidden",
    errors.ForeignForm: "foreign-form",
    errors.Conflict: "conflict",
    errors.NameReserved: "name-reserved",
    errors.NameTaken: "name-reserved",
    errors.StillRunning: "still-running",
    errors.NothingToLearn: "nothing-to-learn",
    errors.KeyReused: "key-reused",
    errors.PreconditionFailed: "precondition-failed",
    errors.PreconditionRequired: "precondition-required",
    errors.BadHeader: "bad-header",
    errors.NotAcceptable: "not-acceptable",
    errors.MalformedBody: "malformed-body",
    errors.Unreadable: "malformed-body",
    errors.NotJson: "unsupported-media-type",
    errors.BodyTooLarge: "body-too-large",
    errors.BodyTooSlow: "body-too-slow",
    errors.Unavailable: "unavailable",
    errors.Stopping: "stopping",
    errors.Overloaded: "overloaded",
    errors.QueueFull: "overloaded",
    errors.TurnNeverCame: "overloaded",
    errors.TooMuchHeld: "overloaded",
    errors.WorkerKilled: "overloaded",
    errors.StillCompiling: "overloaded",
    errors.TooManyRequests: "too-many-requests",
    errors.TooManyStreams: "too-many-streams",
    errors.StorageFull: "storage-full",
    errors.ClientGone: "client-gone",
    errors.Refused: "invalid",
    errors.NotATrainingJob: "not-a-training-job",
}
_NAME_OF_STATUS = {400: "bad-request", 404: "not-found", 405: "method-not-allowed"}
_METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")
RETRY_AFTER_S = 5  # a start, a failover or a queue of searches takes some seconds


def install(app: FastAPI) -> None:
    """Registers the handlers that turn exceptions into problem documents."""
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    app.add_exception_handler(HTTPException, _handle_http_error)
    app.add_exception_handler(DomainError, _handle_domain_error)
    app.add_exception_handler(errors.ServiceError, _handle_service_error)


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


def service_error_response(scope: Scope, error: errors.ServiceError) -> JSONResponse:
    """Returns the problem that an error of the service becomes. Several broken rules become one
    problem with a list of errors."""
    name = _name_of(error)
    if isinstance(error, errors.Refused):
        violations = [_violation(scope, violation) for violation in error.errors[:MAX_ERRORS]]
        return _violations_response(scope, name, violations, count=len(error.errors))
    return problem_response(scope, name, str(error), _error_headers(name, error))


def _error_headers(name: str, error: errors.ServiceError) -> dict[str, str]:
    """Returns the headers of an error: when to try again, the challenge of RFC 6750 §3, or the
    header that the answer depends on."""
    if TYPES[name].status == 503 or name in ("still-running", "too-many-streams"):
        return {"Retry-After": str(RETRY_AFTER_S)}
    if isinstance(error, errors.TooManyRequests):
        return {"Retry-After": str(math.ceil(error.wait_s))}
    if isinstance(error, errors.Forbidden):
        return {"WWW-Authenticate": f'Bearer error="insufficient_scope", scope="{error.scope}"'}
    if isinstance(error, errors.Unauthenticated):
        return {"WWW-Authenticate": "Bearer"}
    if isinstance(error, errors.NotAcceptable):
        return {"Vary": "Accept"}
    return {}


async def response_of(request: Request, error: Exception) -> JSONResponse:
    """Returns the problem document that an exception becomes."""
    if isinstance(error, RequestValidationError):
        return await _handle_validation_error(request, error)
    if isinstance(error, DomainError):
        return await _handle_domain_error(request, error)
    return await _handle_service_error(request, error)


async def _handle_validation_error(request: Request, error: Exception) -> JSONResponse:
    """Returns the problem of values that FastAPI refuses. A path parameter that breaks a rule names
    no resource, and is answered with 404."""
    errors = error.errors() if isinstance(error, RequestValidationError) else []
    if any(item["loc"][0] == "path" for item in errors):
        return problem_response(request.scope, "not-found", _nothing_at(request))
    violations = [_violation_of_pydantic(request.scope, item) for item in errors[:MAX_ERRORS]]
    return _violations_response(request.scope, "invalid", violations, count=len(errors))


async def _handle_http_error(request: Request, error: Exception) -> JSONResponse:
    """Returns the problem of an error that FastAPI or Starlette raises: an unknown path, a wrong
    method, or a request that cannot be read."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    if status == 405:
        headers["Allow"] = ", ".join(_allowed_methods(request))
    name = _NAME_OF_STATUS.get(status, "bad-request" if status < 500 else "internal")
    if name == "not-found":
        detail = _nothing_at(request)
    elif name == "method-not-allowed":
        detail = f"The methods of {_shown_path(request)} are {headers.get('Allow')}."
    else:
        detail = "The request cannot be read."
    return problem_response(request.scope, name, detail, headers)


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
    return sorted([*allowed, "HEAD"] if "GET" in allowed else allowed)


def _has_method(route: BaseRoute, scope: Scope, method: str) -> bool:
    """Returns whether a route answers this method at the request's address."""
    return route.matches({**scope, "method": method})[0] is Match.FULL


async def _handle_domain_error(request: Request, error: Exception) -> JSONResponse:
    """Returns the problem of an error of the models. Infeasible tells its constraint in figures,
    and Invalid names the field. Any other is a defect, and answered with 500."""
    if isinstance(error, Infeasible):
        members: dict[str, Any] = {
            "constraint": error.constraint,
            "needed": echoed_value(error.needed),
            "available": echoed_value(error.available),
            "unit": error.unit or None,
            "enough_chips": error.enough_chips,
            "surest": error.surest and _surest_members(error.surest),
            "min_fit_probability": error.surest and error.surest.min_fit_probability,
        }
        if error.blamed:
            members["errors"] = [
                _violation(request.scope, violation).entry() for violation in error.blamed
            ]
        return problem_response(request.scope, _name_of(error), error.detail, **members)
    if isinstance(error, Invalid):
        violations = [_violation(request.scope, error)]
        return _violations_response(request.scope, _name_of(error), violations, count=1)
    return internal_error_response(request.scope)


def _surest_members(surest: Surest) -> dict[str, Any]:
    """Returns the layout that most surely fits, as a problem document has it."""
    layout = LayoutFields.shown(surest.layout, on_torus=surest.on_torus)
    return {"layout": layout.model_dump(mode="json"), "fit_probability": surest.fit_probability}


async def _handle_service_error(request: Request, error: Exception) -> JSONResponse:
    """Returns the problem of an error of the service."""
    if not isinstance(error, errors.ServiceError):
        return internal_error_response(request.scope)
    return service_error_response(request.scope, error)


def type_of(error: Exception) -> str:
    """Returns the path of the problem type with which this exception is answered, such as
    "/problems/invalid"."""
    if isinstance(error, ValidationError):
        return "/problems/invalid"
    is_defect = not isinstance(error, DomainError | errors.ServiceError)
    return "/problems/internal" if is_defect else f"/problems/{_name_of(error)}"


def _name_of(error: Exception) -> str:
    """Returns the name of the problem type of an exception: that of its class, or of the nearest
    base class that has one."""
    kinds = type(error).__mro__
    return next(_NAME_OF_EXCEPTION[kind] for kind in kinds if kind in _NAME_OF_EXCEPTION)


def _violations_response(
    scope: Scope, name: str, violations: Sequence[FieldViolation], count: int
) -> JSONResponse:
    """Returns the problem of `count` violations in all, of which `violations` are shown."""
    detail = violations[0].sentence() if count == 1 else f"{count} values break a rule."
    entries = [violation.entry() for violation in violations]
    return problem_response(scope, name, detail, errors=entries)


def _violation(scope: Scope, error: Invalid) -> FieldViolation:
    """Returns the violation that an Invalid tells of, with the value that the caller sent."""
    location = location_of(error.field)
    value = _submitted_value(scope, location, error.value)
    # A GET has its values in the query, to which a JSON Pointer cannot point.
    return FieldViolation(location, value, error.rule, in_body=scope["method"] != "GET")


def _violation_of_pydantic(scope: Scope, item: Mapping[str, Any]) -> FieldViolation:
    """Returns the violation that an error of FastAPI tells of. The first part of its location is
    the place, such as "body" or "query"."""
    place, *location = item["loc"]
    body = getattr(scope.get("route"), "body_field", None)
    form = None if body is None else body.field_info.annotation
    return violation_of_pydantic(item, form, location, in_body=place == "body")


def _submitted_value(scope: Scope, location: Sequence[str | int], otherwise: object) -> object:
    """Returns the value at a location in the request's query or body; `otherwise` where there is
    none."""
    if scope["method"] == "GET":
        return submitted_value(dict(QueryParams(scope["query_string"])), location, otherwise)
    body = scope["state"].get("body")
    return otherwise if body is None else submitted_value(body, location, otherwise)
