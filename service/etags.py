"""ETags and conditional requests (RFC 9110 §13)."""

from __future__ import annotations

import re
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse

_TAG = re.compile(r'(?:W/)?"[^"]*"|\*')


def tags(header: str) -> list[str]:
    """The entity tags of an If-Match or If-None-Match header."""
    return _TAG.findall(header)


def tagged(request: Request, document: dict[str, Any], etag: str) -> Response:
    """The document with its ETag, or 304 where the client has it. If-None-Match compares weakly."""
    seen = [tag.removeprefix("W/") for tag in tags(request.headers.get("if-none-match", ""))]
    if etag in seen or "*" in seen:
        return Response(status_code=304, headers={"ETag": etag})
    return JSONResponse(document, headers={"ETag": etag})


def immutable(request: Request, document: dict[str, Any]) -> Response:
    """A document that never changes once it lies at its address: the address identifies it."""
    return tagged(request, document, f'"{request.url.path.rsplit("/v1/", 1)[-1]}"')
