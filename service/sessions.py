"""Sessions of browsers. A session is made from an API key and stands for it on the web pages, but
is no key: it is a signed token that ends by itself (service.signed_tokens)."""

from __future__ import annotations

from datetime import timedelta

from service.api_keys import Caller, caller_of
from service.signed_tokens import caller_of_token, new_token
from service.store import Store

LIFETIME = timedelta(hours=12)  # a working day: who left a browser open is asked again tomorrow
_PURPOSE = "session"
_ENDED = "The session has ended: sign in again."


def new_session(store: Store, key: str) -> str:
    """Returns a new session of the holder of this key. Raises Unauthenticated unless the key is in
    force."""
    caller = caller_of(store, [f"Bearer {key}"])
    session, _ = new_token(store, caller.key_id or "", _PURPOSE, LIFETIME)
    return session


def caller_of_session(store: Store, session: str) -> Caller:
    """Returns the caller whose key a session was made from. Raises Unauthenticated where the
    session is forged or has ended, or its key is not in force."""
    return caller_of_token(store, session, _PURPOSE, _ENDED)
