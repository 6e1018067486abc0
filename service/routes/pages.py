"""Pages of lists. The next page is named in the body, and linked in the header (RFC 8288)."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse


def page_response(request: Request, document: dict[str, Any]) -> JSONResponse:
    if document["next"] is None:
        return JSONResponse(document)
    next_url = request.url.include_query_params(cursor=document["next"])
    return JSONResponse(
        document, headers={"Link": f'<{next_url.path}?{next_url.query}>; rel="next"'}
    )
