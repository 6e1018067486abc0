"""HTTP as both clients speak it."""

from __future__ import annotations

from typing import Any

from shardwright.client.settings import ClientSettings
from shardwright.version import VERSION


def http_options(settings: ClientSettings) -> dict[str, Any]:
    """Returns the options of an httpx client. httpx takes proxies from the environment."""
    headers = {"User-Agent": f"shardwright/{VERSION}"}
    if settings.key is not None:
        headers["Authorization"] = f"Bearer {settings.key}"
    return {"base_url": settings.url, "headers": headers, "timeout": settings.timeout_s}
