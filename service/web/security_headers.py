"""Response headers that restrict what a browser may do with an answer."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

API_POLICY = "default-src 'none'; frame-ancestors 'none'"
DOCS_POLICY = (
    "default-src 'none'; connect-src 'self'; img-src 'self' data:; script-src 'self'"
    " 'unsafe-inline'; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'"
)
"""Allows inline scripts and styles, since Swagger UI starts itself with one."""


def _headers(policy: str) -> list[tuple[bytes, bytes]]:
    """As ASGI sends them. No response has any of them already."""
    return [
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"content-security-policy", policy.encode()),
    ]


_OF_API, _OF_DOCS = _headers(API_POLICY), _headers(DOCS_POLICY)


class SecurityHeaders:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = _OF_DOCS if scope["path"] == "/docs" else _OF_API
                message["headers"] = [*message.get("headers", ()), *added]
            await send(message)

        await self.app(scope, receive, send_with_headers)
