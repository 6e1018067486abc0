"""Sends answers as the bytes in which they are stored. A *view* of an answer is the whole of it or
its brief form (service.web.preferences)."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from service.store.answer_text import AnswerText
from service.web.compression import accepts_gzip
from service.web.etags import address_etag, not_modified_response
from service.web.preferences import WHOLE, View

_JSON = "application/json"


def text_response(
    request: Request,
    text: AnswerText,
    view: View = WHOLE,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Returns a view of a stored answer. The whole answer is sent in its stored bytes, compressed
    for clients that accept gzip."""
    headers = {**view.headers, **(headers or {})}
    if view.shorten is not None:
        return JSONResponse(view.shown(text.document), status, headers)
    if not accepts_gzip(request.headers):
        return Response(text.plain, status, headers, _JSON)
    # For an answer that is sent plain the compression middleware adds this header.
    headers["Vary"] = ", ".join(filter(None, (headers.get("Vary"), "Accept-Encoding")))
    headers["Content-Encoding"] = "gzip"
    return Response(text.compressed, status, headers, _JSON)


def immutable_text_response(
    request: Request, text: AnswerText, view: View = WHOLE, etag: str | None = None
) -> Response:
    """Returns a view of an answer that never changes, or 304 where If-None-Match has its ETag. By
    default the address serves as the ETag."""
    etag = etag or address_etag(request, view)
    not_modified = not_modified_response(request, etag, view.headers)
    return not_modified or text_response(request, text, view, headers={"ETag": etag})
