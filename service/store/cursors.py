"""Pages of lists, and opaque cursors, which say where the next page of a list begins."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Sequence
from typing import TypeVar

from models.errors import Invalid

T = TypeVar("T")

_DIGEST_BYTES = 6  # enough to detect a cursor that was changed, cut or belongs to another list


def cut_page(
    list_name: str, rows: Sequence[T], limit: int, place_of: Callable[[T], str]
) -> tuple[Sequence[T], str | None]:
    """Returns the items of a page, and the cursor of the next page; None where this is the last
    one. `rows` has one item more than `limit` where the list goes on. `place_of` returns the
    position of an item in the list, such as its id."""
    page = rows[:limit]
    has_next = len(rows) > limit
    return page, _write_cursor(list_name, place_of(page[-1])) if has_next else None


def _write_cursor(list_name: str, last: str) -> str:
    """Returns the cursor for the place `last` in the list `list_name`: a digest and the place, in
    base64."""
    return base64.urlsafe_b64encode(_digest(list_name, last) + last.encode()).decode().rstrip("=")


def read_cursor(list_name: str, cursor: str | None) -> str | None:
    """Returns the place after which the page begins; None for the first page. Raises Invalid for a
    cursor that was changed or belongs to another list than `list_name`."""
    if cursor is None:
        return None
    try:
        # Cursors leave out the padding of base64, which is added again.
        content = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        last = content[_DIGEST_BYTES:].decode()
    except (binascii.Error, ValueError):
        last = ""
    # A cursor begins with a digest of its list and place. If the cursor for this place is another
    # one, the given cursor was changed, or is of another list.
    if not last or _write_cursor(list_name, last) != cursor:
        raise Invalid(
            "cursor", cursor, "is no cursor of this list; take it from `next` of the page before"
        )
    return last


def _digest(list_name: str, last: str) -> bytes:
    return hashlib.blake2b(f"{list_name}\n{last}".encode(), digest_size=_DIGEST_BYTES).digest()
