"""Errors as pages tell them, in the sentences of the API. A *trouble* is an error so told."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import ValidationError

from models.errors import DomainError
from service.errors import ServiceError
from service.field_violations import violations_of
from service.pages.glossary import plain
from service.pages.rendering import page
from service.routes.dependencies import require_scope
from service.web.problems import error_response

_MOST = 12  # sentences: a form that breaks more rules is better begun again
SHOWN_ERRORS = (DomainError, ServiceError, ValidationError, RequestValidationError)
"""Errors that a page shows. Anything else is a defect, which the log has."""


@dataclass(frozen=True, slots=True)
class Trouble:
    title: str
    sentences: tuple[str, ...]
    status: int
    headers: Mapping[str, str]
    help: Mapping[str, Any]
    """The way out where no layout fits: how many chips would be enough, and the surest layout."""


async def trouble_of(request: Request, error: Exception, form: Any = None) -> Trouble:
    """Returns an error in the sentences of the API's problem documents, with fields by the labels
    of the forms. `form` is the schema that a ValidationError is about."""
    if isinstance(error, ValidationError):
        violations = violations_of(error, (), form, limit=_MOST)  # (): the form is the whole body
        sentences = tuple(plain(violation.sentence()) for violation in violations)
        # Without headers, and without a way out beyond what the sentences say.
        return Trouble("Something in the form cannot be used", sentences, 422, {}, {})
    response = await error_response(request, error)
    problem = json.loads(bytes(response.body))
    entries = problem.get("errors", [])
    sentences = tuple(plain(f"{entry['field']}: {entry['rule']}") for entry in entries[:_MOST])
    headers = {
        name: response.headers[name] for name in ("retry-after",) if name in response.headers
    }
    return Trouble(
        problem["title"],
        # Of several errors `detail` says only how many there are.
        sentences if len(sentences) > 1 else (plain(problem["detail"]),),
        problem["status"],
        headers,
        # These tell the way out where no layout fits.
        {name: problem.get(name) for name in ("enough_chips", "surest", "min_fit_probability")},
    )


async def trouble_page(
    request: Request,
    error: Exception,
    template: str = "trouble.html",
    context: Mapping[str, Any] | None = None,
    form: Any = None,
) -> Response:
    """Returns a page that tells an error, with its status. It is a page of its own, or `template`
    with the fields in `context`, such as what was sent. `form` is the schema of what was sent."""
    trouble = await trouble_of(request, error, form)
    response = page(request, template, {**(context or {}), "trouble": trouble}, trouble.status)
    response.headers.update(trouble.headers)
    return response


class PageRoute(APIRoute):
    """A route whose errors are pages too."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Returns the handler of the route, which answers errors with a page instead of JSON."""
        handle = super().get_route_handler()

        async def handle_with_pages(request: Request) -> Response:
            try:
                return await handle(request)
            except SHOWN_ERRORS as error:
                return await trouble_page(request, error)

        return handle_with_pages


def page_router(scope: str | None = None) -> APIRouter:
    """Returns a router of pages. Its pages need a key with this scope, if one is given."""
    dependencies = [] if scope is None else [require_scope(scope)]
    return APIRouter(include_in_schema=False, route_class=PageRoute, dependencies=dependencies)
