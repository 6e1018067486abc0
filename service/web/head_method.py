"""HEAD, wherever GET is: the same answer without its body (RFC 9110 §9.3.2)."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadAsGet:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def bodiless(message: Message) -> None:
            await send(
                {**message, "body": b""} if message["type"] == "http.response.body" else message
            )

        if scope["type"] == "http" and scope["method"] == "HEAD":
            await self.app({**scope, "method": "GET"}, receive, bodiless)
        else:
            await self.app(scope, receive, send)
