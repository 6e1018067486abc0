"""ETags and conditional requests (RFC 9110 §13)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from service.errors import BadHeader
from service.web.preferences import WHOLE, Form

_ENTITY_TAG = r'(?:W/)?"[^"\s]*"'
_TAG_OR_STAR = re.compile(rf"{_ENTITY_TAG}|\*")
GZIP_SUFFIX = "-gzip"
"""Ending that the ETag of a compressed answer has beyond that of the plain one."""
_HEADER = re.compile(rf"[ \t]*(?:\*|{_ENTITY_TAG}(?:[ \t]*,[ \t]*{_ENTITY_TAG})*)[ \t]*")


def parse_entity_tags(header: str) -> list[str]:
    """Returns the entity tags of an If-Match or If-None-Match header, those of compressed answers
    as those of the plain ones: both are of the same state."""
    return [_plain(tag) for tag in _TAG_OR_STAR.findall(header)]


def _plain(tag: str) -> str:
    return tag.removesuffix(f'{GZIP_SUFFIX}"') + '"' if tag.endswith(f'{GZIP_SUFFIX}"') else tag


def parse_if_match(if_match: str) -> list[str]:
    """Returns the entity tags of an If-Match header. Raises BadHeader where it cannot be read,
    because it would then not guard the change that it comes with."""
    if not _HEADER.fullmatch(if_match):
        raise BadHeader(
            "If-Match", 'must be * or a list of ETags, each in double quotes, such as "default-3"'
        )
    return parse_entity_tags(if_match)


def conditional_response(
    request: Request, document: dict[str, Any], etag: str, form: Form = WHOLE
) -> Response:
    """Returns the document with its ETag, or 304 where If-None-Match says that the client has it.
    That comparison is weak (RFC 9110 §13.1.2)."""
    seen = not_modified_response(request, etag, form.headers)
    return seen or JSONResponse(form.of(document), headers={**form.headers, "ETag": etag})


def content_response(request: Request, content: bytes, media_type: str) -> Response:
    """Returns a content in the media type that the Accept header asked for, with its digest as its
    ETag, or 304 where the client has it."""
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {"Vary": "Accept"}
    seen = not_modified_response(request, etag, headers)
    return seen or Response(content, 200, {**headers, "ETag": etag}, media_type)


def not_modified_response(
    request: Request, etag: str, headers: Mapping[str, str]
) -> Response | None:
    """Returns a 304 where the client has this state, with the ETag of what the client has."""
    if_none_match = request.headers.get("if-none-match", "")
    seen = [tag.removeprefix("W/") for tag in _TAG_OR_STAR.findall(if_none_match)]
    for tag in seen:
        if _plain(tag) == etag:
            return Response(status_code=304, headers={**headers, "ETag": tag})
    if "*" in seen:
        return Response(status_code=304, headers={**headers, "ETag": etag})
    return None


def immutable_response(request: Request, document: dict[str, Any], form: Form = WHOLE) -> Response:
    """Returns a response with a form of a document that never changes, so that its address serves
    as its ETag."""
    return conditional_response(request, document, address_etag(request, form), form)


def address_etag(request: Request, form: Form) -> str:
    """Returns the ETag of a form of what lies at the address of the request and never changes."""
    address = request.scope["path"].rsplit("/v1/", 1)[-1]
    return f'"{address}{form.tag}"'
