"""Request bodies, which are JSON in UTF-8 or nothing at all."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from email.message import Message
from functools import lru_cache
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from models.errors import Invalid
from service.errors import MalformedBody, NotJson, Refused
from service.web.json_text import parse, parse_body
from service.web.query_params import parameters_of, require_known

SMALL = 2**14
"""Bytes. Bodies up to this are parsed where they are received, in less time than a thread takes to
be asked for it."""
LARGE = 2**18
"""Bytes. Larger bodies are parsed by the process for texts, since one of these takes up to 50
ms."""
_CONTENT_TYPES = 64  # distinct headers whose reading is cached


class JsonRequest(Request):
    """A request whose JSON the service parses strictly, before FastAPI asks for it."""

    parsed: Any = None

    def __init__(self, scope: Scope, receive: Receive) -> None:
        super().__init__(scope, receive)
        self.arrived = time.monotonic()
        """When the head of the request was read."""

    async def received(self) -> bytes:
        """Returns the bytes of the body. Raises MalformedBody where the connection ends before the
        body does."""
        try:
            return await self.body()
        except ClientDisconnect:
            raise MalformedBody("The body ended before its time.") from None

    async def require_json(self) -> None:
        """Raises NotJson where the headers declare a body as anything but plain JSON in UTF-8."""
        if await self.received():
            _require_json(self.headers.get("content-type", ""))
            _require_uncompressed(self.headers.get("content-encoding", "identity"))

    async def require_none(self) -> None:
        """Raises Refused where an endpoint that takes no body gets one. An empty object counts as
        none."""
        body = await self.received()
        if body.strip() not in (b"", b"{}"):
            rule = "must be left out: this address takes no body"
            raise Refused([Invalid("", body.decode(errors="replace"), rule)])

    async def read(self, parse: Callable[[str], Any]) -> None:
        """Parses the body and keeps the result, if there is a body. Raises MalformedBody or
        Refused. Larger bodies are parsed in a thread, and the largest in another process."""
        body = await self.received()
        if not body:
            return
        if len(body) <= SMALL:
            parsed = parse_body(body, parse)
        elif len(body) <= LARGE:
            parsed = await run_in_threadpool(parse_body, body, parse)
        else:
            tenant = self.state.caller.tenant
            texts = self.app.state.texts  # a process of its own, for which tenants take turns
            parsed = await texts.run(self.is_disconnected, tenant, parse_body, body, parse)
        if parsed is None:  # FastAPI would take null for no body at all
            raise Refused([Invalid("", None, "must be an object, not null")])
        self.parsed = parsed
        self.state.body = parsed  # `problems` quotes from it the value that breaks a rule

    async def json(self) -> Any:
        return self.parsed


class JsonRoute(APIRoute):
    """A route that refuses what its endpoint does not read: unknown query parameters, and a body
    where it takes none."""

    parse = staticmethod(parse)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Returns the handler of the route, which checks the query and the body before FastAPI
        does."""
        handle = super().get_route_handler()
        known = parameters_of(self.dependant)

        async def read_then_handle(request: Request) -> Response:
            """Refuses an unknown query or a wrong body, answers from memory where it can, and
            otherwise calls the endpoint with the parsed body."""
            require_known(request, known)
            # FastAPI then takes the value that this request has parsed.
            strict = JsonRequest(request.scope, request.receive)
            takes_body = self.body_field is not None
            await (strict.require_json() if takes_body else strict.require_none())
            cached = self.cached_response(strict, await strict.received())
            if cached is not None:
                return cached
            if takes_body:
                await strict.read(self.parse)
            return await handle(strict)

        return read_then_handle

    def cached_response(self, request: JsonRequest, body: bytes) -> Response | None:
        """Returns a response that is known before the body is parsed; None on most routes."""
        return None


def _require_json(content_type: str) -> None:
    if not _is_json(content_type):
        raise NotJson(content_type[:100])


@lru_cache(_CONTENT_TYPES)
def _is_json(content_type: str) -> bool:
    """Returns whether a Content-Type names JSON in UTF-8, such as
    "application/merge-patch+json"."""
    message = Message()  # an e-mail's, whose header for the type is written in the same way
    message["content-type"] = content_type
    subtype = message.get_content_subtype()
    is_application = message.get_content_maintype() == "application"
    is_json = is_application and (subtype == "json" or subtype.endswith("+json"))
    is_utf8 = message.get_content_charset("utf-8") in ("utf-8", "utf8")
    return bool(content_type) and is_json and is_utf8


def _require_uncompressed(encoding: str) -> None:
    if encoding.strip().lower() != "identity":
        raise NotJson(f"encoded as {encoding[:100]}")
