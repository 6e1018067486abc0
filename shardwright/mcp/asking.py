"""The way of a tool to the service: with the key of whoever calls it, and errors that an agent can
act on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError

from shardwright.client.async_client import AsyncClient
from shardwright.client.errors import Problem, ShardwrightError
from shardwright.client.settings import ClientSettings

_BEARER = "bearer "


@asynccontextmanager
async def asking(context: Context) -> AsyncIterator[AsyncClient]:
    """Yields a client for the block. Over HTTP it uses the caller's key, and over stdio that of the
    environment. A refusal of the service becomes a ToolError."""
    try:
        async with AsyncClient(_settings(context)) as client:
            yield client
    except Problem as problem:
        reasons = [str(error) for error in problem.errors]
        raise ToolError("\n".join([problem.detail, *reasons[1:]])) from None
    except (ShardwrightError, OSError, ValueError) as error:
        raise ToolError(str(error)) from None


def _settings(context: Context) -> ClientSettings:
    """Returns the settings of the client, with the caller's key over HTTP."""
    settings = ClientSettings.from_environment()
    headers = context.headers
    if headers is None:
        return settings
    # The key of the environment is that of whoever runs this server, and no caller's.
    given = headers.get("authorization", "")
    key = given[len(_BEARER) :] if given.lower().startswith(_BEARER) else None
    return replace(settings, key=key)


def given(**parts: Any) -> dict[str, Any]:
    """Returns the arguments that are neither None, an empty text nor an empty object, by name."""
    return {name: value for name, value in parts.items() if value not in (None, {}, "")}
