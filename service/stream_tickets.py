"""Tickets for event streams. A browser cannot send a header with an EventSource, and a key in a URL
would be logged on its way. A ticket opens one stream, for a short time, and nothing else."""

from __future__ import annotations

from datetime import datetime, timedelta

from service.api_keys import Caller
from service.signed_tokens import caller_of_token, new_token
from service.store import Store

LIFETIME = timedelta(minutes=1)  # long enough to connect; a stream that is open stays open
_ENDED = "The ticket has ended, or is for another stream: POST /v1/stream-tickets gives a new one."


def new_ticket(store: Store, caller: Caller, path: str) -> tuple[str, datetime] | None:
    """Returns a ticket for the event stream at this path, and the time at which it ends; None where
    the service asks for no keys."""
    if caller.key_id is None:
        return None
    return new_token(store, caller.key_id, _purpose(path), LIFETIME)


def caller_of_ticket(store: Store, ticket: str, path: str) -> Caller:
    """Returns the caller whose key a ticket was made from. Raises Unauthenticated unless the ticket
    is for this path and in force."""
    return caller_of_token(store, ticket, _purpose(path), _ENDED)


def _purpose(path: str) -> str:
    return f"stream {path}"
