"""The answers of an operation besides its result: problems, headers and conditional requests, in
the form that `responses=` and `openapi_extra=` of FastAPI's routes take."""

from __future__ import annotations

from typing import Any

from fastapi.openapi.models import Example

from service.web.problem_types import TYPES
from service.web.problems import MEDIA_TYPE

Responses = dict[int | str, dict[str, Any]]

HEADERS = {
    "ETag": "Of this state: what If-None-Match and If-Match compare.",
    "Idempotency-Replayed": (
        "true where an earlier request made this: of the same Idempotency-Key, or of the same log."
    ),
    "Link": 'The next page, with rel="next", where there is one (RFC 8288).',
    "Preference-Applied": "The preference of `Prefer` that the answer's form follows (RFC 7240).",
    "Location": "Where what was created lies.",
    "Retry-After": "Seconds to wait before trying again.",
    "WWW-Authenticate": "How to authenticate (RFC 6750).",
}
"""Response headers and what they say; `service.web.openapi` puts them among the components."""

_HEADER_OF_STATUS = {
    401: "WWW-Authenticate",
    403: "WWW-Authenticate",
    429: "Retry-After",
    503: "Retry-After",
}
_PROBLEM = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}


def with_headers(*names: str) -> dict[str, Any]:
    """Returns the part of a response that documents these headers."""
    return {"headers": {name: {"$ref": f"#/components/headers/{name}"} for name in names}}


def problem_responses(*statuses: int) -> Responses:
    """Returns the problems that have these statuses, each described by the titles of its types."""
    return {status: _problem_response(status) for status in statuses}


def _problem_response(status: int) -> dict[str, Any]:
    """Returns the documentation of the problems with this status."""
    titles = [kind.title for kind in TYPES.values() if kind.status == status]
    response = {"description": "; ".join(titles), "content": _PROBLEM}
    if status in _HEADER_OF_STATUS:
        response |= with_headers(_HEADER_OF_STATUS[status])
    return response


def _header_parameter(name: str, description: str, *, required: bool = False) -> dict[str, Any]:
    """Returns the documentation of a request header that endpoints read themselves."""
    return {
        "name": name,
        "in": "header",
        "required": required,
        "schema": {"type": "string"},
        "description": description,
    }


def if_match(
    description: str, *, required: bool, examples: dict[str, Example] | None = None
) -> dict[str, Any]:
    """Returns the documentation of the If-Match parameter. The header itself is declared as
    optional, so that a request that lacks it is answered with 428 where it is required, and not
    with 422."""
    parameter = _header_parameter("if-match", description, required=required)
    if examples is not None:
        parameter["examples"] = examples
    return {"parameters": [parameter]}


_IF_NONE_MATCH = _header_parameter(
    "If-None-Match", "ETags that the client has: where one is of this state the answer is a 304."
)
_PREFER = _header_parameter(
    "Prefer", "`return=minimal` asks for the brief view (RFC 7240), unless `view` says which."
)
IF_NONE_MATCH = {"parameters": [_IF_NONE_MATCH]}
PREFER = {"parameters": [_PREFER]}
IF_NONE_MATCH_OR_PREFER = {"parameters": [_IF_NONE_MATCH, _PREFER]}

IN_V1 = problem_responses(401, 403, 404, 406, 422, 429, 500, 503)
"""Problems of every operation below /v1. `create_app` gives them to each of its routers."""

WITH_BODY = problem_responses(400, 408, 413, 415)
POST = WITH_BODY | problem_responses(409)
_CREATED = with_headers("Location", "Idempotency-Replayed")
_STILL_RUNNING = POST[409] | with_headers("Retry-After")
CREATE = POST | {201: _CREATED, 409: _STILL_RUNNING}
ACCEPT = POST | {202: _CREATED, 409: _STILL_RUNNING}
_ANSWERED = with_headers("Location", "Idempotency-Replayed", "Preference-Applied")
CREATE_WITH_VIEW = CREATE | {
    200: {"description": "The same question, answered before"} | _ANSWERED,
    201: _ANSWERED,
}
POST_OR_CREATE_WITH_VIEW = CREATE_WITH_VIEW | {
    200: {"description": "The answer; or, where it was to be stored, the one of before"}
    | _ANSWERED,
    201: {"description": "The answer, which is stored"} | _ANSWERED,
}


def page_or(table: dict[str, Any]) -> Responses:
    """Returns the documentation of a page of a list, or all of it as a table; both have an ETag."""
    listed = {"content": table} | with_headers("Link", "ETag")
    return {200: listed, 304: CONDITIONAL_GET[304]}


TAGGED: Responses = {200: with_headers("ETag")}
CONDITIONAL_GET = TAGGED | {304: {"description": "The client has it"} | with_headers("ETag")}
CONDITIONAL_GET_WITH_VIEW = CONDITIONAL_GET | {200: with_headers("ETag", "Preference-Applied")}
IF_MATCH = TAGGED | problem_responses(400, 412)
IF_MATCH_REQUIRED = IF_MATCH | problem_responses(428)
