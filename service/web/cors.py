"""Lets pages of other origins read the API (https://fetch.spec.whatwg.org/#http-cors-protocol)."""

from __future__ import annotations

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from service.settings import Settings, listed_items
from service.web.responses import HEADERS

_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE")
_REQUEST_HEADERS = (
    "Authorization", "Content-Type", "Idempotency-Key", "If-Match", "If-None-Match",
    "Last-Event-ID", "Prefer",
)  # fmt: skip
"""Headers that the API reads, beyond those that browsers let every page send."""
_PREFLIGHT_KEPT_S = 600  # Chromium keeps none for longer than two hours; a key may change before


def cors(settings: Settings) -> list[Middleware]:
    """Returns the middleware that answers preflight requests, before a key is asked for, and lets
    pages of allowed origins read answers. The list is empty where no origin is allowed."""
    origins = listed_items(settings.cors_origins)
    if not origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=_METHODS,
            allow_headers=_REQUEST_HEADERS,
            expose_headers=tuple(HEADERS),
            max_age=_PREFLIGHT_KEPT_S,
        )
    ]
