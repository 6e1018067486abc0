"""Lists: the next page is linked in the body and in the header (RFC 8288)."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse


def page(request: Request, document: dict[str, Any]) -> JSONResponse:
    if document["next"] is None:
        return JSONResponse(document)
    following = request.url.include_query_params(cursor=document["next"])
    return JSONResponse(
        document, headers={"Link": f'<{following.path}?{following.query}>; rel="next"'}
    )
