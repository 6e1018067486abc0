"""Tokens that stand for an API key and cannot be used as one. A token is made from a key for one
*purpose*, such as a browser's session. It ends at a set time, or with its key before.

It reads <key's id>.<when it ends>.<signature>, and nothing of it is stored: the signature is made
with the hash of the key's secret, which only the database has.
"""

from __future__ import annotations

import hmac
from datetime import UTC, datetime, timedelta
from hashlib import sha256

from service.api_keys import Caller, caller_in_force, stored_key
from service.errors import Unauthenticated
from service.store import Store


def new_token(store: Store, key_id: str, purpose: str, lifetime: timedelta) -> tuple[str, datetime]:
    """Returns a token of a key for one purpose, and the time at which it ends. Raises
    Unauthenticated where there is no such key."""
    ends = datetime.now(UTC).replace(microsecond=0) + lifetime
    secret_hash = stored_key(store, key_id).secret_hash
    at = int(ends.timestamp())
    return f"{key_id}.{at}.{_signature(secret_hash, purpose, key_id, at)}", ends


def caller_of_token(store: Store, token: str, purpose: str, ended_message: str) -> Caller:
    """Returns the caller whose key a token was made from. Raises Unauthenticated with
    `ended_message` where the token is forged, for another purpose or past its end, or its key is
    not in force."""
    id_, _, rest = token.partition(".")
    ends, _, signature = rest.partition(".")
    if not (ends.isascii() and ends.isdigit() and len(ends) <= 12):
        raise Unauthenticated(ended_message)
    key = store.memory.unchanged(("key", id_)) or stored_key(store, id_)
    now = datetime.now(UTC)
    # compare_digest takes the same time wherever the two differ, so that none can be guessed.
    is_ours = hmac.compare_digest(
        signature.encode(), _signature(key.secret_hash, purpose, id_, int(ends)).encode()
    )
    if not is_ours or int(ends) <= now.timestamp():
        raise Unauthenticated(ended_message)
    return caller_in_force(key, now)


def _signature(secret_hash: str, purpose: str, id_: str, ends: int) -> str:
    """Returns the signature of a token, made with the hash of the key's secret, in hexadecimal."""
    return hmac.new(secret_hash.encode(), f"{purpose} {id_} {ends}".encode(), sha256).hexdigest()
