"""Opaque cursors of lists: where the next page begins."""

from __future__ import annotations

import base64
import binascii

from models.errors import Invalid


def write_cursor(last: str) -> str:
    return base64.urlsafe_b64encode(last.encode()).decode().rstrip("=")


def read_cursor(cursor: str) -> str:
    try:
        last = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        last = ""
    if not last.isprintable() or not last:
        raise Invalid("cursor", cursor, "is no cursor of this list")
    return last
