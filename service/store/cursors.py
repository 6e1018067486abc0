"""Opaque cursors, which say where the next page of a list begins."""

from __future__ import annotations

import base64
import binascii
import hashlib

from models.errors import Invalid

_DIGEST_BYTES = 6  # enough to detect a cursor that was changed, cut or belongs to another list


def write_cursor(of: str, last: str) -> str:
    """The cursor of the page that follows the id `last` in the list named `of`."""
    return base64.urlsafe_b64encode(_digest(of, last) + last.encode()).decode().rstrip("=")


def read_cursor(of: str, cursor: str) -> str:
    """The id after which the page begins. Raises Invalid for a cursor of another list."""
    try:
        content = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        last = content[_DIGEST_BYTES:].decode()
    except (binascii.Error, ValueError):
        last = ""
    if not last or write_cursor(of, last) != cursor:
        raise Invalid(
            "cursor", cursor, "is no cursor of this list; take it from `next` of the page before"
        )
    return last


def _digest(of: str, last: str) -> bytes:
    return hashlib.blake2b(f"{of}\n{last}".encode(), digest_size=_DIGEST_BYTES).digest()
