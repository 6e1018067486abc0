"""/: the name of the service, and links to its documentation and collections."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from service.routes.docs import DOCS

router = APIRouter(tags=["operation"])

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


@router.get("/", operation_id="index")
def index(request: Request) -> JSONResponse:
    """The name and version of the service, its documentation and its collections."""
    app = request.app
    document = {"name": app.title, "version": app.version, "docs": DOCS, "openapi": app.openapi_url}
    return JSONResponse({**document, "collections": _COLLECTIONS})
