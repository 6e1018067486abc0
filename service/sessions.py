"""Sessions of browsers. A session is made from an API key, stands for it on the pages, and cannot
be used as one. It ends with its key, or by itself.

It reads <key's id>.<when it ends>.<signature>, and nothing of it is stored: the signature is made
with the hash of the key's secret, which only the database has.
"""

from __future__ import annotations

import hmac
from datetime import UTC, datetime, timedelta
from hashlib import sha256

from service.api_keys import Caller, caller_in_force, caller_of, stored_key
from service.errors import Unauthenticated
from service.store import Store

LASTS = timedelta(hours=12)  # a working day: who left a browser open is asked again tomorrow
_ENDED = "The session has ended: sign in again."


def new_session(store: Store, key: str) -> str:
    """A session of whoever holds this key. Raises Unauthenticated unless the key is in force."""
    caller = caller_of(store, [f"Bearer {key}"])
    id_ = caller.key_id or ""
    ends = int((datetime.now(UTC) + LASTS).timestamp())
    return f"{id_}.{ends}.{_signature(stored_key(store, id_).secret_hash, id_, ends)}"


def caller_of_session(store: Store, session: str) -> Caller:
    """The caller whose key a session was made from. Raises Unauthenticated where the session is
    none of ours or has ended, or its key is no longer in force."""
    id_, _, rest = session.partition(".")
    ends, _, signature = rest.partition(".")
    if not (ends.isascii() and ends.isdigit() and len(ends) <= 12):
        raise Unauthenticated(_ENDED)
    key = store.memory.at_hand(("key", id_)) or stored_key(store, id_)
    now = datetime.now(UTC)
    # compare_digest takes the same time wherever the two differ, so that none can be guessed.
    is_ours = hmac.compare_digest(
        signature.encode(), _signature(key.secret_hash, id_, int(ends)).encode()
    )
    if not is_ours or int(ends) <= now.timestamp():
        raise Unauthenticated(_ENDED)
    return caller_in_force(key, now)


def _signature(secret_hash: str, id_: str, ends: int) -> str:
    return hmac.new(secret_hash.encode(), f"session {id_} {ends}".encode(), sha256).hexdigest()
