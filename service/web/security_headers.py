"""Headers that keep a browser from doing with an answer what was not meant."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

API_POLICY = "default-src 'none'; frame-ancestors 'none'"
DOCS_POLICY = (
    "default-src 'none'; connect-src 'self'; img-src 'self' data:; script-src 'self'"
    " 'unsafe-inline'; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'"
)
"""Swagger UI starts itself with an inline script."""


class SecurityHeaders:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Referrer-Policy"] = "no-referrer"
                headers["Content-Security-Policy"] = (
                    DOCS_POLICY if scope["path"] == "/docs" else API_POLICY
                )
            await send(message)

        await self.app(scope, receive, guarded)
