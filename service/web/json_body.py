"""Request bodies as JSON."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from email.message import Message
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from models.errors import Invalid
from service.errors import MalformedBody, NotJson, Refused
from service.web.json_text import decoded, parse
from service.web.query_params import names_of, require_known

LARGE = 2**18
LARGE_AT_ONCE = 2
"""Of larger bodies, in bytes, so many are parsed at a time."""


class JsonRequest(Request):
    """A request whose JSON was parsed before FastAPI asks for it."""

    parsed: Any = None

    async def read(self, parse: Callable[[str], Any]) -> None:
        if not (body := await self._received()):
            return
        _require_json(self.headers.get("content-type", ""))
        _require_plain(self.headers.get("content-encoding", "identity"))
        async with self.app.state.large_bodies if len(body) > LARGE else nullcontext():
            self.parsed = self.state.body = await run_in_threadpool(lambda: parse(decoded(body)))
        if self.parsed is None:  # FastAPI takes it for no body at all
            raise Refused([Invalid("", None, "must be an object, not null")])

    async def require_none(self) -> None:
        if (body := await self._received()).strip() not in (b"", b"{}"):
            raise Refused(
                [
                    Invalid(
                        "",
                        body.decode(errors="replace"),
                        "must be left out: this address takes no body",
                    )
                ]
            )

    async def _received(self) -> bytes:
        try:
            return await self.body()
        except ClientDisconnect:
            raise MalformedBody("The body ended before its time.") from None

    async def json(self) -> Any:
        return self.parsed


class JsonRoute(APIRoute):
    """What a request holds beyond what its endpoint reads is refused, not ignored."""

    parse = staticmethod(parse)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        known = names_of(self.dependant)

        async def read_then_handle(request: Request) -> Response:
            require_known(request, known)
            strict = JsonRequest(request.scope, request.receive)
            await (strict.require_none() if self.body_field is None else strict.read(self.parse))
            return await handle(strict)

        return read_then_handle


def _require_json(content_type: str) -> None:
    message = Message()
    message["content-type"] = content_type
    subtype = message.get_content_subtype()
    is_json = message.get_content_maintype() == "application" and (
        subtype == "json" or subtype.endswith("+json")
    )
    if (
        not content_type
        or not is_json
        or message.get_content_charset("utf-8") not in ("utf-8", "utf8")
    ):
        raise NotJson(content_type[:100])


def _require_plain(encoding: str) -> None:
    if encoding.strip().lower() != "identity":
        raise NotJson(f"encoded as {encoding[:100]}")
