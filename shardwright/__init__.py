"""The client of Shardwright, its command line and its hooks.

    from shardwright import Client

    with Client() as client:
        answer = client.check({"launch": {"arguments": open("job.sh").read()}})
        print(answer["verdict"], answer["summary"])

`Client` and `AsyncClient` have a method for each route of the service. They find it at the URL in
SHARDWRIGHT_URL, and their key in SHARDWRIGHT_KEY or in the file that SHARDWRIGHT_KEY_FILE names.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shardwright.version import VERSION

if TYPE_CHECKING:
    from shardwright.client.async_client import AsyncClient
    from shardwright.client.client import Client
    from shardwright.client.errors import (
        Conflict,
        FieldError,
        Forbidden,
        Invalid,
        NotFound,
        Overloaded,
        Problem,
        ShardwrightError,
        TimedOut,
        Unauthorized,
        Unreachable,
        UnreadableAnswer,
    )
    from shardwright.client.events import Event
    from shardwright.client.settings import ClientSettings

__all__ = [
    "AsyncClient",
    "Client",
    "ClientSettings",
    "Conflict",
    "Event",
    "FieldError",
    "Forbidden",
    "Invalid",
    "NotFound",
    "Overloaded",
    "Problem",
    "ShardwrightError",
    "TimedOut",
    "Unauthorized",
    "UnreadableAnswer",
    "Unreachable",
]
__version__ = VERSION
_MODULES = {
    "AsyncClient": "async_client",
    "Client": "client",
    "ClientSettings": "settings",
    "Event": "events",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first asked for. Importing httpx takes longer than a hook
    has, and a hook may need only the name of an exception."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"shardwright.client.{_MODULES.get(name, 'errors')}"), name)
