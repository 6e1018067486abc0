"""Request bodies as JSON, read strictly: nothing a parser guesses and nothing a database cannot store."""

from __future__ import annotations

import json
import math
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
from service.pointers import pointer_of
from service.queries import names_of, require_known
from service.schemas.architecture import is_config

MAX_DEPTH = 64
MAX_MEMBERS = 100_000
"""Of all objects together, but those in `reports`: each that no schema knows costs an entry in an error that is made on
the event loop. Reports of a batch are read elsewhere, one by one."""
MAX_OWN_MEMBERS = 20_000
"""Of one object."""
MAX_CONTAINERS = 1_000_000
"""Brackets that open one: each takes 30 times its bytes of memory."""
LARGE = 2**18
LARGE_AT_ONCE = 2
"""Of larger bodies, in bytes, so many are parsed at a time."""
_MOST_EXACT = 2**53
"""Up to which a 64-bit float tells neighbouring integers apart."""


class NonFinite(str):
    """NaN or Infinity as it was written: no JSON, but what Python puts into a Hugging Face config.json.

    Kept as text, because no database stores it as a number and no reader of such a config needs its value.
    """


class JsonRequest(Request):
    """A request whose JSON was parsed before FastAPI asks for it."""

    parsed: Any = None

    async def read(self) -> None:
        if not (body := await self._received()):
            return
        _require_json(self.headers.get("content-type", ""))
        _require_plain(self.headers.get("content-encoding", "identity"))
        async with self.app.state.large_bodies if len(body) > LARGE else nullcontext():
            self.parsed = self.state.body = await run_in_threadpool(parse, body)
        if self.parsed is None:  # FastAPI takes it for no body at all
            raise Refused([Invalid("", None, "must be an object, not null")])

    async def require_none(self) -> None:
        if (body := await self._received()).strip() not in (b"", b"{}"):
            raise Refused([Invalid("", body.decode(errors="replace"), "must be left out: this address takes no body")])

    async def _received(self) -> bytes:
        try:
            return await self.body()
        except ClientDisconnect:
            raise MalformedBody("The body ended before its time.") from None

    async def json(self) -> Any:
        return self.parsed


class JsonRoute(APIRoute):
    """What a request holds beyond what its endpoint reads is refused, not ignored."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        known = names_of(self.dependant)

        async def read_then_handle(request: Request) -> Response:
            require_known(request, known)
            strict = JsonRequest(request.scope, request.receive)
            await (strict.require_none() if self.body_field is None else strict.read())
            return await handle(strict)

        return read_then_handle


def parse(body: bytes) -> Any:
    """The value of a JSON text (RFC 8259), without repeated names, NUL characters or lone surrogates.

    NaN and Infinity are read as NonFinite in a config.json given as `model`, and refused everywhere else.
    """
    if body.count(b"[") + body.count(b"{") > MAX_CONTAINERS:
        raise MalformedBody(f"The body opens more than {MAX_CONTAINERS} arrays and objects.")
    try:
        value = json.loads(
            body.decode("utf-8"), parse_constant=NonFinite, parse_float=_number, object_pairs_hook=_unique
        )
    except UnicodeDecodeError as error:
        raise MalformedBody(f"The body is not UTF-8: byte {error.start} begins no character.") from None
    except RecursionError:
        raise MalformedBody(f"The body nests deeper than {MAX_DEPTH} levels.") from None
    except json.JSONDecodeError as error:
        raise MalformedBody(f"The body is not JSON: {error.msg} at character {error.pos}.") from None
    except ValueError:
        raise MalformedBody("The body holds an integer of more digits than the service reads.") from None
    _require_storable(value)
    _require_few_members(value)
    _require_finite(value, ())
    return value


def _require_json(content_type: str) -> None:
    message = Message()
    message["content-type"] = content_type
    subtype = message.get_content_subtype()
    is_json = message.get_content_maintype() == "application" and (subtype == "json" or subtype.endswith("+json"))
    if not content_type or not is_json or message.get_content_charset("utf-8") not in ("utf-8", "utf8"):
        raise NotJson(content_type[:100])


def _require_plain(encoding: str) -> None:
    if encoding.strip().lower() != "identity":
        raise NotJson(f"encoded as {encoding[:100]}")


def _require_finite(value: Any, location: tuple[str | int, ...]) -> None:
    if isinstance(value, NonFinite):
        place = pointer_of(location)[:100] or "its root"
        raise MalformedBody(f"The body holds {value} at {place}, which is not JSON.")
    if isinstance(value, dict) and not (location == ("model",) and is_config(value)):
        for name, item in value.items():
            _require_finite(item, (*location, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _require_finite(item, (*location, index))


def _number(literal: str) -> float:
    """What has no fraction is an integer, however it is written (JSON Schema 2020-12, validation §6.1.1)."""
    value = float(literal)
    if math.isinf(value):
        raise MalformedBody(f"The body holds {literal[:40]}, which is beyond the range of a 64-bit float.")
    return int(value) if value.is_integer() and abs(value) <= _MOST_EXACT else value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_OWN_MEMBERS:
        raise MalformedBody(f"The body holds an object of more than {MAX_OWN_MEMBERS} members.")
    value: dict[str, Any] = {}
    for name, item in pairs:
        if name in value:
            raise MalformedBody(f"The body gives {name[:100]!r} twice in one object.")
        value[name] = item
    return value


def _require_storable(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, str):
                _require_text(item)
            elif isinstance(item, dict):
                inner += item.keys()
                inner += item.values()
            elif isinstance(item, list):
                inner += item
        if not inner:
            return
        level = inner
    raise MalformedBody(f"The body nests deeper than {MAX_DEPTH} levels.")


def _require_few_members(value: Any) -> None:
    members, level = 0, [value]
    while level:
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                members += len(item)
                inner += (part for name, part in item.items() if item is not value or name != "reports")
            elif isinstance(item, list):
                inner += item
        level = inner
    if members > MAX_MEMBERS:
        raise MalformedBody(f"The body holds objects of more than {MAX_MEMBERS} members together.")


def _require_text(text: str) -> None:
    halves = not text.isprintable() and any("\ud800" <= character <= "\udfff" for character in text)
    if "\0" in text or halves:
        raise MalformedBody("The body holds a string with a NUL character or half a surrogate pair.")
