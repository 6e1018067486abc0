"""The contract: problems are documented on every operation, in their own media type."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict

from service.problems import MEDIA_TYPE, TYPES

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
_OF_HEADER = {"If-Match": (400, 412, 428)}


def install(app: FastAPI) -> None:
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        fresh = app.openapi_schema is None
        document = generate()
        if fresh:
            _document_problems(document)
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _document_problems(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(problem.pop("$defs"), Problem=problem)
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            operation["responses"].pop("422", None)
            if path.startswith("/v1"):
                operation["security"] = [{}, {"key": []}]  # whether it is asked for is the operator's choice
                operation["responses"] |= {str(status): _response(status) for status in _statuses(method, operation)}


def _statuses(method: str, operation: dict[str, Any]) -> list[int]:
    headers = [item["name"].title() for item in operation.get("parameters", []) if item["in"] == "header"]
    guarded = [status for name in headers for status in _OF_HEADER.get(name, ())]
    of_body = _OF_BODY if "requestBody" in operation else ()
    return sorted({*_OF_ANY, *(_OF_POST if method == "post" else ()), *of_body, *guarded})


def _response(status: int) -> dict[str, Any]:
    titles = [kind.title for kind in TYPES.values() if kind.status == status]
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"description": "; ".join(titles), "content": {MEDIA_TYPE: {"schema": schema}}}
