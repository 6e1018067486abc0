"""Request bodies, which are JSON in UTF-8 or nothing at all."""

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
from service.web.json_text import decode_utf8, parse
from service.web.query_params import names_of, require_known

LARGE = 2**18
"""Bytes. Of bodies that are larger only `LARGE_AT_ONCE` are parsed at a time."""
LARGE_AT_ONCE = 2


class JsonRequest(Request):
    """A request whose JSON the service parses strictly, before FastAPI asks for it."""

    parsed: Any = None

    async def read(self, parse: Callable[[str], Any]) -> None:
        """Parses the body, if there is one. Raises NotJson, MalformedBody or Refused."""
        body = await self._received()
        if not body:
            return
        _require_json(self.headers.get("content-type", ""))
        _require_uncompressed(self.headers.get("content-encoding", "identity"))
        async with self.app.state.large_bodies if len(body) > LARGE else nullcontext():
            self.parsed = self.state.body = await run_in_threadpool(
                lambda: parse(decode_utf8(body))
            )
        if self.parsed is None:  # FastAPI would take null for no body at all
            raise Refused([Invalid("", None, "must be an object, not null")])

    async def require_none(self) -> None:
        """Raises Refused where a body comes to an endpoint that takes none."""
        body = await self._received()
        if body.strip() not in (b"", b"{}"):
            rule = "must be left out: this address takes no body"
            raise Refused([Invalid("", body.decode(errors="replace"), rule)])

    async def _received(self) -> bytes:
        try:
            return await self.body()
        except ClientDisconnect:
            raise MalformedBody("The body ended before its time.") from None

    async def json(self) -> Any:
        return self.parsed


class JsonRoute(APIRoute):
    """A route that refuses what its endpoint does not read: unknown query parameters, and a body
    where it takes none."""

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
    is_application = message.get_content_maintype() == "application"
    is_json = is_application and (subtype == "json" or subtype.endswith("+json"))
    is_utf8 = message.get_content_charset("utf-8") in ("utf-8", "utf8")
    if not content_type or not is_json or not is_utf8:
        raise NotJson(content_type[:100])


def _require_uncompressed(encoding: str) -> None:
    if encoding.strip().lower() != "identity":
        raise NotJson(f"encoded as {encoding[:100]}")
