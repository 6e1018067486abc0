"""The contract: problems and headers are documented on every operation, problems in their own media
type."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict

from service.web.problems import MEDIA_TYPE, TYPES

DESCRIPTION = """
Says which parallel layout to launch for training a model on a cluster, what step time, MFU and memory to expect,
and why; takes in what was measured and learns from it.

Times are in seconds, memory in GiB (2^30 bytes), bandwidths in GB/s (1e9 bytes a second) one way. Every error is an
`application/problem+json` (RFC 9457) whose type is described at `/problems/{name}`. A POST that creates takes an
`Idempotency-Key`. Where the operator asks for keys, send yours as `Authorization: Bearer`.
"""


class ProblemError(BaseModel):
    field: str
    pointer: str | None
    value: Any
    rule: str


class Problem(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)

    type: str
    title: str
    status: int
    detail: str
    instance: str
    request_id: str | None
    errors: list[ProblemError] | None = None
    """Of values that break a rule."""
    constraint: str | None = None
    """This and the next four: where no layout satisfies every constraint."""
    needed: Any = None
    available: Any = None
    unit: str | None = None
    enough_chips: int | None = None


_OF_ANY = (401, 403, 404, 422, 500, 503)
_OF_POST = (400, 409)
_OF_BODY = (400, 408, 413, 415)
_OF_HEADER = {"If-Match": (400, 412)}
_MAY_GUARD = "delete"
"""The method that takes If-Match; others that know it ask for it."""
_HEADERS = {
    "ETag": "Of this state: what If-None-Match and If-Match compare.",
    "Idempotency-Replayed": (
        "true where an earlier request made this: of the same Idempotency-Key, or of the same log."
    ),
    "Link": 'The next page, with rel="next", where there is one (RFC 8288).',
    "Location": "Where what was created lies.",
    "Retry-After": "Seconds to wait before trying again.",
    "WWW-Authenticate": "How to authenticate (RFC 6750).",
}
_IF_NONE_MATCH = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
    "description": "ETags that the client has: where one is of this state the answer is a 304.",
}


def install(app: FastAPI) -> None:
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        fresh = app.openapi_schema is None
        document = generate()
        if fresh:
            _document_problems(document)
            _loosen(document)
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _document_problems(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(problem.pop("$defs"), Problem=problem)
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    document["components"]["headers"] = {
        name: {"description": meaning, "schema": {"type": "string"}}
        for name, meaning in _HEADERS.items()
    }
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            responses = operation["responses"]
            responses.pop("422", None)
            if path.startswith("/v1"):
                operation["security"] = [
                    {},
                    {"key": []},
                ]  # whether it is asked for is the operator's choice
                responses |= {
                    str(status): _response(status) for status in _statuses(method, operation)
                }
                _document_headers(path, method, operation)
            elif "{" in path:
                responses["404"] = _response(404)


def _loosen(node: Any) -> None:
    """Forms that are told apart by looking at them may overlap: what is a model's shape is also
    some config.json."""
    if isinstance(node, dict):
        if "oneOf" in node and "discriminator" not in node:
            node["anyOf"] = node.pop("oneOf")
        for value in node.values():
            _loosen(value)
    elif isinstance(node, list):
        for value in node:
            _loosen(value)


def _document_headers(path: str, method: str, operation: dict[str, Any]) -> None:
    parameters, responses = operation.setdefault("parameters", []), operation["responses"]
    sent: dict[str, list[str]] = {
        "401": ["WWW-Authenticate"],
        "403": ["WWW-Authenticate"],
        "503": ["Retry-After"],
    }
    if "201" in responses:
        sent |= {"201": ["Location", "Idempotency-Replayed"], "409": ["Retry-After"]}
    if method == "get" and path.endswith(("{id}", "{version}")):
        parameters.append(_IF_NONE_MATCH)
        responses["304"] = {"description": "The client has it"}
        sent |= {"200": ["ETag"], "304": ["ETag"]}
    for guard in (item for item in parameters if item["name"].title() == "If-Match"):
        guard |= {
            "required": method != _MAY_GUARD,
            "schema": {"type": "string"},
        }  # a 428 without it, not a 422
        sent["200"] = ["ETag"]
    if "cursor" in [item["name"] for item in parameters]:
        sent["200"] = ["Link"]
    for status, names in sent.items():
        responses[status]["headers"] = {
            name: {"$ref": f"#/components/headers/{name}"} for name in names
        }


def _statuses(method: str, operation: dict[str, Any]) -> list[int]:
    headers = [
        item["name"].title() for item in operation.get("parameters", []) if item["in"] == "header"
    ]
    guarded = [status for name in headers for status in _OF_HEADER.get(name, ())]
    if "If-Match" in headers and method != _MAY_GUARD:
        guarded.append(428)
    of_body = _OF_BODY if "requestBody" in operation else ()
    return sorted({*_OF_ANY, *(_OF_POST if method == "post" else ()), *of_body, *guarded})


def _response(status: int) -> dict[str, Any]:
    titles = [kind.title for kind in TYPES.values() if kind.status == status]
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"description": "; ".join(titles), "content": {MEDIA_TYPE: {"schema": schema}}}
