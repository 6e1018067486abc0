"""Queries of sweeps and their items.

A *sweep* asks about every combination of what its request lists, and an *item* is one combination.
A worker computes an item while it holds a *lease* on it, which runs out unless it is renewed. Each
finished item is an *event* of its sweep, numbered from 1.

Whoever changes the items of a sweep locks the sweep first, so that its counts are right and no two
transactions wait for each other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    CursorResult,
    and_,
    delete,
    func,
    insert,
    or_,
    select,
    tuple_,
    update,
)

from service.store.queries import Queries, newest_first
from service.store.quota import SWEEP_ITEM_BYTES, count_stored, size_of
from service.store.tables import SweepItemRow, SweepRow

_WAITS = SweepItemRow.outcome.is_(None)


@dataclass(frozen=True, slots=True)
class LeasedItem:
    """An item of a sweep that a worker computes while it holds a lease on it."""

    sweep_id: str
    position: int
    attempts: int
    """Attempts to compute the item, this one included."""


class SweepQueries(Queries):
    def add(self, sweep: SweepRow) -> None:
        """Stores a sweep with all of its items, which then wait to be computed. The quota counts
        them at once, with room for their results, so that a sweep never stops at it half-way."""
        items_bytes = sweep.total * SWEEP_ITEM_BYTES
        sweep.stored_bytes = items_bytes + size_of(sweep.request, sweep.names)
        count_stored(self._session, self._tenant, sweep.stored_bytes)
        self._session.add(sweep)
        self._session.flush()
        items = [
            {"sweep_id": sweep.id, "position": position, "attempts": 0}
            for position in range(sweep.total)
        ]
        self._session.execute(insert(SweepItemRow), items)

    def find(self, id_: str) -> SweepRow | None:
        return self._session.get(SweepRow, id_)

    def get(self, id_: str) -> SweepRow:
        return self._row(SweepRow, id_, "sweep")

    def newest(self, limit: int, before: str | None) -> Sequence[SweepRow]:
        """Returns the newest sweeps, newest first, starting after the id `before`."""
        query = newest_first(select(SweepRow), SweepRow.id, limit, before)
        return self._session.scalars(query).all()

    def outcomes(self, ids: Sequence[str]) -> dict[str, dict[str | None, int]]:
        """Returns the number of items by sweep and outcome. The outcome None stands for items that
        wait or are being computed."""
        columns = SweepItemRow.sweep_id, SweepItemRow.outcome, func.count()
        query = select(*columns).where(SweepItemRow.sweep_id.in_(ids)).group_by(*columns[:2])
        counts: dict[str, dict[str | None, int]] = {id_: {} for id_ in ids}
        for id_, outcome, count in self._session.execute(query):
            counts[id_][outcome] = count
        return counts

    def items(
        self, id_: str, outcome: str | None, limit: int, after: int
    ) -> Sequence[SweepItemRow]:
        """Returns items of a sweep in the order of their positions, beginning after position
        `after`. The outcome "waiting" selects items without one."""
        query = select(SweepItemRow).where(
            SweepItemRow.sweep_id == id_, SweepItemRow.position > after
        )
        if outcome is not None:
            query = query.where(_WAITS if outcome == "waiting" else SweepItemRow.outcome == outcome)
        return self._session.scalars(query.order_by(SweepItemRow.position).limit(limit)).all()

    def progress(self, ids: Collection[str]) -> dict[str, tuple[int, int]]:
        """Returns (number of events, number of waiting items) by the id of the sweep. Sweeps that
        do not exist are left out."""
        query = select(SweepRow.id, SweepRow.events, SweepRow.waiting).where(SweepRow.id.in_(ids))
        return {id_: (events, waiting) for id_, events, waiting in self._session.execute(query)}

    def finished_after(self, id_: str, event: int, limit: int) -> Sequence[SweepItemRow]:
        """Returns the items that were finished after event number `event`, in the order of
        events."""
        query = select(SweepItemRow).where(SweepItemRow.sweep_id == id_, SweepItemRow.event > event)
        return self._session.scalars(query.order_by(SweepItemRow.event).limit(limit)).all()

    def remove(self, id_: str) -> None:
        """Removes a sweep and its items. Results that come later find nothing to be stored in."""
        sweep = self._lock(id_)
        count_stored(self._session, sweep.tenant, -sweep.stored_bytes)
        self._session.execute(delete(SweepItemRow).where(SweepItemRow.sweep_id == id_))
        self._session.delete(sweep)

    def cancel(self, id_: str, now: datetime) -> SweepRow:
        """Cancels the items that wait or are being computed. Changes nothing if all items are
        done."""
        sweep = self._lock(id_)
        if sweep.waiting:
            self._change(id_, _WAITS, outcome="cancelled", lease=None, leased_until=None)
            sweep.waiting = 0
            sweep.cancelled_at = sweep.finished_at = now
        return sweep

    def retry(self, id_: str) -> SweepRow:
        """Makes items that failed or were cancelled wait again."""
        sweep = self._lock(id_)
        again = SweepItemRow.outcome.in_(("failed", "cancelled"))
        reset = {"outcome": None, "result": None, "event": None, "attempts": 0}
        if count := self._change(id_, again, **reset):
            sweep.waiting += count
            sweep.cancelled_at = sweep.finished_at = None
        return sweep

    def waiting(self) -> int:
        """Returns the number of items, over all sweeps, that wait or are being computed."""
        return self._session.scalars(select(func.coalesce(func.sum(SweepRow.waiting), 0))).one()

    def any_free(self, now: datetime) -> bool:
        """Returns whether an item waits that nobody holds a lease on."""
        return self._session.execute(_unleased_items(now).limit(1)).first() is not None

    def lease(self, lease: str, now: datetime, until: datetime, limit: int) -> list[LeasedItem]:
        """Leases at most `limit` items that nobody holds, under the id `lease`. Low positions come
        first, so that a small sweep does not wait behind a large one. Items that other transactions
        lease now are skipped."""
        free = _unleased_items(now).limit(limit).with_for_update(skip_locked=True)
        leased: list[LeasedItem] = []
        for item in self._session.scalars(free).all():
            item.lease = lease
            item.leased_until = until
            item.attempts += 1
            leased.append(LeasedItem(item.sweep_id, item.position, item.attempts))
        return leased

    def renew(self, lease: str, items: Sequence[LeasedItem], until: datetime) -> None:
        """Extends the leases of those items that are still leased."""
        for row in self._held_rows(lease, items):
            row.leased_until = until

    def release(self, lease: str, items: Sequence[LeasedItem], *, is_attempt: bool) -> None:
        """Gives up the leases of items that are not finished. Unless `is_attempt`, the attempt to
        compute each of them is not counted: it ended for a reason that lies
        outside the item."""
        for row in self._held_rows(lease, items):
            row.lease = row.leased_until = None
            if not is_attempt:
                row.attempts -= 1  # `lease` has counted it

    def _held_rows(self, lease: str, items: Sequence[LeasedItem]) -> Sequence[SweepItemRow]:
        """Returns the rows of those items that `lease` still holds. A row that another transaction
        changes is skipped rather than waited for."""
        keys = tuple_(SweepItemRow.sweep_id, SweepItemRow.position)
        is_held = keys.in_([(item.sweep_id, item.position) for item in items])
        query = select(SweepItemRow).where(is_held, SweepItemRow.lease == lease, _WAITS)
        return self._session.scalars(query.with_for_update(skip_locked=True)).all()

    def finish(
        self, lease: str, item: LeasedItem, outcome: str, result: dict[str, Any], now: datetime
    ) -> bool:
        """Stores the result of an item, unless the lease is lost: then another worker has the item,
        or it was cancelled. Returns whether the result was stored."""
        sweep = self._session.get(SweepRow, item.sweep_id, with_for_update=True)
        if sweep is None:  # it has been removed
            return False
        values = {
            "outcome": outcome,
            "result": result,
            "event": sweep.events + 1,  # by which watchers ask for what was finished since
            "lease": None,
            "leased_until": None,
        }
        is_still_leased = (
            SweepItemRow.position == item.position,
            SweepItemRow.lease == lease,
            _WAITS,
        )
        if not self._change(item.sweep_id, and_(*is_still_leased), **values):
            return False
        sweep.events += 1
        sweep.waiting -= 1
        if sweep.waiting == 0:
            sweep.finished_at = now
        return True

    def _lock(self, id_: str) -> SweepRow:
        return self._row(SweepRow, id_, "sweep", with_for_update=True)

    def _change(self, id_: str, which: ColumnElement[bool], **values: Any) -> int:
        """Changes the items of a sweep that meet the condition `which`. Returns their number."""
        statement = update(SweepItemRow).where(SweepItemRow.sweep_id == id_, which).values(**values)
        # Callers have loaded no items, so the session has none to bring up to date.
        result = self._session.execute(statement, execution_options={"synchronize_session": False})
        return result.rowcount if isinstance(result, CursorResult) else 0


def _unleased_items(now: datetime) -> Any:
    """Returns the query of waiting items that a worker may lease, because they have no lease or it
    has run out; lowest positions first."""
    return (
        select(SweepItemRow)
        .where(_WAITS, or_(SweepItemRow.leased_until.is_(None), SweepItemRow.leased_until < now))
        .order_by(SweepItemRow.position, SweepItemRow.sweep_id)
    )
