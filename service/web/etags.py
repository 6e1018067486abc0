"""ETags and conditional requests (RFC 9110 §13)."""

from __future__ import annotations

import re
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from service.errors import BadHeader

_ONE = r'(?:W/)?"[^"\s]*"'
_TAG = re.compile(rf"{_ONE}|\*")
_TAGS = re.compile(rf"[ \t]*(?:\*|{_ONE}(?:[ \t]*,[ \t]*{_ONE})*)[ \t]*")


def tags(header: str) -> list[str]:
    """The entity tags of an If-Match or If-None-Match header."""
    return _TAG.findall(header)


def required_tags(if_match: str) -> list[str]:
    """The tags of a header that guards a change: what cannot be read guards nothing, so it is
    refused."""
    if not _TAGS.fullmatch(if_match):
        raise BadHeader(
            "If-Match", 'must be * or a list of ETags, each in double quotes, such as "default-3"'
        )
    return tags(if_match)


def tagged(request: Request, document: dict[str, Any], etag: str) -> Response:
    """The document with its ETag, or 304 where the client has it. If-None-Match compares weakly."""
    seen = [tag.removeprefix("W/") for tag in tags(request.headers.get("if-none-match", ""))]
    if etag in seen or "*" in seen:
        return Response(status_code=304, headers={"ETag": etag})
    return JSONResponse(document, headers={"ETag": etag})


def immutable(request: Request, document: dict[str, Any]) -> Response:
    """A document that never changes once it lies at its address: the address identifies it."""
    return tagged(request, document, f'"{request.url.path.rsplit("/v1/", 1)[-1]}"')
