"""Makes HTML of templates. Everything that is put into one is escaped, unless it is Markup."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from hashlib import sha256
from importlib.resources import files
from math import exp
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.types import Scope

from service import __version__
from service.pages import cookies, glossary, numbers, words
from service.pages.form_token import TOKEN_COOKIE, form_token
from service.web.authentication import SESSION_COOKIE

_STATIC = files("service.pages") / "static"
_YEAR_S = 365 * 24 * 3600


def _digest_static_files() -> str:
    """Returns a digest of the version and of all static files. It is part of their address, so that
    browsers may keep them for good."""
    hashed = sha256(__version__.encode())
    pending = [_STATIC]
    while pending:
        for entry in sorted(pending.pop().iterdir(), key=lambda entry: entry.name):
            if entry.is_dir():
                pending.append(entry)
            else:
                hashed.update(entry.read_bytes())
    return hashed.hexdigest()[:12]


STATIC_PATH = f"/static/{_digest_static_files()}"

NAV = (
    ("/ask", "Ask"),
    ("/check", "Check"),
    ("/frontier", "Frontier"),
    ("/choose", "Choose"),
    ("/runs", "Runs"),
    ("/profiles", "Profiles"),
    ("/evidence", "Evidence"),
)
"""Pages, by path, as the head of each lists them."""

_environment = Environment(
    loader=PackageLoader("service.pages"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters |= {
    name: getattr(numbers, name)
    for name in (
        "significant",
        "seconds",
        "hours",
        "usd",
        "gib",
        "percent",
        "error",
        "probability",
        "count",
        "ratio",
    )
}
_environment.filters["signed_seconds"] = lambda value: numbers.signed(numbers.seconds(value), value)
_environment.filters["signed_gib"] = lambda value: numbers.signed(numbers.gib(value), value)
_environment.filters["signed_percent"] = lambda value: numbers.signed(numbers.error(value), value)
_environment.filters["signed_ratio"] = lambda value: numbers.signed(numbers.ratio(value), value)
_environment.filters |= {
    "asdict": asdict,
    "exp": exp,
    "plain": glossary.plain,
    "glossed": glossary.glossed,
    "explained": glossary.explained,
}
_environment.policies["json.dumps_kwargs"] = {"sort_keys": False}
_environment.globals |= {
    "static": STATIC_PATH,
    "words": words,
    "glossary": glossary.LAYOUT,
    "version": __version__,
    "nav": NAV,
}


class StaticFilesForGood(StaticFiles):
    """Files at a path that has their digest, which browsers need not ask for again."""

    def file_response(self, *arguments: Any, **options: Any) -> Any:
        """Returns a file that browsers may keep for a year without asking again."""
        response = super().file_response(*arguments, **options)
        response.headers["Cache-Control"] = f"public, max-age={_YEAR_S}, immutable"
        return response

    async def get_response(self, path: str, scope: Scope) -> Any:
        """Returns a file, and tells caches that compressed and plain ones differ."""
        response = await super().get_response(path, scope)
        response.headers.setdefault("Vary", "Accept-Encoding")
        return response


def static_files() -> StaticFiles:
    return StaticFilesForGood(directory=str(_STATIC))


def page(
    request: Request, template: str, context: Mapping[str, Any], status: int = 200
) -> HTMLResponse:
    """Returns a rendered template with the form token, and sets the token's cookie where it is new.
    No cache keeps a page: what it shows may belong to a tenant."""
    token = form_token(request)
    html = _environment.get_template(template).render(
        request=request,
        path=request.url.path,
        form_token=token,
        is_signed_in=SESSION_COOKIE in request.cookies,
        **context,
    )
    response = HTMLResponse(html, status, {"Cache-Control": "no-store"})
    if request.cookies.get(TOKEN_COOKIE) != token:
        cookies.keep(request, response, TOKEN_COOKIE, token)
    return response
