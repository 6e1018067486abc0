"""The OpenAPI document: its description, its schema of problems, and what FastAPI leaves out."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict

from service.web.authentication import GUARDED
from service.web.responses import HEADERS

DESCRIPTION = """
Says which parallel layout to launch for training a model on a cluster, what step time, MFU and
memory to expect, and why; takes in what was measured and learns from it.

Times are in seconds, memory in GiB (2^30 bytes), bandwidths in GB/s (1e9 bytes a second) one way.
Every error is an `application/problem+json` (RFC 9457) whose type is described at
`/problems/{name}`. A POST that creates takes an `Idempotency-Key`. Where the operator asks for
keys, send yours as `Authorization: Bearer`.
"""


class ProblemError(BaseModel):
    field: str
    pointer: str | None
    value: Any
    rule: str


class SurestLayout(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)

    layout: dict[str, Any]
    """The layout in the form that predictions take."""
    fit_probability: float


class Problem(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)

    type: str
    title: str
    status: int
    detail: str
    instance: str
    request_id: str | None
    errors: list[ProblemError] | None = None
    """Values that break a rule."""
    constraint: str | None = None
    """The constraint that no layout satisfies. This field and all below are present only where
    there is one."""
    needed: Any = None
    available: Any = None
    unit: str | None = None
    enough_chips: int | None = None
    surest: SurestLayout | None = None
    """The layout that is surest to fit, of those that were found, where memory is short."""
    min_fit_probability: float | None = None
    """A value of `constraints.min_fit_probability` with which the request has an answer; null where
    none does."""


def install(app: FastAPI) -> None:
    """Completes the generated OpenAPI document with what FastAPI has no parameter for."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        """Returns the document, completed when it is first generated."""
        is_new = app.openapi_schema is None
        document = generate()
        if is_new:
            _add_components(document["components"])
            _add_security(document["paths"])
            _remove_default_validation_error(document)
            _loosen_unions(document)
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _add_components(components: dict[str, Any]) -> None:
    """Adds the schemas and headers to which `service.web.responses` refers. FastAPI has no
    parameter for shared headers, and gives the model of a response the route's media type, while
    problems have their own."""
    problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    components["schemas"] |= problem.pop("$defs")
    components["schemas"]["Problem"] = problem
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    components["headers"] = {
        name: {"description": meaning, "schema": {"type": "string"}}
        for name, meaning in HEADERS.items()
    }


def _add_security(paths: dict[str, Any]) -> None:
    """Marks the API key as optional for every operation under /v1, since whoever runs the service
    decides whether to ask for keys. FastAPI's security dependencies cannot mark a key as optional,
    and would read the header twice."""
    for path, operations in paths.items():
        if path.startswith(GUARDED):
            for operation in operations.values():
                operation["security"] = [{}, {"key": []}]


def _remove_default_validation_error(document: dict[str, Any]) -> None:
    """Removes the 422 response in FastAPI's own schema, which FastAPI adds to every operation with
    parameters that documents no 422 itself. That is only /problems/{name}, which never answers
    422."""
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)
    for operations in document["paths"].values():
        for operation in operations.values():
            described = operation["responses"].get("422", {}).get("content", {})
            if "application/json" in described:
                del operation["responses"]["422"]


def _loosen_unions(node: Any) -> None:
    """Turns `oneOf` into `anyOf` in unions without a discriminator, throughout the document. Their
    forms may overlap: a model's shape may also be a valid config.json, which oneOf would refuse."""
    if isinstance(node, dict):
        if "oneOf" in node and "discriminator" not in node:
            node["anyOf"] = node.pop("oneOf")
        for value in node.values():
            _loosen_unions(value)
    elif isinstance(node, list):
        for value in node:
            _loosen_unions(value)
