"""The OpenAPI document, which takes two seconds to make."""

from __future__ import annotations

from functools import cache
from typing import Any

from service.app import create_app
from service.settings import Settings


@cache
def openapi() -> dict[str, Any]:
    """Returns the OpenAPI document of the service. No database is opened for it."""
    return create_app(Settings()).openapi()
