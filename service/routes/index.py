"""/: for programs what the service offers, for browsers its first page."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse

from service.errors import NotAcceptable
from service.routes.docs import DOCS
from service.web.accept import preferred_media_type

router = APIRouter(tags=["operation"])

FIRST_PAGE = "/ask"
_JSON = "application/json"
_HTML = "text/html"
_SEE_OTHER = 303
_VARY = {"Vary": "Accept"}

_COLLECTIONS = {
    "recommendations": "/v1/recommendations",
    "predictions": "/v1/predictions",
    "checks": "/v1/checks",
    "reports": "/v1/reports",
    "benchmarks": "/v1/benchmarks",
    "profiles": "/v1/profiles",
    "evidence": "/v1/evidence",
    "chips": "/v1/catalog/chips",
    "clusters": "/v1/catalog/clusters",
    "architectures": "/v1/catalog/architectures",
    "stacks": "/v1/catalog/stacks",
}


@router.get("/", operation_id="index", response_class=JSONResponse)
def index(request: Request) -> Response:
    """Name the service, its version, its documentation and its collections. Browsers are sent to
    the first page."""
    if _prefers_html(request):
        return RedirectResponse(FIRST_PAGE, _SEE_OTHER, _VARY)
    app = request.app
    document = {"name": app.title, "version": app.version, "docs": DOCS, "openapi": app.openapi_url}
    return JSONResponse({**document, "collections": _COLLECTIONS}, headers=_VARY)


def _prefers_html(request: Request) -> bool:
    """Returns whether the Accept header prefers a web page to JSON."""
    accept = ",".join(request.headers.getlist("accept"))
    try:
        return preferred_media_type(accept, (_JSON, _HTML)) == _HTML
    except NotAcceptable:
        return False  # a client that takes neither gets JSON, as from other addresses
