"""ETags and conditional requests (RFC 9110 §13)."""

from __future__ import annotations

import re
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from service.errors import BadHeader

_ENTITY_TAG = r'(?:W/)?"[^"\s]*"'
_TAG_OR_STAR = re.compile(rf"{_ENTITY_TAG}|\*")
_HEADER = re.compile(rf"[ \t]*(?:\*|{_ENTITY_TAG}(?:[ \t]*,[ \t]*{_ENTITY_TAG})*)[ \t]*")


def parse_entity_tags(header: str) -> list[str]:
    """The entity tags of an If-Match or If-None-Match header."""
    return _TAG_OR_STAR.findall(header)


def parse_if_match(if_match: str) -> list[str]:
    """The entity tags of an If-Match header. Raises BadHeader where it cannot be read, because it
    would then not guard the change that it comes with."""
    if not _HEADER.fullmatch(if_match):
        raise BadHeader(
            "If-Match", 'must be * or a list of ETags, each in double quotes, such as "default-3"'
        )
    return parse_entity_tags(if_match)


def conditional_response(request: Request, document: dict[str, Any], etag: str) -> Response:
    """The document with its ETag, or 304 where If-None-Match says that the client has it. That
    comparison is weak (RFC 9110 §13.1.2)."""
    if_none_match = request.headers.get("if-none-match", "")
    seen = [tag.removeprefix("W/") for tag in parse_entity_tags(if_none_match)]
    if etag in seen or "*" in seen:
        return Response(status_code=304, headers={"ETag": etag})
    return JSONResponse(document, headers={"ETag": etag})


def immutable_response(request: Request, document: dict[str, Any]) -> Response:
    """A response with a document that never changes, so that its address serves as its ETag."""
    return conditional_response(request, document, f'"{request.url.path.rsplit("/v1/", 1)[-1]}"')
