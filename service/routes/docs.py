"""/docs: Swagger UI, served from files that are installed with the service."""

from __future__ import annotations

from importlib.resources import files

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles

DOCS = "/docs"
_FILES = f"{DOCS}/static"


def install(app: FastAPI) -> None:
    """Adds the documentation page and its files to the application."""
    page = get_swagger_ui_html(
        openapi_url=app.openapi_url or "",
        title=app.title,
        swagger_js_url=f"{_FILES}/swagger-ui-bundle.js",
        swagger_css_url=f"{_FILES}/swagger-ui.css",
        swagger_favicon_url=f"{_FILES}/favicon.png",
    )

    @app.get(DOCS, include_in_schema=False)
    def docs() -> HTMLResponse:
        return page

    app.mount(_FILES, StaticFiles(directory=str(files("fastapi_offline") / "static")))
