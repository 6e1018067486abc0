"""Answers HEAD wherever there is a GET: with the same headers and no body (RFC 9110 §9.3.2)."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadAsGet:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a HEAD request on as a GET, and drops the body of the response."""

        async def send_without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        if scope["type"] == "http" and scope["method"] == "HEAD":
            as_get = {**scope, "method": "GET"}
            await self.app(as_get, receive, send_without_body)
            scope["route"] = as_get.get("route")  # telemetry labels the request by it
        else:
            await self.app(scope, receive, send)
