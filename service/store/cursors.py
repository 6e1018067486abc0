"""Opaque cursors of lists: where the next page begins."""

from __future__ import annotations

import base64
import binascii
import hashlib

from models.errors import Invalid

_DIGEST = 6  # bytes: finds a cursor that was changed, cut or belongs to another list


def write_cursor(of: str, last: str) -> str:
    """The page after `last` of the list named `of`."""
    return base64.urlsafe_b64encode(_digest(of, last) + last.encode()).decode().rstrip("=")


def read_cursor(of: str, cursor: str) -> str:
    try:
        content = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        last = content[_DIGEST:].decode()
    except (binascii.Error, ValueError):
        last = ""
    if not last or write_cursor(of, last) != cursor:
        raise Invalid(
            "cursor", cursor, "is no cursor of this list; take it from `next` of the page before"
        )
    return last


def _digest(of: str, last: str) -> bytes:
    return hashlib.blake2b(f"{of}\n{last}".encode(), digest_size=_DIGEST).digest()
