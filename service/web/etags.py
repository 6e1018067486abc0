"""ETags and conditional requests (RFC 9110 §13). A *view* of a document is the whole of it or its
brief form (service.web.preferences), each with an ETag of its own."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from service.errors import BadHeader
from service.web.preferences import WHOLE, View

_ENTITY_TAG = r'(?:W/)?"[^"\s]*"'
_TAG_OR_STAR = re.compile(rf"{_ENTITY_TAG}|\*")
GZIP_SUFFIX = "-gzip"
"""Ending that the ETag of a compressed answer has beyond that of the plain one."""
_HEADER = re.compile(rf"[ \t]*(?:\*|{_ENTITY_TAG}(?:[ \t]*,[ \t]*{_ENTITY_TAG})*)[ \t]*")


def parse_entity_tags(header: str) -> list[str]:
    """Returns the entity tags of an If-Match or If-None-Match header. The tag of a compressed
    answer is given as that of the plain one: both are of the same state."""
    return [_etag_of_plain(tag) for tag in _TAG_OR_STAR.findall(header)]


def _etag_of_plain(tag: str) -> str:
    """Returns the ETag of the plain answer for that of the compressed one, which has GZIP_SUFFIX
    within its quotes. Other tags stay."""
    return tag.removesuffix(f'{GZIP_SUFFIX}"') + '"' if tag.endswith(f'{GZIP_SUFFIX}"') else tag


def parse_if_match(if_match: str) -> list[str]:
    """Returns the entity tags of an If-Match header. Raises BadHeader where the header cannot be
    read, since the change would otherwise go unguarded."""
    if not _HEADER.fullmatch(if_match):
        raise BadHeader(
            "If-Match", 'must be * or a list of ETags, each in double quotes, such as "default-3"'
        )
    return parse_entity_tags(if_match)


def conditional_response(
    request: Request, document: dict[str, Any], etag: str, view: View = WHOLE
) -> Response:
    """Returns a view of the document with its ETag, or 304 where If-None-Match has that ETag. The
    comparison is weak (RFC 9110 §13.1.2)."""
    not_modified = not_modified_response(request, etag, view.headers)
    return not_modified or JSONResponse(
        view.shown(document), headers={**view.headers, "ETag": etag}
    )


def tagged_response(document: dict[str, Any], etag: str) -> Response:
    """Returns the document of a resource that was changed, with the new ETag that the caller's
    next change has to name in If-Match."""
    return JSONResponse(document, headers={"ETag": etag})


def content_response(request: Request, content: bytes, media_type: str) -> Response:
    """Returns bytes in the negotiated media type with their digest as ETag, or 304 where
    If-None-Match has that ETag."""
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'  # 128 bits tell contents apart
    headers = {"Vary": "Accept"}
    not_modified = not_modified_response(request, etag, headers)
    return not_modified or Response(content, 200, {**headers, "ETag": etag}, media_type)


def not_modified_response(
    request: Request, etag: str, headers: Mapping[str, str]
) -> Response | None:
    """Returns a 304 where If-None-Match has this ETag or is "*"; None otherwise. The response
    repeats the ETag as the client has it, since its copy may be the compressed answer, whose ETag
    has a suffix."""
    if_none_match = request.headers.get("if-none-match", "")
    client_tags = [tag.removeprefix("W/") for tag in _TAG_OR_STAR.findall(if_none_match)]
    for tag in client_tags:
        if _etag_of_plain(tag) == etag:
            return Response(status_code=304, headers={**headers, "ETag": tag})
    if "*" in client_tags:
        return Response(status_code=304, headers={**headers, "ETag": etag})
    return None


def immutable_response(request: Request, document: dict[str, Any]) -> Response:
    """Returns a document that never changes. Its address serves as its ETag."""
    return conditional_response(request, document, address_etag(request, WHOLE))


def address_etag(request: Request, view: View) -> str:
    """Returns an ETag made from the request's path and the view, for a resource that never
    changes: "recommendations/rec_1-brief" for /v1/recommendations/rec_1 in brief."""
    address = request.scope["path"].rsplit("/v1/", 1)[-1]
    return f'"{address}{view.tag}"'
