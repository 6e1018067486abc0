"""Response headers that restrict what a browser may do with an answer."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

API_POLICY = "default-src 'none'; frame-ancestors 'none'"
DOCS_POLICY = (
    "default-src 'none'; connect-src 'self'; img-src 'self' data:; script-src 'self'"
    " 'unsafe-inline'; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'"
)
"""Allows inline scripts and styles, since Swagger UI starts itself with one."""

PAGES_POLICY = (
    "default-src 'none'; connect-src 'self'; img-src 'self'; script-src 'self'"
    "; style-src 'self' 'sha256-jSYQUrW7J0b3jPqhZP9C2Xh1PyJKHKXd4s0fpGGKrww='"
    "; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Allows no inline script, and of inline styles only the one that Observable Plot 0.6 puts into
each picture, by its hash."""


def _headers_with_policy(policy: str) -> list[tuple[bytes, bytes]]:
    """Returns the headers as ASGI sends them. `policy` is the Content-Security-Policy."""
    return [
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"content-security-policy", policy.encode()),
    ]


_OF_API, _OF_DOCS, _OF_PAGES = map(_headers_with_policy, (API_POLICY, DOCS_POLICY, PAGES_POLICY))
_HTML = b"text/html"


class SecurityHeaders:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Adds the headers to every response."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message.get("headers", ())
                message["headers"] = [*headers, *_policy_headers(scope["path"], headers)]
            await send(message)

        await self.app(scope, receive, send_with_headers)


def _policy_headers(path: str, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Returns the headers to add to a response, by whether it is the documentation, a page or an
    answer of the API. `headers` are the response's own."""
    if path == "/docs":
        return _OF_DOCS
    is_page = dict(headers).get(b"content-type", b"").startswith(_HTML)
    return _OF_PAGES if is_page else _OF_API
