"""The limit on the bytes that a tenant may store.

Every transaction adds up what it stores and removes, and changes the count of the tenant in one
statement, just before it commits. Nothing is counted anew, and other requests of the tenant wait
for that moment only. A row says how many bytes it was counted for, so that whoever removes it gives
them back.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from sqlalchemy import BigInteger, String, bindparam, case, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from service.errors import StorageFull
from service.store.encoded_document import EncodedDocument
from service.store.prepared import execute, first_row
from service.store.tables import MAX_STORED, STORED, Table, TenantStorageRow

Part = bytes | str | dict[str, Any] | EncodedDocument
"""A text or a document of a row."""
ROW_BYTES = 512
"""Bytes of a row besides its documents: its other columns and its entries in indexes."""
SWEEP_ITEM_BYTES = 2048
"""Bytes of an item of a sweep with its result, which takes half of this. Every item counts from the
beginning, so that a sweep never runs into the limit on its way."""

_NO_LIMIT = 2**63 - 1  # the largest that the column holds
_NOBODY = ""
"""The name under which is counted what no tenant owns; no tenant has it."""
_TABLE = Table.metadata.tables[TenantStorageRow.__tablename__]


def size_of(*parts: Part | None) -> int:
    """Returns the bytes that a row with these texts and documents counts for. Its other columns
    and its entries in indexes count as ROW_BYTES."""
    return ROW_BYTES + sum(map(_bytes_of, parts))


def _bytes_of(part: Part | None) -> int:
    """Returns the bytes that a value takes in a column."""
    if part is None:
        return 0
    if isinstance(part, EncodedDocument):
        return len(part.text)
    if isinstance(part, dict):
        return len(json.dumps(part))  # which is ASCII, as in the database
    return len(part.encode() if isinstance(part, str) else part)


def count_stored(session: Session, tenant: str | None, change: int) -> None:
    """Counts the bytes that this transaction stores for a tenant, or for nobody (None). A negative
    `change` is what it removes. `settle` stores the count just before the commit."""
    changes: Counter[str] = session.info.setdefault(STORED, Counter())
    changes[tenant or _NOBODY] += change


def settle(session: Session) -> None:
    """Stores the counts of the tenants for which this transaction has stored or removed something.
    Raises StorageFull if a tenant would have more than it may."""
    changes: Counter[str] = session.info.pop(STORED, Counter())
    limit = session.info.get(MAX_STORED)
    for tenant, change in sorted(changes.items()):  # in one order, so that no two wait in a circle
        if change > 0:
            _add(session, tenant, change, limit)
        elif change < 0:
            execute(session, _GIVE_BACK, {"of": tenant, "removed": -change})


def stored_bytes(session: Session, tenant: str | None) -> int:
    """Returns the number of bytes that a tenant has stored."""
    row = first_row(session, _STORED, {"of": tenant or _NOBODY})
    return 0 if row is None else row.bytes


def _add(session: Session, tenant: str, added: int, limit: int | None) -> None:
    """Adds bytes to a tenant's count. Raises StorageFull if it would then be over `limit`."""
    limit = _NO_LIMIT if limit is None else limit
    # The statement adds to a count only if it is at most `most`, but begins a new count in any
    # case: what a tenant stores first is compared with the limit here.
    if added <= limit:
        dialect = session.get_bind().dialect.name
        values = {"tenant": tenant, "bytes": added, "most": limit - added}
        if first_row(session, _ADD[dialect], values) is not None:
            return
    raise StorageFull(used=stored_bytes(session, tenant), added=added, limit=limit)


def _adding_to_count(insert: Any) -> Any:
    """Returns the SQL statement that adds to a tenant's count, and begins the count if there is
    none. It returns no row and changes nothing if the count is above `most` already."""
    return insert.on_conflict_do_update(
        index_elements=[_TABLE.c.tenant],
        set_={"bytes": _TABLE.c.bytes + insert.excluded.bytes},
        where=_TABLE.c.bytes <= bindparam("most", type_=BigInteger()),
    ).returning(_TABLE.c.bytes)


# Made once, since making a statement takes longer than executing it.

_ADD = {
    "sqlite": _adding_to_count(sqlite.insert(_TABLE)),
    "postgresql": _adding_to_count(postgresql.insert(_TABLE)),
}
_OF_TENANT = _TABLE.c.tenant == bindparam("of", type_=String())
_REMOVED = bindparam("removed", type_=BigInteger())
_STORED = select(_TABLE.c.bytes).where(_OF_TENANT)
_GIVE_BACK = (
    update(_TABLE)
    .where(_OF_TENANT)
    .values(bytes=case((_TABLE.c.bytes > _REMOVED, _TABLE.c.bytes - _REMOVED), else_=0))
)
