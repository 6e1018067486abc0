"""Response headers that restrict what a browser may do with an answer."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

API_POLICY = "default-src 'none'; frame-ancestors 'none'"
DOCS_POLICY = (
    "default-src 'none'; connect-src 'self'; img-src 'self' data:; script-src 'self'"
    " 'unsafe-inline'; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'"
)
"""Allows inline scripts and styles, since Swagger UI starts itself with one."""


class SecurityHeaders:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Referrer-Policy"] = "no-referrer"
                headers["Content-Security-Policy"] = (
                    DOCS_POLICY if scope["path"] == "/docs" else API_POLICY
                )
            await send(message)

        await self.app(scope, receive, send_with_headers)
