"""The client of Shardwright, its command line and its hooks.

    from shardwright import Client

    with Client() as client:
        answer = client.check({"launch": {"arguments": open("job.sh").read()}})
        print(answer["verdict"], answer["summary"])

`Client` and `AsyncClient` have a method for each route of the service. They find it at the URL in
SHARDWRIGHT_URL, and their key in SHARDWRIGHT_KEY or in the file that SHARDWRIGHT_KEY_FILE names.
"""

from typing import TYPE_CHECKING, Any

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
from shardwright.version import VERSION

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

if TYPE_CHECKING:
    from shardwright.client.async_client import AsyncClient


def __getattr__(name: str) -> Any:
    """Imports the asynchronous client where it is asked for: the command line never does, and
    asyncio takes as long to import as all the rest."""
    if name == "AsyncClient":
        from shardwright.client.async_client import AsyncClient

        return AsyncClient
    raise AttributeError(name)
